"""Rows of a family with what their layers take and keep under each recompute word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from meshwright.cost.distinct import Candidates, Picked
from meshwright.cost.rows import LayerPrices, LayerTable, candidates, layer_prices, stage_blind
from meshwright.cost.tables import Shared, shared
from meshwright.search.all_words import AllWords
from meshwright.search.bounds import Request, StageBytes, saved_bytes, seconds_of, stage_bytes
from meshwright.search.families import Chosen, Family, FloatArray
from meshwright.search.found import Scan
from meshwright.search.legal import joined
from meshwright.search.limits import Limits, threshold
from meshwright.search.space import IntArray, Space
from meshwright.strategy.records import Strategy


@dataclass(frozen=True, slots=True)
class Layered:
    """Tables of the layers of rows of several families whose schedules hide alike, for each recompute word:
    sums, seconds that a microbatch takes through the whole model [n], and all words in one."""

    tables: dict[str, LayerTable]
    seconds: dict[str, FloatArray]
    all_words: AllWords


@dataclass(frozen=True, slots=True)
class Priced:
    """The rows of a family, and some `chosen` of them; `strategy` are their degrees under its words, `known`
    what they share, and `at` [n] where they stand in `layered`."""

    request: Request
    family: Family
    chosen: list[Chosen]
    strategy: Strategy
    known: Shared
    layered: Layered
    at: IntArray
    _floor: dict[str, FloatArray] = field(default_factory=dict)
    _saved: dict[str, FloatArray | float] = field(default_factory=dict)

    def under(self, mine: Chosen) -> Strategy:
        """Some of its strategies under a ZeRO and an offload word."""
        words = mine.words
        some = self.strategy.take(mine.rows)
        return replace(some, zero=words.zero, offload=words.offload, zero_group=mine.groups)

    def floor(self, word: str) -> FloatArray:
        """Seconds that a step takes at least with so much recomputed, [n]."""
        if word not in self._floor:
            self._floor[word] = self.family.times * self.layered.seconds[word][self.at]
        return self._floor[word]

    def saved(self, word: str) -> FloatArray | float:
        """Bytes that the microbatches in flight keep at least on each stage class, [n, C]."""
        if word not in self._saved:
            layers = self.layered.tables[word].cut(self.at)
            strategy = replace(self.strategy, recompute=word)
            self._saved[word] = saved_bytes(self.request, strategy, replace(self.known, layers=layers))
        return self._saved[word]

    def states(self, mine: Chosen) -> StageBytes:
        """What ranks hold of states at least under a ZeRO and an offload word."""
        return stage_bytes(self.request, self.under(mine), self.known.cut(mine.rows))

    def shared(self, words: Sequence[str], which: IntArray, rows: IntArray) -> Shared:
        """What some rows share, each under recompute word number `which` [n] of some."""
        number = np.array([list(self.layered.tables).index(word) for word in words])
        layers = self.layered.all_words.at(number.take(which), self.at[rows])
        return replace(self.known, layers=layers, where=self.known.where.cut(Picked(rows)))


def priced(
    request: Request,
    space: Space,
    able: Sequence[tuple[Family, list[Chosen]]],
    recomputes: Sequence[str],
) -> Iterator[Priced]:
    """Some families and what is chosen of them with tables for some recompute words. What does not move
    layers is found out once."""
    r = request
    by_hides = sorted(able, key=lambda one: one[0].hides)
    for _, alike in groupby(by_hides, key=lambda one: one[0].hides):
        several = list(alike)
        rows = joined([family.rows for family, _ in several])
        words = replace(several[0][0].words, recompute=recomputes[0])
        every = space.strategy(words, rows.degrees(space), 1)
        many = candidates(every, len(rows))
        prices = _prices(r, every, many, recomputes)
        tables = shared(r.model, r.cluster, r.work, every, r.profile, many, prices=prices)
        by_word = {word: tables.prices.table(replace(every, recompute=word)) for word in recomputes}
        seconds = {word: np.broadcast_to(seconds_of(table), len(rows)) for word, table in by_word.items()}
        layered = Layered(by_word, seconds, AllWords(list(by_word.values()), len(rows)))
        start = 0
        for family, chosen in several:
            at = np.arange(start, start + len(family.rows))
            start += len(at)
            own = replace(family.words, recompute=recomputes[0])
            strategy = space.strategy(own, family.rows.degrees(space), 1)
            known = tables.cut(at).laid(r.model, strategy, candidates(strategy, len(at)))
            yield Priced(r, family, chosen, strategy, known, layered, at)


def _prices(request: Request, every: Strategy, many: Candidates, recomputes: Sequence[str]) -> LayerPrices:
    """What the layers of strategies take: on every shape with every pair of expert degrees, where these are
    fewer than the strategies."""
    r, cells = request, len(many.distinct("tp", "cp", "microbatch_size")) * len(many.distinct("ep", "etp"))
    wide = stage_blind(every) and cells <= many.n
    return layer_prices(r.model, r.cluster, r.work, every, r.profile, many, recomputes=recomputes, every=wide)


class Thresholds:
    """Seconds above which the rows of a family are useful to nobody, by what their words do without."""

    def __init__(self, one: Priced, found: Scan, limits: Limits) -> None:
        self.strategy, self.found, self.limits = one.strategy, found, limits
        self._known: dict[tuple[bool, bool, bool], FloatArray] = {}

    def of(self, mine: Chosen, *, plain: bool) -> FloatArray:
        """Those of all rows under a ZeRO and an offload word; `plain`: nothing is recomputed."""
        words = mine.words
        key = (words.zero == 3, words.offload == "none", plain)
        if key not in self._known:
            strategy = replace(
                self.strategy,
                zero=words.zero,
                offload=words.offload,
                recompute="none" if plain else "full",
            )
            self._known[key] = threshold(self.found, strategy, self.limits)
        return self._known[key]
