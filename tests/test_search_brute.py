"""The search against an enumeration of its own, and its bounds against the cost model."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enumeration import enumerated
from meshwright import checks
from meshwright.cost.rows import candidates, layer_prices, layer_table
from meshwright.cost.step import evaluate
from meshwright.cost.tables import shared
from meshwright.hardware.cluster import parse
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.profiles.load import load
from meshwright.search.bounds import (
    Request,
    busy_at_peak,
    busy_seconds,
    held,
    memory_floor,
    saved_bytes,
    seconds_of,
    stage_bytes,
    time_floor,
)
from meshwright.search.plan import search
from meshwright.search.ranking import NUMBERS, Candidate, Shortlist, ranked, simplicity
from meshwright.search.rerank import BAND
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.simulate.many import step_times
from meshwright.strategy.placement import ALONE, spans
from meshwright.strategy.records import Strategy
from meshwright.work import Work

HEADS = Attention(n_heads=8, n_kv_heads=2, head_dim=128)
DENSE = Model("toy", 1024, 32000, (Block(HEADS, Mlp(4096)),), (0,) * 5)
SPARSE = Model("toy-moe", 1024, 32000, (Block(HEADS, Mlp(4096)), Block(HEADS, Moe(4, 2, 512))), (0, 1, 1, 1))
WORK = Work(4096, 8)


def cluster(n: int, usable_gib: float, domain: int = 4):
    return parse(f"{n}xh100", {"scale_up_size": domain, "usable_gib": usable_gib})


# What a word computes again, the other does too.
INCLUDED = {("none", "selective:core_attn"), ("none", "every:2"), ("none", "full"),
            ("selective:core_attn", "full"), ("every:2", "full")}  # fmt: skip


def needless(fitting):
    """Rows of which another that fits differs only in that it recomputes or offloads less; none is faster."""
    kept = {s: time for time, _, s in fitting}
    found = []
    for time, peak, s in fitting:
        less = [r for r in words_of(kept) if (r, s.recompute) in INCLUDED or r == s.recompute]
        twins = [replace(s, recompute=r, offload=o) for r in less for o in {"none", s.offload}]
        others = [kept[twin] for twin in twins if twin != s and twin in kept]
        assert all(time >= other for other in others)
        if others:
            found.append((time, peak, s))
    return found


def no_nearer(fitting, place):
    """Rows of which another differs only in the order of the axes and has as many ranks of every group in one
    domain; none is faster, and of those that have the same of all groups the first stays."""
    kept = {}
    for row in fitting:
        near = {name: int(span.local) for name, span in spans(place, row[2]).items()}
        kept.setdefault(replace(row[2], placement=()), []).append((row, near))
    found = []
    for alike in kept.values():
        alike.sort(key=lambda one: ALL.index(one[0][2].placement))
        for i, (row, near) in enumerate(alike):
            nearer = [
                other for j, (other, own) in enumerate(alike)
                if j != i and all(own[k] >= near[k] for k in near) and (own != near or j < i)
            ]  # fmt: skip
            assert all(row[0] >= other[0] * (1 - 1e-12) for other in nearer)
            found += [row] if nearer else []
    return found


def words_of(strategies):
    return {s.recompute for s in strategies}


def by_time(row):
    return row[:2]


def degrees(strategy):
    return tuple(int(getattr(strategy, name)) for name in NUMBERS)


def once(fitting):
    """Rows of the same degrees and time are one plan in several words: the one that holds least is kept."""
    kept = {}
    for time, peak, strategy in fitting:
        key = (degrees(strategy), float(f"{time:.10g}"))
        if key not in kept or peak < kept[key][1]:
            kept[key] = (time, peak, strategy)
    return sorted(kept.values(), key=by_time)


USUAL = ("tp", "cp", "dp", "pp")
ALL = [USUAL, *(order for order in permutations(USUAL) if order != USUAL)]
PLAIN = {
    "zero_group": ("all", "domain"), "recompute": ("none",), "ep": (1,), "etp": (1,), "offload": ("none",),
    "schedule": ("1f1b", "interleaved-1f1b"), "placement": (("tp", "cp", "dp", "pp"),),
}  # fmt: skip
CASES = {
    "dense": (DENSE, 8, 6.0, {"zero": (0, 1, 3), "recompute": ("none", "full")}),
    "sparse": (SPARSE, 4, 5.5, {"zero": (1, 2), "ep": (1, 2, 4), "etp": (1, 2, 4)}),
    "words": (
        DENSE, 4, 5.6,
        {
            "zero": (1, 3), "zero_group": ("all", "domain", "node"), "offload": ("none", "optimizer"),
            "schedule": ("1f1b", "interleaved-1f1b", "gpipe", "zb-1p", "zb-v", "dualpipe"),
        },
    ),
    "savings": (
        DENSE, 4, 5.2,
        {
            "zero": (1, 2), "zero_group": ("all",), "offload": ("none", "optimizer"),
            "recompute": ("full", "none", "selective:core_attn", "every:2"),
        },
    ),
    "some orders": (
        DENSE, 4, 6.0,
        {
            "zero": (0, 1),
            "placement": (*PLAIN["placement"], ("tp", "pp", "cp", "dp"), ("dp", "cp", "tp", "pp")),
        },
    ),
    "orders": (DENSE, 8, 6.0, {"zero": (1,), "placement": ALL}),
    "stages inside": (
        SPARSE, 4, 5.5, {"zero": (1,), "ep": (1, 2), "placement": [o for o in ALL if o[-1] != "pp"]}
    ),
    "orders of experts": (
        SPARSE, 8, 5.2, {"zero": (3,), "zero_group": ("all",), "ep": (4,), "placement": ALL}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_search_equals_brute_force(case):
    model, n, gib, own = CASES[case]
    words = PLAIN | own
    place = cluster(n, gib, domain=n // 2)
    profile = load(None, place.chip)
    fixed = {name: list(values) for name, values in words.items()} | {"dispatcher": "all-to-all"}
    request = Request(model, place, WORK, profile)
    found = scan(request, build(model, place, WORK, fixed, profile), top=5)

    legal = list(enumerated(model, place, WORK, words))
    assert found.searched + sum(found.bounded.values()) == len(legal)
    results = [evaluate(model, place, WORK, s, profile) for s in legal]
    fitting = sorted(
        ((e.step_time_s, e.peak_bytes, s) for s, e in zip(legal, results) if e.fits), key=by_time
    )
    assert found.feasible <= len(fitting)
    cut = needless(fitting)
    assert bool(cut) == (len(words["recompute"]) + len(words["offload"]) > 2)
    cut += no_nearer(fitting, place)
    assert 0 < len(fitting) < len(legal)  # memory binds, or the test would not see a wrong verdict
    times = [plan.step_time_s for plan in found.best]
    different = [t for t, _, _ in once([row for row in fitting if row not in cut])]
    assert times == pytest.approx(different[:5], rel=1e-9)
    for plan in found.best:
        assert plan.strategy in legal
        for other in plan.tied:
            assert evaluate(model, place, WORK, other, profile).step_time_s == pytest.approx(
                plan.step_time_s, rel=1e-12
            )

    without = {
        "pp": lambda s: s.pp == 1, "vpp": lambda s: s.vpp == 1, "tp": lambda s: s.tp == 1,
        "sp": lambda s: not s.sp, "cp": lambda s: s.cp == 1, "ep": lambda s: s.ep == 1,
        "etp": lambda s: s.etp == 1, "recompute": lambda s: s.recompute == "none",
        "zero-3": lambda s: s.zero < 3, "offload": lambda s: s.offload == "none",
        "low-precision": lambda s: WORK.precision == "bf16",
    }  # fmt: skip
    for name, does_without in without.items():
        times = [e.step_time_s for s, e in zip(legal, results) if e.fits and does_without(s)]
        assert [p.step_time_s for p in found.without[name].plans] == pytest.approx(
            [min(times)] if times else [], rel=1e-9
        )

    # By simulated pipelines: of all plans within the band of the closed form's best the first told is best.
    told = search(model, place, WORK, fixed, profile, top=5)
    best = told.plans[0].seconds
    within = [s for t, _, s in fitting if t <= fitting[0][0] * (1 + BAND)]
    simulated = step_times(model, place, WORK, within, profile)
    assert told.plans[0].strategy in within
    assert best == pytest.approx(simulated.min(), rel=1e-9)
    assert [plan.seconds for plan in told.plans] == sorted(plan.seconds for plan in told.plans)
    fits = [(s, float(e.step_time_s)) for s, e in zip(legal, results) if e.fits]
    for need in told.necessity:
        own = [(s, t) for s, t in fits if without[need.without](s)]
        if not own:
            assert need.simulated_step_time_s is None
            continue
        least = min(t for _, t in own)
        near = [s for s, t in own if t <= least * (1 + BAND)]
        seconds = step_times(model, place, WORK, near, profile)
        assert need.simulated_step_time_s <= seconds.min() * (1 + 1e-9)
        assert need.loss_percent == pytest.approx(100 * (need.simulated_step_time_s / best - 1), abs=1e-6)
        assert need.loss_percent >= 0


def test_nothing_fits_names_the_smallest_overshoot():
    place = cluster(4, 3.9)
    profile = load(None, place.chip)
    fixed = {"zero": [0, 1], "recompute": ["none"], "zero_group": ["all", "domain"]}
    fixed |= {"schedule": ["1f1b", "interleaved-1f1b"], "offload": ["none"]}
    found = search(DENSE, place, WORK, fixed | {"dispatcher": "all-to-all"}, profile)
    legal = list(enumerated(DENSE, place, WORK, PLAIN | {"zero": (0, 1)}))
    peaks = [evaluate(DENSE, place, WORK, s, profile).peak_bytes for s in legal]
    assert min(peaks) > place.usable_bytes
    assert found.plans == ()
    assert found.nearest is not None
    assert found.nearest.evaluation.peak_bytes == pytest.approx(min(peaks), rel=1e-9)
    assert "GiB too much" in found.needs


@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2]),
    vpp=st.sampled_from([1, 2]), ep=st.sampled_from([1, 2, 4]), zero=st.integers(0, 3),
    group=st.sampled_from([1, 2, 4, 8]), size=st.sampled_from([1, 2]), sparse=st.booleans(),
    recompute=st.sampled_from(["none", "full"]), precision=st.sampled_from(["bf16", "fp8"]),
    schedule=st.sampled_from(["", "gpipe", "zb-1p", "zb-2p", "zb-v", "v-min", "dualpipe", "dualpipev"]),
    order=st.sampled_from(ALL), on=st.sampled_from(["64xh100", "64xtpu-v5e"]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_bounds_never_pass_the_model(
    tp, pp, cp, vpp, ep, zero, group, size, sparse, recompute, precision, schedule, order, on
):
    # Nodes of four, or a torus where some walk rows two wide.
    place = cluster(64, 70.0) if on == "64xh100" else parse(on)
    profile = load(None, place.chip)
    model, work = (SPARSE if sparse else DENSE), Work(4096, 256, precision)
    strategy = Strategy(
        dp=64 // (tp * pp * cp), tp=tp, sp=tp > 1, pp=pp, vpp=vpp, cp=cp, ep=ep, zero=zero, zero_group=group,
        schedule=schedule or ("interleaved-1f1b" if vpp > 1 else "1f1b"), microbatch_size=size,
        recompute=recompute, dispatcher="all-to-all",
    )  # fmt: skip
    if any(d.severity == "error" for d in checks.run(model, place, work, strategy)):
        return
    found = evaluate(model, place, work, strategy, profile)
    at_peak = busy_at_peak(found.model_flops, place, work, strategy)
    request = Request(model, place, work, profile)
    shapes = candidates(strategy, 1)
    prices = layer_prices(model, place, work, strategy, profile, shapes, recomputes=("none",), every=True)
    modelled = float(busy_seconds(prices, strategy)[0])
    own = seconds_of(layer_table(model, place, work, strategy, profile, shapes))
    assert modelled <= own * (1 + 1e-12)
    assert at_peak <= modelled
    alone = float(busy_seconds(prices.under(place, ALONE), strategy)[0])
    assert alone <= modelled * (1 + 1e-12)
    otherwise = replace(strategy, placement=order)
    if not any(d.severity == "error" for d in checks.run(model, place, work, otherwise)):
        elsewhere = evaluate(model, place, work, otherwise, profile)
        assert time_floor(alone, work, strategy) <= elsewhere.step_time_s * (1 + 1e-12)
        assert elsewhere.peak_bytes == pytest.approx(found.peak_bytes, rel=1e-12)
    assert time_floor(modelled, work, strategy) <= found.step_time_s * (1 + 1e-12)
    assert time_floor(own, work, strategy) <= found.step_time_s * (1 + 1e-12)
    if pp == 1 and zero == 0 and strategy.dp * cp == 1:  # nothing but the microbatches and the optimizer
        rest = found.time_s["optimizer"] / (1 - found.time_s["other"] / found.step_time_s)
        assert time_floor(own, work, strategy) >= found.step_time_s - rest - 1e-6 * found.step_time_s
    assert memory_floor(Request(model, place, work, profile), held(model), strategy) <= found.peak_bytes * (
        1 + 1e-12
    )
    rows = replace(strategy, **{name: np.array([getattr(strategy, name)]) for name in NUMBERS})
    known = shared(model, place, work, rows, profile, candidates(rows, 1))
    least = stage_bytes(request, rows, known).least(saved_bytes(request, rows, known))
    assert least[0] <= found.peak_bytes * (1 + 1e-12)


def test_equal_times_are_ranked_by_simplicity_and_twins_are_told():
    plain = Strategy(dp=8, pp=2, zero=1, zero_group=8)
    twin = replace(plain, zero=2)
    wider = Strategy(dp=4, tp=2, pp=2, zero=1, zero_group=4)
    slower = Strategy(dp=16, zero=0, zero_group=16)
    pool = [Candidate(slower, 2.0, 1e9), Candidate(twin, 1.0, 5e9), Candidate(wider, 1.0 + 1e-14, 1e9),
            Candidate(plain, 1.0, 5e9)]  # fmt: skip
    best = ranked(pool, 3)
    assert [c.strategy for c in best] == [plain, wider, slower]
    assert best[0].tied == (twin,)
    assert best[1].tied == ()
    assert simplicity(plain) < simplicity(wider)
    again = ranked([*best, Candidate(twin, 1.0, 5e9)], 3)
    assert again[0].tied == (twin,)
    lighter = Candidate(twin, 1.0, 4e9)  # the other word holds less, so both are plans
    assert [c.strategy for c in ranked([*pool[:1], pool[3], lighter], 3)] == [plain, twin, slower]


def test_words_of_one_plan_take_no_place_of_another() -> None:
    """Four words for the fastest layout are one plan, so the second is wanted too."""
    words = [Strategy(dp=8, zero=zero, zero_group=8) for zero in range(4)]
    others = [Strategy(dp=4, tp=2, zero_group=4), Strategy(dp=2, tp=4, zero_group=2)]
    seconds = np.array([1.0, 1.0, 1.0, 1.0, 3.0, 2.0])
    some = Shortlist(top=2, most=2)
    some.take(seconds, lambda i: Candidate([*words, *others][i], float(seconds[i]), 1e9))
    assert [(plan.step_time_s, len(plan.tied)) for plan in some.plans] == [(1.0, 3), (2.0, 0)]
