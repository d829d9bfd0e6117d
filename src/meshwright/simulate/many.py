"""Step times of many strategies by their simulated pipelines, for a search to rank its best by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import schedule
from meshwright.cost.balance import HOLDS_ALL
from meshwright.cost.rows import candidates
from meshwright.cost.tables import shared
from meshwright.cost.times import slow_rank_seconds, straggler_share
from meshwright.errors import InputError
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.simulate.costs import Costs, costs
from meshwright.simulate.network import KINDS, Network
from meshwright.simulate.pipeline import network
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of
from meshwright.work import Work

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MOST_PASSES = 300_000  # that a plan is simulated with: a second or two
_WHOLE = 30_000  # passes of a pipeline that is simulated from its first microbatch to its last
_ROUNDS = 3  # microbatches a rank after which a pipeline is full and has begun to drain, in pp
_CELLS = 1 << 21  # passes times plans that are simulated at once
_STEPS = 3  # steps in a row after which ranks are as far apart as they stay


def step_times(
    model: Model, cluster: Cluster, work: Work, strategies: Sequence[Strategy], profile: Profile
) -> Array:
    """Seconds of a step of each strategy (plain numbers), [n], as `exact` says; NaN where the schedule does
    not exist for its numbers, or has more than MOST_PASSES passes. Figures of `cluster` may be arrays [n].

    Strategies that share a schedule, pp and vpp are evaluated together. Of very many microbatches a few
    rounds are simulated and the rest added at the pace of the last one: exact where the slowest stage sets
    the pace by then, otherwise short by less than the spread of the stages.
    """
    seconds = np.full(len(strategies), np.nan)
    pipelines: dict[tuple[str, bool, int, int], list[tuple[IntArray, Costs]]] = {}
    able = [i for i, s in enumerate(strategies) if passes(work, s)[1] <= MOST_PASSES]
    some = [strategies[i] for i in able]
    for own, found in _costs(model, cluster.take(able), work, some, profile):
        places = np.array(able)[own]
        one = strategies[places[0]]
        key = (one.schedule, one.moe_balance == HOLDS_ALL, found.pp, found.vpp)
        pipelines.setdefault(key, []).append((places, found))
    for key, parts in pipelines.items():
        whole = _Pipelines(*key, [found for _, found in parts])
        waiting = slow_rank_seconds(work, whole.slowed(), 0.0, 0.0) if work.slowness != 1.0 else 0.0
        seconds[np.concatenate([places for places, _ in parts])] = whole.seconds() + waiting
    return (1.0 + float(straggler_share(cluster, profile))) * seconds


def passes(work: Work, strategy: Strategy) -> tuple[tuple[Any, ...], int]:
    """(what strategies share whose pipelines are simulated together, passes that are simulated for them)."""
    pp, vpp = int(strategy.pp), int(strategy.vpp)
    m = int(work.global_batch_size) // int(strategy.dp * strategy.microbatch_size)
    few, round_ = _rounds(strategy.schedule, pp)
    whole = bool(_is_short(pp, vpp, np.array(m), few + 2 * round_))
    key = (strategy.schedule, strategy.moe_balance == HOLDS_ALL, pp, vpp, m if whole else 0)
    return key, 2 * pp * vpp * (m if whole else 2 * few + round_)


def _rounds(word: str, pp: int) -> tuple[int, int]:
    """Microbatches of a pipeline that is full and has begun to drain, and of one round more."""
    needs = schedule.load(word).NEEDS
    return needs.enough(pp, _ROUNDS * pp), int(needs.group(pp))


def _is_short(pp: int, vpp: int, microbatches: Any, few: int) -> Any:
    """Which numbers of microbatches are simulated from the first to the last."""
    return (microbatches <= few) | (2 * pp * vpp * microbatches <= _WHOLE)


def _costs(
    model: Model, cluster: Cluster, work: Work, strategies: Sequence[Strategy], profile: Profile
) -> Iterator[tuple[IntArray, Costs]]:
    """Costs of strategies that share words and a pipeline, with their places; layers are worked out once for
    all that share the words that layers depend on."""
    for places in alike(_layer_words(s) for s in strategies):
        some, own = [strategies[i] for i in places], cluster.take(places)
        known = shared(model, own, work, stacked(some), profile, candidates(stacked(some), len(some)))
        for part in alike((s.schedule, s.zero, s.pp, s.vpp) for s in some):
            few = stacked([some[at] for at in part])
            laid = known.cut(part).laid(model, few, candidates(few, len(part)))
            for at in alike(laid.where.pair.tolist()):  # which may be cut otherwise
                of = part[at]
                yield places[of], costs(model, own.take(of), work, few.take(at), profile, laid.cut(at))


def alike(keys: Iterable[Any]) -> list[IntArray]:
    """Places of equal keys together."""
    found: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return [np.array(places) for places in found.values()]


def _layer_words(s: Strategy) -> tuple[Any, ...]:
    """What strategies share whose layers are in one table, and whose stages lie alike."""
    listed = None if s.layers_per_stage is None else (s.layers_per_stage, s.pp, s.vpp)
    joined = schedule.load(s.schedule).JOINED
    words = [getattr(s, f.name) for f in fields(s) if isinstance(getattr(s, f.name), str | bool | tuple)]
    return (
        listed,
        joined,
        layout_of(s.schedule),
        *(w for w in words if w not in (s.schedule, s.layers_per_stage)),
    )


def stacked(few: Sequence[Strategy]) -> Strategy:
    """Strategies with the same words as one, its numbers arrays [n]."""
    names = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_group", "microbatch_size")
    numbers: dict[str, Any] = {name: np.array([getattr(s, name) for s in few]) for name in names}
    return replace(few[0], **numbers)


class _Pipelines:
    """Plans [n] of one schedule, pp and vpp, from several `parts`."""

    def __init__(self, word: str, forwards_first: bool, pp: int, vpp: int, parts: Sequence[Costs]) -> None:
        self.word, self.forwards_first, self.pp, self.vpp = word, forwards_first, pp, vpp
        self.blocking = parts[0].blocking
        self.took = np.concatenate([x.took for x in parts], axis=-1)
        self.sends = np.concatenate([x.sends for x in parts], axis=-1)
        self.after = np.concatenate([x.after for x in parts], axis=-1)
        self.microbatches = np.concatenate([x.microbatches for x in parts])
        self.worked = np.concatenate([x.worked for x in parts], axis=-1)
        self.once = np.concatenate([(x.optimizer + x.counting).T for x in parts], axis=-1)

    def seconds(self) -> Array:
        """Seconds from step to step, [n]; NaN where the schedule does not exist."""
        needs = schedule.load(self.word).NEEDS
        few, round_ = _rounds(self.word, self.pp)
        found = np.full(len(self.microbatches), np.nan)
        short = _is_short(self.pp, self.vpp, self.microbatches, few + 2 * round_)
        for m in np.unique(self.microbatches[short]).tolist():
            these = np.flatnonzero(self.microbatches == m)
            with suppress(InputError):  # checks say why there is no such schedule
                found[these], _ = self._step(m, these)
        rest = np.flatnonzero(~short & needs.by_microbatches(self.pp, self.microbatches))
        if len(rest):
            (near, near_busy), (far, far_busy) = self._step(few, rest), self._step(few + round_, rest)
            rounds = (self.microbatches[rest] - few - round_) / round_
            least = (far_busy + rounds * (far_busy - near_busy)).max(0)
            found[rest] = np.maximum(far + rounds * (far - near), least)
        return found

    def slowed(self) -> Array:
        """Seconds of a step that a slow chip takes longer for, launches too, on the busiest rank, [n]."""
        few, _ = _rounds(self.word, self.pp)
        graph = network(self.word, self.pp, self.vpp, few, forwards_first=self.forwards_first)
        own = np.zeros((self.pp, graph.depth))  # share of the microbatches whose stage each rank runs
        forwards = graph.kind == KINDS.index("F")
        np.add.at(own, (graph.rank[forwards], graph.stage[forwards]), 1.0 / few)
        load = own @ (self.took[0] + self.took[1]) * self.microbatches + self.after
        slowest = load.argmax(0)[None]
        spent = own @ self.worked * self.microbatches + self.once
        return np.asarray(np.take_along_axis(spent, slowest, 0)[0])

    def _step(self, microbatches: int, these: IntArray) -> tuple[Array, Array]:
        """The same of some of the plans for so many microbatches, and what each rank does, [ranks, n]."""
        many = max(_CELLS // (2 * self.pp * self.vpp * microbatches), 1)
        parts = [self._part(microbatches, these[i : i + many]) for i in range(0, len(these), many)]
        return np.concatenate([step for step, _ in parts]), np.concatenate(
            [busy for _, busy in parts], axis=1
        )

    def _part(self, microbatches: int, these: IntArray) -> tuple[Array, Array]:
        """`_step` of plans that are simulated at once.

        A rank that begins late may catch up for some steps; no step is shorter than what one rank does in it.
        """
        graph = network(self.word, self.pp, self.vpp, microbatches, forwards_first=self.forwards_first)
        took, sends, after = self.took[..., these], self.sends[:, these], self.after[:, these]
        begin, seen, step = np.zeros_like(after), np.zeros(len(these)), np.full(len(these), np.inf)
        for _ in range(_STEPS):
            ends = graph.ends(took, sends, 1.0, begin, blocking=self.blocking)[graph.last_nodes] + after
            done = ends.max(0)
            step, seen, begin = np.minimum(step, done - seen), done, ends
            if _begins_and_ends_with_one(graph, ends):
                break
        busy = graph.occupied(took, sends, blocking=self.blocking) + after
        return np.maximum(step, busy.max(0)), busy


def _begins_and_ends_with_one(graph: Network, ends: Array) -> bool:
    """Whether the rank that ends last in every plan is the one that all others wait for to start: then the
    next step takes as long as this one."""
    opens = graph.rank[graph.first[graph.levels[0] : graph.levels[1]]]
    return bool(len(opens) == 1 and (ends[opens[0]] >= ends.max(0)).all())
