"""Which plans are kept: the fastest, of equals the simplest, and none twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from meshwright.checks.capacity import roomy_bytes
from meshwright.strategy.records import DEGREES, ORDERS, Strategy

FloatArray = npt.NDArray[np.float64]

NUMBERS = (*DEGREES, "microbatch_size", "zero_group")
IDEA = tuple(name for name in DEGREES if name != "vpp")  # how work is split; the rest are variants of it
# Plans whose step times differ by less are not told apart. Of published pairs of layouts of one job, those
# predicted within 3 % of each other are put in order no better than by chance, the others in 9 of 10 cases
# (each job counted once; tests/test_accuracy.py).
TIED = 0.03
SAME = 1e-12  # relative: two results closer than this are one, reached along different sums


@dataclass(slots=True)
class Candidate:
    """One evaluated strategy (plain numbers) with its two totals, and the words that change nothing in it."""

    strategy: Strategy
    step_time_s: float
    peak_bytes: float
    tied: tuple[Strategy, ...] = ()
    simulated_s: float | None = None  # a step as its passes run; None: not simulated

    @property
    def seconds(self) -> float:
        """What plans are put in order by: the simulated step where it is known, else the closed form."""
        return self.step_time_s if self.simulated_s is None else self.simulated_s


@dataclass(slots=True)
class Shortlist:
    """The fastest plans met so far, sorted: `top` of them, and more, `most` in all, that are slower than the
    first by no more than the share `band`."""

    top: int = 1
    most: int = 1
    band: float = 0.0
    plans: list[Candidate] = field(default_factory=list)

    @property
    def bar(self) -> float:
        """Seconds above which a plan is not wanted."""
        if len(self.plans) < self.top:
            return inf
        near = self.plans[0].step_time_s * (1.0 + self.band)
        if len(self.plans) >= self.most:
            near = min(near, self.plans[-1].step_time_s)
        return max(near, self.plans[self.top - 1].step_time_s)

    def near(self, top: int) -> Shortlist:
        """What would be kept of these, were `top` asked for."""
        found = Shortlist(top, self.most, self.band)
        found.add(self.plans)
        return found

    def take(self, seconds: FloatArray, candidate: Callable[[int], Candidate]) -> None:
        """Take the best of a round: `seconds` [n], infinite where a plan is out, `candidate` i of them."""
        better = np.flatnonzero((seconds <= self.bar * (1 + SAME)) & np.isfinite(seconds))
        if len(better) > self.top:
            rising = np.sort(seconds[better])
            slower = np.flatnonzero(np.diff(rising) > SAME * rising[:-1]) + 1  # of equals all may be one plan
            near = min(rising[0] * (1.0 + self.band), rising[: self.most][-1])
            last = max(near, rising[[0, *slower[: self.top - 1]][-1]])
            better = better[seconds[better] <= last * (1 + SAME)]
        if len(better):
            self.add(candidate(int(i)) for i in better)

    def add(self, plans: Iterable[Candidate]) -> None:
        """Take what is wanted of some more plans."""
        self.plans = ranked([*self.plans, *plans], max(self.most, self.top))
        bar = self.bar * (1 + SAME)
        self.plans = [plan for plan in self.plans if plan.step_time_s <= bar]


def axes_used(strategy: Strategy) -> Any:
    """Axes beside dp that have more than one rank or chunk; broadcasts over degrees.

    >>> int(axes_used(Strategy(dp=64, tp=8, pp=16)))
    2
    """
    return sum((np.asarray(getattr(strategy, name)) > 1) * 1 for name in DEGREES if name != "dp")


def fastest_of_each(kinds: Any, seconds: FloatArray) -> Iterator[tuple[int, int]]:
    """Each kind [n] that has finite `seconds` [n], with the place of its fastest.

    >>> list(fastest_of_each(np.array([7, 2, 7]), np.array([3.0, np.inf, 1.0])))
    [(7, 2)]
    """
    able = np.flatnonzero(np.isfinite(seconds))
    order = able[np.lexsort((seconds[able], kinds[able]))]
    found, first = np.unique(kinds[order], return_index=True)
    yield from zip(found.tolist(), order[first].tolist())


def simplicity(strategy: Strategy) -> tuple[Any, ...]:
    """Sorts simpler strategies first: fewer axes above 1, lower ZeRO, smaller pp, tp, then the rest, at last
    the usual order of axes."""
    s = strategy
    axes = int(axes_used(s))
    rest = (s.vpp, s.cp, s.ep, s.etp, s.microbatch_size, s.zero_group)
    words = (s.recompute != "none", s.recompute, s.sp, s.cp_method, s.schedule)
    return (axes, s.zero, s.pp, s.tp, *rest, *words, s.offload != "none", ORDERS.index(s.placement))


def ranked(candidates: Iterable[Candidate], top: int) -> list[Candidate]:
    """The `top` fastest; among equal times the simplest first.

    Candidates of the same degrees and time are one plan in several words (ZeRO 1 and 2 under a pipeline): the
    simplest is kept, unless another holds less, and the others stand in its `tied`.
    """
    by_time = sorted(candidates, key=lambda c: c.seconds)
    kept: list[Candidate] = []
    start = first = 0
    while start < len(by_time) and len(kept) < top:
        while first < len(kept) and kept[first].seconds < by_time[start].seconds * (1 - 4 * SAME):
            first += 1  # faster than all that follow, so it stands for none of them
        stop = start + 1
        while stop < len(by_time) and _same(by_time[start].seconds, by_time[stop].seconds):
            stop += 1
        equal = by_time[start:stop]
        if len(equal) > 1:
            equal.sort(key=lambda c: simplicity(c.strategy))
        for one in equal:
            twin = next((k for k in kept[first:] if _stands_for(k, one)), None)
            if twin is None:
                kept.append(one)
            else:
                extra = (one.strategy, *one.tied)
                known = (twin.strategy, *twin.tied)
                twin.tied += tuple(s for s in extra if s not in known)
        start = stop
    return kept[:top]


class Measured(Protocol):
    """What has a strategy, a time and a peak."""

    @property
    def strategy(self) -> Strategy: ...
    @property
    def seconds(self) -> float: ...
    @property
    def peak_bytes(self) -> float: ...


def roomier(plans: Sequence[Measured], capacity_bytes: float) -> int | None:
    """Where the first of the plans leaves little room (`roomy_bytes`): the first that leaves more, is tied
    with it, and uses no more axes.

    >>> tight, roomy = (Candidate(Strategy(dp=8, zero=z), 1.0 + z / 100, 99.0 - 9 * z) for z in (0, 2))
    >>> roomier([tight, roomy], 100.0), roomier([roomy, tight], 100.0)
    (1, None)
    """
    most = roomy_bytes(capacity_bytes)
    if not plans or plans[0].peak_bytes <= most:
        return None
    bar, axes = plans[0].seconds * (1.0 + TIED), axes_used(plans[0].strategy)
    able = (
        i
        for i, plan in enumerate(plans)
        if plan.peak_bytes <= most and plan.seconds <= bar and axes_used(plan.strategy) <= axes
    )
    return next(able, None)


def leading(plans: Sequence[Candidate], top: int, capacity_bytes: float = inf) -> list[Candidate]:
    """`top` of the plans that show as many ideas as there are, in the order given: of plans with the same
    degrees the first, of all that are tied with the fastest the simplest, and where the first is tight the
    `roomier` one. Variants fill up what is left.

    >>> one = [Candidate(Strategy(dp=1, pp=2, vpp=v), 1.0 + v / 100, 0.0) for v in (1, 2, 3)]
    >>> [c.strategy.vpp for c in leading([*one, Candidate(Strategy(dp=2), 1.04, 0.0)], 2)]
    [1, 1]
    """
    if not plans:
        return []
    first: dict[tuple[int, ...], int] = {}
    for i, plan in enumerate(plans):
        first.setdefault(tuple(int(getattr(plan.strategy, name)) for name in IDEA), i)
    bar = min(plan.seconds for plan in plans) * (1.0 + TIED)
    tied = [i for i, plan in enumerate(plans) if plan.seconds <= bar]
    simplest = min(tied, key=lambda i: (int(axes_used(plans[i].strategy)), plans[i].seconds))
    roomy = roomier(plans, capacity_bytes)
    told = [0, simplest, *([] if roomy is None else [roomy])]
    chosen = dict.fromkeys([*told, *first.values(), *range(len(plans))])
    return [plans[i] for i in sorted(list(chosen)[:top])]


def differences(kept: Strategy, other: Strategy) -> str:
    """The words in which `other` differs, spelled as it has them."""
    return ", ".join(spelled(other, name) for name in differing(kept, other))


def differing(kept: Strategy, other: Strategy) -> list[str]:
    """Names of the fields in which `other` differs."""
    return [f.name for f in fields(kept) if getattr(kept, f.name) != getattr(other, f.name)]


def spelled(strategy: Strategy, name: str) -> str:
    """A field of a strategy and its value, as a command line has it."""
    value = getattr(strategy, name)
    return f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _stands_for(kept: Candidate, other: Candidate) -> bool:
    """Whether `other` is no better than `kept` in anything, and differs in words only."""
    return (
        _same(kept.seconds, other.seconds)
        and _same(kept.step_time_s, other.step_time_s)
        and kept.peak_bytes <= other.peak_bytes * (1 + SAME)
        and all(getattr(kept.strategy, n) == getattr(other.strategy, n) for n in NUMBERS)
    )


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * abs(a)
