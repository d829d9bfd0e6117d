"""A pipeline's passes as events: who waits for whom, for how long, and what is held meanwhile.

Nothing is assumed of a schedule but the order of each rank's passes and the route of each microbatch. A pass
starts when its rank is free and its input has arrived; sends go beside the compute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.cost import schedule
from meshwright.cost.schedule.actions import Action, Order, Route
from meshwright.errors import Diagnostic, InputError
from meshwright.simulate.timeline import Pass, Timeline

Seconds = float | Sequence[float] | npt.NDArray[np.float64]
Router = Callable[[int], Route]  # microbatch -> (rank, chunk) of its virtual stages
Part = tuple[str, int, int]  # F, I or W; microbatch; virtual stage


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of one microbatch's passes; each a number or an array over virtual stages in model order.

    `forward`, `backward_input`, `backward_weight` [stages]: a whole backward takes both parts. `send`
    [stages - 1]: from a stage to the next, or a gradient back; nothing where both are on one rank.
    `joined`: what a forward and a backward that run together take, over the sum of both.
    """

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds
    send: Seconds = 0.0
    joined: float = 1.0


def simulate(order: Order, route: Router, durations: Durations, *, weight_share: float = 1.0) -> Timeline:
    """When each pass of `order` [rank][position] runs.

    `weight_share`: share of a pass's activations that the weight part still needs once the input part is done
    (1: all of them). Raises InputError where the order names a pass that is on no route or twice, where
    durations do not fit, or where passes wait for each other for ever (naming what each rank is stuck at).
    """
    routes = {a.microbatch: route(a.microbatch) for rank in order for a in rank}
    stages = {(r, c, i): s for i, way in routes.items() for s, (r, c) in enumerate(way)}
    depth = max((len(way) for way in routes.values()), default=0)
    _refuse_misplaced(order, stages)
    took, sends = _seconds(durations, depth)
    ended: dict[Part, float] = {}

    def inputs(rank: int, action: Action) -> list[tuple[Part, float]]:
        """What `action` waits for, and the seconds that takes to arrive."""
        i, stage = action.microbatch, stages[rank, action.chunk, action.microbatch]
        if action.kind == "W":
            return [(("I", i, stage), 0.0)]
        if action.kind == "F":
            return [(("F", i, stage - 1), _wait(routes[i], sends, stage - 1))] if stage else []
        later = [(("I", i, stage + 1), _wait(routes[i], sends, stage))] if stage + 1 < len(routes[i]) else []
        return [(("F", i, stage), 0.0), *later]

    clock, position = [0.0] * len(order), [0] * len(order)
    passes: list[list[Pass]] = [[] for _ in order]

    def advance(rank: int) -> bool:
        """Run the rank's next pass, or its next two joined, where all inputs are known."""
        at = position[rank]
        here = order[rank][at : at + 1 + order[rank][at].joined]
        waits = [x for a in here for x in inputs(rank, a)]
        if any(part not in ended for part, _ in waits):
            return False
        start = max([clock[rank], *(ended[part] + wait for part, wait in waits)])
        placed = [stages[rank, a.chunk, a.microbatch] for a in here]
        whole = sum(took[a.kind][s] for a, s in zip(here, placed))
        end = start + whole * (durations.joined if len(here) > 1 else 1.0)
        for a, s in zip(here, placed):
            share = 1.0 / sum(r == rank for r, _ in routes[a.microbatch])
            passes[rank].append(Pass(a, rank, s, start, end, share))
            for part in "IW" if a.kind == "B" else a.kind:
                ended[part, a.microbatch, s] = end
        clock[rank] = end
        position[rank] += len(here)
        return True

    moved = True
    while moved:
        moved = False
        for rank in range(len(order)):
            while position[rank] < len(order[rank]) and advance(rank):
                moved = True
    stuck = [r for r in range(len(order)) if position[r] < len(order[r])]
    if stuck:
        raise InputError(*(_stuck(r, order[r], position[r]) for r in stuck))
    return Timeline(tuple(tuple(p) for p in passes), weight_share)


def run(
    word: str, pp: int, vpp: int, microbatches: int, durations: Durations, *, weight_share: float = 1.0
) -> Timeline:
    """One step of the schedule called `word`."""
    plan = schedule.load(word)
    order = plan.actions(pp, vpp, microbatches)
    return simulate(
        order,
        lambda i: plan.route(pp, vpp, i, microbatches),
        durations,
        weight_share=weight_share,
    )


def period(word: str, pp: int, vpp: int, microbatches: int, durations: Durations, *, steps: int = 3) -> float:
    """Seconds from one step to the next where no rank waits for the others between steps.

    `steps` steps in a row; what the last one adds. A schedule whose ranks start and end one after another
    (zb-2p) then has no idle time at the seams.
    """
    plan = schedule.load(word)
    one = plan.actions(pp, vpp, microbatches)

    def ends(n: int) -> float:
        rows = (
            tuple(replace(a, microbatch=a.microbatch + k * microbatches) for k in range(n) for a in rank)
            for rank in one
        )
        routed = simulate(
            tuple(rows), lambda i: plan.route(pp, vpp, i % microbatches, microbatches), durations
        )
        return routed.step_time_s

    return ends(steps) - ends(steps - 1)


def _seconds(durations: Durations, depth: int) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds by kind of pass [stages], and of sends [stages - 1]; every fault at once."""
    faults: list[Diagnostic] = []

    def spread(name: str, value: Seconds, length: int) -> npt.NDArray[np.float64]:
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
        return np.broadcast_to(given, (length,))

    kinds = {
        "F": spread("forward", durations.forward, depth),
        "I": spread("backward_input", durations.backward_input, depth),
        "W": spread("backward_weight", durations.backward_weight, depth),
    }
    sends = spread("send", durations.send, max(depth - 1, 0))
    spread("joined", durations.joined, 1)
    if faults:
        raise InputError(*faults)
    passes = kinds | {"B": kinds["I"] + kinds["W"]}
    return {kind: seconds.tolist() for kind, seconds in passes.items()}, sends.tolist()


def _wait(way: Route, sends: list[float], stage: int) -> float:
    """Seconds between `stage` and the one after it; nothing on one rank."""
    return 0.0 if way[stage][0] == way[stage + 1][0] else sends[stage]


def _refuse_misplaced(order: Order, stages: dict[tuple[int, int, int], int]) -> None:
    """Raise where a pass is on no route, listed twice, or joined with nothing."""
    faults = []
    for rank, row in enumerate(order):
        parts = Counter((k, a.chunk, a.microbatch) for a in row for k in ("IW" if a.kind == "B" else a.kind))
        twice = sorted({f"{k}{i}.{c}" for (k, c, i), n in parts.items() if n > 1})
        astray = [str(a) for a in row if (rank, a.chunk, a.microbatch) not in stages]
        for what, which in (("lists a pass twice", twice), ("lists a pass of no stage of its own", astray)):
            if which:
                faults.append(
                    Diagnostic("MW156", f"rank {rank} {what}: {', '.join(which[:4])}", where=f"order[{rank}]")
                )
        if row and row[-1].joined:
            said = f"rank {rank} ends with {row[-1]} joined to nothing"
            faults.append(Diagnostic("MW156", said, where=f"order[{rank}]"))
    if faults:
        raise InputError(*faults)


def _stuck(rank: int, row: tuple[Action, ...], at: int) -> Diagnostic:
    return Diagnostic(
        "MW156",
        f"the order of passes deadlocks: rank {rank} waits for ever for the input of {row[at]}, its pass "
        f"{at + 1} of {len(row)}",
        where=f"order[{rank}]",
        hint="an earlier pass of another rank must not wait for this one",
    )
