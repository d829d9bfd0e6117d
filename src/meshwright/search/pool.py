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
from meshwright.search.bounds import Request
from meshwright.search.ranking import NUMBERS, Candidate, axes_used
from meshwright.strategy.placement import numbered
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]
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

    def times(self, request: Request) -> Times:
        """Every strategy under `request`."""
        return joined_times([times for family in self.families for times in _family_times(family, request)])

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


def _family_times(family: Sequence[Strategy], request: Request) -> Iterator[Times]:
    """The times of each group of a family. What is the same for several is found out once."""
    r, every = request, _joined(family)
    recomputes = list(dict.fromkeys(group.recompute for group in family))
    many = candidates(every, _size(every))
    tables = shared(r.model, r.cluster, r.work, every, r.profile, many, recomputes)
    layers = {word: tables.prices.table(replace(every, recompute=word)) for word in recomputes}
    start = 0
    for _, side_by_side in groupby(family, lambda one: tuple(getattr(one, name) for name in _EXCHANGE)):
        alike = list(side_by_side)
        joined = _joined(alike)
        rows = np.arange(start, start + _size(joined))
        start += len(rows)
        mine = tables.cut(rows).exchanging(r.model, r.cluster, r.work, joined, r.profile)
        done = 0
        for group in alike:
            own = np.arange(done, done + _size(group))
            done += len(own)
            known = replace(mine.cut(own), layers=layers[group.recompute].cut(rows[own]))
            yield _times(evaluate(r.model, r.cluster, r.work, group, r.profile, known=known), len(own))


def _times(found: Evaluation, n: int) -> Times:
    """Flat times of an evaluation of n strategies."""
    peak = np.broadcast_to(np.asarray(found.peak_bytes, float), (n,))
    step = np.broadcast_to(np.asarray(found.step_time_s, float), (n,))
    return Times(np.where(peak <= found.capacity_bytes, step, np.inf), peak)


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
