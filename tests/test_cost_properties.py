"""What holds for every plan: more of anything is never worse, degree 1 is free, bounds are bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright import checks
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.model.records import Model
from meshwright.profiles.load import load
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.work import Work

CLUSTERS = {text: parse(text) for text in ("64xh100", "64xa100", "128xb200", "64xmi300x", "tpu-v5p:4x4x4")}
MODELS = {
    "dense": presets.load("llama-3.1-8b").with_layers(16),
    "experts": presets.load("deepseek-v2-lite").with_layers(16),
    "hybrid": presets.load("nemotron-h-8b").with_layers(24),
}
FRAMEWORKS = ("megatron-core", "torchtitan", "maxtext", "megatron-lm@2021")
RECOMPUTES = ("none", "full", "minimal", "selective:core_attn", "every:2", "layers:1", "products:2")
# Schedules and the chunks a rank that each runs.
SCHEDULES = (
    ("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 4), ("zb-1p", 1), ("zb-2p", 1),
    ("zb-v", 2), ("v-half", 2), ("v-min", 2), ("dualpipe", 1), ("dualpipev", 2),
)  # fmt: skip
CP_METHODS = ("ring", "all-to-all", "all-gather", "hierarchical")
DISPATCHERS: tuple[Any, ...] = ("all-to-all", "deep-ep", "hybrid-ep", "all-gather")
OFFLOADS = ("none", "none", "activations", "activations:2", "optimizer", "params+optimizer")
FINETUNES = ("none", "none", "dpo", "lora:16", "dpo+lora:16")
BALANCES = ("microbatch", "sequence", "global", "global-counted", "running", "bias")

Drawn = tuple[Model, Cluster, Work, Strategy, Profile]


@st.composite
def plans(draw: Any, **fixed: Any) -> Drawn:
    """A legal plan on one of the machines; `fixed` fields of the strategy."""
    model = MODELS[draw(st.sampled_from(sorted(MODELS)))]
    cluster = CLUSTERS[draw(st.sampled_from(sorted(CLUSTERS)))]
    precision = draw(st.sampled_from(("bf16", "fp8"))) if cluster.chip.fp8_flops else "bf16"
    options = frozenset(draw(st.sets(st.sampled_from(
        ("no-overlap", "cuda-graphs-full", "ep-overlap", "dropless")), max_size=2)))  # fmt: skip
    work = Work(
        draw(st.sampled_from((2048, 4096, 8192))), draw(st.sampled_from((128, 512))), precision, None, options
    )
    tp, pp, cp = (fixed.get(a, draw(st.sampled_from(v))) for a, v in
                  (("tp", (1, 2, 4, 8)), ("pp", (1, 2, 4)), ("cp", (1, 2, 4))))  # fmt: skip
    dp = cluster.n_chips // (tp * pp * cp)
    assume(dp * tp * pp * cp == cluster.n_chips)
    schedule, vpp = draw(st.sampled_from(SCHEDULES)) if pp > 1 else ("1f1b", 1)
    values = {
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "vpp": vpp, "sp": tp > 1 and draw(st.booleans()),
        "schedule": schedule, "cp_method": draw(st.sampled_from(CP_METHODS)),
        "offload": draw(st.sampled_from(OFFLOADS)), "finetune": draw(st.sampled_from(FINETUNES)),
        "moe_balance": draw(st.sampled_from(BALANCES)) if model is MODELS["experts"] else "microbatch",
        "ep": draw(st.sampled_from((1, 2, 8))) if model is MODELS["experts"] else 1,
        "dispatcher": draw(st.sampled_from(("all-to-all", "deep-ep", "hybrid-ep"))),
        "zero": draw(st.sampled_from((0, 1, 2, 3))), "zero_group": dp * cp // draw(st.sampled_from((1, 2))),
        "microbatch_size": draw(st.sampled_from((1, 2))), "recompute": draw(st.sampled_from(RECOMPUTES)),
    }  # fmt: skip
    strategy = Strategy(**(values | fixed))
    assume(not any(np.any(mask) for mask in checks.illegal(model, cluster, work, strategy).values()))
    return model, cluster, work, strategy, load(draw(st.sampled_from(FRAMEWORKS)), cluster.chip)


def run(plan: Drawn, **changed: Any) -> Evaluation:
    model, cluster, work, strategy, profile = plan
    return evaluate(model, changed.get("cluster", cluster), changed.get("work", work),
                    changed.get("strategy", strategy), changed.get("profile", profile))  # fmt: skip


def faster(cluster: Cluster, what: str, factor: float) -> Cluster:
    """The same machine with more of one thing."""
    chip = cluster.chip
    if what == "hbm":
        return replace(cluster, chip=replace(chip, hbm_bytes_s=factor * chip.hbm_bytes_s))
    if what == "peak":
        narrow = {f: factor * getattr(chip, f) for f in ("fp8_flops", "fp4_flops") if getattr(chip, f)}
        return replace(cluster, chip=replace(chip, bf16_flops=factor * chip.bf16_flops, **narrow))
    if what == "links":
        return replace(cluster, scale_up_bytes_s=factor * cluster.scale_up_bytes_s,
                       link_bytes_s=factor * cluster.link_bytes_s)  # fmt: skip
    if what == "network":
        return replace(cluster, scale_out_bytes_s=factor * (cluster.scale_out_bytes_s or 0.0) or None)
    if what == "host link":
        return replace(cluster, chip=replace(chip, host_bytes_s=factor * chip.host_bytes_s))
    return replace(cluster, chip=replace(chip, scale_up_latency_s=chip.scale_up_latency_s / factor,
                                         scale_out_latency_s=chip.scale_out_latency_s / factor))  # fmt: skip


@pytest.mark.parametrize("what", ["hbm", "peak", "links", "network", "host link", "latency"])
@given(plan=plans(), factor=st.floats(1.0, 8.0))
@settings(max_examples=40, deadline=None)
def test_more_is_never_slower_nor_larger(what: str, plan: Drawn, factor: float) -> None:
    before, after = run(plan), run(plan, cluster=faster(plan[1], what, factor))
    assert after.step_time_s <= before.step_time_s * (1 + 1e-12)
    assert after.peak_bytes <= before.peak_bytes * (1 + 1e-12)


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_a_wider_fast_domain_is_never_slower(plan: Drawn) -> None:
    """Chips with the same links, more of them behind one switch. On a mesh and a torus a chip's bandwidth in
    a group depends on where its peers are, and the hierarchical exchange of keys is another one there."""
    cluster, strategy = plan[1], plan[3]
    assume(cluster.chip.fabric == "switched" and strategy.cp_method != "hierarchical")
    sizes = [1 << e for e in range(8) if 1 << e <= cluster.n_chips]
    times = [run(plan, cluster=replace(cluster, scale_up_size=size)).step_time_s for size in sizes]
    assert all(wide <= narrow * (1 + 1e-12) for narrow, wide in pairwise(times)), times


@given(plan=plans(), factor=st.floats(1.0, 4.0))
@settings(max_examples=40, deadline=None)
def test_more_usable_memory_is_never_slower_and_fits_no_less(plan: Drawn, factor: float) -> None:
    cluster = plan[1]
    before, after = run(plan), run(plan, cluster=replace(cluster, usable_bytes=factor * cluster.usable_bytes))
    assert after.step_time_s == before.step_time_s
    assert after.fits or not before.fits
    assert after.memory_bytes == before.memory_bytes
    assert after.kept_bytes >= before.kept_bytes


@given(model=st.sampled_from(sorted(MODELS)), chip=st.sampled_from(("1xh100", "1xb200", "1xa100")),
       zero=st.sampled_from((0, 1, 2, 3)), framework=st.sampled_from(FRAMEWORKS),
       recompute=st.sampled_from(RECOMPUTES))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_one_chip_sends_nothing(model: str, chip: str, zero: int, framework: str, recompute: str) -> None:
    cluster = parse(chip)
    found = evaluate(MODELS[model], cluster, Work(4096, 8), Strategy(dp=1, zero=zero, recompute=recompute),
                     load(framework, cluster.chip))  # fmt: skip
    for axis in ("tp", "cp", "ep", "dp", "pp", "bubble"):
        assert found.time_s[axis] == 0, axis
    assert found.step_time_s == pytest.approx(sum(found.time_s[k] for k in ("compute", "optimizer", "other")))


@given(plan=plans(tp=1, cp=1, pp=1))
@settings(max_examples=40, deadline=None)
def test_words_of_an_unused_axis_change_nothing(plan: Drawn) -> None:
    _model, _, _, strategy, _ = plan
    strategy = replace(strategy, ep=1)
    base = run(plan, strategy=strategy)
    for other in (
        replace(strategy, cp_method="ring" if strategy.cp_method == "all-to-all" else "all-to-all"),
        replace(strategy, sp=not strategy.sp),
        *(replace(strategy, schedule=word) for word in ("gpipe", "zb-1p", "zb-2p")),
        *(
            replace(strategy, dispatcher=word)
            for word in ("all-to-all", "deep-ep", "hybrid-ep", "all-gather")
        ),
    ):
        found = run(plan, strategy=other)
        assert found.step_time_s == pytest.approx(base.step_time_s, rel=1e-12)
        assert found.peak_bytes == pytest.approx(base.peak_bytes, rel=1e-12)


@given(plan=plans(pp=1))
@settings(max_examples=40, deadline=None)
def test_without_a_pipeline_there_is_no_bubble(plan: Drawn) -> None:
    found = run(plan)
    assert found.time_s["bubble"] == 0
    assert found.time_s["pp"] == 0


@given(
    plan=plans(tp=1, cp=1, pp=1, recompute="full", offload="none", finetune="none"),
    pairs=st.booleans(),
    parts=st.sampled_from((1, 2, 4, 8)),
)
@settings(max_examples=40, deadline=None)
def test_sharded_state_times_ranks_is_the_whole(plan: Drawn, pairs: bool, parts: int) -> None:
    """For ZeRO 0 to 3 of a dense model and any group that divides the ranks; of preference training with the
    weights of its reference model.
    """
    model, cluster, _work, strategy, profile = plan
    assume(model is not MODELS["experts"])
    profile = replace(profile, framework=replace(profile.framework, step_bytes=0.0, keeps_grads=True))
    group = cluster.n_chips // parts
    habits = profile.framework
    found = run(
        plan,
        strategy=replace(strategy, zero_group=group, finetune="dpo" if pairs else "none"),
        profile=profile,
    ).memory_bytes
    whole = total_params(model) - (2 if model.norm == "layernorm" else 1) * model.d_model
    for name, width, since in (("params", habits.weight_bytes, 3), ("grads", habits.grad_bytes, 2),
                               ("optimizer", habits.optimizer_bytes, 1)):  # fmt: skip
        ranks = group if strategy.zero >= since else 1
        reference = 2 if pairs and name == "params" else 0
        assert found[name] * ranks == pytest.approx((width + reference) * whole, rel=1e-5), name


@given(plan=plans(), more=st.sampled_from((2, 4, 8)))
@settings(max_examples=40, deadline=None)
def test_more_microbatches_never_enlarge_the_bubbles_share(plan: Drawn, more: int) -> None:
    """V-Half and V-Min apart: each microbatch waits where passes are too unequal for their patterns, so idle
    time grows with microbatches as computing does, while the exchange and the update, which come once a step,
    fall behind.
    """
    work = plan[2]
    assume(plan[3].schedule not in ("v-half", "v-min"))
    few, many = run(plan), run(plan, work=replace(work, global_batch_size=more * work.global_batch_size))
    share = [found.time_s["bubble"] / found.step_time_s for found in (few, many)]
    assert share[1] <= share[0] * (1 + 1e-9) + 1e-15


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_time_is_linear_in_microbatches(plan: Drawn) -> None:
    """Three batches in arithmetic progression take steps in arithmetic progression.

    Over a pipeline the longest of its paths counts, each of which is linear: steps may grow faster with more.
    V-Half and V-Min have paths that only so many microbatches have: reaching them is a step of its own. Where
    experts are counted first, a single microbatch is not run twice.
    """
    work, strategy = plan[2], plan[3]
    runs = [run(plan, work=replace(work, global_batch_size=k * work.global_batch_size)) for k in (1, 2, 3)]
    one, two, three = (found.step_time_s for found in runs)
    assert one < two < three
    alone = work.global_batch_size == strategy.dp * strategy.microbatch_size
    if not (alone and strategy.moe_balance == "global-counted"):
        if strategy.schedule not in ("v-half", "v-min"):
            assert three - two >= (two - one) * (1 - 1e-6)
        assert two < 2 * one * (1 + 1e-12)  # bubble, exchange and optimizer come once
    if strategy.pp == 1 and not (alone and strategy.moe_balance == "global-counted"):
        assert three - two == pytest.approx(two - one, rel=1e-6)


@given(plan=plans(recompute="none", offload="none"))  # what is recomputed need not go to the host
@settings(max_examples=40, deadline=None)
def test_recompute_buys_memory_with_time(plan: Drawn) -> None:
    """`full` never needs more memory than `none` and never less time; selective words lie between in time."""
    _model, _cluster, _work, strategy, _profile = plan
    found = {
        word: run(plan, strategy=replace(strategy, recompute=word))
        for word in ("none", "full", "selective:norm")
    }
    assert found["full"].peak_bytes <= found["none"].peak_bytes * (1 + 1e-12)
    assert found["full"].memory_bytes["activations"] <= found["none"].memory_bytes["activations"] * (
        1 + 1e-12
    )
    slack = 1 - 1e-12 if strategy.pp == 1 else 1 - 0.02  # the balance of stages may move by a layer
    assert found["full"].step_time_s >= found["none"].step_time_s * slack
    assert found["selective:norm"].step_time_s >= found["none"].step_time_s * slack
    assert found["none"].recompute_s == 0 < found["full"].recompute_s


@given(plan=plans())
@settings(max_examples=50, deadline=None)
def test_nothing_beats_its_bounds(plan: Drawn) -> None:
    """FLOPs over the peak of the run's precision, and the bytes of the weights through HBM."""
    _model, cluster, work, strategy, profile = plan
    found = run(plan)
    chip = cluster.chip
    peak = (chip.fp8_flops if work.precision == "fp8" else None) or chip.bf16_flops
    assert found.step_time_s >= found.floor_time_s
    assert found.step_time_s >= found.hardware_flops / cluster.n_chips / peak
    assert (
        found.hardware_flops >= 0.98 * found.model_flops
    )  # the scan of a chunked kernel differs from its convention
    # Every microbatch reads the rank's 16-bit (or narrower) weights at least once.
    microbatches = work.global_batch_size / (strategy.dp * strategy.microbatch_size)
    dense = sum(
        found.memory_bytes[k] for k in ("params",)
    ) / profile.framework.weight_bytes * (1 if work.precision == "bf16" else 0.5)  # fmt: skip
    assert found.step_time_s >= microbatches * dense / chip.hbm_bytes_s


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_parts_are_there_only_where_their_axis_is(plan: Drawn) -> None:
    found, strategy = run(plan), plan[3]
    assert sum(found.time_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert sum(found.memory_bytes.values()) == pytest.approx(found.peak_bytes, rel=1e-12)
    # Replicated latents and etp are booked under tp, counts of routed tokens under ep, whoever adds them up.
    counted = strategy.moe_balance != "microbatch"
    for axis, degree in (("tp", strategy.tp), ("cp", strategy.cp), ("ep", strategy.ep), ("pp", strategy.pp)):
        assert (found.time_s[axis] > 0) <= (degree > 1 or (axis == "ep" and counted)), axis
    assert found.time_s["compute"] > 0
    assert found.time_s["optimizer"] > 0
