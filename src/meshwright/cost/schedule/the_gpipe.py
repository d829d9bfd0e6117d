"""GPipe: all forwards, then all backwards (Huang et al. 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Action, Needs, Order, Own, looping, require

SENDS = "waited"
SENDS_BLOCK = True
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = False
NEEDS = Needs()
route = looping
chunks_in_flight = None


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """(p - 1)(F + B): every other stage is filled and drained once."""
    return forward + backward


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """All m of them; without a pipeline one after another."""
    return np.where(np.asarray(pp) > 1, microbatches, np.minimum(microbatches, 1.0))


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """m forwards, then m backwards, the same on every rank; a rank alone runs each backward at once."""
    require("gpipe", NEEDS, pp, vpp, microbatches)
    if pp == 1:
        return (tuple(Action(kind, 0, i) for i in range(microbatches) for kind in ("F", "B")),)
    forward = tuple(Action("F", 0, i) for i in range(microbatches))
    backward = tuple(Action("B", 0, i) for i in range(microbatches))
    return (forward + backward,) * pp
