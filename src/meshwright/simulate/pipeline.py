"""A pipeline's passes as events: who waits for whom, for how long, and what is held meanwhile.

Nothing is assumed of a schedule but the order of each rank's passes and the route of each microbatch. A pass
starts when its rank is free and its input has arrived; sends go beside the compute or block their rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshwright.cost import schedule
from meshwright.cost.schedule.actions import Action, Order
from meshwright.errors import Diagnostic, InputError
from meshwright.simulate.network import Network, Router, compiled
from meshwright.simulate.timeline import Timeline

Array = npt.NDArray[np.float64]
Seconds = float | Sequence[float] | Array


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of one microbatch's passes; each a number or an array over virtual stages in model order.

    `forward`, `backward_input`, `backward_weight` [stages]: a whole backward takes both parts, or `backward`
    where that is given (uncut it may wait less for the host link than its parts do). `send` [stages - 1]:
    from a stage to the next, or a gradient back; nothing where both are on one rank. `joined`: what a forward
    and a backward that run together take, over the sum of both. `held` [stages]: what a forward's activations
    take, in any unit; left out, shares of what the rank computes for a microbatch. `blocking`: a rank sends
    before it goes on; otherwise sends go beside its next passes.
    """

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds
    send: Seconds = 0.0
    joined: float = 1.0
    held: Seconds | None = None
    blocking: bool = False
    backward: Seconds | None = None


def simulate(order: Order, route: Router, durations: Durations, *, weight_share: float = 1.0) -> Timeline:
    """When each pass of `order` [rank][position] runs.

    `weight_share`: share of a pass's activations that the weight part still needs once the input part is done
    (1: all of them). Raises InputError where the order names a pass that is on no route or twice, where
    durations do not fit, or where passes wait for each other for ever (naming what each rank is stuck at).
    """
    return ran(compiled(order, route), durations, weight_share=weight_share)


def run(
    word: str, pp: int, vpp: int, microbatches: int, durations: Durations, *, weight_share: float = 1.0
) -> Timeline:
    """One step of the schedule called `word`, all ranks starting together."""
    return ran(network(word, pp, vpp, microbatches), durations, weight_share=weight_share)


def period(word: str, pp: int, vpp: int, microbatches: int, durations: Durations, *, steps: int = 3) -> float:
    """Seconds from one step to the next where no rank waits for the others between steps.

    `steps` steps in a row; what the last one adds. A schedule whose ranks start and end one after another
    (zb-2p) then has no idle time at the seams.
    """
    return steady(network(word, pp, vpp, microbatches), durations, steps=steps)[0]


def ran(
    graph: Network, durations: Durations, *, weight_share: float = 1.0, begin_s: Array | None = None
) -> Timeline:
    """The passes of `graph` in time; rank r may start at `begin_s[r]`."""
    took, sends = tables(durations, graph.depth)
    begin = np.zeros(graph.n_ranks) if begin_s is None else begin_s
    ends = graph.ends(
        took[..., None], sends[:, None], durations.joined, begin[:, None], blocking=durations.blocking
    )[:, 0]
    held = None if durations.held is None else _spread(durations.held, graph.depth)
    return Timeline(graph, ends, took, sends, durations.joined, held, weight_share, durations.blocking)


def steady(
    graph: Network, durations: Durations, after_s: Array | None = None, *, steps: int = 3
) -> tuple[float, Array]:
    """(seconds from one step to the next, when each rank starts the last of `steps`).

    `after_s` [ranks]: what a rank still does after its last pass, before its next step. A rank that begins
    late may catch up for some steps; no step is shorter than what one rank does in it.
    """
    took, sends = tables(durations, graph.depth)
    after = np.zeros(graph.n_ranks) if after_s is None else after_s
    passes = took[..., None], sends[:, None], durations.joined
    begin, done = np.zeros(graph.n_ranks), 0.0
    last = graph.last_nodes
    for _ in range(steps):
        before, seen = begin, done
        begin = graph.ends(*passes, before[:, None], blocking=durations.blocking)[last, 0] + after
        done = float(begin.max(initial=0.0))
    least = graph.occupied(*passes, blocking=durations.blocking)[:, 0] + after
    return max(done - seen, float(least.max(initial=0.0))), before


@lru_cache(maxsize=64)
def network(word: str, pp: int, vpp: int, microbatches: int, *, forwards_first: bool = False) -> Network:
    """The schedule called `word` for so many ranks, chunks and microbatches. `forwards_first`: no rank starts
    a backward before its last forward. Raises InputError where there is no such schedule."""
    plan = schedule.load(word)
    order = plan.actions(pp, vpp, microbatches)
    if forwards_first:
        order = tuple(_forwards_first(row) for row in order)
    return compiled(order, lambda i: plan.route(pp, vpp, i, microbatches))


def _forwards_first(row: tuple[Action, ...]) -> tuple[Action, ...]:
    """A rank's forwards in their order, then all else in its order."""
    apart = [replace(action, joined=False) for action in row]
    return tuple(sorted(apart, key=lambda action: action.kind != "F"))


def tables(durations: Durations, depth: int) -> tuple[Array, Array]:
    """Seconds by kind of pass, [4, stages], and of sends, [stages], the last one 0; all faults at once."""
    faults: list[Diagnostic] = []

    def spread(name: str, value: Seconds, length: int) -> Array:
        given = np.asarray(value, float)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != length):
            faults.append(
                Diagnostic(
                    "MW156",
                    f"{name} has shape {given.shape}, but the pipeline has {length} of them",
                    where=name,
                    hint=f"give one number or {length}",
                )
            )
            return np.zeros(length)
        if not (np.isfinite(given).all() and (given >= 0).all()):
            faults.append(
                Diagnostic(
                    "MW156", f"{name} holds a time that is negative or not finite", where=name,
                    hint="give seconds, 0 or more",
                )
            )  # fmt: skip
            return np.zeros(length)
        return _spread(given, length)

    forward = spread("forward", durations.forward, depth)
    of_input = spread("backward_input", durations.backward_input, depth)
    of_weight = spread("backward_weight", durations.backward_weight, depth)
    whole = None if durations.backward is None else spread("backward", durations.backward, depth)
    sends = spread("send", durations.send, max(depth - 1, 0))
    spread("joined", durations.joined, 1)
    if faults:
        raise InputError(*faults)
    if whole is None:
        whole = of_input + of_weight
    return np.stack([forward, whole, of_input, of_weight]), np.append(sends, 0.0)


def _spread(value: Seconds, length: int) -> Array:
    return np.broadcast_to(np.asarray(value, float), (length,))
