"""What a rank does, pass by pass: the words that every schedule's action list is written in.

A schedule lists, for each rank, the order of its passes. Where a pass runs follows from the route that a
microbatch takes through (rank, chunk) pairs: round and round (`looping`), down and up again (`v_shaped`), or
half of the microbatches from each end (`both_ways`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from meshwright.errors import Diagnostic, InputError

Kind = Literal["F", "B", "I", "W"]  # forward; whole backward, or its input and its weight part


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one microbatch through one chunk of a rank.

    `joined`: runs together with the rank's next action, as one (DualPipe's forward beside a backward).
    """

    kind: Kind
    chunk: int
    microbatch: int
    joined: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}.{self.chunk}"


Order = tuple[tuple[Action, ...], ...]  # [rank][position]
Route = tuple[tuple[int, int], ...]  # (rank, chunk) of every virtual stage, in forward order
Router = Callable[[int, int, int, int], Route]


def looping(pp: int, vpp: int, microbatch: int, microbatches: int) -> Route:
    """Virtual stage i is chunk i // pp of rank i % pp.

    >>> looping(2, 2, 0, 4)
    ((0, 0), (1, 0), (0, 1), (1, 1))
    """
    return tuple((rank, chunk) for chunk in range(vpp) for rank in range(pp))


def v_shaped(pp: int, vpp: int, microbatch: int, microbatches: int) -> Route:
    """Down the ranks in chunk 0 and up again in chunk 1: rank 0 holds both ends of the model.

    >>> v_shaped(2, 2, 0, 4)
    ((0, 0), (1, 0), (1, 1), (0, 1))
    """
    return (*((rank, 0) for rank in range(pp)), *((rank, 1) for rank in reversed(range(pp))))


def both_ways(pp: int, vpp: int, microbatch: int, microbatches: int) -> Route:
    """The first half of the microbatches goes down in chunk 0, the second half up in chunk 1.

    >>> both_ways(2, 1, 0, 4), both_ways(2, 1, 2, 4)
    (((0, 0), (1, 0)), ((1, 1), (0, 1)))
    """
    if microbatch < microbatches // 2:
        return tuple((rank, 0) for rank in range(pp))
    return tuple((rank, 1) for rank in reversed(range(pp)))


def require(word: str, pp: int, vpp: int, microbatches: int, *rules: tuple[bool, str, str]) -> None:
    """Raise InputError with every fault of a request for `word`'s action list.

    `rules` are (holds, what is wrong where it does not, hint); degrees below 1 are always faults.
    """
    small = [
        (value >= 1, f"{name} is {value}, less than 1", f"give {name} 1 or more")
        for name, value in (("pp", pp), ("vpp", vpp), ("microbatches", microbatches))
    ]
    # A rule's arithmetic means nothing where a number is not a degree.
    judged = [*small, *(rules if all(ok for ok, *_ in small) else ())]
    faults = [
        Diagnostic("MW155", f"{word}: {message}", where="schedule", hint=hint)
        for holds, message, hint in judged
        if not holds
    ]
    if faults:
        raise InputError(*faults)


def chunks_are(expected: int, vpp: int) -> tuple[bool, str, str]:
    """The rule that a schedule runs `expected` chunks a rank."""
    return vpp == expected, f"runs {expected} chunk(s) a rank, but vpp is {vpp}", f"use vpp {expected}"
