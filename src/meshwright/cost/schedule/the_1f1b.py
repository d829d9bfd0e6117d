"""1F1B (PipeDream-flush): after the warm-up each rank alternates one forward and one backward.

**Source**: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Action, Needs, Order, Own, looping, require
from meshwright.cost.schedule.alternating import alternate

SENDS = "waited"  # sends and receives are, before the next pass
SENDS_BLOCK = True
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = False
NEEDS = Needs()
route = looping
chunks_in_flight = None


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """(p - 1)(F + B)."""
    return forward + backward


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, p - r)."""
    return np.minimum(microbatches, pp - rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """p - r - 1 forwards, then pairs of a forward and a backward, then the backwards that are left.

    >>> print(*actions(2, 1, 2)[0])
    F0.0 F1.0 B0.0 B1.0
    """
    require("1f1b", NEEDS, pp, vpp, microbatches)
    forward = [Action("F", 0, i) for i in range(microbatches)]
    backward = [Action("B", 0, i) for i in range(microbatches)]
    return tuple(alternate(forward, backward, pp - rank - 1) for rank in range(pp))
