"""Rows of some families in rounds: bounds, then time and memory of what is left, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.search.absorb import absorb
from meshwright.search.bounds import Request
from meshwright.search.families import Family, FloatArray, Stock
from meshwright.search.found import Scan
from meshwright.search.limits import NO_TIME, Bars, Limits, bars
from meshwright.search.savings import Spared
from meshwright.search.sieve import sieved
from meshwright.search.space import IntArray, Space
from meshwright.strategy.recompute import in_order

FEW, MANY = 4_096, 16_384  # strategies bounded and evaluated together: few until there is something to beat


@dataclass(slots=True)
class Left:
    """What is still to be looked at: strategies at the places `at` of a stock or a family, whose steps take
    `floors` at least, [k]. While `at` is None that is the whole stock; `start` finds what is below a limit.
    """

    of: Stock | Family
    start: Callable[[Bars], tuple[IntArray, FloatArray]] | None = None
    at: IntArray | None = None
    floors: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def rows(cls, family: Family, floors: FloatArray) -> Left:
        """All of a family."""
        return cls(family, at=np.arange(len(floors)), floors=floors)

    def below(self, limit: Bars) -> int:
        """Leave what takes no longer than the limit; how many strategies do, ZeRO and offload words included,
        is what it returns."""
        if self.at is None:
            assert self.start is not None
            assert isinstance(self.of, Stock)
            self.at, self.floors = self.start(limit)
            return self.of.count() - self._count()
        before, near = (
            self._count(),
            self.floors <= limit.of(self.of.pair_of(self.at), self.of.experts_of(self.at)),
        )
        if near.all():
            return 0
        self.at, self.floors = self.at[near], self.floors[near]
        return before - self._count()

    def first(self, size: int) -> Family:
        """The most promising, which are left no more."""
        assert self.at is not None
        if len(self.at) > size:
            order = np.argpartition(self.floors, size)
            self.at, self.floors = self.at[order], self.floors[order]
        some, self.at, self.floors = self.at[:size], self.at[size:], self.floors[size:]
        return self.of.at(some)

    def spelled(self) -> tuple[Family, FloatArray]:
        """What is left, spelled out, with its floors."""
        assert self.at is not None
        return self.of.at(self.at), self.floors

    def _count(self) -> int:
        assert self.at is not None
        return int(self.of.weight.take(self.of.pair_of(self.at)).sum())


def in_rounds(
    request: Request,
    space: Space,
    several: Sequence[Left],
    found: Scan,
    limits: Limits,
) -> None:
    """What is left of some families: the most promising in rounds."""
    while one_round(request, space, several, found, limits, MANY):
        pass


def one_round(
    request: Request, space: Space, several: Sequence[Left], found: Scan, limits: Limits, size: int
) -> bool:
    """Bound and evaluate up to so many strategies of each family under every recompute and ZeRO word; false
    where none is left that may be fast enough."""
    some = []
    for left in several:
        slow = left.below(bars(found, space, left.of.words, limits))
        found.bounded[NO_TIME] += slow * len(space.words["recompute"])
        some.append(left.first(size))
    some = [family for family in some if len(family.rows)]
    spared = Spared(request)
    for one in sieved(request, space, some, in_order(space.words["recompute"]), found, limits):
        absorb(request, one, spared, found, limits)
    return bool(some)
