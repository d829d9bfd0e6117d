"""V-Half: half of 1F1B's activations for half of its bubble; two chunks a rank in a V.

**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Needs, Order, Own, own_or_equal, require, v_shaped
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
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """About half of 1F1B's, 1.6 (p - 1) F, where F = I = W; more where F and I differ (I = B - W).

    The longest of the paths through the repeated blocks; with one of F and I long, the other short:
    A = (p - 1)(1.1 long + 0.5 short + 0.45 max(I - W, 0)): warm-up and drain;
    C = m (long - short - W/2) + (p - 3) long + (p + 1) short - W/2: passes too unequal for the pattern. Each
    microbatch waits, so that more of them may have a larger share of the step idle. What a microbatch adds
    is exact, the rest was read off simulated schedules: with equal stages of 2 to 16 ranks, m >= p, and F, I
    and W of which none is over four times another, within 7 % of the simulated step (from 4 p microbatches
    on 4 %).
    """
    gradient = backward - weight
    fill = own_or_equal(own, forward, backward, weight)
    others = np.inf if pp is None else np.maximum(np.asarray(pp) - 1.0, 1.0)
    rounds = 2.0 if pp is None else microbatches / others
    edges = np.maximum(1.1 * forward + 0.5 * gradient, 1.1 * gradient + 0.5 * forward)
    found = edges + 0.45 * np.maximum(gradient - fill.weight, 0.0)
    for long, short, between in ((forward, gradient, fill.gradient), (gradient, forward, fill.forward)):
        cycle = rounds * (long - between - fill.weight / 2.0) + (1.0 - 2.0 / others) * long
        found = np.maximum(found, cycle + (1.0 + 2.0 / others) * short - fill.weight / (2.0 * others))
    return np.where(others == 1.0, _two_ranks(forward, gradient, fill, rounds), found)


def _two_ranks(forward: Any, gradient: Any, fill: Own, microbatches: Any) -> Any:
    """The same for 2 ranks, whose paths are few."""
    paths = (
        4.0 * forward - fill.gradient,
        4.0 * forward + gradient - 2.0 * fill.weight,
        2.0 * forward + gradient,
        3.0 * (forward + gradient - fill.weight),
        microbatches * (2.0 * (gradient - fill.forward) - fill.weight)
        + 7.0 * forward
        - gradient
        - fill.weight,
        microbatches * (2.0 * (forward - fill.gradient) - fill.weight) + 5.0 * gradient - fill.weight,
    )
    return np.maximum(reduce(np.maximum, paths), 0.0) / 2.0


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    return np.minimum(microbatches, np.asarray(pp) // 2 + 1.0 + 0.0 * rank)


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-half", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
