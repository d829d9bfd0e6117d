"""Orders of the axes: numbers stand for words, and those that are left out are no faster."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import checks
from meshwright.cost.collectives import expert_all_to_all_time
from meshwright.cost.rows import candidates, layer_table
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model.presets import load as load_model
from meshwright.profiles.load import load
from meshwright.search.bounds import Request, seconds_of
from meshwright.search.found import Keep
from meshwright.search.orders import nearer_is_quicker, needed, other_orders, where_nearer_is_quicker
from meshwright.search.pool import pool_of
from meshwright.search.ranking import axes_used
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.strategy.placement import ALONE, Span, spans
from meshwright.strategy.records import AXES, ORDERS, Strategy
from meshwright.work import Work

DENSE, SPARSE = load_model("llama-3.1-8b"), load_model("mixtral-8x7b")
WORK = Work(4096, 256)
PLACES = ("64xh100", "64xmi300x", "tpu-v5p:4x4x4", "64xtpu-v5e", "64xgb200")


def test_they_are_all_orders_and_the_usual_one_is_first() -> None:
    assert sorted(ORDERS) == sorted(permutations(AXES))
    assert ORDERS[0] == Strategy(dp=1).placement == AXES


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    tp, pp, cp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    dp = 64 // (tp * pp * cp)
    group = draw(st.sampled_from([g for g in (1, 2, 4, 8, 64) if dp * cp % g == 0]))
    return Strategy(
        dp=dp, tp=tp, sp=tp > 1, pp=pp, cp=cp, ep=draw(st.sampled_from([1, 2, 4])),
        zero=draw(st.integers(0, 3)), zero_group=group,
        cp_method=draw(st.sampled_from(["ring", "all-to-all"])),
        schedule=draw(st.sampled_from(["1f1b", "zb-1p"])),
    )  # fmt: skip


@given(strategies(), st.sampled_from(PLACES), st.booleans())
@settings(max_examples=12, deadline=None)
def test_many_at_once_are_each_by_itself(strategy: Strategy, on: str, sparse: bool) -> None:
    place, model = parse(on), SPARSE if sparse else DENSE
    strategy = strategy if sparse else replace(strategy, ep=1)
    profile = load(None, place.chip)
    able = [
        i for i, order in enumerate(ORDERS)
        if not any(d.severity == "error"
                   for d in checks.run(model, place, WORK, replace(strategy, placement=order)))
    ]  # fmt: skip
    if not able:
        return
    many = replace(strategy, placement=np.array(able))
    together, near = evaluate(model, place, WORK, many, profile), spans(place, many)
    step = np.broadcast_to(together.step_time_s, len(able))
    peak = np.broadcast_to(together.peak_bytes, len(able))
    for k, i in enumerate(able):
        assert many.take(np.arange(len(able))).at(k).placement == ORDERS[i]
        own = replace(strategy, placement=ORDERS[i])
        alone = evaluate(model, place, WORK, own, profile)
        assert step[k] == pytest.approx(alone.step_time_s, rel=1e-12)
        assert peak[k] == pytest.approx(alone.peak_bytes, rel=1e-12)
        for name, span in spans(place, own).items():
            assert _numbers(span) == pytest.approx(_numbers(near[name], k, len(able)), rel=1e-12)
    assert peak.max() == pytest.approx(peak.min(), rel=1e-12)


def _numbers(span: Span, k: int = 0, n: int = 1) -> list[float]:
    told = ("link_kind", "in_switch_reduction", "least")
    values = (getattr(span, f.name) for f in fields(span) if f.name not in told)
    return [float(np.broadcast_to(value, n)[k]) for value in values]


@pytest.mark.parametrize("on", PLACES)
def test_what_is_not_needed_is_no_faster_than_what_is(on: str) -> None:
    """Every order that is left out of some layouts, against the fastest that is kept."""
    place = parse(on)
    profile = load(None, place.chip)
    request = Request(SPARSE, place, WORK, profile)
    fixed: dict[str, Any] = {"zero_group": "all", "schedule": "1f1b", "offload": "none", "vpp": 1}
    space = build(SPARSE, place, WORK, fixed | {"microbatch_size": 1, "ep": [1, 4], "etp": [1, 2]}, profile)
    words, orders = next(space.layer_words()), other_orders(request, space)
    assert nearer_is_quicker(place, profile, words)
    words = replace(words, schedule="1f1b", zero=1, group="all")
    block, experts = (x.ravel() for x in np.indices(space.has_experts.shape))
    legal = orders.legal[:, block, experts] & space.has_experts.ravel()
    groups, _ = space.group_sizes(words, place)
    kept = needed(request, space, words, orders, [groups], block, experts)
    assert not (kept & ~orders.legal[:, block, experts]).any()
    degrees = {name: column[block] for name, column in space.blocks.items()}
    degrees |= {"ep": space.ep[experts], "etp": space.etp[experts], "vpp": 1, "microbatch_size": 1}
    for zero in (0, 1, 3):
        strategy = space.strategy(replace(words, zero=zero), degrees, groups[block])
        each = [strategy, *(replace(strategy, placement=np.full(len(block), i)) for i in orders.numbers)]
        steps = np.array([evaluate(SPARSE, place, WORK, one, profile).step_time_s for one in each])
        first = np.ones((1, len(block)), bool)
        fastest = np.where(np.concatenate([first, kept]), steps, np.inf).min(0)
        left_out = legal & ~kept
        assert left_out.any()
        assert (np.where(left_out, steps[1:], np.inf) >= fastest * (1 - 1e-9)).all()


def test_a_pool_holds_orders() -> None:
    """What a search keeps is what it says, whatever the order of its axes."""
    place = parse("32xh100")
    profile = load(None, place.chip)
    request = Request(DENSE, place, WORK, profile)
    fixed = {"recompute": "none", "offload": "none", "microbatch_size": 1}
    space = build(DENSE, place, WORK, fixed, profile)
    best = scan(request, space, top=1, techniques=()).best[0].step_time_s
    found = scan(request, space, top=1, techniques=(), keep=Keep(best * 1.2, 1.3))
    pool, times = pool_of(found.pool)
    assert len(pool) == len(times.step_s)
    (again,) = pool.times([request])
    assert again.step_s == pytest.approx(times.step_s, rel=1e-9)
    placements = {pool.candidate(i, times).strategy.placement for i in range(0, len(pool), 7)}
    assert len(placements) > 2
    for i in range(0, len(pool), max(len(pool) // 40, 1)):
        one = pool.candidate(i, times)
        own = evaluate(DENSE, place, WORK, one.strategy, profile)
        assert one.step_time_s == pytest.approx(own.step_time_s, rel=1e-9)
        assert pool.axes[i] == axes_used(one.strategy)


def test_a_pool_at_several_points_is_what_it_is_at_each() -> None:
    """Strategies of more pipelines, sizes of tp and pairs of expert degrees than a short number counts."""
    places = [parse("32xh100", {"scale_up_gbytes_s": speed}) for speed in (100, 300, 900)]
    profile = load(None, places[0].chip)
    requests = [Request(SPARSE, place, WORK, profile) for place in places]
    fixed = {"recompute": "none", "offload": "none", "microbatch_size": [1, 2], "cp": 1, "zero_group": "all"}
    space = build(SPARSE, places[-1], WORK, fixed, profile)
    best = scan(requests[-1], space, top=1, techniques=()).best[0].step_time_s
    pool, _ = pool_of(scan(requests[-1], space, top=1, techniques=(), keep=Keep(best * 1.4, 1.5)).pool)
    for together, request in zip(pool.times(requests), requests, strict=True):
        (alone,) = pool.times([request])
        assert together.step_s == pytest.approx(alone.step_s, rel=1e-12)
        assert together.peak_bytes == pytest.approx(alone.peak_bytes, rel=1e-12)


def test_links_slower_than_the_network_leave_nothing_out() -> None:
    slow = parse("64xh100", {"scale_up_gbytes_s": 10})
    profile = load(None, slow.chip)
    space = build(DENSE, slow, WORK, {}, profile)
    words = next(space.layer_words())
    assert not nearer_is_quicker(slow, profile, words)
    assert not nearer_is_quicker(parse("64xh100"), profile, replace(words, cp_method="hierarchical"))


@pytest.mark.parametrize("on", ["64xh100", "64xmi300x", "2*tpu-v5p:4x4x4", "2*tpu-v5e:8x8"])
def test_a_floor_holds_where_the_network_is_the_quicker_one(on: str) -> None:
    """Every group alone, on domains as quick as the network: no order is quicker."""
    fast = parse(on, {"scale_up_gbytes_s": 40, "scale_out_gbits_s": 3200})
    profile = load(None, fast.chip)
    space = build(SPARSE, fast, WORK, {}, profile)
    eased = where_nearer_is_quicker(fast, profile, next(space.layer_words()))
    assert eased not in (None, fast)
    assert eased is not None
    n = fast.n_chips
    for tp, cp, pp, ep in ((1, 1, 8, 8), (4, 1, 2, 4), (2, 2, 4, 8), (8, 1, 1, 4)):
        dp = n // (tp * cp * pp)
        strategy = Strategy(dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, zero=1, zero_group=dp * cp)
        one = candidates(strategy, 1)
        alone, *placed = (
            float(seconds_of(layer_table(SPARSE, place, WORK, own, profile, one)))
            for place, order in ((eased, ALONE), *((fast, order) for order in ORDERS))
            if (own := replace(strategy, placement=order))
        )
        assert alone <= min(placed) * (1 + 1e-9)


@pytest.mark.parametrize("limit", [3, 4, None])
def test_a_floor_holds_where_tokens_reach_few_domains(limit: int | None) -> None:
    """More ranks a domain, fewer domains: then a token may reach more experts, and the links carry more."""
    fast = parse("1024xh100", {"scale_out_gbits_s": 3200})
    strategy = Strategy(dp=128, pp=8, ep=128)
    alone, *placed = (
        expert_all_to_all_time(
            8192, 7168, 8, 256, spans(fast, replace(strategy, placement=order))["ep"], max_domains=limit
        )
        for order in (ALONE, *ORDERS)
    )
    assert alone <= min(placed) * (1 + 1e-12)
    assert alone > 0.0


@pytest.mark.parametrize(
    ("model", "on", "usual"),
    [
        ("llama-3.1-8b", "32xmi300x", "dp,cp,tp,pp"),
        ("llama-3.1-8b", "64xmi300x", "tp,dp,cp,pp"),
        ("mixtral-8x7b", "64xh100", "pp,tp,cp,dp"),
    ],
)
def test_orders_in_any_list_are_as_good_as_each_alone(model: str, on: str, usual: str) -> None:
    """Where the network is quicker than the links the floor of an order is that of other figures."""
    place = parse(on, {"scale_up_gbytes_s": 10.0, "scale_out_gbits_s": 3200.0})
    profile = load(None, place.chip)
    request = Request(load_model(model), place, Work(4096, 64), profile)
    words = {"recompute": ["none", "full"], "zero": [1, 3], "zero_group": ["all"], "offload": ["none"],
             "schedule": ["1f1b"], "vpp": [1]}  # fmt: skip

    def best(orders: list[str]) -> float:
        space = build(request.model, place, request.work, {**words, "placement": orders}, profile)
        return scan(request, space, top=1).best[0].step_time_s

    listed = [usual, "cp,pp,tp,dp", "tp,pp,dp,cp", "cp,dp,pp,tp"]
    assert best(listed) == pytest.approx(min(best([one]) for one in listed), rel=1e-12)
