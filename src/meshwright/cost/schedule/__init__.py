"""Pipeline schedules, one file each: the order of passes, the idle time it leaves, the activations it holds.

`load(word)` finds the module of that name; adding a schedule adds a file `the_<word>.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, Protocol, cast

from meshwright.cost.numbers import numbers
from meshwright.cost.schedule.actions import Needs, Order, Own, Route
from meshwright.errors import Diagnostic, InputError
from meshwright.profiles.records import Framework

_PREFIX = "the_"


class Schedule(Protocol):
    """What a schedule's file offers. `bubble` and `in_flight` broadcast; the other two take plain integers.

    `bubble(forward, backward, weight, vpp, pp, microbatches, own)`: idle seconds of a rank a step, from the
    summed seconds of one microbatch on all *other* stages, which it waits for (`weight`: the weight-gradient
    part of backward), and its `own` passes, which fill the time. Left out, `pp` and `microbatches` mean a
    deep pipeline and twice as many microbatches, `own` equal stages.
    `in_flight(rank, pp, vpp, microbatches)`: microbatches whose activations rank `rank` holds at its peak,
    in units of everything that a rank computes for one microbatch; of several chunks, of equal ones.
    `chunks_in_flight(rank, pp, vpp, microbatches)`, [moments, chunks, ...]: microbatches in flight on each
    chunk (DualPipe: of each stream) at moments of which one is the rank's fullest, whatever its chunks weigh;
    vpp plain, the others broadcast. None where a rank has one chunk.
    `actions(pp, vpp, microbatches)`: the passes of each rank in order; raises InputError where the schedule
    does not exist for these numbers. `route(pp, vpp, microbatch, microbatches)`: the (rank, chunk) pairs
    that a microbatch runs through.
    `SENDS`: how much of each send stands in the way of compute (see `shown_of_sends`). `SENDS_BLOCK`: a rank
    sends before it goes on, and is not free beside it (see `sends_block`). `PARAMETERS_HELD`: stages' worth
    of parameters that each rank holds. `JOINED`: forwards run beside backwards of another microbatch, whose
    expert traffic they hide. `SPLITS_BACKWARD`: weight gradients are passes of their own; others' `bubble`
    does not look at `weight`. `NEEDS`: what it asks of pp, vpp and the microbatches.
    """

    SENDS: Literal["waited", "beside", "joined"]
    SENDS_BLOCK: bool
    PARAMETERS_HELD: float
    JOINED: bool
    SPLITS_BACKWARD: bool
    NEEDS: Needs
    chunks_in_flight: Callable[[Any, Any, Any, Any], Any] | None

    def in_flight(self, rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any: ...

    def bubble(
        self, forward: Any, backward: Any, weight: Any, vpp: Any, pp: Any = ..., microbatches: Any = ...,
        own: Own | None = ...,
    ) -> Any: ...  # fmt: skip

    def actions(self, pp: int, vpp: int, microbatches: int) -> Order: ...

    def route(self, pp: int, vpp: int, microbatch: int, microbatches: int) -> Route: ...


def names() -> tuple[str, ...]:
    """Every schedule there is a file for."""
    files = (m.name for m in iter_modules(__path__) if m.name.startswith(_PREFIX))
    return tuple(name.removeprefix(_PREFIX).replace("_", "-") for name in files)


def sends_block(word: str, habits: Framework, options: frozenset[str]) -> bool:
    """Whether a rank sends before it goes on: because the schedule says so, or because the program waits for
    sends that the schedule `word` could hide."""
    waits = word in habits.waits_for_sends and "p2p-overlap" not in options
    return load(word).SENDS_BLOCK or waits or "no-overlap" in options


def shown_of_sends(plan: Schedule) -> float:
    """Share of each send that stands in the way of compute: all of it where neighbours wait for it, less
    beside passes of other microbatches or joined pairs of passes."""
    return 1.0 if plan.SENDS == "waited" else numbers()[f"sends_{plan.SENDS}"]


@cache
def load(word: str) -> Schedule:
    """The schedule called `word`. Raises InputError naming those that exist."""
    if word not in names():
        known = ", ".join(names())
        raise InputError(
            Diagnostic("MW155", f"no schedule {word!r}", where="schedule", hint=f"one of {known}")
        )
    return cast(Schedule, import_module(f"{__name__}.{_PREFIX}{word.replace('-', '_')}"))
