"""The longest paths through a schedule's passes where all stages are equal: how often they take each kind.

A simulated step is the longest of its paths, each a sum of passes, so its seconds are the largest of a few
sums a F + b I + c W. Which those are depends on the order of passes alone. Schedules that repeat a block
have paths whose counts grow linearly with the microbatches: that is what is read off here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.simulate.network import Network
from meshwright.simulate.pipeline import network

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_STEPS_IN_A_ROW = 3  # after which ranks are as far apart as they stay
_RATIO = 10.0  # no kind of pass is over so many times another
_STEPS = 17  # ratios of F and I to W that paths are looked for with
_NUDGE = 1e-7  # share of a pass by which it is lengthened to see how often the longest path takes it
_NEGLIGIBLE = 2e-3  # share of a step below which a path is left out
_EXCESS = 2e-3  # share of a step by which a path that is not there may overstate it


def counts(word: str, pp: int, microbatches: int, shares: Array) -> IntArray:
    """Passes of a chunk on the longest paths of a step of two equal chunks a rank, [paths, 3] of F, I and W;
    `shares` [n, 3] are durations to look for them with."""
    graph = network(word, pp, 2, microbatches)
    nudged = np.concatenate([shares, *(shares + _NUDGE * one for one in np.eye(3))])
    forward, gradient, weight = (np.broadcast_to(x, (2 * pp, len(x))) for x in nudged.T)
    took = np.stack([forward, gradient + weight, gradient, weight])
    lasts = _pace(graph, took).reshape(4, -1)
    found = np.rint((lasts[1:] - lasts[0]).T / _NUDGE)
    really = np.isclose((found * shares).sum(1), lasts[0], rtol=1e-6)  # not where two paths are as long
    return np.unique(found[really], axis=0).astype(np.int64)


def _pace(graph: Network, took: Array) -> Array:
    """Seconds from step to step, [n]: ranks go on without waiting for each other."""
    sends = np.zeros_like(took[0])
    begin = np.zeros((graph.n_ranks, took.shape[-1]))
    for _ in range(_STEPS_IN_A_ROW):
        seen = begin.max(0)
        begin = graph.ends(took, sends, 1.0, begin)[graph.last_nodes]
    return np.asarray(begin.max(0) - seen)


def paths(word: str, pp: int) -> IntArray:
    """Paths of the schedule `word` from `pp` microbatches on, [paths, 7].

    How many passes of F, I and W each has beyond two chunks' worth a microbatch, how many more of each with
    every microbatch, and the fewest microbatches of which there is such a path. Those that are there at 2, 3
    and 4 pp microbatches or at pp, and of them those that set a step's pace somewhere.
    """
    shares = _shares(_STEPS)
    often = sorted({pp, pp + 1, pp + 2, 3 * pp // 2, 2 * pp, 3 * pp, 4 * pp})
    seen = {m: counts(word, pp, m, shares) for m in often}
    beyond = {m: {tuple(row) for row in (seen[m] - 2 * m).tolist()} for m in often}
    found = {(*row, 0, 0, 0) for row in beyond[pp]}
    for row in beyond[2 * pp]:
        for later in beyond[3 * pp]:
            slope, rest = np.divmod(np.subtract(later, row), pp)
            if not rest.any() and tuple(np.add(later, slope * pp).tolist()) in beyond[4 * pp]:
                found.add((*np.subtract(row, 2 * pp * slope).tolist(), *slope.tolist()))
    rows = np.array(sorted(found))
    length = {m: seconds(rows, m, shares) / (seen[m] @ shares.T).max(0) for m in often}
    misses = np.stack([length[m].max(1) > 1 + _EXCESS for m in often])
    last_miss = np.where(misses.any(0), len(often) - misses[::-1].argmax(0), 0)
    least = np.append(often, 0)[last_miss]
    reached = [length[m] * ((least > 0) & (least <= m))[:, None] for m in often]
    return np.column_stack([rows, least])[_enough(np.concatenate(reached, axis=1))]


def seconds(rows: IntArray, microbatches: int, shares: Array) -> Array:
    """How long each of `paths` takes, [paths, n]."""
    return np.asarray((rows[:, :3] + microbatches * (rows[:, 3:6] + 2)) @ shares.T)


def _shares(steps: int) -> Array:
    """Shares of F, I and W in a step, spread over what their ratios may be, [n, 3]."""
    odd = np.sqrt(2.0) / 100  # where ratios are whole, several paths are as long
    ratios = (1 + odd) * _RATIO ** (np.linspace(-1.0, 1.0, steps) + odd / steps)
    forward, gradient = np.stack(np.meshgrid(ratios, ratios)).reshape(2, -1)
    found = np.column_stack([forward, gradient, np.ones(len(forward))])
    found = found[found.max(1) <= 1.1 * _RATIO * found.min(1)]
    return np.asarray(found / found.sum(1, keepdims=True))


def _enough(length: Array) -> list[int]:
    """As few of the paths as say each step within a negligible share; `length` [paths, n] of the longest."""
    chosen: list[int] = []
    reached = np.zeros(length.shape[1])
    enough = length.max(0) * (1 - _NEGLIGIBLE)
    while (reached < enough).any():
        gained = np.maximum(length, reached)
        best = max(range(len(length)), key=lambda i: ((gained[i] >= enough).sum(), gained[i].sum()))
        chosen.append(best)
        reached = gained[best]
    return sorted(chosen)
