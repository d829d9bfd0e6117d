"""ZB-H1: weight gradients put off to where the pipeline drains, in the memory that 1F1B's first rank has.

**Source**: zero-bubble paper (arXiv 2401.10241), section 3.1. Measured runs under this word use an automatic
search under the same memory limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Needs, Order, Own, looping, own_or_equal, require
from meshwright.cost.schedule.alternating import split_backward

SENDS = "beside"
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = True
NEEDS = Needs()
route = looping
chunks_in_flight = None


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """(p - 1)(F + I) - (min(m, p) - 1) min(F, W), I = B - W; with F >= W and m >= p (p - 1)(F + B - 2W).

    The second term is the drain filled with the rank's own weight parts, or the warm-up with its forwards,
    whichever is shorter.
    Exact for equal stages.
    """
    filled: Any = 1.0
    if pp is not None:
        filled = (np.minimum(microbatches, pp) - 1.0) / np.maximum(np.asarray(pp) - 1.0, 1.0)
    fill = own_or_equal(own, forward, backward, weight)
    return forward + backward - weight - filled * np.minimum(fill.forward, fill.weight)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, p) on every rank: what a rank starts later it puts off longer."""
    return np.minimum(microbatches, pp + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """1F1B's warm-up; rank r is r weight parts behind.

    >>> print(*actions(2, 1, 3)[1])
    F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 W2.0
    """
    require("zb-1p", NEEDS, pp, vpp, microbatches)
    return split_backward(pp, microbatches, 1)
