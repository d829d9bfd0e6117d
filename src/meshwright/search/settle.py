"""Which of a point's nearest plans are best once their pipelines are simulated, over all points of a grid.

No strategy becomes slower along a grid, so what a plan takes at a fast corner it takes at least anywhere
between; only those plans near the best are simulated that could then still be the best or the simplest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from meshwright.hardware.records import as_one
from meshwright.search.bounds import Request
from meshwright.search.ranking import Candidate, ranked, simplicity
from meshwright.simulate.many import step_times
from meshwright.strategy.records import Strategy

Index = tuple[int, ...]
Seconds = dict[Strategy, float]
AS_GOOD = 1e-3  # share by which plans are as promising: they are simulated together
_ROUNDED = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a point has: the best plan, the fastest for each number of axes among those within slack, and the
    nearest miss where nothing fits. `near` are the plans whose closed forms come close to the best.
    `pooled` says whether a search of its own was spared."""

    best: Candidate | None
    of_kind: dict[int, Candidate] = field(default_factory=dict)
    nearest: Candidate | None = None
    near: tuple[Candidate, ...] = ()
    pooled: bool = False

    def simplest(self, slack: float) -> Candidate | None:
        """The fastest plan with the fewest axes that is slower than the best by no more than `slack`."""
        if self.best is None:
            return None
        bar = self.best.seconds * (1.0 + slack)
        able = [c for c in (self.best, *self.of_kind.values()) if c.seconds <= bar]
        return min(able, key=_plainest)


def _plainest(plan: Candidate) -> tuple[int, float, tuple[object, ...]]:
    return simplicity(plan.strategy)[0], plan.seconds, simplicity(plan.strategy)


def settled(request: Request, closed: Outcome, slack: float) -> Outcome:
    """The outcome of one point, its plans simulated."""
    return _settled([(_Point(request, closed, slack), {})])[0]


def settle(
    requests: Mapping[Index, Request], found: Mapping[Index, Outcome], slack: float
) -> dict[Index, Outcome]:
    """The outcomes of all points of a grid along which no strategy becomes slower: boxes are halved, the fast
    corner of each before what lies in it, and of boxes that are as often halved all corners together."""
    told: dict[Index, Outcome] = {}
    last = tuple(max(column) for column in zip(*requests))
    boxes = [_Box(tuple(0 for _ in last), last, {}, is_new=True)]
    while boxes:
        new = [box for box in boxes if box.is_new]
        points = [(_Point(requests[box.fast], found[box.fast], slack), box.least) for box in new]
        told |= zip((box.fast for box in new), _settled(points))
        boxes = [half for box in boxes for half in box.halves()]
    return told


@dataclass(frozen=True, slots=True)
class _Box:
    """Points between two corners; `least` are the seconds that strategies take in it at least, with those of
    the fast corner once that is settled, which is still to do where it `is_new`."""

    slow: Index
    fast: Index
    least: Seconds
    is_new: bool

    def halves(self) -> Iterator[_Box]:
        """The box in two."""
        if self.slow == self.fast:
            return
        axis = max(range(len(self.slow)), key=lambda i: self.fast[i] - self.slow[i])
        middle = (self.slow[axis] + self.fast[axis]) // 2
        below, above = list(self.fast), list(self.slow)
        below[axis], above[axis] = middle, middle + 1
        yield _Box(self.slow, tuple(below), dict(self.least), is_new=True)
        yield _Box(tuple(above), self.fast, dict(self.least), is_new=False)


def _settled(points: Sequence[tuple[_Point, Seconds]]) -> list[Outcome]:
    """The outcomes of some points; what each wants simulated next is simulated together. To `Seconds` goes
    what is found out."""
    running = {i: point.settle(least) for i, (point, least) in enumerate(points)}
    found: dict[int, Outcome] = {}
    while running:
        wanted: list[tuple[_Point, Candidate]] = []
        for i, steps in list(running.items()):
            try:
                wanted += ((points[i][0], plan) for plan in next(steps))
            except StopIteration as end:
                found[i] = end.value
                del running[i]
        _simulate(wanted)
    return [found[i] for i in range(len(points))]


def _simulate(wanted: Sequence[tuple[_Point, Candidate]]) -> None:
    """Simulate plans of several points."""
    piped = [(point, plan) for point, plan in wanted if int(plan.strategy.pp) > 1]
    for point, plan in wanted:
        point.known[plan.strategy] = replace(plan, simulated_s=plan.step_time_s)
    if not piped:
        return
    cluster = as_one([point.request.cluster for point, _ in piped])
    if cluster is None:
        for one in {id(point): point for point, _ in piped}.values():
            _simulate_together(one.request, [(point, plan) for point, plan in piped if point is one])
    else:
        _simulate_together(replace(piped[0][0].request, cluster=cluster), piped)


def _simulate_together(request: Request, piped: Sequence[tuple[_Point, Candidate]]) -> None:
    r, strategies = request, [plan.strategy for _, plan in piped]
    for (point, plan), step in zip(piped, step_times(r.model, r.cluster, r.work, strategies, r.profile)):
        point.known[plan.strategy] = replace(plan, simulated_s=float(step) if isfinite(step) else None)


class _Point:
    """The plans of one point, simulated as far as it takes."""

    def __init__(self, request: Request, closed: Outcome, slack: float) -> None:
        self.request, self.closed, self.slack = request, closed, slack
        plans = [*closed.near, *closed.of_kind.values(), *([closed.best] if closed.best else [])]
        self.plans = {plan.strategy: plan for plan in sorted(plans, key=lambda plan: plan.step_time_s)}
        self.known: dict[Strategy, Candidate] = {}

    def settle(self, least: Seconds) -> Generator[list[Candidate], None, Outcome]:
        """The best plan and the simplest, and into `least` what was simulated for them; yields what is to be
        simulated (into `known`) before it goes on."""
        if self.closed.best is None:
            return self.closed
        best = yield from self._fastest(list(self.plans.values()), least, inf)
        assert best is not None
        bar, of_kind = best.seconds * (1.0 + self.slack), {}
        kinds: dict[int, list[Candidate]] = {}
        for plan in self.plans.values():
            kinds.setdefault(simplicity(plan.strategy)[0], []).append(plan)
        own = simplicity(best.strategy)[0]
        for axes in sorted(kinds):
            simplest: Candidate | None = best
            if axes != own:
                simplest = yield from self._fastest(kinds[axes], least, bar)
            if simplest is not None:  # any with more axes is not asked for
                of_kind[axes] = simplest
                break
        least |= {s: max(plan.seconds * _ROUNDED, least.get(s, 0.0)) for s, plan in self.known.items()}
        return replace(self.closed, best=best, of_kind=of_kind, near=())

    def _fastest(
        self, plans: list[Candidate], least: Seconds, bar: float
    ) -> Generator[list[Candidate], None, Candidate | None]:
        """The fastest of some plans that takes at most `bar` seconds, of equals the simplest."""
        plans = sorted(plans, key=lambda plan: least.get(plan.strategy, 0.0))
        reach = AS_GOOD
        while True:
            seconds = [self.known[p.strategy].seconds for p in plans if p.strategy in self.known]
            limit = min(seconds, default=inf)
            unknown = [p for p in plans if p.strategy not in self.known]
            open_ = [p for p in unknown if least.get(p.strategy, 0.0) <= min(limit, bar)]
            if not open_:
                break
            first = least.get(open_[0].strategy, 0.0)
            # Those of which nothing is known together; else the most promising and what is as good.
            yield [p for p in open_ if least.get(p.strategy, 0.0) <= first * (1.0 + reach)]
            reach *= 4.0  # to ask for some more costs less than to ask again
        able = [self.known[p.strategy] for p in plans if p.strategy in self.known]
        return next((plan for plan in ranked(able, 1) if plan.seconds <= bar), None)
