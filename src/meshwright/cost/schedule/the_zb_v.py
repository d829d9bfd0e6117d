"""ZB-V: two chunks a rank in a V, forwards fill the warm-up and weight gradients the drain, in 1F1B's memory.

**Source**: zero-bubble paper (arXiv 2401.10241), section 6 (the handcrafted V schedule).
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Action, Kind, Needs, Order, Own, own_or_equal, require, v_shaped

P2P_EXPOSED = 0.3  # sent beside other passes, in simulation wholly hidden; the share left is assumed
SENDS_BLOCK = False
PARAMETERS_HELD = 1.0
JOINED = False
SPLITS_BACKWARD = True
NEEDS = Needs(chunks=2)
route = v_shaped


def bubble(
    forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = None, microbatches: Any = None,
    own: Own | None = None,
) -> Any:  # fmt: skip
    """About 0 where F = I = W (I = B - W) and m >= 2p - 1; otherwise what the longest of its paths leaves.

    With n = p - 1 other ranks: n (I - W) or n (F - W) where weight parts are too short to fill the drain,
    n (I - F)/2 or n (F - (I + W)/2) where forwards do not fit the warm-up, n (W - F)/2 where the last rank's
    weight parts outlast the first rank's; and (F + I)(2n - m + 1)/4 or n (F + I) - (m - 1)(F + B)/2 where
    microbatches run out before the pipeline is full. Within 3 % of the simulated step for
    equal stages of 4 ranks or more.
    """
    gradient = backward - weight
    fill = own_or_equal(own, forward, backward, weight)
    gaps = [
        gradient - fill.weight,
        forward - fill.weight,
        (gradient - fill.forward) / 2.0,
        forward - (fill.gradient + fill.weight) / 2.0,
        (forward - fill.gradient) / 2.0,
        (weight - fill.forward) / 2.0,
    ]
    if pp is not None:
        short = (np.asarray(microbatches) - 1.0) / np.maximum(np.asarray(pp) - 1.0, 1.0)
        gaps += [
            (forward + gradient) / 2.0 - short * (fill.forward + fill.gradient) / 4.0,
            forward + gradient - short * (fill.forward + fill.gradient + fill.weight) / 2.0,
        ]
    return np.maximum(reduce(np.maximum, gaps), 0.0)


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """(min(m, 2p - r - 1) + min(m, r + 1)) / 2, a chunk being half a rank: p where m >= 2p - 1."""
    return (np.minimum(microbatches, 2 * pp - rank - 1) + np.minimum(microbatches, rank + 1)) / 2.0


def actions(pp: int, vpp: int, microbatches: int) -> Order:
    """Warm-up until the gradient of the first microbatch arrives, a steady V, and a drain filled with W.

    Rank r runs 2 (p - r) - 1 forwards of chunk 0, then r of each chunk in turn: the 2p - 1 slots until the
    first microbatch is back from below. The next p - r forwards of chunk 1 each end at the loss and come back
    at once. Then both chunks advance by one microbatch in turn. In the drain r pairs of input parts run
    before any weight part, then input parts of chunk 0 with weight parts between.
    """
    require("zb-v", NEEDS, pp, vpp, microbatches)
    return tuple(_passes(rank, pp, microbatches) for rank in range(pp))


def _passes(rank: int, pp: int, microbatches: int) -> tuple[Action, ...]:
    done: dict[tuple[Kind, int], int] = {(k, c): 0 for k in ("F", "I", "W") for c in (0, 1)}
    passes: list[Action] = []

    def run(*kinds: tuple[Kind, int]) -> None:
        """The next pass of each kind and chunk, where one is left and what it follows has run."""
        for kind, chunk in kinds:
            before = {"F": microbatches, "I": done["F", chunk], "W": done["I", chunk]}[kind]
            if done[kind, chunk] < min(before, microbatches):
                passes.append(Action(kind, chunk, done[kind, chunk]))
                done[kind, chunk] += 1

    for _ in range(2 * (pp - rank) - 1):
        run(("F", 0))
    for _ in range(rank):
        run(("F", 1), ("F", 0))
    for _ in range(pp - rank):
        run(("F", 1), ("I", 1), ("W", 1))
    while done["F", 0] < microbatches or done["F", 1] < microbatches:
        run(("F", 0), ("I", 0), ("W", 0), ("F", 1), ("I", 1), ("W", 1))
    for _ in range(rank):
        run(("I", 0), ("I", 1))
    while done["W", 0] < microbatches or done["W", 1] < microbatches:
        run(("I", 0), ("W", 0) if done["I", 0] < microbatches or done["W", 1] == microbatches else ("W", 1))
    return tuple(passes)
