"""V-Min: a third of 1F1B's activations, two chunks a rank in a V, every pass handed on at once.

With nothing between neighbouring ranks, a cycle of six passes takes as long as the longer of F and I three
times over: V-Min wants passes of equal length.
**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Needs, Order, require, v_shaped
from meshwright.cost.schedule.v_pattern import Block, pattern, tightened

P2P_EXPOSED = 1.0  # nothing lies between neighbours: a send is waited for, in simulation even 1.3 of it
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = True
NEEDS = Needs(chunks=2)
route = v_shaped

_BLOCK = Block(down=1, up=1, back_down=1, back_up=1)


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None
) -> Any:
    """About two thirds of 1F1B's, 2 (p - 1) F, where F = I = W; more where F and I differ (I = B - W).

    max(A, C) with long and short the larger and smaller of F and I:
    A = (p - 1)(1.5 long + 0.75 short - W/4) - W/2: warm-up and drain;
    C = m (2 long - short - W) + (p - 3) long + p short + W/2: each microbatch takes 3 long
    (2 ranks: half of that excess).
    What a microbatch adds is exact, the rest was read off simulated schedules: within 3 % of the simulated
    step for equal stages of 4 to 12 ranks where m >= p and F, I and W differ by up to a half (2 or 3 ranks:
    8 %).
    """
    gradient = backward - weight
    long, short = np.maximum(forward, gradient), np.minimum(forward, gradient)
    edges = 1.5 * long + 0.75 * short - 0.25 * weight
    each = 2.0 * long - short - weight
    if pp is None:
        return np.maximum(edges, 2.0 * each + long + short)
    others = np.maximum(np.asarray(pp) - 1.0, 1.0)
    each = microbatches * each * np.where(np.asarray(pp) == 2, 0.5, 1.0)
    cycle = each + (others - 2.0) * long + (others + 1.0) * short + weight / 2.0
    return np.maximum(edges - 0.5 * weight / others, cycle / others)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    return np.minimum(microbatches, (np.asarray(pp) + 4.0) // 3 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-min", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
