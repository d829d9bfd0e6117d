"""Points of a sweep put into grids along which no strategy becomes slower, and cut for several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from meshwright.search.bounds import Request
from meshwright.search.settle import Index
from meshwright.search.sweep import Grid

# Figures along which no strategy becomes slower or stops to fit: rising, or falling where -1.
EASIER = {
    "cluster.scale_up_gbytes_s": 1,
    "cluster.scale_out_gbits_s": 1,
    "cluster.oversubscription": -1,
    "cluster.usable_gib": 1,
}

MOST_SIMULATED = 100  # points of a sweep; of more, simulated steps would take most of the time

Searched = tuple[Request, Mapping[str, Any]]  # what is planned, and what is fixed
Place = tuple[int, Index]  # number of the grid, index in it


def arranged(
    points: Sequence[tuple[str, Mapping[str, Any], Searched | None]],
    values: Mapping[str, Sequence[Any]],
    slack: float,
    processes: int,
) -> tuple[list[Grid], list[Place | None]]:
    """Grids of all `points` (model, values, request or None), and where each point is found in them; plans
    are put in order by their simulated pipelines unless points are more than MOST_SIMULATED."""
    easier = [name for name in values if name in EASIER]
    ranks = {
        name: {v: i for i, v in enumerate(sorted(values[name], key=lambda v: EASIER[name] * v))}
        for name in easier
    }
    groups: dict[tuple[Any, ...], dict[Index, int]] = {}
    for i, (model, at, searched) in enumerate(points):
        if searched is not None:
            key = (model, *(v for name, v in at.items() if name not in EASIER))
            groups.setdefault(key, {})[tuple(ranks[name][at[name]] for name in easier)] = i
    pieces = max(-(-processes // max(len(groups), 1)), 1)
    grids: list[Grid] = []
    places: list[Place | None] = [None] * len(points)
    for members in groups.values():
        for part in _parts(members, tuple(len(values[name]) for name in easier), pieces):
            requests = {}
            for index, i in part.items():
                searched = points[i][2]
                assert searched is not None
                requests[index], fixed = searched
                places[i] = (len(grids), index)
            grids.append(Grid(requests, fixed, slack, len(points) <= MOST_SIMULATED))
    return grids, places


def _parts(members: dict[Index, int], shape: Index, pieces: int) -> list[dict[Index, int]]:
    """Whole boxes of a group, counted from 0: up to `pieces` along its first axis; single points where some
    are missing."""
    if len(members) < _size(shape):
        return [{(0,) * len(shape): i} for i in members.values()]
    if not shape:
        return [members]
    cuts = [round(shape[0] * k / pieces) for k in range(pieces + 1)]
    parts = []
    for low, high in pairwise(cuts):
        if high > low:
            inner = product(range(low, high), *(range(n) for n in shape[1:]))
            parts.append({(index[0] - low, *index[1:]): members[index] for index in inner})
    return parts


def _size(shape: Index) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
