"""DualPipe: microbatches enter at both ends, so each rank holds two stages (and their parameters twice).

Rank r has stage r of the stream that goes down and stage p - 1 - r of the one that goes up. A forward runs
beside a backward of the other stream, whose all-to-all it hides.
**Source**: DeepSeek-V3 report (arXiv 2412.19437), section 3.2.1 and table 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import (
    Needs,
    Order,
    Own,
    both_ways,
    most,
    on_chunks,
    own_or_equal,
    require,
)
from meshwright.cost.schedule.two_way import eight_phases, joined_bubble

SENDS = "joined"
SENDS_BLOCK = False
PARAMETERS_HELD = 2.0
JOINED = True
SPLITS_BACKWARD = True
# The two streams meet in the middle, and each takes half of the microbatches. Source: the published
# schedule asserts an even number of ranks, and of chunks at least twice as many.
NEEDS = Needs(ranks=2, microbatches=2, fill=2)
route = both_ways


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = np.inf, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """max(2 q F, (q - 1) F + q I) + q max(I - W, 0), q = p/2 - 1, I = B - W.

    Where F = I = W that is the published (p/2 - 1)(F&B + B - 3W) with F&B = F + B: a joined pair counts at
    full length here, what it hides is counted where it is hidden. Exact for equal stages.
    The arguments are p - 1 stages' worth: q / (p - 1) = (1 - 1 / (p - 1)) / 2.
    """
    fill = own_or_equal(own, forward, backward, weight)
    others = np.maximum(np.asarray(pp) - 1.0, 1.0)
    q = 0.5 * (1.0 - 1.0 / others)
    return joined_bubble(q, np.maximum(q - 1.0 / others, 0.0), forward, backward - weight, fill.weight)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """p + 1, both streams together."""
    return most(chunks_in_flight(rank, pp, vpp, microbatches), 1)


def chunks_in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """p - r of the stream that goes down and r + 1 of the other, each of half the microbatches."""
    half = np.asarray(microbatches) / 2.0
    return on_chunks((np.minimum(half, pp - rank), np.minimum(half, rank + 1)))


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """Eight phases (see `two_way`); the down stream has the first half of the microbatches."""
    require("dualpipe", NEEDS, pp, vpp, microbatches)
    half = microbatches // 2
    down, up = (0, 0), (1, half)
    order = []
    for rank in range(pp):
        first_half = rank < pp // 2
        near, far = (down, up) if first_half else (up, down)
        order.append(eight_phases(min(rank, pp - 1 - rank), pp // 2, half, near, far))
    return tuple(order)
