"""Ranks one by one: their coordinates, who is in a group with whom, and what a group crosses.

A group is spelled by its pieces (stride, degree) and starts at every rank that its starts, pieces too, reach:
the lists of ranks follow from both, and what a group crosses is counted on the lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.records import Cluster
from meshwright.strategy import torus
from meshwright.strategy.placement import Pieces, groups, walk
from meshwright.strategy.records import Strategy

IntArray = npt.NDArray[np.int64]
Runs = tuple[tuple[int, int], ...]  # (stride, degree) in plain numbers, innermost first
COORDINATES = ("tp", "cp", "dp", "pp", "etp", "ep", "edp")


@dataclass(frozen=True, slots=True)
class Group:
    """All groups of one kind: `count` of them, `size` ranks each.

    `pieces` reach from a group's first rank to its members, `starts` from rank 0 to the first ranks. `local`
    are the fewest ranks of a group that share a fast domain, `domains` the most domains that one touches,
    `crossing` how many groups touch several. On a torus `axes` are the most coordinates that a group has
    along each axis of a slice.
    """

    name: str
    size: int
    count: int
    pieces: Runs
    starts: Runs
    local: int
    domains: int
    crossing: int
    axes: tuple[int, ...] = ()

    def ranks(self) -> IntArray:
        """Every group in full, [count, size], rising."""
        return reached(self.starts)[:, None] + reached(self.pieces)[None, :]


def coordinates(strategy: Strategy, ranks: Any) -> dict[str, Any]:
    """Coordinate of each of `ranks` (a number or an array) on every axis of attention and of the experts.

    >>> {k: int(v) for k, v in coordinates(Strategy(dp=2, tp=8), 9).items()}
    {'tp': 1, 'cp': 0, 'dp': 1, 'pp': 0, 'etp': 0, 'ep': 0, 'edp': 9}
    """
    known = groups(strategy)
    found = {}
    for axis in COORDINATES:
        at, radix = np.zeros_like(np.asarray(ranks, np.int64)), 1
        for stride, degree in _runs(known[axis]):
            at = at + np.asarray(ranks) // stride % degree * radix
            radix *= degree
        found[axis] = at
    return found


def members(cluster: Cluster, strategy: Strategy, group: str, rank: int) -> tuple[int, ...]:
    """Ranks of the group named `group` that `rank` belongs to, rising (plain degrees only).

    >>> from meshwright.hardware.cluster import parse
    >>> members(parse("16xh100"), Strategy(dp=2, tp=8), "dp", 3)
    (3, 11)
    """
    known = groups(strategy)
    if group not in known:
        hint = did_you_mean(group, tuple(known)) or f"known: {', '.join(known)}"
        raise InputError(Diagnostic("MW909", f"{group!r} is not a group of ranks", hint=hint))
    if not 0 <= rank < cluster.n_chips:
        message = f"rank {rank} is outside 0 to {cluster.n_chips - 1}"
        raise InputError(Diagnostic("MW909", message, hint="ranks count from 0"))
    pieces = _runs(known[group])
    first = rank - sum(rank // stride % degree * stride for stride, degree in pieces)
    return tuple(int(r) for r in first + reached(pieces))


def reached(pieces: Runs) -> IntArray:
    """Every sum of steps that the pieces allow, rising.

    >>> reached(((1, 2), (8, 3))).tolist()
    [0, 1, 8, 9, 16, 17]
    """
    found = np.zeros(1, np.int64)
    for stride, degree in sorted(pieces):
        found = (np.arange(degree)[:, None] * stride + found[None, :]).ravel()
    return found


def starts(pieces: Runs, n: int) -> Runs:
    """Pieces that reach the first ranks of all groups of n ranks that `pieces` make.

    >>> starts(((8, 4),), 64)
    ((1, 8), (32, 2))
    """
    found: list[tuple[int, int]] = []
    done = 1
    for stride, degree in sorted(pieces):
        if stride > done:
            found.append((done, stride // done))
        done = stride * degree
    if n > done:
        found.append((done, n // done))
    return tuple(found)


def survey(cluster: Cluster, strategy: Strategy) -> dict[str, Group]:
    """Every kind of group of `strategy` on `cluster` by name (plain degrees of a legal strategy)."""
    way = walk(cluster, strategy) if cluster.torus else ()
    return {name: _group(name, cluster, way, _runs(pieces)) for name, pieces in groups(strategy).items()}


def _group(name: str, cluster: Cluster, way: torus.Walk, pieces: Runs) -> Group:
    first = starts(pieces, cluster.n_chips)
    lists = reached(first)[:, None] + reached(pieces)[None, :]
    count, size = lists.shape
    domains = lists // cluster.scale_up_size
    begins = np.ones(lists.shape, bool)  # where a run of ranks of one group and domain begins
    begins[:, 1:] = domains[:, 1:] != domains[:, :-1]
    touched = begins.sum(axis=1)
    shares = np.diff(np.flatnonzero(begins), append=lists.size)
    axes = []
    for along in torus.places(way, lists % cluster.scale_up_size):
        places = np.sort(along, axis=1)
        axes.append(int((places[:, 1:] != places[:, :-1]).sum(axis=1).max(initial=0)) + 1)
    return Group(
        name, size, count, pieces, first,
        local=int(shares.min()),
        domains=int(touched.max()),
        crossing=int((touched > 1).sum()),
        axes=tuple(axes),
    )  # fmt: skip


def _runs(pieces: Pieces) -> Runs:
    """Pieces as plain numbers: steps of one left out, and what follows on without a gap joined."""
    found: list[tuple[int, int]] = []
    for stride, degree in _plain(pieces):
        if found and stride == found[-1][0] * found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] * degree)
        else:
            found.append((stride, degree))
    return tuple(found)


def _plain(pieces: Pieces) -> Iterable[tuple[int, int]]:
    return ((int(stride), int(degree)) for stride, degree in pieces if int(degree) > 1)
