"""What a rank does, pass by pass: the words that every schedule's action list is written in.

A schedule lists, for each rank, the order of its passes. Where a pass runs follows from the route that a
microbatch takes through (rank, chunk) pairs: round and round (`looping`), down and up again (`v_shaped`), or
half of the microbatches from each end (`both_ways`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from meshwright.errors import Diagnostic, InputError
from meshwright.units import counted

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


class Own(NamedTuple):
    """Seconds of a rank's own passes of one microbatch, times the number of other ranks: what it can fill
    the time with in which it waits for theirs."""

    forward: Any
    gradient: Any  # the input part of its backward
    weight: Any


def own_or_equal(own: Own | None, forward: Any, backward: Any, weight: Any) -> Own:
    """The rank's own passes, or where it is left out those of the others: equal stages."""
    return own or Own(forward, backward - weight, weight)


def on_chunks(*of_moments: tuple[Any, ...]) -> Any:
    """Microbatches in flight on each chunk, a tuple a moment, as an array [moments, chunks, ...].

    >>> on_chunks((2, 1), (3, np.array([0, 1]))).shape
    (2, 2, 2)
    """
    spread = np.broadcast_arrays(*(held for moment in of_moments for held in moment))
    return np.stack(spread).reshape(len(of_moments), -1, *spread[0].shape)


def most(in_flight: Any, chunks: int) -> Any:
    """The most of `in_flight` [moments, chunks, ...] at once, in units of `chunks`."""
    return in_flight.sum(1).max(0) / chunks


@dataclass(frozen=True, slots=True)
class Needs:
    """What a schedule asks of its numbers. The methods broadcast: True where it is met.

    `chunks` a rank (None: any number), `ranks` and `microbatches` what pp and the microbatches are multiples
    of, `rounds` whether microbatches also go round in groups of pp, `fill` how many of them for each rank it
    takes to fill the pipeline.
    """

    chunks: int | None = 1
    ranks: int = 1
    microbatches: int = 1
    rounds: bool = False
    fill: int = 0

    def by_pp(self, pp: Any) -> Any:
        """Whether pp is a multiple of `ranks`."""
        return np.asarray(pp) % self.ranks == 0

    def by_microbatches(self, pp: Any, microbatches: Any) -> Any:
        """Whether there are enough microbatches, in whole groups."""
        whole = np.asarray(microbatches) % self.group(pp) == 0
        return whole & (np.asarray(microbatches) >= self.fill * np.asarray(pp))

    def group(self, pp: Any) -> Any:
        """What the microbatches must be a multiple of."""
        return np.lcm(self.microbatches, np.asarray(pp) if self.rounds else 1)

    def enough(self, pp: int, microbatches: int) -> int:
        """The fewest microbatches, no fewer than these, that suit."""
        group = int(self.group(pp))
        return -(-max(microbatches, self.fill * pp, 1) // group) * group


def require(word: str, needs: Needs, pp: int, vpp: int, microbatches: int) -> None:
    """Raise InputError with every fault of a request for `word`'s action list."""
    faults = [
        (f"{name} is {value}, less than 1", f"give {name} 1 or more")
        for name, value in (("pp", pp), ("vpp", vpp), ("microbatches", microbatches))
        if value < 1
    ]
    if not faults:  # arithmetic means nothing where a number is not a degree
        if needs.chunks not in (None, vpp):
            faults.append(
                (f"runs {needs.chunks} chunk(s) a rank, but vpp is {vpp}", f"use vpp {needs.chunks}")
            )
        if not needs.by_pp(pp):
            faults.append(ranks_fault(needs, pp))
        if not needs.by_microbatches(pp, microbatches):
            faults.append(microbatches_fault(needs, pp, microbatches))
    if faults:
        raise InputError(
            *(Diagnostic("MW155", f"{word}: {said}", where="schedule", hint=hint) for said, hint in faults)
        )


def ranks_fault(needs: Needs, pp: int) -> tuple[str, str]:
    """What is wrong with `pp`, and a hint."""
    up = -(-pp // needs.ranks) * needs.ranks
    return f"pairs the ranks from both ends, but pp {pp} / {needs.ranks} is not whole", f"use pp {up}"


def microbatches_fault(needs: Needs, pp: int, microbatches: int) -> tuple[str, str]:
    """What is wrong with the number of microbatches, and a hint."""
    said = []
    if needs.rounds and microbatches % pp:
        said.append(f"microbatches go round in groups of pp, but {microbatches} / pp {pp} is not whole")
    if microbatches % needs.microbatches:
        said.append(
            f"each of {needs.microbatches} streams takes its share of the microbatches, but "
            f"{microbatches} / {needs.microbatches} is not whole"
        )
    if microbatches < needs.fill * pp:
        said.append(
            f"needs {needs.fill} x pp {pp} = {counted(needs.fill * pp, 'microbatch')} or more, but there are "
            f"{microbatches}"
        )
    return "; ".join(said), f"use {counted(needs.enough(pp, microbatches), 'microbatch')}"
