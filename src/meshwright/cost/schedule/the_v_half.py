"""V-Half: half of 1F1B's activations for half of its bubble; two chunks a rank in a V.

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

SENDS = "beside"
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

    The longest of the paths that `v_paths.csv` has. With many microbatches those with slopes count, of which
    each microbatch adds F - I - W/2 or I - F - W/2 where that is positive: passes too unequal for the pattern
    wait anew for each, so that more of them may have a larger share of the step idle.
    """
    others = Own(forward, backward - weight, weight)
    return tabled_idle("v-half", others, own_or_equal(own, forward, backward, weight), pp, microbatches)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, p/2 + 1), rounded down; of fewer microbatches on the fullest rank."""
    return most(chunks_in_flight(rank, pp, vpp, microbatches), 2)


def chunks_in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """Of chunk 1 one more with every second rank, the rest of 2 (p/2 + 1) of chunk 0; ranks where that is
    about to change reach the next rank's count too, once there are enough microbatches for a steady state.

    Read off the action lists, and exact of them.
    """
    most_held = np.asarray(pp) // 2 + 1
    place = rank + 1 - np.asarray(pp) % 2
    far = 1 + place // 2
    near = np.minimum(microbatches, 2 * most_held - far)
    swaps = (place % 2 == 1) & (microbatches > most_held)
    return on_chunks(
        (near, np.minimum(microbatches, far)), (near - swaps, np.minimum(microbatches, far + swaps))
    )


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """The repeated block, weight parts moved to where a rank would idle."""
    require("v-half", NEEDS, pp, vpp, microbatches)
    return tightened(pattern(_BLOCK, pp, microbatches), pp)
