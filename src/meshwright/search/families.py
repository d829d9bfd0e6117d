"""Legal strategies of one schedule, and which of them may fit under each ZeRO and offload word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.schedule import load as load_schedule
from meshwright.search.bounds import Request, memory_floor
from meshwright.search.found import Scan
from meshwright.search.legal import Lattice, Rows
from meshwright.search.limits import NO_MEMORY, Limits, hopeless
from meshwright.search.space import IntArray, Mask, Space, Words

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shard:
    """One (ZeRO, group, offload): words, group size of each block, and the (block, vpp) it spells [b, v]."""

    words: Words
    groups: IntArray
    spelled: Mask


@dataclass(frozen=True, slots=True)
class Family:
    """Legal strategies of one schedule under words that decide what is legal.

    `times` [n] is what a microbatch's seconds through the whole model are multiplied by for a step's floor.
    """

    words: Words
    rows: Rows
    pair: IntArray  # each row's place in an array [b * v]
    times: FloatArray
    shards: tuple[Shard, ...]
    weight: IntArray  # how many of the shards each (block, vpp) is spelled with, [b * v]

    def at(self, part: IntArray) -> Family:
        """Some of its rows."""
        return replace(self, rows=self.rows.at(part), pair=self.pair[part], times=self.times[part])

    def placed(self, placement: Any) -> Family:
        """The same with axes in another order."""
        constant = {**dict(self.words.constant), "placement": placement}
        return replace(self, words=replace(self.words, constant=tuple(constant.items())))

    @property
    def hides(self) -> bool:
        """Whether the schedule hides expert traffic."""
        return load_schedule(self.words.schedule).JOINED

    def count(self) -> int:
        """How many strategies it has, ZeRO and offload words included."""
        return int(self.weight.take(self.pair).sum())

    def pair_of(self, part: IntArray) -> IntArray:
        """`pair` of some rows."""
        return np.asarray(self.pair.take(part))

    def experts_of(self, part: IntArray) -> IntArray:
        """Pairs of expert degrees of some rows."""
        return np.asarray(self.rows.experts.take(part))


@dataclass(frozen=True, slots=True)
class Stock:
    """All legal strategies of one schedule under such words, not spelled out; `pair` and `times` [t] are
    those of a `Family`, of each (block, vpp, size) of the lattice."""

    words: Words
    lattice: Lattice
    pair: IntArray
    times: FloatArray
    shards: tuple[Shard, ...]
    weight: IntArray

    def at(self, part: IntArray) -> Family:
        """The strategies at some places of the lattice."""
        t = part // self.lattice.able.shape[1]
        rows, pair, times = self.lattice.rows(part), self.pair[t], self.times[t]
        return Family(self.words, rows, pair, times, self.shards, self.weight)

    def pair_of(self, part: IntArray) -> IntArray:
        """`Family.pair` of those at some places."""
        return np.asarray(self.pair.take(part // self.lattice.able.shape[1]))

    def experts_of(self, part: IntArray) -> IntArray:
        """Pairs of expert degrees of those at some places."""
        return np.asarray(part % self.lattice.able.shape[1])

    def count(self, each: IntArray | None = None) -> int:
        """How many strategies it has, ZeRO and offload words included; `each` [b, e] is how many times a
        block and a pair of expert degrees count, where not once."""
        many = self.lattice.able.sum(1) if each is None else self.lattice.counts(each)
        return int((many * self.weight.take(self.pair)).sum())


@dataclass(frozen=True, slots=True)
class Chosen:
    """Rows of a family under one ZeRO and offload word, each with the size of its sharding group.

    `places` [n] are those of the rows among the `many` that the family has under this ZeRO word.
    """

    words: Words
    rows: IntArray
    groups: IntArray
    places: IntArray
    many: int

    def at(self, part: IntArray | Mask) -> Chosen:
        """Some of its rows."""
        return replace(self, rows=self.rows[part], groups=self.groups[part], places=self.places[part])


def that_may_fit(
    request: Request, space: Space, family: Family, found: Scan, limits: Limits
) -> Iterator[Chosen]:
    """The strategies of a family, recompute words apart, without those that no memory suffices for."""
    degrees, own = family.rows.degrees(space), np.arange(len(family.rows))
    recomputes = space.words["recompute"]
    for _, alike in groupby(family.shards, lambda shard: (shard.words.zero, shard.words.offload)):
        shards = list(alike)
        rows_of = [own[shard.spelled.ravel().take(family.pair)] for shard in shards]
        rows = np.concatenate(rows_of)
        groups = np.concatenate([shard.groups[family.rows.block[its]] for shard, its in zip(shards, rows_of)])
        words = replace(shards[0].words, recompute=recomputes[0])
        strategy = space.strategy(words, {name: column[rows] for name, column in degrees.items()}, groups)
        bytes_floor = np.broadcast_to(memory_floor(request, limits.parameters, strategy), rows.shape)
        light = ~hopeless(found, bytes_floor)
        found.bounded[NO_MEMORY] += int(len(rows) - light.sum()) * len(recomputes)
        if light.any():
            yield Chosen(words, rows, groups, np.arange(len(rows)), len(rows)).at(light)
