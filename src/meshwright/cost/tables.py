"""Strategies as flat arrays, and the tables of layers, stages and exchanges that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import schedule
from meshwright.cost.activations import Moments
from meshwright.cost.adapters import trained_share
from meshwright.cost.distinct import Candidates
from meshwright.cost.groups import Groups, groups
from meshwright.cost.rows import (
    LayerPrices,
    LayerTable,
    Places,
    candidates,
    layer_prices,
    numbers_vary,
    with_axes,
)
from meshwright.cost.stages import Pipelines, Where, pipelines
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]

CHUNK = 16384  # candidates at a time: their arrays stay in the cache
# Candidates of one pipeline, at least, and share of all, that are worth a part of their own: what lies far
# apart is slow to pick out.
ALIKE, OFTEN = 4096, 1 / 16


def size_of(work: Work, strategy: Strategy, profile: Profile) -> tuple[int, ...]:
    """Shape that all numbers of a request broadcast to."""
    numbers = [getattr(strategy, f.name) for f in fields(strategy)]
    numbers += [work.seq_len, work.global_batch_size, *(x.value for x in profile.numbers.values())]
    return np.broadcast_shapes(*(np.shape(x) for x in numbers if isinstance(x, np.ndarray)))


def flattened(record: Any, outer: tuple[int, ...]) -> Any:
    """The record with its arrays spread over the request and in one row."""
    arrays = {
        f.name: np.broadcast_to(getattr(record, f.name), outer).ravel()
        for f in fields(record)
        if isinstance(getattr(record, f.name), np.ndarray)
    }
    return replace(record, **arrays)


def at_once(work: Work, profile: Profile, n: int) -> bool:
    """Whether n candidates are evaluated in one part: few of them, or with numbers and work of their own."""
    own = numbers_vary(profile) or np.ndim(work.seq_len) or np.ndim(work.global_batch_size)
    return n <= CHUNK or bool(own)


def numbers_over_classes(profile: Profile) -> Profile:
    """The profile with an axis for stage classes on numbers that are arrays."""
    return with_axes(profile, 1)


@dataclass(frozen=True, slots=True)
class Shared:
    """What strategies share that differ only in words for schedule and ZeRO: tables of layers and of stages.

    `prices` makes tables of layers for other recompute words. `sent` is what they exchange, where that was
    found out for one schedule and ZeRO stage (see `exchanging`).
    """

    layers: LayerTable
    lines: Pipelines
    where: Where
    schedule: str  # that the tables were made for
    prices: LayerPrices
    sent: Groups | None = None

    def cut(self, part: IntArray) -> Shared:
        """The same for some of the strategies, in any order."""
        sent = self.sent.cut(part) if self.sent else None
        return replace(self, layers=self.layers.cut(part), where=self.where.cut(part), sent=sent)

    def exchanging(
        self, model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
    ) -> Shared:
        """The same with what the strategies exchange under the schedule and ZeRO words of `strategy`."""
        many = candidates(strategy, len(self.where.pair))
        known = self.laid(model, work, strategy, many)
        return replace(known, sent=exchanged(model, cluster, work, strategy, profile, known, many))

    def laid(self, model: Model, work: Work, strategy: Strategy, many: Candidates) -> Shared:
        """The same with stages laid as the schedule of `strategy` wants them."""
        if layout_of(strategy.schedule) == layout_of(self.schedule):
            return self
        lines, where = pipelines(model, work, strategy, many)
        return replace(self, lines=lines, where=where, schedule=strategy.schedule)


def shared(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    many: Candidates,
    recomputes: Sequence[str] = (),
    prices: LayerPrices | None = None,
) -> Shared:
    """The tables of the strategies whose degrees `many` holds, each in one row, for its own recompute word or
    to be asked for several; `prices` where their layers are priced already."""
    lines, where = pipelines(model, work, strategy, many)
    if prices is None:
        prices = layer_prices(model, cluster, work, strategy, profile, many, recomputes=recomputes)
    return Shared(prices.table(strategy), lines, where, strategy.schedule, prices)


def exchanged(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    known: Shared,
    many: Candidates,
) -> Groups:
    """What the flat candidates exchange and update once."""
    lines = known.lines.held(schedule.load(strategy.schedule).PARAMETERS_HELD)
    trained = trained_share(model, strategy.finetune)
    by_class = numbers_over_classes(profile)
    return groups(cluster, work, strategy, by_class, lines, known.where, many, trained)


@dataclass(frozen=True, slots=True)
class Tables:
    """What the candidates of one request share, and where each of them reads it."""

    layers: LayerTable
    lines: Pipelines
    groups: Groups
    places: Places
    where: Where
    moments: Moments | None

    def parts(self) -> Iterator[tuple[IntArray, Tables]]:
        """All candidates in parts of up to CHUNK, each in rising order: many with one pipeline by themselves,
        the others with those that have as many stage classes, so that none computes much for padding."""
        classes = self.lines.classes()
        own = np.bincount(self.where.pair) >= max(ALIKE, OFTEN * len(self.where.pair))
        widest = int(classes.max()) + 1
        kind = np.where(own, widest + np.arange(len(own)), classes[: len(own)]).take(self.where.pair)
        kind = kind.astype(np.uint16) if kind.max() < 1 << 16 else kind  # short numbers sort in no time
        order = np.argsort(kind, kind="stable")
        start = 0
        for one, count in enumerate(np.bincount(kind).tolist()):
            pair = one - widest
            width = int(classes[pair]) if pair >= 0 else one
            lines = self.lines.only(pair, width) if pair >= 0 else self.lines.cut(width)
            held = self.moments
            if held:
                held = held.only(pair, width) if pair >= 0 else held.cut(width)
            for first in range(start, start + count, CHUNK):
                part = order[first : min(first + CHUNK, start + count)]
                where = self.where.only(part, pair, lines) if pair >= 0 else self.where.cut(part)
                shared = self.groups.cut(part, width)
                yield part, Tables(self.layers, lines, shared, self.places.cut(part), where, held)
            start += count

    def strategy(self, strategy: Strategy, part: IntArray) -> Strategy:
        """Some candidates of a flat strategy, those of these tables; what their pipeline says is plain."""
        if len(self.lines.pairs) > 1:
            return _cut(strategy, part)
        pair = {name: value.item() for name, value in self.lines.pairs.values.items()}
        return _cut(replace(strategy, **pair), part)


def _cut(strategy: Strategy, part: IntArray) -> Strategy:
    """Some of the candidates of a flat strategy."""
    arrays = {
        f.name: getattr(strategy, f.name).take(part)
        for f in fields(strategy)
        if isinstance(getattr(strategy, f.name), np.ndarray)
    }
    return replace(strategy, **arrays)
