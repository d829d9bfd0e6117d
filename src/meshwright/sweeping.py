"""A sweep from request to record: points read, put into grids, solved, and put back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from time import perf_counter
from typing import Any

from meshwright import estimating
from meshwright.files.points import Asked, points
from meshwright.report.records import Estimate
from meshwright.report.sweep import Point, Sweep
from meshwright.search.arrange import Searched, arranged
from meshwright.search.bounds import Request
from meshwright.search.plan import Ranked
from meshwright.search.processes import solve_all
from meshwright.search.sweep import Solved


def sweep(
    models: Sequence[Any],
    over: Mapping[str, str | Iterable[Any]],
    arguments: Mapping[str, Any],
    *,
    slack: float,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> Sweep:
    """The sweep of `models` along the fields of `over`; `arguments` are those of a plan but for the model."""
    (found,) = sweeps(models, [over], arguments, slack=slack, processes=processes, progress=progress)
    return found


def sweeps(
    models: Sequence[Any],
    overs: Sequence[Mapping[str, str | Iterable[Any]]],
    arguments: Mapping[str, Any],
    *,
    slack: float,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> list[Sweep]:
    """Several sweeps of the same `models`, solved side by side; the seconds of each are those of all."""
    began = perf_counter()
    read = [points(models, over, arguments) for over in overs]
    laid = [
        arranged([(one.model, one.at, _searched(one)) for one in wanted], values, slack, processes)
        for values, wanted, _ in read
    ]
    every = [grid for grids, _ in laid for grid in grids]
    solved = iter(solve_all(every, processes, progress or (lambda *_: None)))
    told = []
    for (values, wanted, derived), (grids, places) in zip(read, laid):
        own = list(islice(solved, len(grids)))
        found = [None if place is None else own[place[0]][place[1]] for place in places]
        searched = sum(at is not None and not at.pooled for at in found)
        names = tuple(dict.fromkeys(one.model for one in wanted))
        each = tuple(_point(one, at) for one, at in zip(wanted, found))
        simulated = all(grid.simulated for grid in grids)
        told.append(Sweep(names, values, each, slack, searched, perf_counter() - began, derived, simulated))
    return told


def _searched(one: Asked) -> Searched | None:
    r = one.request
    return None if r is None else (Request(r.model, r.cluster.cluster, r.work, r.profile), r.strategy)


def _point(one: Asked, at: Solved | None) -> Point:
    if at is None:
        return Point(one.model, one.at, faults=one.faults)
    best, simplest, nearest = (_estimate(one, plan) for plan in (at.best, at.simplest, at.nearest))
    return Point(one.model, one.at, best, simplest, nearest, at.faults, one.taken)


def _estimate(one: Asked, plan: Ranked | None) -> Estimate | None:
    r = one.request
    return None if plan is None or r is None else estimating.brief(r, plan.strategy, plan.evaluation)
