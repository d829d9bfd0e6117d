"""V-Min: a third of 1F1B's activations, two chunks a rank in a V, every pass handed on at once.

With nothing between neighbouring ranks, a cycle of six passes takes as long as the longer of F and I three
times over: V-Min wants passes of equal length.
**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Order, chunks_are, require, v_shaped
from meshwright.cost.schedule.v_pattern import Block, pattern, tightened

P2P_EXPOSED = 0.0
PARAMETERS_HELD = 1.0
route = v_shaped

_BLOCK = Block(down=1, up=1, back_down=1, back_up=1)


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None
) -> Any:
    """About 2 (p - 1) F where F = I = W; more where F and I differ (I = B - W).

    max(A, C) with long and short the larger and smaller of F and I:
    A = (p - 1)(1.5 long + 0.75 short - W/4) - W/2: warm-up and drain;
    C = m (2 long - short - W) + (p - 3) long + p short + W/2: each microbatch takes 3 long. The steps per
    microbatch are exact, the rest was read off simulated schedules of 3 to 16 ranks: within 2 % of the
    simulated step where m >= p and F, I and W differ by up to a half.
    """
    gradient = backward - weight
    long, short = np.maximum(forward, gradient), np.minimum(forward, gradient)
    edges = 1.5 * long + 0.75 * short - 0.25 * weight
    if pp is None:
        return edges
    others = np.maximum(np.asarray(pp) - 1.0, 1.0)
    each = microbatches * (2.0 * long - short - weight)
    cycle = each + (others - 2.0) * long + (others + 1.0) * short + weight / 2.0
    return np.maximum(edges - 0.5 * weight / others, cycle / others)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    return np.minimum(microbatches, (np.asarray(pp) + 4.0) // 3 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-min", pp, vpp, microbatches, chunks_are(2, vpp))
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
