"""V-Half: half of 1F1B's activations for half of its bubble; two chunks a rank in a V.

**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Needs, Order, require, v_shaped
from meshwright.cost.schedule.v_pattern import Block, pattern, tightened

P2P_EXPOSED = 0.3  # sent beside other passes, in simulation wholly hidden; the share left is assumed
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = True
NEEDS = Needs(chunks=2)
route = v_shaped

_BLOCK = Block(down=2, up=1, back_down=2, back_up=1)


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None
) -> Any:
    """About half of 1F1B's, 1.6 (p - 1) F, where F = I = W; more where F and I differ (I = B - W).

    max(A, C) with long and short the larger and smaller of F and I:
    A = (p - 1)(1.1 long + 0.5 short + 0.45 max(I - W, 0)): warm-up and drain;
    C = m (long - short - W/2) + (p - 3) long + (p + 1) short - W/2: passes too unequal for the pattern, each
    microbatch waits. What a microbatch adds
    is exact, the rest was read off simulated schedules: within 3 % of the simulated step for equal stages of
    4 to 12 ranks where m >= p and F, I and W differ by up to a half (2 or 3 ranks: 8 %).
    """
    gradient = backward - weight
    long, short = np.maximum(forward, gradient), np.minimum(forward, gradient)
    edges = 1.1 * long + 0.5 * short + 0.45 * np.maximum(gradient - weight, 0.0)
    each = long - short - weight / 2.0
    if pp is None:
        return np.maximum(edges, 2.0 * each + long + short)
    others = np.maximum(np.asarray(pp) - 1.0, 1.0)
    cycle = microbatches * each + (others - 2.0) * long + (others + 2.0) * short - weight / 2.0
    return np.maximum(edges, cycle / others)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    return np.minimum(microbatches, np.asarray(pp) // 2 + 1.0 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-half", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
