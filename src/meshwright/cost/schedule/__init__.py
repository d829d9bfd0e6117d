"""Pipeline schedules, one file each: the idle time they leave and the activations they hold.

`load(word)` finds the module of that name; adding a schedule adds a file.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from meshwright.errors import Diagnostic, InputError


class Schedule(Protocol):
    """What a schedule's file offers. All functions broadcast.

    `bubble(forward, backward, weight, vpp)`: idle seconds of the slowest stage a step, from the summed
    seconds of one microbatch on all *other* stages (`weight`: the weight-gradient part of backward).
    `in_flight(rank, pp, vpp, microbatches)`: microbatches whose activations rank `rank` holds at its peak,
    in whole-stage units. `P2P_EXPOSED`: share of each send that stands in the way of compute.
    """

    P2P_EXPOSED: float

    def bubble(self, forward: Any, backward: Any, weight: Any, vpp: Any) -> Any: ...

    def in_flight(self, rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any: ...


def names() -> tuple[str, ...]:
    """Every schedule there is a file for."""
    return tuple(m.name.replace("_", "-").removeprefix("the-") for m in iter_modules(__path__))


def load(word: str) -> Schedule:
    """The schedule called `word`. Raises InputError naming those that exist."""
    if word not in names():
        known = ", ".join(names())
        raise InputError(
            Diagnostic("MW155", f"no schedule {word!r}", where="schedule", hint=f"one of {known}")
        )
    return cast(Schedule, import_module(f"{__name__}.the_{word.replace('-', '_')}"))
