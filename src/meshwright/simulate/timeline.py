"""What a simulated pipeline did: passes in time, idle seconds by cause, activations held."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cost.schedule.actions import Action
from meshwright.simulate.network import KINDS, Network

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass as it ran: `start_s` to `end_s` on `rank`; `stage` is its virtual stage in model order.

    `held`: what its activations add, in units of all that the rank computes for one microbatch, or in those
    of the durations.
    """

    action: Action
    rank: int
    stage: int
    start_s: float
    end_s: float
    held: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle seconds of each rank by cause, [ranks].

    `send_s`: what a pass waits for is on its way, or the rank sends and cannot go on. Otherwise `warm_up_s`
    until the rank's first backward, `drain_s` after its last forward, and in between `imbalance_s`: another
    stage is slower, or passes are too unequal for the order.
    """

    warm_up_s: Array
    imbalance_s: Array
    send_s: Array
    drain_s: Array

    @property
    def total_s(self) -> Array:
        """All four."""
        return self.warm_up_s + self.imbalance_s + self.send_s + self.drain_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """When the nodes of `network` ended, [nodes + ranks] (the last are the ranks' starts); see `simulate`.

    `took` [4, stages], `sends` [stages], `joined`, `held` and `blocking` as in `Durations`. `weight_share`:
    share of a pass's activations that stays until the weight part.
    """

    network: Network
    ends: Array
    took: Array
    sends: Array
    joined: float = 1.0
    held: Array | None = None
    weight_share: float = 1.0
    blocking: bool = False

    @property
    def begin_s(self) -> Array:
        """When each rank was free to start, [ranks]."""
        return self.ends[len(self.network.before) :]

    @property
    def last_s(self) -> Array:
        """When each rank's last pass ended, [ranks]."""
        return self.ends[self.network.last_nodes]

    @property
    def step_time_s(self) -> float:
        """From the first rank's start to the last end of any rank."""
        return float(self.last_s.max(initial=0.0) - self.begin_s.min(initial=0.0))

    @property
    def node_seconds(self) -> Array:
        """How long each node ran, [nodes]."""
        return self.network.seconds(self.took[..., None], self.joined)[:, 0]

    @property
    def sending(self) -> Array:
        """How long each node blocks its rank to send, [nodes]."""
        if not self.blocking:
            return np.zeros(len(self.network.before))
        return self.network.sending(self.sends[:, None])[:, 0]

    @property
    def busy_s(self) -> Array:
        """Seconds that each rank computes, [ranks]; joined passes share theirs."""
        n = self.network
        return np.bincount(n.rank[n.first], self.node_seconds, n.n_ranks).astype(float)

    @property
    def idle(self) -> Idle:
        """Idle seconds of each rank by cause, from the first rank's start to the last end; with `busy_s` they
        sum to the step."""
        return self.idle_within(
            np.zeros(self.network.n_ranks), np.full(self.network.n_ranks, self.step_time_s)
        )

    def idle_within(self, start_s: Array, end_s: Array) -> Idle:
        """The same from `start_s` to `end_s` of each rank, [ranks]."""
        n = self.network
        nodes, rank = len(n.before), n.rank[n.first]
        sending = self.sending
        starts = self.ends[:nodes] - self.node_seconds - sending
        free = np.maximum(self.ends[n.before], start_s[rank])
        gap = np.maximum(starts - free, 0.0)
        wait = self.sends[n.boundary] * (not self.blocking)
        arrivals = self.ends[n.inputs] + wait
        last = np.where(arrivals[1] > arrivals[0], wait[1], wait[0])
        send = np.minimum(gap, last)
        rest = gap - send
        late = self._after_last_forward()
        early = ~late & self._until_first_backward()

        def by_rank(seconds: Array, where: npt.NDArray[np.bool_]) -> Array:
            return np.bincount(rank[where], seconds[where], n.n_ranks).astype(float)

        over = end_s - np.where(self.last_s > 0, self.last_s, start_s)
        return Idle(
            warm_up_s=by_rank(rest, early),
            imbalance_s=by_rank(rest, ~(early | late)),
            send_s=by_rank(send + sending, np.ones(nodes, bool)),
            drain_s=by_rank(rest, late) + np.maximum(over, 0.0),
        )

    def _until_first_backward(self) -> npt.NDArray[np.bool_]:
        """Nodes up to the first of the rank that holds a backward, [nodes]."""
        n = self.network
        backward = np.flatnonzero(n.kind != KINDS.index("F"))
        first = np.full(n.n_ranks, len(n.kind))
        np.minimum.at(first, n.rank[backward], backward)
        return n.first <= first[n.rank[n.first]]

    def _after_last_forward(self) -> npt.NDArray[np.bool_]:
        """Nodes after the last of the rank that holds a forward, [nodes]; none where a backward is still to
        be seen first."""
        n = self.network
        forward = np.flatnonzero(n.kind == KINDS.index("F"))
        last = np.full(n.n_ranks, -1)
        np.maximum.at(last, n.rank[forward], forward)
        backward = np.flatnonzero(n.kind != KINDS.index("F"))
        first = np.full(n.n_ranks, len(n.kind))
        np.minimum.at(first, n.rank[backward], backward)
        return (n.first > last[n.rank[n.first]]) & (n.first > first[n.rank[n.first]])

    @property
    def bubble_share(self) -> float:
        """Idle share of all ranks' time."""
        return float(1.0 - self.busy_s.mean() / self.step_time_s)

    @property
    def start_s(self) -> Array:
        """When each pass started, [passes]; joined ones start together."""
        ends = self.ends[: len(self.network.before)]
        return (ends - self.node_seconds - self.sending)[self.network.node]

    @property
    def end_s(self) -> Array:
        """When each pass ended, [passes]; joined ones end together."""
        return (self.ends[: len(self.network.before)] - self.sending)[self.network.node]

    @property
    def passes(self) -> tuple[tuple[Pass, ...], ...]:
        """Passes of each rank in the order they ran."""
        n = self.network
        rows: list[list[Pass]] = [[] for _ in range(n.n_ranks)]
        columns = (n.rank, n.stage, self.start_s, self.end_s, self._adds())
        for action, rank, stage, start, end, held in zip(n.actions, *(c.tolist() for c in columns)):
            rows[rank].append(Pass(action, rank, stage, start, end, held))
        return tuple(tuple(row) for row in rows)

    def in_flight(self, rank: int) -> tuple[Array, Array]:
        """(seconds, held) of a rank: what it holds from each moment until the next.

        A forward adds its activations as it starts. A whole backward or a weight part lets go as it ends; the
        input part lets go of what the weight part does not need.
        """
        n = self.network
        mine = np.flatnonzero(n.rank == rank)
        forward = n.kind[mine] == KINDS.index("F")
        moments = np.where(forward, self.start_s[mine], self.end_s[mine])
        return moments, np.cumsum(self._changes()[mine])

    @property
    def peak_in_flight(self) -> Array:
        """The most that each rank holds at once, [ranks]; in whole microbatches of the rank, or in the unit
        of `held`."""
        changes, rank = self._changes(), self.network.rank
        return np.array([np.cumsum(changes[rank == r]).max(initial=0.0) for r in range(self.network.n_ranks)])

    def _adds(self) -> Array:
        """What each pass's activations take, [passes]."""
        return self.network.share if self.held is None else self.held[self.network.stage]

    def _changes(self) -> Array:
        """What each pass adds to what its rank holds, [passes]."""
        signs = {"F": 1.0, "B": -1.0, "I": self.weight_share - 1.0, "W": -self.weight_share}
        return np.array([signs[kind] for kind in KINDS])[self.network.kind] * self._adds()
