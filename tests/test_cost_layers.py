"""Lists of operations: FLOPs, bytes kept and bytes sent against hand counts; shares of ranks add up to the
whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cost.flops import active_block_params, mixing_flops, model_flops
from meshwright.cost.layer import (
    LayerCost,
    beyond,
    exposed,
    launched,
    layer_cost,
    message_seconds,
    priced,
    shape_of,
)
from meshwright.cost.layers import ends, operations
from meshwright.cost.layers.attention import attended
from meshwright.cost.ops import Core, Matmul, Message, Operation, Stream, Words, matmul_passes
from meshwright.cost.rows import SUMS
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.model.params import block_params
from meshwright.model.records import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Model,
    Moe,
    ShortConv,
)
from meshwright.profiles.load import load
from meshwright.strategy.placement import spans
from meshwright.strategy.recompute import parse as recompute_word
from meshwright.strategy.records import Strategy

S, B = 4096, 2
T = S * B
CLUSTER = parse("64xh100")
PROFILE = load("megatron-core", CLUSTER.chip)

LLAMA = Block(Attention(32, 8, 128), Mlp(14336))
GPT = Block(Attention(16, 16, 64), Mlp(4096, gated=False))
EXPERTS = Block(Attention(32, 4, 128), Moe(128, 8, 768, shared_d_ff=1024))
LATENT = Block(LatentAttention(128, 1536, 512, 128, 64, 128), Mlp(18432))
SSD = Block(Mamba2(5120, 128, 4, 80, 64, 8), None, n_norms=1)
SCAN = Block(Mamba1(8192, 16, 4, 256), None, n_norms=1)
DELTA = Block(LinearAttention("gated_deltanet", 16, 32, 128, 128, 4), None, n_norms=1)
CONV = Block(ShortConv(3), Mlp(7168))
H = {
    "llama": 4096,
    "gpt": 1024,
    "moe": 2048,
    "mla": 7168,
    "mamba2": 2560,
    "mamba1": 4096,
    "delta": 2048,
    "conv": 2048,
}
BLOCKS = {
    "llama": LLAMA, "gpt": GPT, "moe": EXPERTS, "mla": LATENT,
    "mamba2": SSD, "mamba1": SCAN, "delta": DELTA, "conv": CONV,
}  # fmt: skip


def words(**changed: Any) -> Words:
    plain = Words(
        sp=True, cp_method="ring", precision="bf16", flash=True, regathers_input=True,
        dispatcher="all-to-all", imbalance=1.0, loss="whole", fused_experts=False,
    )  # fmt: skip
    return replace(plain, **changed)


def model(name: str) -> Model:
    return Model(name, H[name], 32000, (BLOCKS[name],), (0,))


def ops(
    name: str, *, tp: Any = 1, cp: Any = 1, ep: Any = 1, etp: Any = 1, said: Words | None = None
) -> tuple[Operation, ...]:
    return operations(BLOCKS[name], model(name), shape_of(S, B, tp, cp, ep, etp), said or words())


def flops(listed: tuple[Operation, ...]) -> Any:
    return products(listed) + sum(op.flops for op in listed if isinstance(op, Core))


def products(listed: tuple[Operation, ...]) -> Any:
    return sum(2.0 * op.m * op.k * op.n * op.groups for op in listed if isinstance(op, Matmul))


def kept(listed: tuple[Operation, ...]) -> Any:
    return sum(op.saved for op in listed if not isinstance(op, Message))


def cost(
    name: str, recompute: str = "none", *, said: Words | None = None, whole: bool = False,
    options: frozenset[str] = frozenset(), **degrees: int,
) -> LayerCost:  # fmt: skip
    strategy = Strategy(dp=64 // int(np.prod([degrees.get(a, 1) for a in ("tp", "cp")])), **degrees)
    return layer_cost(
        ops(name, said=said, **degrees), said or words(), spans(CLUSTER, strategy), CLUSTER.chip, PROFILE,
        recompute_word(recompute), options, whole=whole,
    )  # fmt: skip


# --- FLOPs by hand -----------------------------------------------------------------------------------------


def test_llama_block_flops() -> None:
    h, a, k, d, f = 4096, 32, 8, 128, 14336
    by_hand = 2 * T * h * d * (a + 2 * k) + 2 * T * a * d * h + 2 * T * S * a * d + 6 * T * h * f
    assert flops(ops("llama")) == by_hand


def test_gpt_block_flops_unfused_counts_the_whole_square() -> None:
    h, a, d, f = 1024, 16, 64, 4096
    projections = 8 * T * h * a * d + 4 * T * h * f
    assert flops(ops("gpt")) == projections + 2 * T * S * a * d
    assert flops(ops("gpt", said=words(flash=False))) == projections + 4 * T * S * a * d


def test_moe_block_flops() -> None:
    h, a, k, d = 2048, 32, 4, 128
    attention = 2 * T * h * d * (a + 2 * k) + 2 * T * a * d * h + 2 * T * S * a * d
    experts = 6 * T * h * 8 * 768 + 6 * T * h * 1024 + 2 * T * h * 128
    assert flops(ops("moe")) == attention + experts


def test_latent_moe_runs_its_experts_on_the_latent_width() -> None:
    h, z, e, top, f = 2048, 512, 64, 4, 1024
    block = Block(None, Moe(e, top, f, latent_dim=z), n_norms=1)
    listed = operations(block, Model("z", h, 32000, (block,), (0,)), shape_of(S, B, 1, 1, 1, 1), words())
    assert flops(listed) == 6 * T * z * top * f + 2 * T * h * e + 4 * T * h * z


def test_mla_block_flops() -> None:
    h, a, rq, rkv, dn, dr, dv, f = 7168, 128, 1536, 512, 128, 64, 128, 18432
    projections = 2 * T * (rq * (h + a * (dn + dr)) + rkv * (h + a * (dn + dv)) + h * dr + a * dv * h)
    assert flops(ops("mla")) == projections + T * S * a * (dn + dr + dv) + 6 * T * h * f


def test_whole_heads_of_mla_are_joined_in_plain_operations_unless_compiled() -> None:
    """Of a head 10 x 64 to turn, 2 x 192 to write q anew, 2 x 128 read and 192 + 128 written of k and v."""
    plain, joined = (
        next(op for op in ops("mla", said=words(compiled=c)) if op.name == "rope") for c in (False, True)
    )
    assert isinstance(plain, Stream)
    assert isinstance(joined, Stream)
    assert (plain.forward, plain.fusible) == (2 * T * 128 * (640 + 384 + 256 + 320), False)
    assert (joined.forward, joined.fusible) == (2 * T * 128 * (128 + 256 + 320), True)


def test_biases_of_experts_are_added_in_fp32_one_expert_after_another() -> None:
    """28 bytes an element of what all experts give, and 40 backward; none without biases or compiled."""
    biased = Block(None, replace(EXPERTS.ffn, bias=True))  # type: ignore[type-var]

    def added(block: Block, ep: int = 1, **said: Any) -> list[Operation]:
        listed = operations(block, model("moe"), shape_of(S, B, 1, 1, ep, 1), words(**said))
        return [op for op in listed if op.name == "expert_bias"]

    (one,) = added(biased)
    assert isinstance(one, Stream)
    assert one.forward / 28 == one.backward / 40 == T * biased.ffn.top_k * H["moe"]  # type: ignore[union-attr]
    (spread,) = added(biased, ep=8)
    assert isinstance(spread, Stream)
    assert spread.kernels[0] < one.kernels[0]  # fewer experts a rank
    assert not added(EXPERTS)
    assert not added(biased, compiled=True)


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("norms", [1, 2])
def test_parallel_layers_reduce_once(norms: int, sp: bool) -> None:
    """x + attention(norm(x)) + mlp(norm(x)): one sum leaves, and with one norm one input comes and stays."""
    one_after_another = replace(LLAMA, n_norms=norms)
    listed, beside = (
        operations(block, model("llama"), shape_of(S, B, 2, 1, 1, 1), words(sp=sp))
        for block in (one_after_another, replace(one_after_another, parallel=True))
    )

    def sent(ops: tuple[Operation, ...], *, out: bool) -> float:
        messages = [op for op in ops if isinstance(op, Message) and op.axis == "tp"]
        leave = {"proj_reduce", "proj_scatter", "proj_gather", "down_reduce", "down_scatter", "down_gather"}
        return sum(op.nbytes * (op.forward + op.backward) for op in messages if (op.name in leave) == out)

    assert sent(beside, out=True) == sent(listed, out=True) / 2
    assert sent(beside, out=False) == sent(listed, out=False) / (2 if norms == 1 else 1)
    assert flops(beside) == flops(listed)
    stream = 2 * T * H["llama"] / (2 if sp else 1)
    assert kept(listed) - kept(beside) == pytest.approx(stream * (2 if norms == 1 else 1))


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize("norms", [1, 2])
def test_parallel_layers_add_up_before_they_reduce(norms: int, sp: bool, tp: int) -> None:
    """The output of one part is read once more, all tokens of it: what tensor ranks scatter is the sum. The
    gradients of one norm's output are added whole as well; those of two norms after they are scattered.
    """
    block = replace(LLAMA, n_norms=norms, parallel=True)
    listed = operations(block, model("llama"), shape_of(S, B, tp, 1, 1, 1), words(sp=sp))
    (added,) = (op for op in listed if op.name == "proj_add")
    (residual,) = (op for op in listed if op.name == "down_add")
    assert isinstance(added, Stream)
    assert isinstance(residual, Stream)
    whole, own = 2 * T * H["llama"], 2 * T * H["llama"] / (tp if sp else 1)
    assert added.forward == whole
    assert residual.forward == 3 * own  # read twice, written once
    assert added.backward == (whole if norms == 1 else residual.backward)


def test_mla_without_a_query_rank() -> None:
    h, a, rkv, dn, dr, dv = 2048, 16, 512, 128, 64, 128
    block = Block(LatentAttention(a, None, rkv, dn, dr, dv), None, n_norms=1)
    listed = operations(block, Model("v2", h, 32000, (block,), (0,)), shape_of(S, B, 1, 1, 1, 1), words())
    by_hand = 2 * T * (h * a * (dn + dr) + rkv * (h + a * (dn + dv)) + h * dr + a * dv * h)
    assert flops(listed) == by_hand + T * S * a * (dn + dr + dv)


def test_mamba2_block_flops() -> None:
    h, di, n, g, heads, q = 2560, 5120, 128, 8, 80, 128
    projections = 2 * T * h * (2 * di + 2 * g * n + heads) + 2 * T * di * h
    chunked = T * q * (g * n + di) + 4 * T * di * n + T / q * di * n
    assert flops(ops("mamba2")) == pytest.approx(projections + chunked, rel=1e-12)


def test_mamba1_block_flops() -> None:
    """Projections exactly; the scan is some 7 to 9 T d_i N, whatever slow units it runs on."""
    h, di, n, rank = 4096, 8192, 16, 256
    listed = ops("mamba1")
    projections = 4 * T * h * di + 2 * T * di * (rank + 2 * n) + 2 * T * rank * di + 2 * T * di * h
    assert products(listed) == projections
    scan = flops(listed) - products(listed)
    assert 7 * T * di * n <= scan <= 9 * T * di * n


@pytest.mark.parametrize(
    ("window", "chunked"), [(None, False), (1024, False), (1024, True), (4096, False), (9999, False)]
)
def test_attended_counts_the_causal_band(window: int | None, chunked: bool) -> None:
    """Against a sum over queries; one half key a query is the diagonal, which the convention leaves out."""
    s = 4096
    queries = np.arange(s)
    seen = (
        queries + 1
        if window is None
        else np.minimum(queries % window + 1 if chunked else queries + 1, window)
    )
    assert float(attended(s, window, chunked=chunked)) == pytest.approx(float(seen.mean()), rel=2e-3, abs=1.0)


def test_attention_is_the_window_away_from_quadratic() -> None:
    full = mixing_flops(Attention(32, 8, 128), 8192)
    assert mixing_flops(Attention(32, 8, 128), 8192, causal=False) == 2 * full
    assert mixing_flops(Attention(32, 8, 128), 16384) == 2 * full
    narrow = mixing_flops(Attention(32, 8, 128, window=1024), 16384)
    assert narrow / mixing_flops(Attention(32, 8, 128, window=1024), 8192) == pytest.approx(1.0, abs=0.05)


def test_model_flops_of_llama_3_8b_by_hand() -> None:
    """6 x (parameters without the input embedding) + 6 s a d a layer; norms are parameters and not
    products.
    """
    llama = presets.load("llama-3.1-8b")
    h, a, k, d, f, v, s = 4096, 32, 8, 128, 14336, 128256, 8192
    layer = 2 * h * d * (2 * a + 2 * k) + 6 * h * f + 2 * s * a * d
    by_hand = 3 * (32 * layer + 2 * h * v)
    assert model_flops(llama, s) == pytest.approx(by_hand, rel=2e-4)
    assert model_flops(llama, s) > by_hand


KNOWN_MIXERS = (Attention, LatentAttention, Mamba1, Mamba2, LinearAttention, ShortConv)


@pytest.mark.parametrize("name", presets.names())
def test_products_are_twice_the_parameters(name: str) -> None:
    """Of every layer kind of every preset: matrix FLOPs = 2 x tokens x parameters a token is multiplied by.

    Norms, biases, convolutions and decay vectors are parameters and no products: below 0.5 % of a layer, in
    small state-space models up to 2 %. A tied or shared block has its products where it is used.
    """
    given = presets.load(name)
    preset = replace(given, shared_block=None, shared_at=())
    blocks = [*given.blocks] + ([given.shared_block] if given.shared_block else [])
    for block in blocks:
        assert block.mixer is None or isinstance(block.mixer, KNOWN_MIXERS)
        listed = operations(block, preset, shape_of(S, B, 1, 1, 1, 1), words())
        by_parameters = 2.0 * T * active_block_params(block, preset)
        assert products(listed) <= by_parameters * (1 + 1e-9), block
        slack = 0.02 if isinstance(block.mixer, Mamba1 | Mamba2 | LinearAttention | ShortConv) else 0.005
        assert products(listed) >= by_parameters * (1 - slack), block


def test_backward_flops_are_twice_forward_and_recompute_once_more() -> None:
    plain, again = cost("llama"), cost("llama", "full", whole=True)
    core = sum(op.flops for op in ops("llama") if isinstance(op, Core))
    assert plain.flops_forward == flops(ops("llama"))
    # Flash attention's backward recomputes its scores: five products against two.
    assert plain.flops_backward == pytest.approx(2 * products(ops("llama")) + 2.5 * core)
    assert plain.flops_recompute == 0
    assert again.flops_recompute == plain.flops_forward
    assert again.recompute == plain.forward
    assert again.floor == pytest.approx(plain.floor + flops(ops("llama")) / CLUSTER.chip.bf16_flops, rel=0.02)


# --- shares of ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (4, 2)])
def test_ranks_add_up_to_the_whole(name: str, tp: int, cp: int) -> None:
    """tp x cp ranks do the whole layer's FLOPs, no more; Mamba-1's dt input (rank + 2 N wide) is the
    exception.

    Key/value heads and state groups are at least tp here, so nothing is computed twice.
    """
    if name == "moe" and tp > 4:
        tp = 4  # four key/value heads
    whole = flops(ops(name))
    shared = tp * cp * flops(ops(name, tp=tp, cp=cp))
    assert shared == pytest.approx(whole, rel=1e-12)


def test_key_value_heads_below_tp_are_replicated() -> None:
    whole = flops(ops("llama"))
    extra = 2 * T * 4096 * 2 * 128 * (16 - 8)  # 16 ranks hold one head of 8 each, keys and values
    assert 16 * flops(ops("llama", tp=16)) == pytest.approx(whole + extra, rel=1e-12)


@pytest.mark.parametrize(("ep", "etp"), [(2, 1), (8, 1), (64, 1), (8, 2), (1, 4)])
def test_experts_divide_over_ep_and_etp(ep: int, etp: int) -> None:
    """Routed FLOPs of a rank do not depend on ep or etp (tokens move, work does not grow)."""
    assert flops(ops("moe", ep=ep, etp=etp)) == pytest.approx(flops(ops("moe")), rel=1e-12)
    (up,) = [op for op in ops("moe", ep=ep, etp=etp) if isinstance(op, Matmul) and op.name == "experts_up"]
    assert up.groups == 128 / ep
    assert up.m * up.groups == T * 8 * etp
    assert up.n == 2 * 768 / etp


def test_imbalance_enlarges_the_experts_alone() -> None:
    even, skewed = ops("moe"), ops("moe", said=words(imbalance=1.5))
    routed = 6 * T * 2048 * 8 * 768
    assert flops(skewed) == pytest.approx(flops(even) + 0.5 * routed)


def test_a_capacity_is_computed_and_sent_whatever_the_routing() -> None:
    """Plain dispatch sends whole buffers; what only knows of tokens sends the tokens that there are."""

    def sent(said: Words) -> float:
        (one,) = [
            op for op in ops("moe", ep=8, said=said) if isinstance(op, Message) and op.name == "combine"
        ]
        return float(one.nbytes)

    padded, skewed = words(imbalance=1.25, padded=True), words(imbalance=1.25)
    assert flops(ops("moe", said=padded)) == flops(ops("moe", said=skewed))
    assert sent(padded) == 1.25 * sent(words())
    assert sent(skewed) == sent(words())
    fused = words(imbalance=1.25, padded=True, dispatcher="deep-ep")
    assert sent(fused) == sent(words(dispatcher="deep-ep"))


@pytest.mark.parametrize("name", ["llama", "gpt", "mla"])
@pytest.mark.parametrize("tp", [2, 8])
def test_sequence_parallel_divides_all_that_is_kept(name: str, tp: int) -> None:
    """With the input gathered again everything divides by tp; kept gathered, the two inputs do not."""
    regathered = kept(ops(name, tp=tp))
    if name != "mla":  # latents are gathered whole for the up-projections
        assert regathered == pytest.approx(kept(ops(name)) / tp)
    gathered = kept(ops(name, tp=tp, said=words(regathers_input=False)))
    without = kept(ops(name, tp=tp, said=words(sp=False)))
    assert regathered < gathered < without


# --- bytes kept --------------------------------------------------------------------------------------------


def test_llama_block_keeps_what_the_hand_count_says() -> None:
    h, a, k, d, f = 4096, 32, 8, 128, 14336
    assert kept(ops("llama")) == T * (8 * h + 4 * (a + k) * d + 6 * f + 4 * a)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_gpt_block_with_dropout_keeps_34_and_the_scores(tp: int) -> None:
    """s b h (34 + 5 a s / h) / t with sequence parallelism (Korthikanti et al. 2022, equation 4)."""
    h, a = 1024, 16
    listed = ops("gpt", tp=tp, said=words(flash=False))
    assert kept(listed) == pytest.approx(T * h * (34 + 5 * a * S / h) / tp)
    unfused = words(flash=False)
    selective = cost("gpt", "selective:core_attn", said=unfused, tp=tp)
    assert selective.saved == pytest.approx(T * h * 34 / tp)
    assert cost("gpt", "full", said=unfused, whole=True, tp=tp).saved == pytest.approx(2 * T * h / tp)


def test_tensor_parallel_alone_divides_24_of_34() -> None:
    """s b h (10 + 24 / t + 5 a s / (h t)) (equation 2 of the same paper)."""
    h, a, t = 1024, 16, 8
    listed = ops("gpt", tp=t, said=words(flash=False, sp=False))
    assert kept(listed) == pytest.approx(T * h * (10 + 24 / t + 5 * a * S / (h * t)))


def test_experts_keep_a_copy_for_each_of_top_k() -> None:
    """An expert block keeps K copies of (2 h in, 6 f_e) a token, and router and shared expert."""
    h, a, k, d, top, fe, shared, experts = 2048, 32, 4, 128, 8, 768, 1024, 128
    attention = 4 * h + 4 * (a + k) * d + 4 * a
    # Norm input and output, router's fp32 logits and probabilities, the routed copies, the shared expert.
    by_hand = 4 * h + 8 * experts + top * (2 * h + 6 * fe) + 6 * shared + 2 * h
    assert kept(ops("moe")) == pytest.approx(T * (attention + by_hand))


def test_mamba2_keeps_what_the_unfused_path_saves() -> None:
    """b s [2h + 2(5 d_i + 4 g N + H)] and chunk states in fp32, beside the residual stream at its norm."""
    h, di, n, g, heads, q = 2560, 5120, 128, 8, 80, 128
    by_hand = T * (2 * h + 2 * (5 * di + 4 * g * n + heads)) + T / q * di * n * 4
    assert kept(ops("mamba2")) == pytest.approx(by_hand + 2 * T * h, rel=1e-12)


def test_low_precision_narrows_inputs_and_leaves_the_stream() -> None:
    bf16, fp8 = kept(ops("llama")), kept(ops("llama", said=words(precision="fp8")))
    h, f = 4096, 14336
    assert bf16 - fp8 == T * (2 * h + f)  # two inputs of linear layers and the activation's output
    assert fp8 > 0.7 * bf16


def test_low_precision_narrows_what_linear_layers_behind_norms_keep() -> None:
    """Mamba-2: the input of both projections (h and d_i); latent attention: of the down-projections (shards
    of it) and of both up-projections."""
    bf16, fp8 = (kept(ops("mamba2", said=words(precision=p))) for p in ("bf16", "fp8"))
    assert bf16 - fp8 == T * (2560 + 5120)
    bf16, fp8 = (kept(ops("mla", said=words(precision=p))) for p in ("bf16", "fp8"))
    mla = BLOCKS["mla"].mixer
    assert bf16 - fp8 >= T * (mla.kv_lora_rank + mla.qk_rope_dim + (mla.q_lora_rank or 0))


def test_recomputing_experts_activation_frees_its_output_alone() -> None:
    """Running it again needs its input, 4 f_e bytes a copy; only the 2 f_e of its output go."""
    freed = cost("moe").saved - cost("moe", "selective:moe_act").saved
    assert freed == pytest.approx(T * 8 * 2 * 768)


def backward(layer: LayerCost) -> float:
    return float(sum(getattr(layer, name) for name in SUMS["backward"]))


def test_recomputed_modules_keep_less_and_take_longer() -> None:
    plain = cost("moe")
    for word in ("selective:moe", "selective:norm+moe_act", "selective:core_attn", "selective:shared_expert"):
        again = cost("moe", word)
        assert again.saved < plain.saved
        assert again.recompute > 0
        assert backward(again) > backward(plain)
        assert again.forward == plain.forward
    assert cost("moe", "selective:moe").saved < cost("moe", "selective:moe_act").saved
    assert cost("moe", "full", whole=True).saved < cost("moe", "selective:moe").saved


# --- bytes sent --------------------------------------------------------------------------------------------


def sent(name: str, axis: str, **given: Any) -> list[Message]:
    return [op for op in ops(name, **given) if isinstance(op, Message) and op.axis == axis]


@pytest.mark.parametrize("sp", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_tensor_parallel_sends_one_reduction_a_sublayer_and_pass(name: str, sp: bool) -> None:
    """Forward b s h e once reduced a sublayer; as a gather and a scatter under sequence parallelism."""
    whole = 2.0 * T * H[name]
    factor = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
    messages = sent(name, "tp", tp=4, said=words(sp=sp, regathers_input=False))
    assert all(m.nbytes == whole for m in messages)
    for way in ("forward", "backward"):
        assert sum(factor[m.collective] * getattr(m, way) for m in messages) == 2 * 2.0  # two sublayers
    again = sent(name, "tp", tp=4, said=words(sp=True, regathers_input=True))
    assert sum(m.backward for m in again if m.collective == "all_gather") == 4  # one more a sublayer


def test_mamba1_reduces_its_selection_once_more() -> None:
    rank, n = 256, 16
    extra = [m for m in sent("mamba1", "tp", tp=4) if m.name == "x_reduce"]
    assert [m.nbytes for m in extra] == [2.0 * T * (rank + 2 * n)]


def test_context_ring_sends_keys_and_values() -> None:
    (ring,) = sent("llama", "cp", cp=4)
    assert ring.nbytes == 2 * 2.0 * T / 4 * 8 * 128
    assert (ring.forward, ring.backward) == (1.0, 2.0)


def test_context_all_to_all_moves_queries_keys_values_and_output() -> None:
    (heads,) = sent("llama", "cp", cp=4, said=words(cp_method="all-to-all"))
    assert heads.nbytes == T / 4 * 2.0 * (2 * 32 * 128 + 2 * 8 * 128)


def test_context_parallel_sends_state_not_sequence_in_state_spaces() -> None:
    """A Mamba layer passes its state and the convolution's tail, whatever the length."""
    di, n, mixed = 5120, 128, 5120 + 2 * 8 * 128
    (state,) = sent("mamba2", "cp", cp=4)
    assert state.nbytes == 4 * B * (di * n + 3 * mixed) * 2.0


def test_expert_exchange_is_two_all_to_alls_of_top_k_copies() -> None:
    out, back = sent("moe", "ep", ep=8)
    assert out.nbytes == back.nbytes == 2.0 * T * 8 * 2048
    assert {out.collective, back.collective} == {"all_to_all"}
    deep = sent("moe", "ep", ep=8, said=words(dispatcher="deep-ep", precision="fp8"))
    assert [m.nbytes for m in deep] == [2048, 2.0 * 2048]  # fp8 out, 16 bits back, a token
    assert all((m.tokens, m.top_k, m.n_experts) == (T, 8, 128) for m in deep)


# --- sums --------------------------------------------------------------------------------------------------


def test_degree_one_sends_nothing() -> None:
    for name in BLOCKS:
        one = cost(name)
        assert (one.tp_forward, one.tp_backward, one.cp_forward, one.cp_backward) == (0, 0, 0, 0), name
        assert (one.ep_forward, one.ep_backward) == (0, 0), name


def test_ring_hides_behind_its_own_blocks() -> None:
    """Long pieces cover the sending of keys and values, short ones do not."""
    strategy = Strategy(dp=8, cp=8)
    reach = spans(CLUSTER, strategy)
    shares = []
    for seq_len in (512, 65536):
        listed = operations(LLAMA, model("llama"), shape_of(seq_len, 1, 1, 8, 1, 1), words())
        (ring,) = [op for op in listed if isinstance(op, Message) and op.axis == "cp"]
        whole = message_seconds(ring, reach, CLUSTER.chip, PROFILE)
        shares.append(float(exposed(ring, reach, CLUSTER.chip, PROFILE, frozenset()) / whole))
    assert shares[0] > 0.5
    assert shares[1] == pytest.approx(0.0, abs=1e-9)


def test_host_time_is_a_floor_with_a_soft_corner() -> None:
    assert beyond(0.0, 1.0) == 0.0
    for host, device in ((1e-3, 1e-3), (1e-3, 2e-6), (8e-3, 1e-6), (1e-6, 1e-3)):
        assert device + float(beyond(host, device)) >= max(host, device) * (1 - 1e-9), (host, device)
    assert 0.15 < float(beyond(1.0, 1.0)) < 0.25
    grown = np.array([float(beyond(h, 1.0)) for h in np.linspace(0, 3, 30)])
    assert np.all(np.diff(grown) > -1e-15)
    assert cost("moe", options=frozenset({"cuda-graphs-full"})).host_forward == 0.0


def test_graphs_launch_what_they_capture() -> None:
    """Partial graphs leave experts out, those of routing leave all but routing, those of layers nothing."""
    chip = CLUSTER.chip
    router, core = Matmul("router", "moe", 1, 1, 1), Core("core", "core_attn", 1.0, 2.5, 128)
    experts = Matmul("experts_up", "moe", 1, 1, 1)
    expected = {
        (): (1.0, 1.0, 1.0),
        ("cuda-graphs-router",): (0.0, 1.0, 1.0),
        ("cuda-graphs-partial",): (0.0, 0.0, 1.0),
        ("cuda-graphs",): (0.0, 0.0, 0.0),
        ("cuda-graphs-full",): (0.0, 0.0, 0.0),
        ("cuda-graphs", "cuda-graphs-partial"): (0.0, 0.0, 1.0),
    }
    for said, shares in expected.items():
        assert tuple(launched(op, frozenset(said), chip) for op in (router, core, experts)) == shares, said


def test_a_host_that_waits_in_each_layer_hides_less() -> None:
    """Dropless experts make it wait for counts; experts that drop tokens, or a captured step, do not."""
    assert float(beyond(1.0, 1.0, waits=True)) == pytest.approx(2.0**0.5 - 1.0)
    for host in (0.1, 1.0, 3.0):
        assert float(beyond(host, 1.0, waits=True)) > float(beyond(host, 1.0))
    for said, waits in ((words(), True), (words(dropless=False), False), (words(fused_experts=True), False)):
        listed = operations(EXPERTS, model("moe"), shape_of(S, B, 1, 1, 8, 1), said)
        assert any(op.waits for op in listed if isinstance(op, Message)) is waits


def test_a_product_over_many_experts_takes_more_launches() -> None:
    few, many = (cost("moe", ep=ep, options=frozenset({"cuda-graphs-partial"})) for ep in (64, 2))
    assert many.host_forward > few.host_forward


def test_a_ring_adds_up_the_partial_results_of_its_blocks() -> None:
    """Nothing alone; three further blocks of four halves' three: 6 bytes of each of 32 x 128 outputs."""
    (alone,), (merge,) = ([op for op in ops("llama", cp=c) if op.name == "merge"] for c in (1, 4))
    assert isinstance(alone, Stream)
    assert isinstance(merge, Stream)
    assert (alone.forward, alone.backward, alone.kernels) == (0, 0, (0, 0))
    assert merge.forward == 3 * 0.75 * 6 * (T / 4) * 32 * 128
    assert merge.backward == merge.forward * (1 + 2 * 8 / 32)  # queries; a quarter as many keys, and values
    assert not [op for op in ops("llama", cp=4, said=words(cp_method="all-gather")) if op.name == "merge"]


def test_plain_tensor_operations_move_more_until_something_fuses_them() -> None:
    def seconds(*options: str) -> float:
        listed = operations(LLAMA, model("llama"), shape_of(S, B, 1, 1, 1, 1), words())
        eager = load("hf-trainer", CLUSTER.chip)
        prices = priced(
            listed, words(), spans(CLUSTER, Strategy(dp=64)), CLUSTER.chip, eager, frozenset(options)
        )
        return float(sum(cost.forward for op, cost in prices if isinstance(op, Stream)))

    compiled, liger, by_hand, plain = (
        seconds(*o) for o in (("compile",), ("liger",), ("fused-kernels",), ())
    )
    assert compiled < liger < by_hand < plain
    moved = 2 * 32 * T * 4096 + 16 * T * (32 + 8) * 128 + 4 * T * 14336  # norms, rotation, activation
    rate = CLUSTER.chip.hbm_bytes_s * load("hf-trainer", CLUSTER.chip)["memory"]
    assert plain - liger == pytest.approx(moved / rate)


def test_plain_adapters_move_what_peft_writes() -> None:
    """Casts, dropout, scale and sum of three matrices on one input; a fused one reads it once."""
    eager, chip = load("hf-trainer", CLUSTER.chip), CLUSTER.chip
    rate = chip.hbm_bytes_s * eager["memory"]

    def forward(**changed: Any) -> float:
        qkv = Matmul("qkv", "qkv", T, 4096, 6144)
        said = words(adapted=frozenset({("qkv", 3)}), **changed)
        return float(matmul_passes(qkv, said, chip, eager).forward)

    bare = float(matmul_passes(Matmul("up", "mlp", T, 4096, 6144), words(), chip, eager).forward)
    assert forward() - bare == pytest.approx((2 * 4096 + 4 * 6144) * T / rate)
    assert forward(plain_adapters=True) - bare == pytest.approx((3 * 23 * 4096 + 12 * 6144) * T / rate)


def test_wide_adapters_compute_and_quantised_weights_are_made_wide_by_each_pass() -> None:
    """Thin products of rank r add 2 r (k + n) FLOPs a token forward and twice that backward; 4.5 bits with
    their scales are read and 16 written before both products of a frozen matrix."""
    fused, chip = load("megatron-core", CLUSTER.chip), CLUSTER.chip
    up = Matmul("up", "mlp", T, 4096, 14336)

    def found(**changed: Any) -> Any:
        return matmul_passes(up, words(adapted=frozenset({("up", 1)}), **changed), chip, fused)

    none, thin, wide = (found(adapter_rank=r) for r in (0, 16, 2048))
    assert thin.forward == none.forward  # what it moves takes longer
    flops = 2.0 * 2048 * (4096 + 14336) * T
    assert wide.flops_forward - none.flops_forward == flops
    assert wide.flops_backward - none.flops_backward == 2.0 * flops
    assert wide.floor_backward - none.floor_backward == pytest.approx(2.0 * flops / chip.bf16_flops)
    assert wide.forward - thin.forward > 0.5 * flops / chip.bf16_flops
    seconds = 2.5625 * 4096 * 14336 / (chip.hbm_bytes_s * fused["memory"])
    quantised = found(adapter_rank=16, base_bytes=0.5625)
    for way in ("forward", "backward_input"):
        assert getattr(quantised, way) - getattr(thin, way) == pytest.approx(seconds)


def test_a_hybrid_keeps_some_products_wide_under_fp4() -> None:
    """Nemotron 3's recipe: attention and latent projections in bf16; a dense model has none of it."""
    hybrid = Model("h", 4096, 32000, (SSD, LLAMA), (0, 1))
    shape = shape_of(S, B, 1, 1, 1, 1)
    for whole, expected in ((hybrid, "bf16"), (model("llama"), "nvfp4")):
        listed = operations(LLAMA, whole, shape, words(precision="nvfp4"))
        qkv = next(op for op in listed if isinstance(op, Matmul) and op.name == "qkv")
        assert qkv.under_fp4 == expected
        assert (qkv.kept_wide > 0) is (whole is hybrid)


def test_head_counts_its_projection_and_holds_its_logits() -> None:
    h, v, tp = 4096, 128256, 4
    shape = shape_of(S, B, tp, 1, 1, 1)
    listed = ends.head(h, v, shape, words())
    columns = v / tp  # a rank's share may be padded to whole tiles of 128
    assert 2 * T * h * columns <= products(listed) < 2 * T * h * (columns + 128)
    per_logit = {
        said: float(ends.logit_bytes(v, shape, said)) / (T * v / tp) for said in ("whole", "fused", "chunked")
    }  # type: ignore[arg-type]
    assert per_logit["whole"] > per_logit["fused"] > per_logit["chunked"]
    assert 7 <= per_logit["whole"] <= 10  # measured on the last stage of dense runs
    # Chunks that are cut from logits, not from what the head reads, stand beside all of them in 16 bits.
    cut = float(ends.logit_bytes(v, shape, "chunked", first=True)) / (T * v / tp)  # type: ignore[arg-type]
    assert cut == per_logit["chunked"] + 2
    assert ends.logit_bytes(v, shape, "fused", first=True) == ends.logit_bytes(v, shape, "fused")


def test_embedding_is_a_gather() -> None:
    listed = ends.embedding(4096, shape_of(S, B, 1, 1, 1, 1), words())
    assert products(listed) == 0
    assert all(isinstance(op, Stream | Message) for op in listed)


def test_parameters_of_a_block_divide_by_the_degrees() -> None:
    count = block_params(EXPERTS, model("moe"))
    whole = count.per_rank(1, 1, 1)
    assert whole == count.total
    dense = count.total - count.expert
    assert count.per_rank(1, 8, 1) == pytest.approx(dense + count.expert / 8)
    assert count.per_rank(1, 8, 2) == pytest.approx(dense + count.expert / 16)
