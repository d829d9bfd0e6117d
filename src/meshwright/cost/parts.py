"""Many candidates in parts that fit the cache, those of one pipeline side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.arrays import arrays
from meshwright.cost.distinct import Axis, Candidates, Picked
from meshwright.cost.rows import numbers_vary
from meshwright.cost.tables import Tables
from meshwright.hardware.records import Cluster
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]

CHUNK = 16384  # candidates at a time: their arrays stay in the cache
ALIKE = 4096  # candidates of one pipeline, at least, that are worth parts of their own


def at_once(cluster: Cluster, work: Work, profile: Profile, n: int) -> bool:
    """Whether n candidates are evaluated in one part: few of them, or with numbers and work of their own."""
    own = numbers_vary(profile, cluster) or np.ndim(work.seq_len) or np.ndim(work.global_batch_size)
    return n <= CHUNK or bool(own)


@dataclass(frozen=True, slots=True)
class Part:
    """Candidates that lie side by side, and what they share."""

    at: slice
    strategy: Strategy
    tables: Tables

    @property
    def n(self) -> int:
        """How many."""
        return int(self.at.stop - self.at.start)


def in_parts(strategy: Strategy, many: Candidates, tables: Tables) -> tuple[IntArray, Iterator[Part]]:
    """The order of the candidates [n], and those in this order in parts of up to CHUNK.

    Many with one pipeline are by themselves; the others are with those that have as many stage classes, so
    that none computes much for padding. `many` holds the degrees of the strategy.
    """
    classes, pair = tables.lines.classes(), tables.where.pair
    often = np.bincount(pair, minlength=len(classes)) >= ALIKE
    widest = int(classes.max()) + 1
    kinds = np.where(often, widest + np.arange(len(often)), classes)
    kind = kinds.astype(np.min_scalar_type(kinds.max())).take(pair)
    order = np.argsort(kind, kind="stable")  # short numbers sort in no time
    counts: list[int] = np.bincount(kind).tolist()
    all_of_them = Picked(order)
    degrees = many.cut(all_of_them, arrays(strategy))
    return order, _parts(strategy, degrees, tables.cut(all_of_them), counts, widest)


def _parts(
    strategy: Strategy, degrees: dict[str, Axis], tables: Tables, counts: list[int], widest: int
) -> Iterator[Part]:
    """Parts of candidates in order, so many of each kind: a number of stage classes, or from `widest` on a
    pipeline."""
    first = 0
    for kind, count in enumerate(counts):
        for start in range(first, first + count, CHUNK):
            at = slice(start, min(start + CHUNK, first + count))
            part = Picked(at)
            few = tables.only(kind - widest, part) if kind >= widest else tables.cut(part, kind)
            pairs = few.lines.pairs
            plain: dict[str, Any] = {}  # what their pipeline says, if it is one
            if len(pairs) == 1:
                plain = {name: values.item() for name, values in pairs.values.items()}
            each: dict[str, Any] = {
                name: one.values.take(part(one.at)) for name, one in degrees.items() if name not in plain
            }
            yield Part(at, replace(strategy, **plain, **each), few)
        first += count


def in_place(order: IntArray, found: Iterable[tuple[slice, dict[str, Any]]]) -> dict[str, Any]:
    """Numbers of all candidates by name, each [n], from those found for parts of them in `order`.

    Side by side they are written, and then each is put where its candidate was: candidates of one part lie
    far apart, and to reach all over all numbers for each part takes several times as long.
    """
    rows: dict[str, int] = {}
    varying: set[str] = set()
    block = np.zeros((0, 0))
    for at, numbers in found:
        if not rows:  # one block for all, which the system hands out in large pages, full of zeros
            rows = {name: row for row, name in enumerate(numbers)}
            block = np.zeros((len(rows) + 1, len(order)))
        for name, values in numbers.items():
            if np.ndim(values) or values != 0.0:
                block[rows[name] + 1, at] = values
                varying.add(name)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    for name, row in rows.items():  # to the row before it, whose numbers are out of the way by then
        if name in varying:
            block[row + 1].take(place, out=block[row], mode="clip")
        else:
            block[row] = 0.0
    return {name: block[row] for name, row in rows.items()}
