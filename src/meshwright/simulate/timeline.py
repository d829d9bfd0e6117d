"""What a simulated pipeline did: passes in time, idle seconds by cause, activations held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cost.schedule.actions import Action

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass as it ran: `start_s` to `end_s` on `rank`; `stage` is its virtual stage in model order.

    `held`: what its activations add, in units of all that the rank computes for one microbatch.
    """

    action: Action
    rank: int
    stage: int
    start_s: float
    end_s: float
    held: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle seconds of each rank, [ranks]: before its first pass, between passes, after its last."""

    fill_s: Array
    waiting_s: Array
    drain_s: Array

    @property
    def total_s(self) -> Array:
        """All three."""
        return self.fill_s + self.waiting_s + self.drain_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """Passes of each rank in the order they ran; see `simulate`.

    `weight_share`: share of a pass's activations that stays until the weight part.
    """

    passes: tuple[tuple[Pass, ...], ...]
    weight_share: float = 1.0

    @property
    def step_time_s(self) -> float:
        """From the first start to the last end of any rank: a step where ranks wait for each other."""
        return max((p.end_s for rank in self.passes for p in rank), default=0.0)

    @property
    def busy_s(self) -> Array:
        """Seconds that each rank computes, [ranks]; joined passes share theirs."""
        spans = ({(p.start_s, p.end_s) for p in rank} for rank in self.passes)
        return np.array([sum(end - start for start, end in s) for s in spans])

    @property
    def idle(self) -> Idle:
        """Idle seconds of each rank by cause; with `busy_s` they sum to the step."""
        step, busy = self.step_time_s, self.busy_s
        first = np.array([rank[0].start_s if rank else step for rank in self.passes])
        last = np.array([rank[-1].end_s if rank else step for rank in self.passes])
        return Idle(first, np.maximum(last - first - busy, 0.0), step - last)

    @property
    def bubble_share(self) -> float:
        """Idle share of all ranks' time."""
        return float(1.0 - self.busy_s.mean() / self.step_time_s)

    def in_flight(self, rank: int) -> tuple[Array, Array]:
        """(seconds, held) of a rank: what it holds from each moment until the next.

        A forward adds its activations as it starts. A whole backward or a weight part lets go as it ends; the
        input part lets go of what the weight part does not need.
        """
        share = {"F": 1.0, "I": self.weight_share - 1.0, "W": -self.weight_share, "B": -1.0}
        moments = [p.start_s if p.action.kind == "F" else p.end_s for p in self.passes[rank]]
        changes = [share[p.action.kind] * p.held for p in self.passes[rank]]
        return np.array(moments), np.cumsum(changes)

    @property
    def peak_in_flight(self) -> Array:
        """The most that each rank holds at once, [ranks], in whole microbatches of the rank."""
        held = (self.in_flight(rank)[1] for rank in range(len(self.passes)))
        return np.array([h.max(initial=0.0) for h in held])
