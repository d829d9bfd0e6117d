"""The best and the simplest plan at every point of a grid, without searching every point.

Along some figures (bandwidths, usable memory) no strategy becomes slower, and none that fits stops to fit. So
of all points between a slow and a fast corner:

* a strategy is at no point faster than at the fast corner, and the best plan at no point slower than the
  best at the slow corner;
* what takes longer at the fast corner than (1 + slack) times the best at the slow corner is neither best nor
  within slack of the best anywhere between, and need not be looked at there;
* the same holds among strategies that use as many axes, of which only the fastest is asked for.

What is left is evaluated at corners of ever smaller boxes, down to single points. Nothing that could matter
at a point is missing from its pool, so the answer is that of a search of its own. All this goes by closed
forms; what they leave near the best of a point is then simulated (`settle`), unless points are very many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from meshwright.cost.step import evaluate
from meshwright.errors import Diagnostic, InputError
from meshwright.search.bounds import Request
from meshwright.search.found import Keep, Scan
from meshwright.search.plan import Ranked, raise_faults
from meshwright.search.pool import FloatArray, Pool, Times, pool_of
from meshwright.search.ranking import SAME, Candidate, Shortlist, ranked
from meshwright.search.rerank import BAND
from meshwright.search.scan import MOST_NEAR, scans
from meshwright.search.settle import Index, Outcome, settle, settled
from meshwright.search.shown import shown
from meshwright.search.space import Space, build

# Slow over fast best time of a box up to which one pass over the space collects its pool, and what is taken
# for more where the plans of the slow corner alone show so much: those of the fast one are faster still.
WIDEST, FAR = 1.25, 1.06
TOGETHER = 1 << 15  # strategies times points that are evaluated together
_ROUNDED = 1.0 + 1e-9  # sums are rounded


@dataclass(frozen=True, slots=True)
class Grid:
    """Requests by index along axes on which no strategy becomes slower as an index rises; all have the same
    space. A search has one point, index (). `simulated`: plans near the best are put in order by their
    simulated pipelines, as `plan` does; otherwise closed forms decide."""

    requests: Mapping[Index, Request]
    fixed: Mapping[str, Any]
    slack: float
    simulated: bool = True

    @property
    def band(self) -> float:
        """Share beyond the best closed form up to which plans can be best."""
        return BAND if self.simulated else 0.0

    def shape(self) -> Index:
        """Points along each axis."""
        return tuple(max(column) + 1 for column in zip(*self.requests))


def fresh(request: Request, space: Space, slack: float, *, simulated: bool = True) -> Outcome:
    """A search of one point."""
    closed = _by_closed_forms(request, space, slack, BAND if simulated else 0.0)
    return settled(request, closed, slack) if simulated else closed


def _by_closed_forms(request: Request, space: Space, slack: float, band: float) -> Outcome:
    """The same before anything is simulated."""
    (found,) = scans([(request, 1, ())], space, slack=slack, band=band)
    return _outcome_of(found)


def _outcome_of(found: Scan) -> Outcome:
    """What a search found."""
    best = found.best[0] if found.best else None
    return Outcome(best, found.of_kind, found.nearest, tuple(found.best))


def solve(grid: Grid, progress: Callable[[], None] = lambda: None) -> dict[Index, Outcome]:
    """The outcome of every point; `progress` is called after each.

    Raises InputError where `fixed` cannot be read or leaves nothing that is legal.
    """
    some = next(iter(grid.requests.values()))
    space = build(some.model, some.cluster, some.work, grid.fixed, some.profile)
    solver = _Solver(grid, space, progress)
    last = tuple(n - 1 for n in grid.shape())
    solver.box((0,) * len(last), last)
    return settle(grid.requests, solver.found, grid.slack) if grid.simulated else solver.found


class _Solver:
    """Solves boxes of a grid, each by its slow and its fast corner."""

    def __init__(self, grid: Grid, space: Space, progress: Callable[[], None]) -> None:
        self.grid, self.space, self.progress = grid, space, progress
        self.found: dict[Index, Outcome] = {}

    def box(self, slow: Index, fast: Index) -> None:
        """All points of a box, of whose pool nothing is known: some of them are searched."""
        bound = self._before(slow) or self._searched(slow)
        if slow == fast and fast in self.found:
            return
        if not self._is_far(bound, fast):
            pool, at_fast = self._collected(fast, bound)
            if pool is not None and at_fast is not None:
                self.pooled(slow, fast, pool, at_fast, bound)
                return
        if slow == fast:
            self._searched(fast)
            return
        if bound.best is None:
            last = self._searched(fast)
            if last.best is None:  # nothing fits at the most generous point
                for index in _points(slow, fast):
                    self._record(index, last)
                return
        for part in _cut(slow, fast, 2):
            self.box(*part)

    def pooled(self, slow: Index, fast: Index, pool: Pool, at_fast: Times, bound: Outcome) -> None:
        """All points of a box. `pool` holds all that can matter in it, `at_fast` their times at the fast
        corner; `bound` is the outcome of the slow corner or of a point that is slower still."""
        pool, at_fast = _useful(pool, at_fast, bound, self.grid)
        left = [index for index in _points(slow, fast) if index not in self.found]
        if len(left) * len(pool) <= TOGETHER:
            self._evaluated(left, pool)
            return
        parts = _cut(slow, fast, max(TOGETHER // (2 * len(pool)), 2))
        times = self._evaluated([corner for part in parts for corner in part], pool) | {fast: at_fast}
        for near, far in parts:
            self.pooled(near, far, pool, times[far], self.found[near])

    def _evaluated(self, places: list[Index], pool: Pool) -> dict[Index, Times]:
        """The times of the pool at some points, whose outcomes are then known."""
        places = list(dict.fromkeys(places))
        if not places:
            return {}
        step = max(TOGETHER // len(pool), 1)
        times: dict[Index, Times] = {}
        for first in range(0, len(places), step):
            some = places[first : first + step]
            times |= zip(some, pool.times([self.grid.requests[index] for index in some]))
        for index, one in times.items():
            self._record(index, _outcome(pool, one, self.grid.band))
        return times

    def _before(self, index: Index) -> Outcome | None:
        """The best that is known of the points that are no faster, if anything fits at one of them."""
        before = (
            (outcome.best.step_time_s, i)
            for i, outcome in self.found.items()
            if outcome.best is not None and all(a <= b for a, b in zip(i, index))
        )
        least = min(before, default=None)
        return None if least is None else self.found[least[1]]

    def _is_far(self, bound: Outcome, fast: Index) -> bool:
        """Whether already the plans of a point with the outcome `bound` are much faster at a fast corner."""
        if bound.best is None:
            return True
        r = self.grid.requests[fast]
        there = min(
            float(evaluate(r.model, r.cluster, r.work, plan.strategy, r.profile).step_time_s)
            for plan in (bound.best, *bound.of_kind.values())
        )
        return bound.best.step_time_s > FAR * there

    def _collected(self, fast: Index, bound: Outcome) -> tuple[Pool | None, Times | None]:
        """All that can matter between a point with the outcome `bound` and a fast corner, and its times;
        none where the two are too far apart. The same search finds the outcome of the corner."""
        assert bound.best is not None
        known, slack, band = self.found.get(fast), self.grid.slack, self.grid.band
        reach, slowest = 1.0 + max(slack, band), bound.best.step_time_s
        if known is not None and known.best is not None and slowest > WIDEST * known.best.step_time_s:
            return None, None
        keep = Keep(slowest * reach * _ROUNDED, WIDEST * reach * _ROUNDED)
        request = self.grid.requests[fast]
        (collected,) = scans([(request, 1, ())], self.space, slack=slack, keep=keep, band=band)
        self._record(fast, _outcome_of(collected))
        return pool_of(collected.pool) if collected.pool else (None, None)

    def _searched(self, index: Index) -> Outcome:
        """The outcome of a point, searched on its own where it is not known."""
        if index not in self.found:
            request = self.grid.requests[index]
            self._record(index, _by_closed_forms(request, self.space, self.grid.slack, self.grid.band))
        return self.found[index]

    def _record(self, index: Index, outcome: Outcome) -> None:
        if index not in self.found:
            self.found[index] = outcome
            self.progress()


def _points(slow: Index, fast: Index) -> Iterator[Index]:
    """All points of a box."""
    return product(*(range(a, b + 1) for a, b in zip(slow, fast)))


def _cut(slow: Index, fast: Index, parts: int) -> list[tuple[Index, Index]]:
    """A box in up to so many along its longest side.

    >>> _cut((0, 0), (4, 1), 2)
    [((0, 0), (2, 1)), ((3, 0), (4, 1))]
    """
    axis = max(range(len(slow)), key=lambda i: fast[i] - slow[i])
    length = fast[axis] - slow[axis] + 1
    cuts = [slow[axis] + -(-length * k // parts) for k in range(parts + 1)]
    return [
        (_with(slow, axis, low), _with(fast, axis, high - 1)) for low, high in pairwise(cuts) if high > low
    ]


def _with(index: Index, axis: int, value: int) -> Index:
    return (*index[:axis], value, *index[axis + 1 :])


def _useful(pool: Pool, at_fast: Times, slow: Outcome, grid: Grid) -> tuple[Pool, Times]:
    """What of a pool can matter in a box, with its times at the fast corner; `slow` is of the slow corner or
    of a point that is slower still."""
    if slow.best is None:
        return pool, at_fast
    kept = at_fast.step_s <= _bars(slow, pool, grid)
    return pool.keep(kept), Times(at_fast.step_s[kept], at_fast.peak_bytes[kept])


def _bars(slow: Outcome, pool: Pool, grid: Grid) -> FloatArray:
    """Seconds above which a strategy of the pool, at the fast corner, can matter nowhere in the box, [n]."""
    assert slow.best is not None
    best = slow.best.step_time_s
    within = best * (1.0 + grid.slack)
    bars = np.full(len(pool), within)
    for axes, fastest in slow.of_kind.items():
        bars[pool.axes == axes] = min(within, fastest.step_time_s)
    return np.asarray(np.maximum(bars, best * (1.0 + grid.band)) * _ROUNDED)


def _outcome(pool: Pool, times: Times, band: float) -> Outcome:
    """The best of a pool, of equals the simplest, the fastest for each number of axes, and those near."""
    step = times.step_s
    least = float(step.min(initial=np.inf))
    if not np.isfinite(least):
        return Outcome(None, pooled=True)
    ties = np.flatnonzero(step <= least * (1.0 + SAME))
    (best,) = ranked([pool.candidate(int(i), times) for i in ties], 1)
    near = _near(pool, times, least, band) if band else ()
    of_kind = {}
    for axes in np.unique(pool.axes):
        among = np.where(pool.axes == axes, step, np.inf)
        if np.isfinite(among.min()):
            of_kind[int(axes)] = pool.candidate(int(among.argmin()), times)
    return Outcome(best, of_kind, near=near, pooled=True)


def _near(pool: Pool, times: Times, least: float, band: float) -> tuple[Candidate, ...]:
    """Those that a search of the point would keep near its best, words that change nothing told once."""
    near, start = Shortlist(1, MOST_NEAR, band), 0
    for n in pool.sizes():
        own = times.step_s[start : start + n]
        if own.min() <= least * (1.0 + band):
            near.take(own, partial(_candidate, pool, times, start))
        start += n
    return tuple(near.plans)


def _candidate(pool: Pool, times: Times, start: int, i: int) -> Candidate:
    return pool.candidate(start + i, times)


@dataclass(frozen=True, slots=True)
class Solved:
    """A point's best and simplest plan with their evaluations; where nothing fits, the nearest miss, or the
    rules that leave nothing."""

    best: Ranked | None
    simplest: Ranked | None
    nearest: Ranked | None
    faults: tuple[Diagnostic, ...]
    pooled: bool


def solved(grid: Grid, progress: Callable[[], None] = lambda: None) -> dict[Index, Solved]:
    """`solve`, with evaluations; faults of what is fixed stand in every point."""
    try:
        found = solve(grid, progress)
    except InputError as error:
        for _ in grid.requests:
            progress()
        return dict.fromkeys(grid.requests, Solved(None, None, None, error.diagnostics, pooled=False))
    wanted: dict[tuple[Index, str], tuple[Request, Candidate]] = {}
    for index, outcome in found.items():
        own = {"best": outcome.best, "simplest": outcome.simplest(grid.slack)}
        if outcome.best is None:
            own["nearest"] = outcome.nearest
        elif own["simplest"] is own["best"]:
            del own["simplest"]
        wanted |= {(index, name): (grid.requests[index], plan) for name, plan in own.items() if plan}
    told = dict(zip(wanted, shown(list(wanted.values()), simulated=grid.simulated)))
    return {index: _solved(grid, index, outcome, told) for index, outcome in found.items()}


def _solved(grid: Grid, index: Index, outcome: Outcome, told: Mapping[tuple[Index, str], Ranked]) -> Solved:
    best, nearest = told.get((index, "best")), told.get((index, "nearest"))
    missing = best is None and nearest is None
    faults = _faults(grid.requests[index], grid.fixed) if missing else ()
    return Solved(best, told.get((index, "simplest"), best), nearest, faults, outcome.pooled)


def _faults(request: Request, fixed: Mapping[str, Any]) -> tuple[Diagnostic, ...]:
    try:
        raise_faults(request, fixed)
    except InputError as error:
        return error.diagnostics
    return ()
