"""A schedule's passes as a graph without durations, compiled once and evaluated for many stage times at once.

A node is a pass, or two that run joined. It waits for the node before it on its rank and for what arrives
from other ranks; nodes are sorted into levels, so a step of many plans is a few array operations a level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.schedule.actions import Action, Order, Route
from meshwright.errors import Diagnostic, InputError

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Router = Callable[[int], Route]  # microbatch -> (rank, chunk) of its virtual stages

KINDS = "FBIW"  # forward; whole backward, or its input and its weight part


@dataclass(frozen=True, slots=True)
class Network:
    """The passes of every rank, rank after rank, and the nodes that they are part of, level after level.

    Of passes: `actions`, `rank`, `stage` (virtual stage in model order), `kind` (place in KINDS), `node`, and
    `share`, its part of what its rank computes for one microbatch.
    Of nodes: `first` is its first pass, `joined` whether it has a second, `before` the node before it on its
    rank, `inputs` [2, nodes] what it waits for besides (`second`: there are two) and `boundary` [2, nodes]
    what that crosses: a place among the sends between stages, or the last place, which takes no time. Places
    after the nodes stand for the start of each rank. `levels` are where levels begin and end.
    """

    actions: tuple[Action, ...]
    rank: IntArray
    stage: IntArray
    kind: IntArray
    node: IntArray
    share: Array
    n_ranks: int
    depth: int
    first: IntArray
    joined: Flags
    before: IntArray
    inputs: IntArray
    boundary: IntArray
    second: Flags
    levels: IntArray

    def ends(
        self,
        took: Array,
        sends: Array,
        joined: Any = 1.0,
        begin: Array | None = None,
        *,
        blocking: bool = False,
    ) -> Array:
        """When each node ends, [nodes + ranks, n]; the last rows are the starts of the ranks.

        `took` [4, stages, n]: seconds of each kind of pass; `sends` [stages, n]: from a stage to the next,
        the last one zero; `joined`: what joined passes take over the sum of both; `begin` [ranks, n].
        `blocking`: a node sends before it ends, and what it sends has arrived then.
        """
        nodes, n = len(self.before), took.shape[-1]
        seconds = self.seconds(took, joined)
        wait = sends[self.boundary]
        if blocking:
            seconds, wait = seconds + self.sending(sends), np.zeros_like(wait)
        ends = np.zeros((nodes + self.n_ranks, n))
        if begin is not None:
            ends[nodes:] = begin
        twos = np.concatenate([[0], np.cumsum(self.second)])[self.levels]  # nodes with two inputs so far
        bounds = self.levels.tolist()
        for a, b, none, some in zip(bounds[:-1], bounds[1:], twos[:-1].tolist(), twos[1:].tolist()):
            start = ends[self.inputs[0, a:b]] + wait[0, a:b]
            np.maximum(start, ends[self.before[a:b]], out=start)
            if some > none:
                np.maximum(start, ends[self.inputs[1, a:b]] + wait[1, a:b], out=start)
            np.add(start, seconds[a:b], out=ends[a:b])
        return ends

    def occupied(self, took: Array, sends: Array, joined: Any = 1.0, *, blocking: bool = False) -> Array:
        """Seconds that each rank's nodes take together, [ranks, n]: no step is shorter. Arguments as in
        `ends`."""
        seconds = self.seconds(took, joined)
        if blocking:
            seconds = seconds + self.sending(sends)
        rank = self.rank[self.first]
        return np.stack([seconds[rank == r].sum(0) for r in range(self.n_ranks)])

    def sending(self, sends: Array) -> Array:
        """How long the sends of each node's results take, one after another, [nodes, n]."""
        found = np.zeros((len(self.before) + self.n_ranks, sends.shape[-1]))
        np.add.at(found, self.inputs[0], sends[self.boundary[0]])
        np.add.at(found, self.inputs[1, self.second], sends[self.boundary[1, self.second]])
        return found[: len(self.before)]

    def seconds(self, took: Array, joined: Any = 1.0) -> Array:
        """How long each node runs, [nodes, n]; arguments as in `ends`."""
        seconds = took[self.kind[self.first], self.stage[self.first]]
        pairs = self.first[self.joined] + 1
        seconds[self.joined] += took[self.kind[pairs], self.stage[pairs]]
        seconds[self.joined] *= joined
        return seconds

    @property
    def last_nodes(self) -> IntArray:
        """The last node of each rank, [ranks]; its start where the rank does nothing."""
        found = np.arange(len(self.before), len(self.before) + self.n_ranks)
        found[self.rank] = self.node  # a later pass of a rank overwrites an earlier one
        return found


def compiled(order: Order, route: Router) -> Network:
    """The network of `order` [rank][position] where microbatches take `route`.

    Raises InputError where the order names a pass that is on no route or twice, or where passes wait for each
    other for ever (naming what each rank is stuck at).
    """
    lengths = [len(row) for row in order]
    actions = tuple(a for row in order for a in row)
    rank = np.repeat(np.arange(len(order)), lengths)
    ways = _Ways(actions, rank, route)
    kind = np.array([KINDS.index(a.kind) for a in actions], np.int64)
    joined = np.array([a.joined for a in actions], bool)
    _refuse_misplaced(order, rank, kind, joined, ways)
    heads = np.ones(len(actions), bool)
    heads[1:] = ~joined[:-1]
    node = np.cumsum(heads) - 1
    first = np.flatnonzero(heads)
    pairs = np.bincount(node, minlength=len(first)) > 1
    inputs, boundary, second, legal = _inputs(rank, kind, node, ways, len(order))
    starts = np.searchsorted(rank[first], np.arange(len(order) + 1))
    level = _levels(inputs, legal, starts)
    stuck = [int(at) for at in np.flatnonzero(level < 0)]
    if stuck:
        by_rank = {int(rank[first[at]]): int(first[at]) for at in reversed(stuck)}
        begins = np.concatenate([[0], np.cumsum(lengths)])
        raise InputError(*(_stuck(r, order[r], at - int(begins[r])) for r, at in sorted(by_rank.items())))
    place = np.argsort(level, kind="stable")
    moved = np.arange(len(first) + len(order))
    moved[place] = np.arange(len(first))
    before = np.arange(len(first)) - 1
    before[starts[:-1][starts[:-1] < starts[1:]]] = len(first) + np.flatnonzero(starts[:-1] < starts[1:])
    counts = np.bincount(level) if len(level) else np.zeros(0, np.int64)
    return Network(
        actions=actions,
        rank=rank,
        stage=ways.stage,
        kind=kind,
        node=moved[node],
        share=ways.share,
        n_ranks=len(order),
        depth=ways.depth,
        first=first[place],
        joined=pairs[place],
        before=moved[before][place],
        inputs=moved[inputs][:, place],
        boundary=boundary[:, place],
        second=second[place],
        levels=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


class _Ways:
    """Where each pass stands on its microbatch's route.

    Of passes: `stage` (-1: nowhere), the ranks `on` the stage after it and `back` on the one before (-1: no
    such stage), `item` its microbatch numbered from 0, `share` as in `Network`. `depth`: the most stages.
    """

    def __init__(self, actions: tuple[Action, ...], rank: IntArray, route: Router) -> None:
        microbatch = np.array([a.microbatch for a in actions], np.int64)
        chunk = np.array([a.chunk for a in actions], np.int64)
        values, self.item = np.unique(microbatch, return_inverse=True)
        known: dict[Route, int] = {}
        which = np.array([known.setdefault(route(int(i)), len(known)) for i in values], np.int64)
        self.depth = max((len(way) for way in known), default=0)
        chunks = int(max([chunk.max(initial=0), *(c for way in known for _, c in way)])) + 1
        ranks = int(max([rank.max(initial=0), *(r for way in known for r, _ in way)])) + 1
        stages = np.full((len(known), ranks, chunks), -1, np.int64)
        homes = np.full((len(known), self.depth + 2), -1, np.int64)  # shifted by one: none before, none after
        for w, way in enumerate(known):
            for s, (r, c) in enumerate(way):
                stages[w, r, c], homes[w, s + 1] = s, r
        way_of = which[self.item] if len(values) else microbatch
        self.stage = stages[way_of, rank, chunk] if known else microbatch
        self.back = homes[way_of, self.stage] if known else microbatch
        self.on = homes[way_of, self.stage + 2] if known else microbatch
        mine = (homes[way_of] == rank[:, None]).sum(1) if known else microbatch
        self.share = 1.0 / np.maximum(mine, 1)


def _inputs(
    rank: IntArray, kind: IntArray, node: IntArray, ways: _Ways, n_ranks: int
) -> tuple[IntArray, IntArray, Flags, Flags]:
    """Of each node, rank after rank: two inputs and the boundaries they cross, whether there are two, and
    whether what it needs of its own rank stands before it."""
    nodes, depth, none = int(node.max(initial=-1)) + 1, ways.depth, max(ways.depth - 1, 0)
    items = int(ways.item.max(initial=-1)) + 1
    forward, weight = kind == KINDS.index("F"), kind == KINDS.index("W")
    passes = {"F": forward, "I": ~(forward | weight)}
    ran = {
        k: np.full((items, depth + 2), nodes + n_ranks) for k in passes
    }  # later than any where it never runs
    for k, mask in passes.items():
        ran[k][ways.item[mask], ways.stage[mask] + 1] = node[mask]
    # A weight part follows its input part, a backward its forward, on their own rank.
    needs = np.where(weight, ran["I"][ways.item, ways.stage + 1], ran["F"][ways.item, ways.stage + 1])
    legal = np.ones(nodes, bool)
    legal[node[~forward & (needs >= node)]] = False
    other = np.where(forward, ways.back, np.where(weight, -1, ways.on))
    from_ = np.where(forward, ran["F"][ways.item, ways.stage], ran["I"][ways.item, ways.stage + 2])
    crossed = np.where(other == rank, none, np.where(forward, ways.stage - 1, ways.stage))
    has = other >= 0
    legal[node[has & (from_ >= nodes)]] = False
    inputs, boundary = np.empty((2, nodes), np.int64), np.full((2, nodes), none)
    inputs[:, node] = nodes + rank  # nothing but the start of the rank
    at = np.flatnonzero(has)
    for row, places in enumerate((at[::-1], at)):  # of a node's passes the first, then the last stays written
        inputs[row, node[places]], boundary[row, node[places]] = from_[places], crossed[places]
    found = np.bincount(node[at], minlength=nodes)
    return inputs, boundary, found > 1, legal


def _levels(inputs: IntArray, legal: Flags, starts: IntArray) -> IntArray:
    """Level of each node, rank after rank: the first at which what it waits for has run; -1 where it never
    runs. Rank r has nodes `starts[r]` to `starts[r + 1]`."""
    nodes = inputs.shape[1]
    level = np.full(nodes, -1, np.int64)
    done = np.zeros(nodes + len(starts), bool)
    done[nodes:] = True
    can = np.append(legal, False)
    waits = np.concatenate([inputs, np.full((2, 1), nodes)], axis=1)
    at, end, now = starts[:-1].copy(), starts[1:], 0
    while True:
        here = np.where(at < end, at, nodes)
        runs = can[here] & done[waits[0, here]] & done[waits[1, here]]
        if not runs.any():
            return level
        ready = here[runs]
        level[ready], done[ready] = now, True
        at += runs
        now += 1


def _refuse_misplaced(order: Order, rank: IntArray, kind: IntArray, joined: Flags, ways: _Ways) -> None:
    """Raise where a pass is on no route, listed twice, or joined with nothing."""
    whole = kind == KINDS.index("B")
    parts = [(whole | (kind == KINDS.index(k))) if k in "IW" else kind == KINDS.index(k) for k in "FIW"]
    width = int(ways.item.max(initial=0) + 1) * (ways.depth + 1)
    code = ways.item * (ways.depth + 1) + ways.stage + 1 + rank * width
    repeated = any(len(np.unique(code[mask])) < mask.sum() for mask in parts)
    ends = [bool(row and row[-1].joined) for row in order]
    if not repeated and (ways.stage >= 0).all() and not any(ends):
        return
    faults = []
    at = np.concatenate([[0], np.cumsum([len(row) for row in order])])
    for r, row in enumerate(order):
        seen = Counter((k, a.chunk, a.microbatch) for a in row for k in ("IW" if a.kind == "B" else a.kind))
        twice = sorted({f"{k}{i}.{c}" for (k, c, i), n in seen.items() if n > 1})
        astray = [str(a) for a, stage in zip(row, ways.stage[at[r] : at[r + 1]]) if stage < 0]
        for what, which in (("lists a pass twice", twice), ("lists a pass of no stage of its own", astray)):
            if which:
                faults.append(
                    Diagnostic("MW156", f"rank {r} {what}: {', '.join(which[:4])}", where=f"order[{r}]")
                )
        if ends[r]:
            said = f"rank {r} ends with {row[-1]} joined to nothing"
            faults.append(Diagnostic("MW156", said, where=f"order[{r}]"))
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
