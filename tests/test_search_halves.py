"""Whole searches of small random spaces, in two halves and undivided, against an enumeration of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
import pytest

from enumeration import enumerated
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model.records import Attention, Block, Mamba2, Mlp, Model, Moe
from meshwright.profiles.load import load
from meshwright.search import begun, rounds
from meshwright.search import scan as module
from meshwright.search.bounds import Request
from meshwright.search.found import Scan
from meshwright.search.necessity import TECHNIQUES, does_without
from meshwright.search.ranking import axes_used
from meshwright.search.rerank import BAND
from meshwright.search.scan import scans
from meshwright.search.space import Space, build
from meshwright.strategy.records import ORDERS, Strategy
from meshwright.work import Work
from test_search_fork import said

SEEDS = range(5)
MOST = 100  # strategies of a space
TOP, SLACK = 4, 0.03
PLACES = {  # chips, with figures of networks that are what they are, far slower, or the quicker one
    "8xh100": ({}, {"scale_up_size": 4}, {"scale_up_size": 2, "scale_out_gbits_s": 40},
               {"scale_up_size": 4, "scale_up_gbytes_s": 20, "scale_out_gbits_s": 1600}),
    "4xh100": ({}, {"scale_up_size": 2}),
    "12xh100": ({"scale_up_size": 4}, {"scale_up_size": 6, "scale_out_gbits_s": 20}),
    "8xmi300x": ({}, {"scale_up_size": 4}),
    "tpu-v5p:2x2x2": ({},),
    "2*tpu-v5p:2x2x1": ({}, {"scale_out_gbits_s": 4000}),
    "8xtpu-v5e": ({},),
    "16xtpu-v5e": ({},),  # where four lie in a square
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A small space, how many strategies are bounded and evaluated together, and how much slower than the
    best those may be that are kept beyond what is asked."""

    model: Model
    place: Cluster
    work: Work
    words: Mapping[str, Any]
    few: int = 4096
    band: float = 0.0

    @property
    def request(self) -> Request:
        return Request(self.model, self.place, self.work, load(None, self.place.chip))

    @property
    def space(self) -> Space:
        fixed = {name: list(values) for name, values in self.words.items()} | {"dispatcher": "all-to-all"}
        return build(self.model, self.place, self.work, fixed, self.request.profile)

    def searched(self, *, apart: bool) -> Scan:
        asked = [(self.request, TOP, TECHNIQUES)]
        return scans(asked, self.space, slack=SLACK, band=self.band, apart=apart)[0]

    def evaluated(self, strategies: Sequence[Strategy]) -> list[Evaluation]:
        r = self.request
        return [evaluate(r.model, r.cluster, r.work, s, r.profile) for s in strategies]


def a_model(random: Random) -> Model:
    width, heads = random.choice([(512, 4), (1024, 8), (2048, 16)])
    attention = Attention(heads, random.choice([2, heads]), 128, window=random.choice([None, None, 1024]))
    dense = Block(attention, Mlp(4 * width))
    experts = random.choice([Moe(4, 2, width), Moe(8, 2, 512, shared_d_ff=512), Moe(8, 2, 512, n_groups=4)])
    sparse = Block(attention, replace(experts, topk_groups=2) if experts.n_groups > 1 else experts)
    scan = Block(
        Mamba2(2 * width, 64, 4, 2 * width // 64, 64, random.choice([1, 8])),
        random.choice([None, Mlp(width)]),
    )
    blocks = random.choice([(dense,), (sparse,), (dense, sparse), (scan, dense), (scan, dense, sparse)])
    pattern = tuple(i % len(blocks) for i in range(random.randint(max(3, len(blocks)), 6)))
    return Model("toy", width, random.choice([8192, 65536]), blocks, pattern, random.random() < 0.3)


def some_of(random: Random, values: Sequence[Any], most: int) -> tuple[Any, ...]:
    """A few of some values, in any order."""
    return tuple(random.sample(list(values), random.randint(1, min(most, len(values)))))


def words_of(random: Random, model: Model, n_chips: int) -> dict[str, Any]:
    """Values of every axis and word: few of most, so that few strategies are spelled."""
    degrees = [d for d in range(1, n_chips + 1) if n_chips % d == 0]
    sparse = any(isinstance(block.ffn, Moe) for block in model.blocks)
    outermost = [order for order in ORDERS if order[-1] == "pp"]
    orders = random.choice([outermost[:1], outermost[:3], ORDERS[1:4], ORDERS, ORDERS[:1]])
    schedules = [
        ("1f1b",), ("1f1b", "interleaved-1f1b"), ("interleaved-1f1b",), ("gpipe", "zb-1p"), ("zb-v", "1f1b"),
        ("dualpipe", "zb-2p"), ("1f1b", "v-half", "dualpipev"),
    ]  # fmt: skip
    recomputes = [
        ("none",), ("none", "full"), ("none", "selective:core_attn", "full"), ("full",), ("every:2", "none"),
        ("selective:norm+mlp", "selective:norm", "layers:1"),
    ]  # fmt: skip
    methods = [("ring",), ("ring", "all-to-all"), ("all-to-all", "ring"), ("all-gather",)]
    offloads = [
        ("none",), ("none",), ("none", "optimizer"), ("none", "activations"), ("activations", "optimizer"),
        ("optimizer+params", "none"), ("experts", "none"),
    ]  # fmt: skip
    return {
        "tp": tuple(sorted(some_of(random, degrees, 3))),
        "pp": tuple(sorted(some_of(random, degrees, 3))),
        "cp": tuple(sorted(some_of(random, degrees, 3))),
        "vpp": random.choice([(1,), (1, 2)]),
        "ep": random.choice([(1,), (1, 2), (1, 2, 4), (4,)]) if sparse else (1,),
        "etp": random.choice([(1,), (1, 2)]) if sparse else (1,),
        "microbatch_size": random.choice([(1,), (1, 2), (2,)]),
        "sp": random.choice([(True, False), (False,)]),
        "cp_method": random.choice(methods),
        "zero": some_of(random, range(4), 2),
        "zero_group": some_of(random, ("all", "domain", "node"), 2),
        "offload": random.choice(offloads),
        "recompute": random.choice(recomputes),
        "schedule": random.choice(schedules),
        "placement": tuple(sorted(orders, key=lambda order: order[-1] != "pp")),  # as a search takes them
    }  # fmt: skip


def a_case(random: Random, least: int, most: int) -> tuple[Case, list[Strategy]]:
    """A case with so many legal strategies, and these. Memory holds all of them, some, or none."""
    while True:
        model, on = a_model(random), random.choice(list(PLACES))
        place = parse(on, dict(random.choice(PLACES[on])))
        precision = random.choice(["bf16", "bf16", "fp8"]) if place.chip.fp8_flops else "bf16"
        work = Work(random.choice([1024, 4096, 16384]), place.n_chips * random.choice([1, 2]), precision)
        words = words_of(random, model, place.n_chips)
        case = Case(model, place, work, words, random.choice([3, 20, 4096]), random.choice([0.0, BAND]))
        legal = list(islice(enumerated(model, place, work, words), most + 1))
        if least <= len(legal) <= most:
            peaks = [float(e.peak_bytes) for e in case.evaluated(random.sample(legal, 8))]
            share = random.choice([0.0, 0.3, 0.6, 1.0])
            usable = float(np.quantile(peaks, share)) * random.choice([1.0, 1.001])
            return replace(case, place=replace(place, usable_bytes=usable)), legal


# What decides a plan beside the words of which a search may leave out those that no plan is faster for.
KEPT = tuple(f.name for f in fields(Strategy) if f.name not in ("recompute", "offload", "placement"))


def plain(strategy: Strategy) -> tuple[Any, ...]:
    return tuple(getattr(strategy, name) for name in KEPT)


def check(found: Scan, case: Case, legal: Sequence[Strategy], each: Sequence[Evaluation]) -> None:
    """What a search found is what the enumeration has: none lost, none twice, none wrong."""
    assert found.searched + sum(found.bounded.values()) == len(legal)
    fitting = sorted(((float(e.step_time_s), s) for s, e in zip(legal, each) if e.fits), key=itemgetter(0))
    assert found.feasible <= len(fitting)
    assert bool(found.best) == bool(fitting) == bool(found.feasible)
    if not fitting:
        least = min(float(e.peak_bytes) for e in each)
        assert found.nearest is not None
        assert found.nearest.strategy in legal
        assert found.nearest.peak_bytes == pytest.approx(least, rel=1e-9)
        return
    assert found.best[0].step_time_s == pytest.approx(fitting[0][0], rel=1e-9)
    seconds = {s: t for t, s in fitting}
    for plan in found.best:
        for one in (plan.strategy, *plan.tied):
            assert seconds[one] == pytest.approx(plan.step_time_s, rel=1e-9)
    listed = {one for plan in found.best for one in (plan.strategy, *plan.tied)}
    last = found.best[-1].step_time_s if len(found.best) >= TOP else np.inf
    near = max(last, fitting[0][0] * (1 + case.band))
    for time, strategy in fitting:
        if strategy not in listed and time < near * (1 - 1e-9):
            assert any(plain(one) == plain(strategy) and seconds[one] <= time * (1 + 1e-9) for one in listed)
    for technique in TECHNIQUES:
        times = [time for time, strategy in fitting if bool(does_without(technique, strategy))]
        own = [plan.step_time_s for plan in found.without[technique].plans]
        assert own[:1] == pytest.approx(times[:1], rel=1e-9)
    bar, kinds = fitting[0][0] * (1 + SLACK), {int(axes_used(s)) for _, s in fitting}
    for kind in kinds:
        least = min(time for time, strategy in fitting if int(axes_used(strategy)) == kind)
        if least <= bar:
            assert found.of_kind[kind].step_time_s == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_of_a_small_space_is_its_enumeration(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    case, legal = a_case(Random(seed), 30, MOST)
    monkeypatch.setattr(begun, "FEW", case.few)
    monkeypatch.setattr(rounds, "FEW", case.few)
    monkeypatch.setattr(rounds, "MANY", 2 * case.few)
    each = case.evaluated(legal)
    check(case.searched(apart=False), case, legal, each)
    monkeypatch.setattr(module, "spare_processor", lambda: False)
    halves = case.searched(apart=True)
    check(halves, case, legal, each)
    monkeypatch.setattr(module, "spare_processor", lambda: sys.platform == "linux")
    assert said(case.searched(apart=True)) == said(halves)


FEW_WORDS = {
    "tp": (2,), "pp": (1,), "cp": (1,), "vpp": (1,), "ep": (1,), "etp": (1,), "microbatch_size": (1,),
    "sp": (True,), "cp_method": ("ring",), "zero": (1,), "zero_group": ("all",), "offload": ("none",),
    "recompute": ("none",), "schedule": ("1f1b",), "placement": ORDERS[:1],
}  # fmt: skip
DENSE = Model("toy", 2048, 8192, (Block(Attention(16, 16, 128), Mlp(8192)),), (0,) * 4)


def test_a_half_that_finds_nothing_in_the_first_order_may_find_the_best_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All plans of the second half (all-to-all) are slower in the first order than what the first half
    begins with, so none is evaluated; that is no sign that none fits."""
    place = parse("8xmi300x", {"scale_up_size": 4, "scale_out_gbits_s": 8, "usable_gib": 6.8})
    own = {"pp": (1, 4), "cp": (1, 2), "cp_method": ("all-gather", "all-to-all")}
    orders = (("tp", "dp", "cp", "pp"), ("tp", "cp", "dp", "pp"))
    case = Case(DENSE, place, Work(16384, 8), FEW_WORDS | own | {"placement": orders})
    legal = list(enumerated(case.model, place, case.work, case.words))
    fitting = [(e.step_time_s, s) for s, e in zip(legal, case.evaluated(legal)) if e.fits]
    fastest, best = min(fitting, key=itemgetter(0))
    assert (best.cp_method, best.placement) == ("all-to-all", orders[1])
    usual = [time for time, s in fitting if s.placement == orders[0]]
    assert min(usual) < min(t for t, s in fitting if s.cp_method == "all-to-all" and s != best)
    monkeypatch.setattr(module, "spare_processor", lambda: False)
    found = scans([(case.request, 1, ())], case.space, apart=True)[0]
    assert found.best[0].strategy == best
    assert found.best[0].step_time_s == pytest.approx(fastest, rel=1e-9)
    assert sum(found.bounded.values()) + found.searched == len(legal)


def test_what_is_recomputed_need_not_come_back_from_the_host() -> None:
    """With activations on the host the plan that recomputes everything is the faster one, though that which
    recomputes nothing fits."""
    place = parse("4xh100", {"usable_gib": 40})
    words = FEW_WORDS | {"offload": ("activations",), "recompute": ("none", "full")}
    case = Case(DENSE, place, Work(4096, 8), words)
    legal = list(enumerated(case.model, place, case.work, words))
    seconds = {s.recompute: e.step_time_s for s, e in zip(legal, case.evaluated(legal)) if e.fits}
    assert seconds["full"] < seconds["none"]
    found = case.searched(apart=False)
    assert [plan.strategy.recompute for plan in found.best] == ["full", "none"]
