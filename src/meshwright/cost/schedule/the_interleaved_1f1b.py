"""Interleaved 1F1B: each rank holds v chunks, the bubble shrinks v times, the warm-up holds more.

**Source**: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; in-flight count from its warm-up length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Action, Needs, Order, Own, looping, require
from meshwright.cost.schedule.alternating import alternate

SENDS = "beside"  # another chunk's pass
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = False
NEEDS = Needs(chunks=None, rounds=True)
route = looping


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """(p - 1)(F + B) / v."""
    return (forward + backward) / vpp


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m v, 2 (p - r - 1) + (v - 1) p + 1) / v."""
    return np.minimum(microbatches * vpp, _ahead(rank, pp, vpp) + 1) / vpp


def chunks_in_flight(rank: Any, pp: Any, vpp: int, microbatches: Any) -> Any:
    """Of each chunk, after so many forwards as end the warm-up and one more, and later of a round of p v.

    From then on a backward follows each forward, so while both stay in one chunk each a rank holds ever more,
    or ever less: it is fullest where one of the two goes on to another chunk.
    """
    first = _ahead(rank, pp, vpp) + 1
    turns = np.arange(vpp + 1).reshape(-1, *np.ndim(first + microbatches) * (1,)) * pp
    forwards = np.concatenate(np.broadcast_arrays(first + turns, first - first % pp + pp + turns))
    forwards = np.minimum(forwards, microbatches * vpp)
    backwards = np.maximum(forwards - first, 0)
    chunks = range(vpp)
    held = [_passed(forwards, c, pp, vpp) - _passed(backwards, vpp - 1 - c, pp, vpp) for c in chunks]
    return np.stack(held, axis=1)


def _ahead(rank: Any, pp: Any, vpp: Any) -> Any:
    """Forwards of the warm-up, before the one with the first backward."""
    return 2 * (pp - rank - 1) + (vpp - 1) * pp


def _passed(passes: Any, turn: int, pp: Any, vpp: int) -> Any:
    """Of so many passes those whose chunk has this turn in a round."""
    rounds, rest = np.divmod(passes, pp * vpp)
    return rounds * pp + np.clip(rest - turn * pp, 0, pp)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """Microbatches go in rounds of p through chunk 0, the same p through chunk 1, ...; backward in reverse.

    >>> print(*actions(2, 2, 2)[1])
    F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0
    """
    require("interleaved-1f1b", NEEDS, pp, vpp, microbatches)
    turns = [
        (chunk, i)
        for first in range(0, microbatches, pp)
        for chunk in range(vpp)
        for i in range(first, first + pp)
    ]
    forward = [Action("F", chunk, i) for chunk, i in turns]
    backward = [Action("B", vpp - 1 - chunk, i) for chunk, i in turns]
    return tuple(alternate(forward, backward, _ahead(rank, pp, vpp)) for rank in range(pp))
