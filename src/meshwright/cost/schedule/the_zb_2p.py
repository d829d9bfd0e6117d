"""ZB-H2: forwards fill the pipeline's warm-up and weight gradients its drain, in twice the memory.

**Source**: zero-bubble paper (arXiv 2401.10241), section 3.2. Measured runs under this word use an automatic
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
    """(p - 1)(F + I) - min(k min(F, W), k/2 (F + I)), I = B - W, k = min(m, 2p - 1) - 1 microbatches ahead.

    With many microbatches and 2W no longer than F + I that is (p - 1)(F + B - 3W). Exact for equal stages; an
    odd k has one min(F, W) in place of half an F + I.
    **Assumes** that a rank goes on to its next step without waiting for the others: ranks start one after
    another and end one after another. Where all wait (to clip gradients by their norm, say), ZB-H1's holds.
    """
    fill = own_or_equal(own, forward, backward, weight)
    shorter, both = np.minimum(fill.forward, fill.weight), forward + backward - weight
    if pp is None:
        return both - np.minimum(2.0 * shorter, both)
    others = np.maximum(np.asarray(pp) - 1.0, 1.0)
    ahead = np.minimum(microbatches, 2.0 * np.asarray(pp) - 1.0) - 1.0
    pairs, odd = ahead // 2, ahead % 2
    own_both = fill.forward + fill.gradient
    return np.maximum(both - np.minimum(ahead * shorter, pairs * own_both + odd * shorter) / others, 0.0)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, 2p - 1) on every rank."""
    return np.minimum(microbatches, 2 * pp - 1 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """Two forwards more in the warm-up for each stage nearer the input; rank r is 2r weight parts behind.

    >>> print(*actions(2, 1, 3)[0])
    F0.0 F1.0 F2.0 I0.0 W0.0 I1.0 W1.0 I2.0 W2.0
    """
    require("zb-2p", NEEDS, pp, vpp, microbatches)
    return split_backward(pp, microbatches, 2)
