"""DualPipeV: DualPipe cut in half; chunk 1 of every rank takes the place of the mirrored stream.

Two chunks a rank in a V, parameters once. Joined passes as in DualPipe.
**Source**: the published DualPipeV schedule (deepseek-ai/DualPipe), after the "cut in half" of Sea AI Lab.
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
from meshwright.cost.schedule.two_way import eight_phases, joined_bubble

SENDS = "joined"
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = True
SPLITS_BACKWARD = True
# Source: the published schedule asserts twice as many microbatches as ranks.
NEEDS = Needs(chunks=2, fill=2)
route = v_shaped


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = np.inf, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """DualPipe's with p - 1 in place of p/2 - 1 and the passes of one chunk, half a rank."""
    fill = own_or_equal(own, forward, backward, weight)
    less = 1.0 - 1.0 / np.maximum(np.asarray(pp) - 1.0, 1.0)
    return joined_bubble(1.0, np.maximum(less, 0.0), forward, backward - weight, fill.weight) / 2.0


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """2p + 1 chunks of two a rank: p + 1/2."""
    return most(chunks_in_flight(rank, pp, vpp, microbatches), 2)


def chunks_in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """2p - r of chunk 0 and r + 1 of chunk 1."""
    return on_chunks((np.minimum(microbatches, 2 * pp - rank), np.minimum(microbatches, rank + 1)))


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """Eight phases (see `two_way`) with chunk 0 as the near stream and chunk 1 as the far one."""
    require("dualpipev", NEEDS, pp, vpp, microbatches)
    return tuple(eight_phases(rank, pp, microbatches, (0, 0), (1, 0)) for rank in range(pp))
