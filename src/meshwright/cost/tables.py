"""Strategies as flat arrays, and the tables of layers, stages and exchanges that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import schedule
from meshwright.cost.activations import Moments
from meshwright.cost.adapters import trained_share
from meshwright.cost.arrays import arrays
from meshwright.cost.distinct import Candidates, Picked
from meshwright.cost.groups import Groups, groups
from meshwright.cost.rows import (
    LayerPrices,
    LayerTable,
    Places,
    candidates,
    layer_prices,
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


def size_of(cluster: Cluster, work: Work, strategy: Strategy, profile: Profile) -> tuple[int, ...]:
    """Shape that all numbers of a request broadcast to."""
    numbers = [*arrays(strategy).values(), *arrays(cluster).values(), work.seq_len, work.global_batch_size]
    numbers += [x.value for x in profile.numbers.values()]
    return np.broadcast_shapes(*(np.shape(x) for x in numbers if isinstance(x, np.ndarray)))


def flattened(record: Any, outer: tuple[int, ...]) -> Any:
    """The record with its arrays spread over the request and in one row."""
    flat = {name: np.broadcast_to(values, outer).ravel() for name, values in arrays(record).items()}
    return replace(record, **flat) if flat else record


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
        picked = Picked(part)
        sent = self.sent.cut(picked) if self.sent else None
        return replace(self, layers=self.layers.cut(part), where=self.where.cut(picked), sent=sent)

    def exchanging(
        self, model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
    ) -> Shared:
        """The same with what the strategies exchange under the schedule and ZeRO words of `strategy`."""
        many = candidates(strategy, len(self.where.pair))
        known = self.laid(model, strategy, many)
        return replace(known, sent=exchanged(model, cluster, work, strategy, profile, known, many))

    def laid(self, model: Model, strategy: Strategy, many: Candidates) -> Shared:
        """The same with stages laid as the schedule of `strategy` wants them."""
        if layout_of(strategy.schedule) == layout_of(self.schedule):
            return self
        lines, where = pipelines(model, strategy, self.layers, many)
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
    if prices is None:
        prices = layer_prices(model, cluster, work, strategy, profile, many, recomputes=recomputes)
    table = prices.table(strategy)
    return Shared(table, *pipelines(model, strategy, table, many), strategy.schedule, prices)


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

    def cut(self, part: Picked, classes: int | None = None) -> Tables:
        """For some of the candidates, whose pipelines have no more than so many classes; None: any number."""
        lines, moments = self.lines, self.moments
        if classes is not None:
            lines, moments = lines.cut(classes), moments.cut(classes) if moments else None
        groups, places = self.groups.cut(part, classes), self.places.cut(part)
        return Tables(self.layers, lines, groups, places, self.where.cut(part), moments)

    def only(self, pair: int, part: Picked) -> Tables:
        """For some of the candidates, who all have this pipeline."""
        classes = int(self.lines.classes()[pair])
        lines, moments = self.lines.only(pair, classes), self.moments
        moments = moments.only(pair, classes) if moments else None
        groups, places = self.groups.cut(part, classes), self.places.cut(part)
        return Tables(self.layers, lines, groups, places, self.where.only(part), moments)
