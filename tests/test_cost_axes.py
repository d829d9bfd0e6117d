"""Cut sequences, passed states, packed documents, slow ranks: what each costs and when it may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright import checks
from meshwright.cost import collectives
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.files.work_given import WorkGiven, work_of
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import as_one
from meshwright.model import presets
from meshwright.profiles.load import load
from meshwright.simulate.exact import exact
from meshwright.simulate.many import stacked, step_times
from meshwright.strategy.placement import spans
from meshwright.strategy.records import Strategy
from meshwright.work import Work

LLAMA = presets.load("llama-3.1-8b")
H100 = parse("64xh100")
LONG = Work(131072, 16)


def run(
    strategy: Strategy, work: Work = LONG, model: str = "llama-3.1-8b", on: str = "64xh100"
) -> Evaluation:
    cluster = parse(on)
    return evaluate(
        presets.load(model), cluster, work, strategy, load("megatron-core", cluster.chip), detail=True
    )


def cut(method: str, cp: int, tp: int = 1) -> Strategy:
    return Strategy(dp=64 // (cp * tp), cp=cp, tp=tp, cp_method=method, recompute="full")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["ring", "all-to-all", "all-gather", "hierarchical"])
def test_context_of_one_is_free(method: str) -> None:
    one = run(cut(method, 1))
    assert one.time_s["cp"] == 0.0
    assert one.step_time_s == run(cut("ring", 1)).step_time_s
    assert one.memory_bytes == run(cut("ring", 1)).memory_bytes


def test_hierarchical_is_all_to_all_in_a_domain_and_a_ring_over_domains() -> None:
    """Inside one domain it is the one; with one chip a domain it is the other."""
    assert run(cut("hierarchical", 8)).time_s["cp"] == pytest.approx(run(cut("all-to-all", 8)).time_s["cp"])
    alone = parse("64xh100", {"scale_up_size": 1})
    profile = load("megatron-core", alone.chip)
    ring, both = (evaluate(LLAMA, alone, LONG, cut(m, 16), profile) for m in ("ring", "hierarchical"))
    assert both.time_s["cp"] == pytest.approx(ring.time_s["cp"])
    # Over two domains one block goes between them, not fifteen, whose results are added up beside; heads stay
    # on the links.
    assert run(cut("hierarchical", 16)).step_time_s < min(
        run(cut(m, 16)).step_time_s for m in ("ring", "all-to-all", "all-gather")
    )


def test_all_gather_by_hand() -> None:
    """K and V gathered forward and again backward, their gradients scattered once; nothing hides it."""
    strategy = replace(cut("all-gather", 16), recompute="none")
    cluster, profile = H100, load("megatron-core", H100.chip)
    whole = 2.0 * 131072 * 8 * 256  # K and V of eight heads of 128, in bf16
    span, shares = spans(cluster, strategy)["cp"], (profile["scale_up"], profile["scale_out"])
    each = 2 * collectives.all_gather_time(whole, span, *shares)
    each += collectives.reduce_scatter_time(whole, span, *shares)
    microbatches = 16 / strategy.dp
    assert run(strategy).time_s["cp"] == pytest.approx(float(32 * microbatches * each), rel=1e-6)
    held = run(strategy).memory_bytes["activations"] - run(replace(strategy, cp_method="ring")).memory_bytes[
        "activations"
    ]  # fmt: skip
    assert held == pytest.approx(whole)


def test_context_above_the_key_value_heads() -> None:
    """A ring or an all-gather takes any degree, all-to-all no more than the query heads."""
    for method in ("ring", "all-gather", "hierarchical"):
        assert not _errors(cut(method, 64))
    assert not _errors(cut("all-to-all", 32))  # 32 query heads over 8 key/value heads
    assert _errors(cut("all-to-all", 64)) == {"MW152"}
    assert _errors(cut("hierarchical", 16, tp=1)) == set()
    few = replace(
        LLAMA,
        blocks=(replace(LLAMA.blocks[0], mixer=replace(LLAMA.blocks[0].mixer, n_heads=12, n_kv_heads=4)),),
    )  # type: ignore[type-var]
    found = checks.run(few, H100, LONG, cut("hierarchical", 8))
    assert {d.code for d in found if d.severity == "error"} == {"MW152"}  # 12 heads over 8 ranks of a domain


def _errors(strategy: Strategy) -> set[str]:
    return {d.code for d in checks.run(LLAMA, H100, LONG, strategy) if d.severity == "error"}


@pytest.mark.parametrize("model", ["mamba2-2.7b", "nemotron-h-8b", "qwen3-next-80b-a3b", "falcon-mamba-7b"])
def test_states_pass_between_pieces_of_a_sequence(model: str) -> None:
    """What a recurrence sends over cp is its state, the same whatever the length."""
    strategy = Strategy(dp=1, cp=8, recompute="full", zero=3, zero_group=8)
    short, long = (run(strategy, Work(length, 1), model, "8xh100").time_s["cp"] for length in (65536, 524288))
    assert short > 0
    if model in ("mamba2-2.7b", "falcon-mamba-7b"):
        assert long == pytest.approx(short, rel=1e-9)
    assert long < 0.01 * run(strategy, Work(524288, 1), model, "8xh100").step_time_s


def test_groups_of_states_bound_tensor_parallelism() -> None:
    """Eight groups: tp divides them or is a multiple of them; else it is refused."""
    nemotron = presets.load("nemotron-h-8b")
    for tp, legal in ((8, True), (16, True)):
        found = checks.run(nemotron, H100, Work(8192, 64), Strategy(dp=64 // tp, tp=tp))
        assert ("MW111" not in {d.code for d in found}) is legal
    three = parse("48xh100", {"scale_up_size": 6})
    found = checks.run(nemotron, three, Work(8192, 64), Strategy(dp=16, tp=3))
    assert "MW111" in {d.code for d in found}


def test_a_slow_rank_is_waited_for() -> None:
    """Passes and update of the slow rank take a tenth longer; what is sent does not."""
    strategy = Strategy(dp=8, tp=4, pp=2, zero_group=8)
    plain = run(strategy, Work(8192, 64))
    slow = run(strategy, Work(8192, 64, options=frozenset({"straggler:1.1"})))
    assert plain.terms is not None
    assert slow.terms is not None
    (waiting,) = (t.value for path, t in slow.terms.walk() if path.endswith("other.slow_rank"))
    host = next(t.value for path, t in plain.terms.walk() if path.endswith("other.host"))
    assert waiting == pytest.approx(0.1 * (plain.time_s["compute"] + host + plain.time_s["optimizer"]))
    assert plain.step_time_s < slow.step_time_s < 1.1 * plain.step_time_s
    assert {k: v for k, v in slow.time_s.items() if k != "other"} == {
        k: v for k, v in plain.time_s.items() if k != "other"
    }
    assert sum(slow.time_s.values()) == pytest.approx(slow.step_time_s)


def test_packed_documents_attend_to_themselves() -> None:
    """Attention as of sequences of the documents' length; everything else as of the whole."""
    strategy = Strategy(dp=8, zero_group=8, recompute="full")
    on = "8xh100"
    whole = run(strategy, Work(32768, 64), on=on)
    packed = run(strategy, Work(32768, 64, options=frozenset({"documents:2k"})), on=on)
    short = run(strategy, Work(2048, 1024), on=on)
    assert packed.model_flops == pytest.approx(short.model_flops, rel=1e-12)
    assert packed.hardware_flops == pytest.approx(short.hardware_flops, rel=1e-9)
    assert packed.step_time_s < 0.7 * whole.step_time_s
    assert packed.memory_bytes == whole.memory_bytes
    longer = run(strategy, Work(32768, 64, options=frozenset({"documents:1M"})), on=on)
    assert longer.step_time_s == whole.step_time_s


@pytest.mark.parametrize(
    "word",
    ["straggler:0.5", "straggler:x", "straggler", "documents:", "dropless:2", "capacity:0.9", "capacity"],
)
def test_switches_that_carry_a_number_are_checked(word: str) -> None:
    with pytest.raises(InputError, match="number"):
        work_of(WorkGiven(4096, 64, options=(word,)), None, {})


def test_a_capacity_costs_what_its_padding_computes() -> None:
    """Of 1 it is what dropping tokens is; of more it is slower; and dropless keeps what it drops."""
    strategy = Strategy(dp=8, ep=8, zero_group=8, recompute="full")
    seconds = [
        run(strategy, Work(4096, 64, options=frozenset(words)), model="mixtral-8x7b", on="8xh100")
        for words in (("token-drop",), ("capacity:1",), ("capacity:1.25",), ("capacity:2",))
    ]
    dropped, one, more, most = seconds
    assert one.step_time_s == dropped.step_time_s
    assert one.step_time_s < more.step_time_s < most.step_time_s
    assert one.model_flops == more.model_flops
    assert more.hardware_flops < most.hardware_flops
    with pytest.raises(InputError, match="drops nothing"):
        work_of(WorkGiven(4096, 64, options=("capacity:1.25", "dropless")), None, {})


@pytest.mark.parametrize(("word", "share"), [("every:2", 0.5), ("every:4", 0.25), ("layers:8", 0.25)])
def test_parts_of_the_layers_recomputed(word: str, share: float) -> None:
    """Time and kept activations lie between none and full in proportion to the layers (head apart)."""
    none, part, full = (
        run(Strategy(dp=8, zero_group=8, recompute=w), Work(65536, 8), on="8xh100")
        for w in ("none", word, "full")
    )
    assert part.recompute_s == pytest.approx(share * full.recompute_s, rel=1e-9)
    kept = [e.memory_bytes["activations"] for e in (none, part, full)]
    assert kept[0] > kept[1] > kept[2]


def test_state_sharded_in_a_node_stays_off_the_network() -> None:
    """HSDP: gathers inside the node and an all-reduce of the shard over nodes; more memory, less traffic."""
    work, slow = Work(4096, 512), parse("64xh100", {"scale_out_gbits_s": 50})
    profile = load("megatron-core", slow.chip)
    everywhere, node = (
        evaluate(LLAMA, slow, work, Strategy(dp=64, zero=3, zero_group=g), profile) for g in (64, 8)
    )
    assert node.time_s["dp"] < everywhere.time_s["dp"]
    assert node.memory_bytes["optimizer"] == pytest.approx(8 * everywhere.memory_bytes["optimizer"])
    assert np.isclose(node.memory_bytes["params"], 8 * everywhere.memory_bytes["params"])


def test_a_slow_rank_is_waited_for_in_the_simulated_step_too() -> None:
    strategy = Strategy(dp=8, tp=4, pp=2, zero_group=8)
    profile = load("megatron-core", H100.chip)
    plain, slow = (
        exact(LLAMA, H100, Work(8192, 64, options=frozenset(words)), strategy, profile).evaluation
        for words in ((), ("straggler:1.1",))
    )
    assert 1.05 * plain.step_time_s < slow.step_time_s < 1.1 * plain.step_time_s
    assert sum(slow.time_s.values()) == pytest.approx(slow.step_time_s)


@pytest.mark.parametrize("placement", [("tp", "cp", "dp", "pp"), ("dp", "cp", "tp", "pp"), 5])
@pytest.mark.parametrize(
    ("model", "on", "figure", "values"),
    [
        ("deepseek-v3", "256xh800", "scale_out_gbits_s", (100.0, 400.0, 3200.0)),
        ("deepseek-v3", "256xh800", "scale_up_gbytes_s", (20.0, 160.0, 900.0)),
        ("deepseek-v3", "256xh800", "oversubscription", (1.0, 2.0, 4.0)),
        ("llama-3.1-8b", "64xmi300x", "scale_up_gbytes_s", (20.0, 160.0, 900.0)),
        ("llama-3.1-8b", "256xtpu-v5p", "scale_up_gbytes_s", (20.0, 160.0, 900.0)),
        ("llama-3.1-8b", "64xmi300x", "usable_gib", (20.0, 80.0, 190.0)),
    ],
)
def test_several_figures_at_once_are_each_by_itself(
    model: str, on: str, figure: str, values: tuple[float, ...], placement: Any
) -> None:
    """A step on clusters that differ in one figure, all in one evaluation."""
    places = [parse(on, {figure: value}) for value in values]
    together, work, n = as_one(places), Work(4096, 512), places[0].n_chips
    assert together is not None
    assert together.varies
    profile = load("megatron-core", places[0].chip)
    ep = 8 if model == "deepseek-v3" else 1
    for plan in (
        Strategy(dp=n // 16, tp=4, pp=4, ep=ep, zero=1, zero_group=n // 16, recompute="full"),
        Strategy(dp=n // 16, tp=2, cp=2, pp=4, vpp=2, ep=ep, schedule="interleaved-1f1b"),
        Strategy(dp=n // 4, tp=4, sp=True, ep=ep, zero=3, zero_group=n // 4),
    ):
        if placement == 5:
            many = replace(stacked([plan] * len(values)), placement=np.full(len(values), placement))
            one = many.at(0)
        else:
            one = many = replace(plan, placement=placement)
        found = evaluate(presets.load(model), together, work, many, profile)
        steps = step_times(presets.load(model), together, work, [one] * len(values), profile)
        for i, place in enumerate(places):
            alone = evaluate(presets.load(model), place, work, one, profile)
            step = step_times(presets.load(model), place, work, [one], profile)
            assert steps[i] == pytest.approx(step[0], rel=1e-12, nan_ok=True)
            for told, own in (
                (found.step_time_s, alone.step_time_s),
                (found.peak_bytes, alone.peak_bytes),
                (found.capacity_bytes, alone.capacity_bytes),
                (found.kept_bytes, alone.kept_bytes),
                *((found.time_s[name], alone.time_s[name]) for name in alone.time_s),
                *((found.memory_bytes[name], alone.memory_bytes[name]) for name in alone.memory_bytes),
            ):
                assert np.broadcast_to(told, len(values))[i] == pytest.approx(own, rel=1e-12)


def test_clusters_that_differ_in_more_are_not_put_together() -> None:
    assert as_one([parse("64xh100"), parse("128xh100")]) is None
    assert as_one([parse("64xh100"), parse("64xh200")]) is None
    same = as_one([parse("64xh100"), parse("64xh100")])
    assert same is not None
    assert not same.varies
