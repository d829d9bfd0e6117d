"""Which of a point's nearest plans are best once their pipelines are simulated, over all points of a grid.

No strategy becomes slower along a grid, so what a plan takes at a fast corner it takes at least anywhere
between; only those plans near the best are simulated that could then still be the best or the simplest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, isfinite

from meshwright.search.bounds import Request
from meshwright.search.ranking import Candidate, ranked, simplicity
from meshwright.simulate.many import step_times
from meshwright.strategy.records import Strategy

Index = tuple[int, ...]
Seconds = dict[Strategy, float]
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
    return _Point(request, closed, slack).settle({})


def settle(
    requests: Mapping[Index, Request], found: Mapping[Index, Outcome], slack: float
) -> dict[Index, Outcome]:
    """The outcomes of all points of a grid along which no strategy becomes slower."""
    told: dict[Index, Outcome] = {}
    for index, least in _in_order(requests):
        told[index] = _Point(requests[index], found[index], slack).settle(least)
    return told


def _in_order(places: Iterable[Index]) -> Iterator[tuple[Index, Seconds]]:
    """Every point, the fast corner of a box before what lies in it, with the seconds that strategies take
    there at least: the caller adds to them what it finds, which counts for the box below."""
    last = tuple(max(column) for column in zip(*places))
    boxes: list[tuple[Index, Index, Seconds, bool]] = [(tuple(0 for _ in last), last, {}, True)]
    while boxes:
        slow, fast, known, fresh = boxes.pop()
        least = dict(known)
        if fresh:
            yield fast, least
        if slow == fast:
            continue
        axis = max(range(len(slow)), key=lambda i: fast[i] - slow[i])
        middle = (slow[axis] + fast[axis]) // 2
        boxes.append((slow, (*fast[:axis], middle, *fast[axis + 1 :]), least, True))
        boxes.append(((*slow[:axis], middle + 1, *slow[axis + 1 :]), fast, least, False))


class _Point:
    """The plans of one point, simulated as far as it takes."""

    def __init__(self, request: Request, closed: Outcome, slack: float) -> None:
        self.request, self.closed, self.slack = request, closed, slack
        plans = [*closed.near, *closed.of_kind.values(), *([closed.best] if closed.best else [])]
        self.plans = {plan.strategy: plan for plan in sorted(plans, key=lambda plan: plan.step_time_s)}
        self.known: dict[Strategy, Candidate] = {}

    def settle(self, least: Seconds) -> Outcome:
        """The best plan and the simplest, and into `least` what was simulated for them."""
        if self.closed.best is None:
            return self.closed
        best = self._fastest(list(self.plans.values()), least, inf)
        assert best is not None
        bar, of_kind = best.seconds * (1.0 + self.slack), {}
        kinds: dict[int, list[Candidate]] = {}
        for plan in self.plans.values():
            kinds.setdefault(simplicity(plan.strategy)[0], []).append(plan)
        own = simplicity(best.strategy)[0]
        for axes in sorted(kinds):
            simplest = best if axes == own else self._fastest(kinds[axes], least, bar)
            if simplest is not None:  # any with more axes is not asked for
                of_kind[axes] = simplest
                break
        least |= {s: max(plan.seconds * _ROUNDED, least.get(s, 0.0)) for s, plan in self.known.items()}
        return replace(self.closed, best=best, of_kind=of_kind, near=())

    def _fastest(self, plans: list[Candidate], least: Seconds, bar: float) -> Candidate | None:
        """The fastest of some plans that takes at most `bar` seconds, of equals the simplest."""
        plans = sorted(plans, key=lambda plan: least.get(plan.strategy, 0.0))
        while True:
            seconds = [self.known[p.strategy].seconds for p in plans if p.strategy in self.known]
            limit = min(seconds, default=inf)
            unknown = [p for p in plans if p.strategy not in self.known]
            open_ = [p for p in unknown if least.get(p.strategy, 0.0) <= min(limit, bar)]
            if not open_:
                break
            first = least.get(open_[0].strategy, 0.0)
            # Those of which nothing is known together; else the most promising and what is as good.
            self._simulate([p for p in open_ if least.get(p.strategy, 0.0) <= first * (1.0 + 1e-4)])
        able = [self.known[p.strategy] for p in plans if p.strategy in self.known]
        return next((plan for plan in ranked(able, 1) if plan.seconds <= bar), None)

    def _simulate(self, plans: list[Candidate]) -> None:
        r, piped = self.request, [plan.strategy for plan in plans if int(plan.strategy.pp) > 1]
        times = dict(zip(piped, step_times(r.model, r.cluster, r.work, piped, r.profile).tolist()))
        for plan in plans:
            step = times.get(plan.strategy, plan.step_time_s)
            self.known[plan.strategy] = replace(plan, simulated_s=step if isfinite(step) else None)
