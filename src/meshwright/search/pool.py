"""Some strategies of a space kept as arrays, for asking the same ones again on other figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.rows import candidates
from meshwright.cost.step import evaluate
from meshwright.cost.tables import shared
from meshwright.hardware.records import Cluster, as_one
from meshwright.search.bounds import Request
from meshwright.search.ranking import NUMBERS, Candidate, axes_used
from meshwright.strategy.placement import numbered
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_EXCHANGE = ("schedule", "zero")  # beside degrees, what decides what a step exchanges
_OWN = (*_EXCHANGE, "recompute")  # words under which strategies share prices of layers


@dataclass(frozen=True, slots=True)
class Times:
    """Of each strategy of a pool, in order: seconds of a step (infinite where it does not fit) and bytes."""

    step_s: FloatArray
    peak_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class Pool:
    """Strategies in families that share prices of layers, and in these in groups that share all words; those
    of a family that exchange alike stand side by side.

    `axes` [n] is how many axes each uses beside dp.
    """

    families: tuple[tuple[Strategy, ...], ...]
    axes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.axes)

    def groups(self) -> Iterator[Strategy]:
        """All groups in order."""
        return chain.from_iterable(self.families)

    def sizes(self) -> Iterator[int]:
        """How many strategies each group has, in order."""
        return map(_size, self.groups())

    def times(self, requests: Sequence[Request]) -> list[Times]:
        """Every strategy under each of `requests`, which differ in figures of the cluster alone."""
        cluster = as_one([one.cluster for one in requests])
        if cluster is None:
            return [times for one in requests for times in self.times([one])]
        points = _Points(replace(requests[0], cluster=cluster), len(requests))
        found = [times for family in self.families for times in _family_times(family, points)]
        return [joined_times([times[i] for times in found]) for i in range(len(requests))]

    def keep(self, mask: Mask) -> Pool:
        """Those under the mask."""
        start = 0
        families = []
        for family in self.families:
            kept = []
            for group in family:
                own = mask[start : start + _size(group)]
                start += len(own)
                if own.any():
                    kept.append(group.take(own))
            if kept:
                families.append(tuple(kept))
        return Pool(tuple(families), self.axes[mask])

    def candidate(self, i: int, times: Times) -> Candidate:
        """Strategy `i` with its totals."""
        at = i
        for group in self.groups():
            if at < _size(group):
                return Candidate(group.at(at), float(times.step_s[i]), float(times.peak_bytes[i]))
            at -= _size(group)
        raise IndexError(i)


def _size(one: Strategy) -> int:
    """How many strategies stand in its arrays."""
    return int(np.size(one.dp))


@dataclass(frozen=True, slots=True)
class _Points:
    """So many points that differ in figures of the cluster alone, which are arrays [points] in `request`;
    n strategies at all of them are [points * n]."""

    request: Request
    count: int

    def cluster(self, n: int) -> Cluster:
        """The figures that n strategies have at each point."""
        return self.request.cluster.repeated(n)

    def strategies(self, some: Strategy) -> Strategy:
        """The strategies at all points."""
        return some if self.count == 1 else some.take(np.tile(np.arange(_size(some)), self.count))

    def places(self, part: slice, n: int) -> IntArray:
        """Where some of n strategies stand."""
        return (np.arange(self.count)[:, None] * n + np.arange(part.start, part.stop)).ravel()


def _family_times(family: Sequence[Strategy], points: _Points) -> Iterator[list[Times]]:
    """The times of each group of a family at each point. What is the same for several is found out once."""
    r, joined = points.request, _joined(family)
    every, n = points.strategies(joined), _size(joined)
    recomputes = list(dict.fromkeys(group.recompute for group in family))
    many = candidates(every, _size(every))
    tables = shared(r.model, points.cluster(n), r.work, every, r.profile, many, recomputes)
    layers = {word: tables.prices.table(replace(every, recompute=word)) for word in recomputes}
    start = 0
    for _, exchanging in groupby(family, lambda one: tuple(getattr(one, name) for name in _EXCHANGE)):
        alike = list(exchanging)
        joined = _joined(alike)
        some = _size(joined)
        rows = points.places(slice(start, start + some), n)
        start += some
        mine = tables.cut(rows).exchanging(
            r.model, points.cluster(some), r.work, points.strategies(joined), r.profile
        )
        done = 0
        for group in alike:
            size = _size(group)
            own = points.places(slice(done, done + size), some)
            done += size
            known = replace(mine.cut(own), layers=layers[group.recompute].cut(rows[own]))
            cluster, strategies = points.cluster(size), points.strategies(group)
            found = evaluate(r.model, cluster, r.work, strategies, r.profile, known=known)
            yield _times(found, points.count, size)


def _times(found: Evaluation, points: int, n: int) -> list[Times]:
    """Times of an evaluation of n strategies at each of some points."""
    shape = (points, n)
    peak, step = (
        np.broadcast_to(np.asarray(x, float), (points * n,)).reshape(shape)
        for x in (found.peak_bytes, found.step_time_s)
    )
    usable = np.broadcast_to(found.capacity_bytes, (points * n,)).reshape(shape)
    timed = np.where(peak <= usable, step, np.inf)
    return [Times(timed[i], peak[i]) for i in range(points)]


def joined_times(several: list[Times]) -> Times:
    """Times of several in one."""
    none = np.zeros(0)
    return Times(
        np.concatenate([none, *(one.step_s for one in several)]),
        np.concatenate([none, *(one.peak_bytes for one in several)]),
    )


def pool_of(several: Iterable[tuple[Strategy, Times]]) -> tuple[Pool, Times]:
    """The pool of strategies in arrays of degrees, those of the same words put together, and their times."""
    by_words: dict[tuple[Any, ...], dict[tuple[Any, ...], list[tuple[Strategy, Times]]]] = {}
    for one, times in several:
        words = {f.name: getattr(one, f.name) for f in fields(one) if f.name not in _columns(one)}
        own = tuple(words.pop(name) for name in _OWN)
        by_words.setdefault(tuple(words.values()), {}).setdefault(own, []).append((one, times))
    alike = [[groups[own] for own in sorted(groups)] for groups in by_words.values()]
    families = tuple(tuple(_joined([s for s, _ in group]) for group in groups) for groups in alike)
    axes = [np.broadcast_to(axes_used(one), np.shape(one.dp)) for one in chain.from_iterable(families)]
    known = joined_times([times for groups in alike for group in groups for _, times in group])
    return Pool(families, np.concatenate([np.zeros(0, np.int64), *axes])), known


def _joined(alike: Sequence[Strategy]) -> Strategy:
    """The degrees of several in one array each, under the words of the first."""
    columns: dict[str, Any] = {
        name: np.concatenate([np.broadcast_to(getattr(s, name), np.shape(s.dp)) for s in alike])
        for name in _columns(alike[0])
    }
    return replace(alike[0], **columns)


def _columns(one: Strategy) -> tuple[str, ...]:
    """The fields that differ among strategies of the same words."""
    return (*NUMBERS, "placement") if numbered(one.placement) else NUMBERS
