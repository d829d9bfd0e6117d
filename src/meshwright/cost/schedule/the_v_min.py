"""V-Min: a third of 1F1B's activations, two chunks a rank in a V, every pass handed on at once.

With nothing between neighbouring ranks, a cycle of six passes takes as long as the longer of F and I three
times over: V-Min wants passes of equal length.
**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Needs, Order, Own, own_or_equal, require, v_shaped
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
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """About two thirds of 1F1B's, 2 (p - 1) F, where F = I = W; more where F and I differ (I = B - W).

    The longest of the paths through the repeated blocks; with one of F and I long, the other short:
    A = max((p - 1)(8 long + 5 short - W)/6 - W/2, (p - 1)(F + I) 5/6): warm-up and drain, where p is a
    multiple of three (5 long + 2 short - W)/6 more;
    C = m (2 long - short - W) + (p - 3) long + p short + W/2: each microbatch takes 3 long, so that more of
    them may have a larger share of the step idle. What a microbatch adds is exact, the rest was read off
    simulated schedules: with equal stages of 2 to 16 ranks, m >= p, and F, I and W of which none is over
    four times another, within 8 % of the simulated step (from 2 p microbatches on 5 %).
    """
    gradient = backward - weight
    fill = own_or_equal(own, forward, backward, weight)
    others = np.inf if pp is None else np.maximum(np.asarray(pp) - 1.0, 1.0)
    rounds = 2.0 if pp is None else microbatches / others
    third = 0.0 if pp is None else (np.asarray(pp) % 3 == 0) / others
    found = (forward + gradient) * 5.0 / 6.0
    for long, short, between in ((forward, gradient, fill.gradient), (gradient, forward, fill.forward)):
        edges = (8.0 + 5.0 * third) * long + (5.0 + 2.0 * third) * short
        edges = (edges - (1.0 + third + 3.0 / others) * fill.weight) / 6.0
        cycle = rounds * (2.0 * long - between - fill.weight) + (1.0 - 2.0 / others) * long
        cycle = cycle + (1.0 + 1.0 / others) * short
        found = np.maximum(found, np.maximum(edges, cycle + weight / (2.0 * others)))
    return np.where(others == 1.0, _two_ranks(forward, gradient, weight, fill, rounds), found)


def _two_ranks(forward: Any, gradient: Any, weight: Any, fill: Own, microbatches: Any) -> Any:
    """The same for 2 ranks, whose paths are few."""
    paths = (
        3.0 * forward - fill.gradient + weight,
        microbatches * (forward + gradient - 2.0 * fill.weight) + forward + gradient + weight,
        microbatches * (2.0 * gradient - fill.forward - fill.weight) + 3.0 * forward,
        microbatches * (2.0 * forward - fill.gradient - fill.weight) + 2.0 * gradient + weight,
    )
    return np.maximum(reduce(np.maximum, paths), 0.0) / 2.0


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    return np.minimum(microbatches, (np.asarray(pp) + 4.0) // 3 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-min", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
