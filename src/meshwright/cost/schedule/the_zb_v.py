"""ZB-V: two chunks a rank in a V, forwards fill the warm-up and weight gradients the drain, in 1F1B's memory.

**Source**: zero-bubble paper (arXiv 2401.10241), section 6 (the handcrafted V schedule).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import (
    Action,
    Kind,
    Needs,
    Order,
    Own,
    most,
    on_chunks,
    own_or_equal,
    require,
    v_shaped,
)
from meshwright.cost.schedule.longest import Path, idle

SENDS = "beside"
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

    In halves of a rank's passes, with n = p - 1 other ranks and m >= 2n: 2n (I - W) or 2n F - (2n + 1) W and
    (2n - 1) F + I - 2n W where weight parts are too short for the drain; n (I - F), (n - 1) (F - I) and
    2n F - n (I + W) where forwards and input parts do not fill each other's waits; n (W - F) + I - W and
    (n - 1)(W - F) where weight parts outlast both. With fewer microbatches 2n - m more of F in some. Exact
    for equal stages and m >= p, within 2.5 % below; read off simulated steps.
    **Assumes**, as ZB-H2, that a rank goes on to its next step without waiting for the others.
    """
    others = Own(forward, backward - weight, weight)
    own = own_or_equal(own, forward, backward, weight)
    if pp is None:
        pp, microbatches = 1e9, 2e9
    return idle(_paths(np.asarray(pp, float), np.asarray(microbatches, float)), others, own, pp)


def _paths(p: Any, m: Any) -> tuple[Path, ...]:
    """Those that are long: of at least as many microbatches as ranks, and most of those of fewer."""
    n, k, enough = p - 1.0, np.minimum(m, p), m >= p
    few = np.maximum(2.0 * n - m, 0.0)  # that the warm-up lacks
    return (
        Path(2.0 * (p - k), 2.0 * n, 2.0 - 2.0 * k),
        Path(2.0 * n, 2.0 * (p - k), 1.0 - 2.0 * k),
        Path(2.0 * n, 2.0 * n + 3.0 - 3.0 * k, 1.0 - k),
        Path(np.maximum(2.0 * n + 1.0 - m, 0.0), 2.0 * (p - k), 0.0),
        Path(few - n, p + 1.0 - k, k - 2.0),
        Path(few + 1.0 - n, p - k, k - 2.0),
        Path(3.0 * (p - k) - n, n + p - k, k - p),
        Path(few, np.minimum(2.0 * p - k, 2.0 * n), -k),
        Path(few + 1.0, 2.0 * p - 1.0 - k, -k),
        Path(enough * (n - 1.0), enough * (1.0 - n), 0.0),
        Path(enough * (2.0 * n - 1.0), enough * 1.0, enough * -2.0 * n),
    )


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """(min(m, 2p - r - 1) + min(m, r + 1)) / 2, a chunk being half a rank: p where m >= 2p - 1."""
    return most(chunks_in_flight(rank, pp, vpp, microbatches), 2)


def chunks_in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """2p - r - 1 of chunk 0 and r + 1 of chunk 1 after a forward of that, or one more and one fewer."""
    near, far = 2 * pp - rank, rank + 1
    return on_chunks(
        (np.minimum(microbatches, near - 1), np.minimum(microbatches, far)),
        (np.minimum(microbatches, near), np.minimum(microbatches, far - 1)),
    )


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
