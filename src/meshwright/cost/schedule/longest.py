"""Idle time of schedules whose pace is set by the longest of several paths through their passes.

Of equal stages a step is the largest of sums a F + b I + c W over its paths, with whole counts of passes.
What a path takes beyond a rank's own m (F + I + W) is idle time: passes that it has more of are other ranks',
which are waited for; those it has fewer of are the rank's own, run in the meantime.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from meshwright.cost.schedule.actions import Own

_CHUNKS = 2.0  # a rank; paths count passes of one
_PERIOD = 3  # ranks after which the paths of a longer pipeline are alike; read off the table


class Path(NamedTuple):
    """Chunk passes of a path beyond those of one rank, each a number or an array."""

    forward: Any
    gradient: Any
    weight: Any


@dataclass(frozen=True, slots=True)
class _Row:
    """A path of `ranks` stages: `passes` of F, I and W, as many more with `each` microbatch, and the fewest
    microbatches that have it."""

    passes: tuple[int, int, int]
    each: tuple[int, int, int]
    least: int


def idle(paths: Iterable[Path], others: Own, own: Own, pp: Any) -> Any:
    """Idle seconds of a rank: the longest of `paths`, with `others` and `own` as in `Schedule.bubble`."""
    per_chunk = 1.0 / (_CHUNKS * np.maximum(np.asarray(pp) - 1.0, 1.0))
    longest: Any = 0.0
    for path in paths:
        total: Any = 0.0
        for count, other, fill in zip(path, others, own):
            if np.ndim(count):
                total = total + np.maximum(count, 0.0) * other + np.minimum(count, 0.0) * fill
            elif count:
                total = total + count * (other if count > 0 else fill)
        longest = np.maximum(longest, total)
    return longest * per_chunk


def tabled_idle(word: str, others: Own, own: Own, pp: Any, microbatches: Any) -> Any:
    """The same with the paths that `v_paths.csv` has for the schedule.

    They were read off simulations of equal stages of 2 to 16 ranks, m >= p, and of F, I and W none over ten
    times another: within 1.5 % of the step. Longer pipelines have those of one that is a multiple of three
    ranks shorter, in proportion: within 2 % up to 64 ranks. Fewer microbatches lie between one, which runs
    alone but for its last weight part, and p.
    """
    if pp is None:
        pp, microbatches = _DEEP, 2.0 * _DEEP
    microbatches = np.asarray(microbatches, float)
    depths = np.unique(pp)
    if len(depths) == 1:
        return _of_depth(word, others, own, float(depths[0]), microbatches)
    pp, m, *spread = np.broadcast_arrays(pp, microbatches, *others, *own)
    found = np.empty(pp.shape)
    for depth in depths:
        at = pp == depth
        here = [x[at] for x in spread]
        found[at] = _of_depth(word, Own(*here[:3]), Own(*here[3:]), float(depth), m[at])
    return found


_DEEP = 3 * 10**8 + 2  # ranks, where their number is left out


def _of_depth(word: str, others: Own, own: Own, pp: float, microbatches: Any) -> Any:
    """Idle seconds where all have `pp` ranks."""
    many = np.maximum(microbatches, pp)
    found = idle(_paths(word, pp, many), others, own, pp)
    if (microbatches >= pp).all():
        return found
    n = max(pp - 1.0, 1.0)
    alone = others.forward + others.gradient - np.minimum(own.gradient, own.weight) / (_CHUNKS * n)
    share = np.minimum((microbatches - 1.0) / n, 1.0)
    return share * found + (1.0 - share) * alone


def _paths(word: str, pp: float, microbatches: Any) -> Iterator[Path]:
    """The paths of a pipeline of `pp` ranks, and no fewer microbatches."""
    table = _table()[word]
    most = max(table)
    like = int(max(pp, min(table)) if pp <= most else most - (most - pp) % _PERIOD)
    stretched = max(pp - 1.0, 1.0) / (like - 1.0)
    for row in table[like]:
        there: Any = 1.0
        if row.least > like:
            there = microbatches * like >= row.least * pp
        yield Path(*(
            there * (stretched * passes + (each * microbatches if each else 0.0))
            for passes, each in zip(row.passes, row.each)
        ))  # fmt: skip


@cache
def _table() -> dict[str, dict[int, tuple[_Row, ...]]]:
    """Rows of each schedule and number of ranks, from `v_paths.csv`."""
    text = files("meshwright.cost.schedule").joinpath("v_paths.csv").read_text(encoding="utf-8")
    found: dict[str, dict[int, tuple[_Row, ...]]] = {}
    for line in csv.DictReader(text.splitlines()):
        passes = int(line["forward"]), int(line["input"]), int(line["weight"])
        each = int(line["forward_each"]), int(line["input_each"]), int(line["weight_each"])
        of_word = found.setdefault(line["schedule"], {})
        pp = int(line["pp"])
        of_word[pp] = (*of_word.get(pp, ()), _Row(passes, each, int(line["least"])))
    return found
