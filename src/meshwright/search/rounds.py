"""Rows of some families in rounds: bounds, then time and memory of what is left, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, groupby, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.rows import LayerTable, candidates
from meshwright.cost.schedule import load as load_schedule
from meshwright.cost.step import evaluate
from meshwright.cost.tables import Shared, shared
from meshwright.search.bounds import (
    Held,
    Request,
    memory_floor,
    saved_bytes,
    seconds_of,
    stage_bytes,
)
from meshwright.search.found import Keep, Kind, Scan
from meshwright.search.legal import Rows, joined
from meshwright.search.necessity import does_without
from meshwright.search.pool import Times
from meshwright.search.ranking import Candidate, axes_used, fastest_of_each
from meshwright.search.savings import NO_NEED, Chosen, Spared
from meshwright.search.space import IntArray, Mask, Space, Words
from meshwright.strategy.recompute import in_order
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]

ROUNDS = (4_096, 16_384)  # strategies bounded and evaluated together: few until there is something to beat
TIE = 0.01  # plans closer than this are not told apart: the model's own repeatability on published reruns
NO_MEMORY = "memory floor above capacity"
NO_TIME = "time floor above the best"
UNFIT = "MW301 does not fit in memory"


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds are made of (parameters, model FLOPs of a step) and what they must keep."""

    parameters: Held
    flops: float
    techniques: tuple[str, ...]
    slack: float | None = None  # None: nobody asks for other kinds of plans; else how much slower they may be
    kind: Kind = axes_used  # what other kinds are told apart by
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """One (ZeRO, group, offload): words, group size of each block, and the (block, vpp) it spells [b, v]."""

    words: Words
    groups: IntArray
    spelled: Mask


@dataclass(frozen=True, slots=True)
class Family:
    """The legal strategies of one schedule under words that decide what is legal.

    `times` [n] is what a microbatch's seconds through the whole model are multiplied by for a step's floor.
    """

    words: Words
    rows: Rows
    pair: IntArray  # each row's place in an array [b * v]
    times: FloatArray
    shards: tuple[Shard, ...]
    weight: IntArray  # how many of the shards each (block, vpp) is spelled with, [b * v]

    def at(self, part: IntArray) -> Family:
        """Some of its rows."""
        return replace(self, rows=self.rows.at(part), pair=self.pair[part], times=self.times[part])


def in_rounds(
    request: Request,
    space: Space,
    families: list[Family],
    floors: list[FloatArray],
    found: Scan,
    limits: Limits,
    rounds: tuple[int, ...] = ROUNDS,
) -> None:
    """The strategies of some families whose steps take `floors` at least: the most promising in rounds."""
    left = [np.arange(len(floor)) for floor in floors]
    for size in chain(rounds, repeat(rounds[-1])):
        parts = []
        for i, (family, floor) in enumerate(zip(families, floors)):
            limit = bars(found, space, family, limits)
            near = left[i][floor[left[i]] <= limit.highest]
            near = near[floor[near] <= limit.of(family, near)]
            _count_slow(found, space, family, near, left[i])
            order = np.argpartition(floor[near], size) if len(near) > size else np.arange(len(near))
            parts.append(near[order[:size]])
            left[i] = near[order[size:]]
        if not any(len(part) for part in parts):
            return
        _scan_round(request, space, families, parts, found, limits)


def _count_slow(found: Scan, space: Space, family: Family, kept: IntArray, rows: IntArray) -> None:
    """Count the strategies of some rows of the family that are not among the `kept` ones."""
    if len(kept) == len(rows):
        return
    cut = family.weight.take(family.pair[rows]).sum() - family.weight.take(family.pair[kept]).sum()
    found.bounded[NO_TIME] += int(cut) * len(space.words["recompute"])


@dataclass(frozen=True, slots=True)
class Bars:
    """Seconds above which a row is useful under no ZeRO word: the larger of what its (block, vpp), [b * v],
    and its expert degrees, [e], allow."""

    by_pair: FloatArray
    by_experts: FloatArray

    @property
    def highest(self) -> float:
        """The highest of all."""
        return float(max(self.by_pair.max(), self.by_experts.max()))

    def of(self, family: Family, rows: IntArray) -> FloatArray:
        """Of some rows."""
        experts = family.rows.experts.take(rows)
        return np.maximum(self.by_pair.take(family.pair.take(rows)), self.by_experts.take(experts))


def bars(found: Scan, space: Space, family: Family, limits: Limits) -> Bars:
    """`_threshold` on the axes, for the words that do without most."""
    words = replace(family.words, recompute="none", zero=min(space.words["zero"]))
    outer = {name: np.broadcast_to(x[:, None], space.has_vpp.shape) for name, x in space.blocks.items()}
    outer["vpp"] = np.broadcast_to(space.vpp, space.has_vpp.shape)
    many = {"ep": 2, "etp": 2}  # stands for any rank count above 1
    by_pair = _threshold(found, space.strategy(words, outer | many, 1), limits)
    inner = {
        "dp": np.full(len(space.ep), 2),
        "tp": 2,
        "pp": 2,
        "vpp": 2,
        "cp": 2,
        "ep": space.ep,
        "etp": space.etp,
    }
    by_experts = _threshold(found, space.strategy(words, inner, 1), limits)
    return Bars(by_pair.ravel(), by_experts)


@dataclass(frozen=True, slots=True)
class Hopeful:
    """What is `chosen` of a round, as `strategy` of n rows; `at` [n] are their places in the round's tables.

    `open` has for each recompute word the rows that were fast and light enough when the round began, and the
    bytes that the fullest rank of each holds at least. `known` are tables of those rows that are open under
    some word, `place` [n] where a row stands among them.
    """

    chosen: Chosen
    strategy: Strategy
    at: IntArray
    times: FloatArray
    open: dict[str, tuple[IntArray, FloatArray]]
    known: Shared
    place: IntArray


def _scan_round(
    request: Request,
    space: Space,
    families: list[Family],
    parts: list[IntArray],
    found: Scan,
    limits: Limits,
) -> None:
    """Bound and evaluate some rows of each family under every recompute and ZeRO word; what these do not move
    is found out once."""
    r = request
    some = joined([family.rows.at(part) for family, part in zip(families, parts)])
    times = np.concatenate([family.times[part] for family, part in zip(families, parts)])
    chosen = list(_that_may_fit(request, space, families, parts, some, found, limits))
    if not chosen:
        return
    kept = np.zeros(len(some), bool)
    for mine in chosen:
        kept[mine.rows] = True
    rows, at = some.at(kept), np.cumsum(kept) - 1  # of the tables, and each row's place there
    degrees, recomputes = rows.degrees(space), in_order(space.words["recompute"])
    tables: dict[bool, Shared] = {}
    for mine in chosen:
        if mine.hides not in tables:
            every = space.strategy(mine.words, degrees, 1)
            tables[mine.hides] = shared(
                r.model, r.cluster, r.work, every, r.profile, candidates(every, len(rows)),
                space.words["recompute"],
            )  # fmt: skip
    by_word = {
        (hides, word): table.prices.table(replace(every, recompute=word))
        for hides, table in tables.items()
        for word in recomputes
    }
    seconds = {key: np.broadcast_to(seconds_of(layers), len(rows)) for key, layers in by_word.items()}
    hopeful = []
    for mine in chosen:
        where = at[mine.rows]
        own = {word: (by_word[mine.hides, word], seconds[mine.hides, word]) for word in recomputes}
        strategy = _strategies(space, mine.words, degrees, where, mine.groups)
        hopeful.append(
            _hopeful(r, mine, strategy, where, times[mine.rows], tables[mine.hides], own, found, limits)
        )
    spared = Spared()
    for word in recomputes:
        for one in hopeful:
            mine, (part, least) = one.chosen, one.open[word]
            if not len(part):
                continue
            needed = spared.left(r, mine, word, part)
            strategy = replace(one.strategy, recompute=word).take(part)
            floor = one.times[part] * seconds[mine.hides, word][one.at[part]]
            fast = needed & (floor <= _threshold(found, strategy, limits))
            light = fast & ~_hopeless(found, least)
            found.bounded[NO_NEED] += int((~needed).sum())
            found.bounded[NO_TIME] += int((needed & ~fast).sum())
            found.bounded[NO_MEMORY] += int((fast & ~light).sum())
            rest = part[light]
            if not len(rest):
                continue
            known = replace(
                one.known.cut(one.place[rest]), layers=by_word[mine.hides, word].cut(one.at[rest])
            )
            strategy = strategy.take(light)
            evaluation = evaluate(r.model, r.cluster, r.work, strategy, r.profile, known=known)
            fits = _absorb(found, strategy, evaluation, limits)
            if limits.keep is None:  # a pool is asked again where less fits
                spared.fit(mine, word, rest[fits])


def _hopeful(
    request: Request,
    mine: Chosen,
    strategy: Strategy,
    at: IntArray,
    times: FloatArray,
    tables: Shared,
    by_word: dict[str, tuple[LayerTable, FloatArray]],
    found: Scan,
    limits: Limits,
) -> Hopeful:
    """The chosen strategies that are not too slow or too heavy, and what they exchange; counts the rest."""
    r, n = request, len(at)
    known = tables.cut(at).laid(r.model, r.work, strategy, candidates(strategy, n))
    stages = stage_bytes(r, strategy, known)
    # Of recompute words only the plainest does without something.
    limit = {plain: _threshold(found, replace(strategy, recompute=word), limits)
             for plain, word in ((True, "none"), (False, "full"))}  # fmt: skip
    open_: dict[str, tuple[IntArray, FloatArray]] = {}
    alive = np.zeros(n, bool)
    for word, (layers, seconds) in by_word.items():
        fast = np.flatnonzero(times * seconds[at] <= limit[word == "none"])
        own = replace(strategy, recompute=word).take(fast)
        saved = saved_bytes(r, own, replace(known.cut(fast), layers=layers.cut(at[fast])))
        least = stages.at(fast).least(saved)
        light = ~_hopeless(found, least)
        found.bounded[NO_TIME] += n - len(fast)
        found.bounded[NO_MEMORY] += len(fast) - int(light.sum())
        open_[word] = fast[light], least[light]
        alive[fast[light]] = True
    few = np.flatnonzero(alive)
    known = known.cut(few)
    if len(few):
        known = known.exchanging(r.model, r.cluster, r.work, strategy.take(few), r.profile)
    return Hopeful(mine, strategy, at, times, open_, known, np.cumsum(alive) - 1)


def _that_may_fit(
    request: Request,
    space: Space,
    families: list[Family],
    parts: list[IntArray],
    some: Rows,
    found: Scan,
    limits: Limits,
) -> Iterator[Chosen]:
    """The strategies of a round's rows, recompute words apart, without those that no memory suffices for."""
    degrees = some.degrees(space)
    recomputes = space.words["recompute"]
    start = 0
    for family, part in zip(families, parts):
        own = np.arange(start, start + len(part))
        start += len(part)
        for _, alike in groupby(family.shards, lambda shard: (shard.words.zero, shard.words.offload)):
            shards = list(alike)
            rows_of = [own[shard.spelled[some.block[own], some.vpp[own]]] for shard in shards]
            mine = np.concatenate(rows_of)
            groups = np.concatenate([x.groups[some.block[its]] for x, its in zip(shards, rows_of)])
            places = np.arange(len(mine))
            words = replace(shards[0].words, recompute=recomputes[0])
            strategy = _strategies(space, words, degrees, mine, groups)
            bytes_floor = np.broadcast_to(memory_floor(request, limits.parameters, strategy), mine.shape)
            hopeless = _hopeless(found, bytes_floor)
            found.bounded[NO_MEMORY] += int(hopeless.sum()) * len(recomputes)
            if not hopeless.all():
                hides = load_schedule(words.schedule).JOINED
                yield Chosen(words, mine[~hopeless], groups[~hopeless], hides, places[~hopeless], len(places))


def _hopeless(found: Scan, bytes_floor: FloatArray) -> Mask:
    """What cannot fit. It still matters while it may be the nearest miss of a search without plans."""
    hopeless = bytes_floor > found.capacity_bytes
    if found.feasible == 0:
        hopeless &= bytes_floor >= (found.nearest.peak_bytes if found.nearest else np.inf)
    return hopeless


def _strategies(
    space: Space, words: Words, degrees: dict[str, IntArray], part: IntArray, groups: Any
) -> Strategy:
    """The strategies of part of some rows."""
    return space.strategy(words, {k: v[part] for k, v in degrees.items()}, groups)


def _threshold(found: Scan, strategy: Strategy, limits: Limits) -> FloatArray:
    """Seconds above which a strategy changes no answer, [n]: the worst of the plans it could displace."""
    shape = np.shape(strategy.dp)
    if limits.keep is not None and limits.keep.wanted(found):
        return np.full(shape, limits.keep.bar_s)
    limit = np.full(shape, np.inf)
    if np.isfinite(found.shortlist.bar):
        near = found.best[0].step_time_s * (1 + max(TIE, limits.slack or 0.0))
        limit[:] = max(found.shortlist.bar, near)
    for technique in limits.techniques:
        bar = found.without[technique].bar
        if bar > limit.min(initial=np.inf):
            limit = np.where(does_without(technique, strategy), np.maximum(limit, bar), limit)
    return limit


def _absorb(found: Scan, strategy: Strategy, evaluation: Evaluation, limits: Limits) -> Mask:
    """Take a round's best plans, and its best without each technique, into what was found; which fit."""
    shape = np.shape(strategy.dp)
    time = np.broadcast_to(np.asarray(evaluation.step_time_s, float), shape)
    peak = np.broadcast_to(np.asarray(evaluation.peak_bytes, float), shape)
    found.searched += len(time)
    fits: Mask = peak <= evaluation.capacity_bytes
    found.feasible += int(fits.sum())
    found.rejected[UNFIT] += int((~fits).sum())
    if not fits.any():
        least = int(peak.argmin())
        if found.nearest is None or peak[least] < found.nearest.peak_bytes:
            found.nearest = Candidate(strategy.at(least), float(time[least]), float(peak[least]))
        return fits
    timed = np.where(fits, time, np.inf)

    @cache
    def candidate(i: int) -> Candidate:
        return Candidate(strategy.at(i), float(time[i]), float(peak[i]))

    found.shortlist.take(timed, candidate)
    for technique in limits.techniques:
        among = np.where(does_without(technique, strategy), timed, np.inf)
        found.without[technique].take(among, candidate)
    if limits.slack is not None:
        bar = max(found.best[0].step_time_s * (1 + limits.slack), found.shortlist.bar)
        near = np.where(timed <= bar, timed, np.inf)
        for kind, least in fastest_of_each(np.broadcast_to(limits.kind(strategy), shape), near):
            if kind not in found.of_kind or timed[least] < found.of_kind[kind].step_time_s:
                found.of_kind[kind] = candidate(least)
    if limits.keep is not None:
        within = timed <= limits.keep.bar_s
        if not limits.keep.wanted(found):
            found.pool.clear()
        elif within.any():
            found.pool.append((strategy.take(within), Times(time[within], peak[within])))
    return fits
