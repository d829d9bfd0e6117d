"""Peak memory: sharded state sums to the whole, activations by hand, and what changes no memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.stages import stages
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.model.params import layer_params, total_params
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.profiles.load import load
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.units import GIB
from meshwright.work import Work

H100 = parse("64xh100")
PROFILE = load("megatron-core", H100.chip)
LLAMA = presets.load("llama-3.1-8b")
SPARSE = Model("sparse", 2048, 32000, (Block(Attention(16, 4, 128), Moe(64, 4, 1024)),), (0,) * 8)
WORK = Work(8192, 256)


def held(model: Model = LLAMA, work: Work = WORK, profile: Profile = PROFILE, **given: Any) -> Evaluation:
    degrees = {"zero": 1, **given}
    rest = 64 // int(np.prod([degrees.get(a, 1) for a in ("tp", "pp", "cp")]))
    degrees.setdefault("dp", rest)
    degrees.setdefault("zero_group", degrees["dp"] * degrees.get("cp", 1))
    degrees.setdefault("sp", degrees.get("tp", 1) > 1)
    return evaluate(model, H100, work, Strategy(**degrees), profile)


def habit(profile: Profile = PROFILE, **changed: Any) -> Profile:
    return replace(profile, framework=replace(profile.framework, **changed))


@pytest.mark.parametrize("model", [LLAMA, SPARSE])
@pytest.mark.parametrize("group", [64, 8])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_sharded_state_sums_to_the_whole(model: Model, group: int, zero: int) -> None:
    """Each copy of the state: bytes a rank x ranks of the group = bytes a parameter x parameters."""
    found = held(
        model, zero=zero, zero_group=group, recompute="full", profile=habit(step_bytes=0.0)
    ).memory_bytes
    habits = PROFILE.framework
    whole = total_params(model) - model.d_model  # the final norm stands on no stage
    copies = {"optimizer": zero >= 1, "grads": zero >= 2, "params": zero >= 3}
    width = {"optimizer": habits.optimizer_bytes, "grads": habits.grad_bytes, "params": habits.weight_bytes}
    for name, sharded in copies.items():
        assert found[name] * (group if sharded else 1) == pytest.approx(width[name] * whole, rel=1e-4), name


def test_experts_shard_over_their_own_copies() -> None:
    """ep divides expert weights; their optimizer state then shards over the dp / ep ranks with the same
    ones.
    """
    profile = habit(step_bytes=0.0)
    count = layer_params(SPARSE)
    dense = total_params(SPARSE) - SPARSE.d_model - count.expert
    for ep in (1, 4, 64):
        found = held(SPARSE, ep=ep, profile=profile).memory_bytes
        assert found["params"] == pytest.approx(
            PROFILE.framework.weight_bytes * (dense + count.expert / ep), rel=1e-4
        )
        state = PROFILE.framework.optimizer_bytes * (dense / 64 + count.expert / ep / (64 / ep))
        assert found["optimizer"] == pytest.approx(state, rel=1e-4)


def test_tensor_and_pipeline_parallel_divide_parameters() -> None:
    whole = held(zero=0).memory_bytes["params"]
    for tp in (2, 8):
        assert held(zero=0, tp=tp).memory_bytes["params"] == pytest.approx(
            whole / tp, rel=1e-3
        )  # norms are not divided
    per_stage = stages(LLAMA, H100, WORK, Strategy(dp=16, pp=4), PROFILE, 1)
    total = float((per_stage.dense * per_stage.multiplicity).sum())
    assert total == pytest.approx(total_params(LLAMA) - LLAMA.d_model)
    assert held(zero=0, pp=4).memory_bytes["params"] < 0.4 * whole


def test_optimizer_words_and_their_bytes() -> None:
    """bf16 moments save 2 + 2 bytes a parameter of the shard."""
    whole, narrow = (held(optimizer=word).memory_bytes["optimizer"] for word in ("adamw", "adamw-bf16"))
    assert (whole - narrow) * 64 == pytest.approx(4.0 * total_params(LLAMA), rel=1e-4)


def saved_a_layer() -> float:
    h, a, k, d, f = 4096, 32, 8, 128, 14336
    return 8192.0 * (8 * h + 4 * (a + k) * d + 6 * f + 4 * a)


def test_activations_of_one_microbatch() -> None:
    """32 layers of the hand count, and the working set of the largest unit: the head's 16-bit logits."""
    found = held().memory_bytes
    ends = 3 * 2 * 8192 * 4096  # final norm, its output, the head's input
    largest = 2 * 8192 * LLAMA.vocab
    assert 32 * saved_a_layer() < found["activations"] <= 32 * saved_a_layer() + ends + largest


def test_activations_grow_with_the_microbatch_and_shrink_with_tp_and_cp() -> None:
    one = held().memory_bytes["activations"]
    assert held(microbatch_size=2).memory_bytes["activations"] == pytest.approx(2 * one, rel=1e-9)
    # The head keeps its gathered input: one stream of 8192 x 4096 that tp does not divide.
    assert held(tp=4).memory_bytes["activations"] == pytest.approx(one / 4, abs=2 * 8192 * 4096)
    assert held(cp=4).memory_bytes["activations"] == pytest.approx(one / 4, rel=1e-9)
    assert held(work=Work(4096, 256)).memory_bytes["activations"] == pytest.approx(one / 2, rel=1e-9)


def test_full_recompute_keeps_the_boundary_of_each_layer() -> None:
    """2 s b h a layer, and the largest unit's own activations while its backward runs (here the head's)."""
    found = held(replace(LLAMA, vocab=4096), recompute="full").memory_bytes["activations"]
    boundary = 32 * 2 * 8192 * 4096
    assert boundary + saved_a_layer() < found < boundary + 1.6 * saved_a_layer()


def test_zero_does_not_divide_activations() -> None:
    base = held(zero=0).memory_bytes
    for zero in (1, 2, 3):
        assert held(zero=zero).memory_bytes["activations"] == base["activations"]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "gpipe"])
def test_microbatches_in_flight_multiply_activations(schedule: str) -> None:
    vpp = 2 if schedule == "interleaved-1f1b" else 1
    flat = [
        held(work=Work(8192, b), pp=4, vpp=vpp, schedule=schedule).memory_bytes["activations"]
        for b in (128, 512)
    ]
    if schedule == "gpipe":
        assert flat[1] > 3 * flat[0]
    else:
        assert flat[1] == pytest.approx(flat[0], rel=1e-12)


def test_logits_stand_on_the_last_stage_alone() -> None:
    """A vocabulary ten times larger is felt where the head is: at most 10 bytes a logit, at least 4."""
    narrow = replace(LLAMA, vocab=12_800)
    wide = replace(LLAMA, vocab=1_280_000)
    logits = held(wide, zero=3, recompute="full").memory_bytes["logits"]
    assert 4 * 8192 * 1_280_000 * 0.9 <= logits <= 10 * 8192 * 1_280_000
    assert held(narrow).memory_bytes["logits"] < logits / 50
    found = held(wide, pp=2, zero=0, recompute="full", layers_per_stage=(16, 16))
    assert found.peak_stage == 1
    assert found.memory_bytes["logits"] > 0


def test_chunked_losses_hold_no_whole_logits() -> None:
    wide = replace(LLAMA, vocab=512_000)
    whole = held(wide, zero=3, recompute="full").memory_bytes["logits"]
    fused = held(wide, zero=3, recompute="full", work=Work(8192, 256, options=frozenset({"fused-loss"})))
    chunked = held(wide, zero=3, recompute="full", work=Work(8192, 256, options=frozenset({"liger"})))
    assert whole > fused.memory_bytes["logits"] > chunked.memory_bytes["logits"] >= 0
    assert chunked.memory_bytes["logits"] < whole / 8


def test_low_precision_shrinks_no_weights() -> None:
    """fp8 is not smaller: 16-bit weights stay beside what is quantised, so no state shrinks."""
    for framework in ("megatron-core", "torchtitan"):
        profile = load(framework, H100.chip)
        zero = profile.framework.default_zero
        bf16 = held(profile=profile, zero=zero)
        fp8 = held(profile=profile, zero=zero, work=Work(8192, 256, "fp8"))
        for name in ("params", "grads", "optimizer"):
            assert fp8.memory_bytes[name] >= bf16.memory_bytes[name]


def test_the_step_of_unfused_optimizers_peaks_where_activations_are_few() -> None:
    """A multi-tensor Adam makes one more copy of the shard: five copies and not four, once it outgrows
    activations.
    """
    profile = load("torchtitan", H100.chip)
    assert profile.framework.step_bytes > 0
    short = Work(128, 64)
    without = held(work=short, profile=habit(profile, step_bytes=0.0), zero=3, zero_group=8)
    with_it = held(work=short, profile=profile, zero=3, zero_group=8)
    shard = (total_params(LLAMA) - 4096) / 8
    assert with_it.memory_bytes["activations"] == 0
    extra = with_it.memory_bytes["optimizer"] - without.memory_bytes["optimizer"]
    assert extra == pytest.approx(profile.framework.step_bytes * shard, rel=1e-4)
    long = held(work=Work(32768, 64), profile=profile, zero=3, zero_group=8)
    assert long.memory_bytes["activations"] > 0


def test_offloading_frees_what_it_moves_and_costs_no_less_time() -> None:
    plain, moved, some = (held(offload=word) for word in ("none", "activations", "activations:8"))
    assert moved.memory_bytes["activations"] < 0.2 * plain.memory_bytes["activations"]
    assert moved.peak_bytes < some.peak_bytes < plain.peak_bytes
    assert moved.step_time_s >= some.step_time_s >= plain.step_time_s


def test_gathered_weights_are_those_of_two_layers() -> None:
    """ZeRO-3 holds this layer's and the next one's whole weights, not the model's; without it nothing is
    gathered.
    """
    assert held(zero=1).memory_bytes["communication"] == 0
    gathered = held(zero=3).memory_bytes["communication"]
    layer = layer_params(LLAMA).total / 32
    vocabulary = (LLAMA.vocab + 1) * LLAMA.d_model  # and the final norm
    assert 4 * layer <= gathered <= 6 * vocabulary * (1 + 1e-9)


def test_a_compiled_program_gathers_one_matrix_at_a_time() -> None:
    """Two of a kind of matrix in 16 bits and one gradient; the head's weight and gradient where it is larger.

    GPT-3: 4 x 12288^2 in the matrix against 12 x 12288^2 in the layer and 51200 x 12288 in the head; Mixtral:
    all experts' up matrices of a layer, 8 x 4096 x 14336.
    """
    tpu = parse("tpu-v6e:16x16")

    def gathered(name: str, framework: str) -> float:
        model = presets.load(name)
        strategy = Strategy(dp=256, zero=3, zero_group=256, recompute="full")
        found = evaluate(model, tpu, Work(2048, 256), strategy, load(framework, tpu.chip))
        return float(found.memory_bytes["communication"])

    assert gathered("gpt-3-175b", "maxtext") == pytest.approx(6 * 4 * 12288**2, rel=1e-3)  # biases
    assert gathered("gpt-3-175b", "torchtitan") == pytest.approx(6 * 12 * 12288**2, rel=1e-3)
    assert gathered("mixtral-8x7b", "maxtext") == pytest.approx(6 * 8 * 4096 * 14336)
    assert gathered("llama-3.1-8b", "maxtext") == pytest.approx(4 * 128256 * 4096)


def test_a_compiler_lays_buffers_out_closely() -> None:
    """XLA prints under 1 % fragmentation; a caching allocator loses several."""
    compiled = load("maxtext", parse("tpu-v6e:16x16").chip).framework
    assert compiled.fragments == 0.01 < PROFILE.framework.fragments


def test_optimizer_state_may_be_sharded_over_all_groups() -> None:
    """Parameters and gradients within a group of 8, optimizer state over all 64 ranks; the step is that much
    shorter."""
    work = replace(WORK, options=frozenset({"outer-optimizer"}))
    within, outer = (held(SPARSE, work=w, zero=3, zero_group=8, ep=4) for w in (WORK, work))
    for name in ("params", "grads", "activations"):
        assert outer.memory_bytes[name] == within.memory_bytes[name]
    assert outer.memory_bytes["optimizer"] == pytest.approx(within.memory_bytes["optimizer"] / 8)
    assert outer.time_s["optimizer"] == pytest.approx(within.time_s["optimizer"] / 8, rel=1e-6)
    assert held(work=work).memory_bytes == held().memory_bytes  # ZeRO-1 has no outer groups


@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_that_wait_for_the_last_microbatch_are_whole(zero: int) -> None:
    """fp32 gradients of the whole model (ZeRO-2: beside 16-bit weights, in the place of the shards); with one
    microbatch there is nothing to wait for."""
    profile = load("torchtitan", H100.chip)
    late = frozenset({"no-sync"})
    for batch, more in ((64, 0.0), (128, 4.0 * (1.0 if zero == 3 else 63 / 64))):
        plain, waiting = (
            held(work=Work(8192, batch, options=o), profile=profile, zero=zero, recompute="full")
            for o in (frozenset[str](), late)
        )
        summed = [sum(f.memory_bytes[k] for k in ("grads", "communication")) for f in (plain, waiting)]
        assert summed[1] - summed[0] == pytest.approx(more * total_params(LLAMA), rel=1e-3, abs=1.0)


def test_graphs_without_growing_segments_strand_memory() -> None:
    """The published reading: 60.9 GB of 268.9 reserved are of no use, so 0.29 of the 208 in use."""
    plain, fixed = held(), held(work=replace(WORK, options=frozenset({"fixed-segments"})))
    used = plain.peak_bytes - plain.memory_bytes["allocator"] - plain.memory_bytes["framework"]
    assert fixed.peak_bytes - plain.peak_bytes == pytest.approx(60.9 / 208.0 * used)


def test_what_the_allocator_keeps_gives_way_to_need() -> None:
    """Where room is short less is kept, to the byte; the peak holds only what is needed."""
    strategy = Strategy(dp=64, zero=1, zero_group=64)

    def on(usable: float) -> Evaluation:
        return evaluate(LLAMA, replace(H100, usable_bytes=usable), WORK, strategy, PROFILE)

    roomy = on(1e15)
    moving = sum(roomy.memory_bytes[k] for k in ("activations", "logits", "communication"))
    assert roomy.peak_bytes == pytest.approx(sum(roomy.memory_bytes.values()))
    assert roomy.memory_bytes["allocator"] == pytest.approx(PROFILE.framework.fragments * moving)
    assert roomy.kept_bytes + roomy.memory_bytes["allocator"] == pytest.approx(PROFILE["allocator"] * moving)
    for room in (0.0, 0.7 * roomy.kept_bytes):
        found = on(roomy.peak_bytes + room)
        assert found.memory_bytes == roomy.memory_bytes
        assert found.kept_bytes == pytest.approx(room, abs=1.0)
        assert found.fits


def test_categories_of_training_hold_no_cache() -> None:
    found = held().memory_bytes
    assert found["kv_cache"] == found["state"] == 0
    assert found["framework"] == PROFILE.framework.context_gib * GIB


def test_mlp_width_tells_in_activations() -> None:
    """6 f bytes a token and layer: doubling the width of one layer kind adds exactly that."""
    wide = replace(LLAMA, blocks=(replace(LLAMA.blocks[0], ffn=Mlp(2 * 14336)),))
    added = [stages(m, H100, WORK, Strategy(dp=64), PROFILE, 1).cost["saved"].sum() for m in (LLAMA, wide)]
    assert added[1] - added[0] == pytest.approx(32 * 8192 * 6 * 14336)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v", "dualpipe"])
def test_stages_are_told_one_by_one(schedule: str) -> None:
    """The fullest of them is the rank that the plan is judged by, category for category."""
    vpp = 2 if schedule in ("interleaved-1f1b", "zb-v") else 1
    plan = Strategy(dp=16, pp=4, vpp=vpp, schedule=schedule, zero=1, zero_group=16, microbatch_size=1)
    found = evaluate(LLAMA, H100, WORK, plan, PROFILE, detail=True)
    assert [held.stage for held in found.by_stage] == [0, 1, 2, 3]
    fullest = max(found.by_stage, key=lambda held: held.peak_bytes)
    assert fullest.peak_bytes == pytest.approx(found.peak_bytes)
    assert fullest.memory_bytes == pytest.approx(found.memory_bytes)


def test_a_stage_names_its_fullest_moment() -> None:
    """With little to keep for backward, the temporaries of the optimizer's step are more."""
    plan = Strategy(dp=16, pp=4, zero=1, zero_group=16, recompute="full")
    short, long = (
        evaluate(LLAMA, H100, Work(n, 256), plan, habit(step_bytes=4.0), detail=True).by_stage[3]
        for n in (128, 32768)
    )
    assert (short.moment, long.moment) == ("optimizer", "backward")
    assert short.memory_bytes["activations"] == 0.0 < long.memory_bytes["activations"]
