"""V-Min: a third of 1F1B's activations, two chunks a rank in a V, every pass handed on at once.

With nothing between neighbouring ranks, a cycle of six passes takes as long as the longer of F and I three
times over: V-Min wants passes of equal length.
**Source**: Qi et al. 2024 (arXiv 2405.15362), section 4; the slots are worked out in `v_pattern`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import (
    Needs,
    Order,
    Own,
    most,
    on_chunks,
    own_or_equal,
    require,
    v_shaped,
)
from meshwright.cost.schedule.longest import tabled_idle
from meshwright.cost.schedule.v_pattern import Block, pattern, tightened

SENDS = "waited"  # nothing lies between neighbours; in simulation even 1.3 of a send is waited for
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

    The longest of the paths that `v_paths.csv` has. With many microbatches those with slopes count, of which
    each microbatch adds 2 F - I - W or 2 I - F - W where that is positive: it takes three of the longer of
    F and I, so that more of them may have a larger share of the step idle.
    """
    others = Own(forward, backward - weight, weight)
    return tabled_idle("v-min", others, own_or_equal(own, forward, backward, weight), pp, microbatches)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, (p + 4) / 3), rounded down, on the fullest rank."""
    return most(chunks_in_flight(rank, pp, vpp, microbatches), 2)


def chunks_in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """Of chunk 1 one more with every third rank, the rest of 2 (p + 4)/3 of chunk 0; ranks where that is
    about to change reach the next rank's count too, and hold two fewer where three goes into p
    with two left.

    Read off the action lists, and exact of them for more than 2p/3 microbatches; of fewer some ranks hold one
    chunk less.
    """
    over = np.asarray(pp) % 3
    place = rank + (1 - over) % 3
    swaps = place % 3 == 2
    fewer = swaps & (over == 2)
    far = 1 + place // 3 - fewer
    near = 2 * ((np.asarray(pp) + 4) // 3) - far - 2 * fewer
    return on_chunks(
        (np.minimum(microbatches, near), np.minimum(microbatches, far)),
        (np.minimum(microbatches, near - swaps), np.minimum(microbatches, far + swaps)),
    )


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-min", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
