"""What a pass over a space found, and what is wanted of it besides the best plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.search.pool import Times
from meshwright.search.ranking import Candidate, Shortlist
from meshwright.strategy.records import Strategy

Kind = Callable[[Strategy], Any]  # a whole number of each strategy; broadcasts over degrees


@dataclass(slots=True)
class Scan:
    """What a pass found: the fastest plans, and the fastest that do `without` each technique."""

    shortlist: Shortlist
    without: dict[str, Shortlist] = field(default_factory=dict)
    of_kind: dict[int, Candidate] = field(default_factory=dict)  # the best of each `kind` within `slack`
    pool: list[tuple[Strategy, Times]] = field(default_factory=list)  # all within `Keep`, in arrays
    nearest: Candidate | None = None  # the smallest peak among those that do not fit
    seeks_nearest: bool = False  # nothing fits, that is known: the nearest miss is looked for
    capacity_bytes: float = 0.0
    searched: int = 0
    feasible: int = 0
    reranked: int = 0  # plans put in order by their simulated pipelines
    rejected: Counter[str] = field(default_factory=Counter)
    bounded: Counter[str] = field(default_factory=Counter)

    @property
    def best(self) -> list[Candidate]:
        """The fastest plans, sorted."""
        return self.shortlist.plans

    def branched(self) -> Scan:
        """One that knows what was found, and counts from nothing."""
        copies: dict[int, Candidate] = {}  # each noted with what ties with it, in whatever lists it stands

        def copied(some: Shortlist) -> Shortlist:
            plans = [copies.setdefault(id(plan), replace(plan)) for plan in some.plans]
            return replace(some, plans=plans)

        return Scan(
            copied(self.shortlist),
            {technique: copied(some) for technique, some in self.without.items()},
            dict(self.of_kind),
            nearest=self.nearest,
            seeks_nearest=self.seeks_nearest,
            capacity_bytes=self.capacity_bytes,
        )

    def merge(self, other: Scan) -> None:
        """Take in what a branch found in a part of the space of its own."""
        self.shortlist.add(other.shortlist.plans)
        for technique, own in self.without.items():
            own.add(other.without[technique].plans)
        for kind, plan in other.of_kind.items():
            if kind not in self.of_kind or plan.step_time_s < self.of_kind[kind].step_time_s:
                self.of_kind[kind] = plan
        if other.nearest and (not self.nearest or other.nearest.peak_bytes < self.nearest.peak_bytes):
            self.nearest = other.nearest
        self.pool += other.pool
        self.searched += other.searched
        self.feasible += other.feasible
        self.rejected += other.rejected
        self.bounded += other.bounded


@dataclass(frozen=True, slots=True)
class Keep:
    """All plans that fit and take at most `bar_s` seconds are wanted too, unless that is more than `widest`
    times the best. The bar is no lower than the best within the slack."""

    bar_s: float
    widest: float

    def wanted(self, found: Scan) -> bool:
        """Whether they are, by what was found so far."""
        return not found.best or self.bar_s <= self.widest * found.best[0].step_time_s
