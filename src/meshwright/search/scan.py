"""One pass over a space: legality as masks, bounds as proofs, cost in chunks; only the best survive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.checks import RULES, illegal
from meshwright.checks.layout import ShardGroup
from meshwright.cost.evaluation import Evaluation
from meshwright.search.bounds import (
    Evaluate,
    Held,
    Request,
    busy_at_peak,
    busy_seconds,
    held,
    memory_floor,
    time_floor,
)
from meshwright.search.necessity import TECHNIQUES, does_without
from meshwright.search.space import IntArray, Mask, Space, Words
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]

SHAPE_FIELDS = ("tp", "cp", "ep", "etp", "microbatch_size")
CHUNK = 16_384  # candidates a call: large enough to spread the call's own cost, small enough for the cache
TIE = 0.01  # plans closer than this are not told apart: the model's own repeatability on published reruns
SHARD_GROUP = ShardGroup()
REASONS = {rule.code: f"{rule.code} {rule.reason}" for rule in RULES}
NO_MEMORY = "memory floor above capacity"
NO_TIME = "time floor above the best"
UNFIT = "MW301 does not fit in memory"


@dataclass(slots=True)
class Candidate:
    """One evaluated strategy (plain numbers) with its two totals."""

    strategy: Strategy
    step_time_s: float
    peak_bytes: float


@dataclass(slots=True)
class Scan:
    """What a pass found. `best` is sorted; `without` holds the best plan that does without each technique."""

    best: list[Candidate] = field(default_factory=list)
    without: dict[str, Candidate] = field(default_factory=dict)
    nearest: Candidate | None = None  # the smallest peak among those that do not fit
    capacity_bytes: float = 0.0
    searched: int = 0
    feasible: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    bounded: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds are made of (parameters, model FLOPs of a step) and what they must keep."""

    parameters: Held
    flops: float
    top: int
    techniques: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the space under one combination of words: index, zero_group and time floor, each [n]."""

    index: IntArray
    groups: IntArray
    floor_time: FloatArray


class Busy:
    """Seconds of a microbatch through the whole model for each row, once a distinct shape and word."""

    def __init__(self, request: Request, space: Space, evaluate: Evaluate) -> None:
        self.request, self.space, self.evaluate = request, space, evaluate
        code = np.zeros(len(space), np.int64)
        for name in SHAPE_FIELDS:
            values, digit = np.unique(space.degrees[name], return_inverse=True)
            code = code * len(values) + digit.ravel()
        _, self.first, self.shape = np.unique(code, return_index=True, return_inverse=True)
        self.known: dict[tuple[Any, ...], FloatArray] = {}

    def of(self, words: Words, rows: IntArray) -> FloatArray | None:
        """[rows]; None where words look at the stage (some layers recomputed) or dp and pp move axes."""
        recompute, constant = parse(words.recompute), dict(words.constant)
        by_stage = recompute.layers or recompute.every > 1 or ":" in constant["offload"]
        if by_stage or constant["placement"][:2] != ("tp", "cp"):
            return None
        key = (words.constant, words.sp, words.cp_method, words.recompute)
        if key not in self.known:
            self.known[key] = np.full(len(self.first), np.nan)
        known, shapes = self.known[key], self.shape[rows]
        missing = np.unique(shapes[np.isnan(known[shapes])])
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            strategy = self.space.strategy(words, self.first[part], np.ones(len(part), np.int64))
            known[part] = busy_seconds(self.evaluate, self.request, strategy)
        return known[shapes]


def scan(
    request: Request,
    space: Space,
    evaluate: Evaluate,
    *,
    top: int,
    techniques: tuple[str, ...] = TECHNIQUES,
    progress: Callable[[float, float], None] | None = None,
) -> Scan:
    """Rank every legal strategy of `space`. Cuts only what provably changes neither the `top` plans, nor
    the best plan without each of `techniques`, nor (while nothing fits) the nearest miss."""
    found = Scan(capacity_bytes=request.cluster.usable_bytes)
    limits = Limits(held(request.model), _model_flops(request, space, evaluate), top, techniques)
    busy = Busy(request, space, evaluate)
    families = list(space.families())
    for i, family in enumerate(families):
        _scan_family(request, space, family, evaluate, found, limits, busy)
        if progress is not None:
            progress(i + 1, len(families))
    found.rejected = +found.rejected
    found.bounded = +found.bounded
    return found


def _scan_family(
    request: Request,
    space: Space,
    family: list[list[Words]],
    evaluate: Evaluate,
    found: Scan,
    limits: Limits,
    busy: Busy,
) -> None:
    """All words that share what is legal; each inner list shares what a microbatch takes (recompute too)."""
    legal, refused = _legal(request, space, family[0][0])
    spelled = {(w.zero, w.group): space.spelled(w) for w in family[0]}
    for w in (w for same in family for w in same):
        for reason, broken in refused:
            found.rejected[reason] += int(spelled[w.zero, w.group][broken].sum())
    legal = legal[np.logical_or.reduce(list(spelled.values()))[legal]]
    if not len(legal):
        return
    sharding: dict[tuple[int, int | str], tuple[IntArray, Mask]] = {}
    for w in family[0]:
        groups, double = space.group_sizes(w, request.cluster, legal)
        mine = spelled[w.zero, w.group][legal] & ~double
        if w.zero and not isinstance(w.group, str):  # a number may not divide dp x cp
            strategy = space.strategy(w, legal, groups)
            unequal = SHARD_GROUP.violated(request.model, request.cluster, request.work, strategy)
            found.rejected[REASONS[SHARD_GROUP.code]] += int((mine & unequal).sum()) * len(family)
            mine &= ~unequal
        sharding[w.zero, w.group] = groups, mine
    for same in family:
        whole = space.strategy(same[0], legal, sharding[same[0].zero, same[0].group][0])
        taken = busy.of(same[0], legal)
        if taken is None:
            taken = busy_at_peak(limits.flops, request.cluster, request.work, whole)
        floor_time = time_floor(taken, request.work, whole)
        for words in same:
            groups, mine = sharding[words.zero, words.group]
            # Most rows are beyond any use; leave them before anything is gathered for them.
            near = mine & (floor_time <= _loosest(found, limits))
            found.bounded[NO_TIME] += int(mine.sum() - near.sum())
            rows = np.flatnonzero(near)
            if len(rows):
                strategies = Rows(legal[rows], groups[rows], floor_time[rows])
                _scan_words(request, space, words, strategies, evaluate, found, limits)


def _legal(request: Request, space: Space, words: Words) -> tuple[IntArray, list[tuple[str, IntArray]]]:
    """Rows that break no rule under `words`, and for each rule the rows that break it first."""
    rows = np.arange(len(space))
    groups = np.ones(len(space), np.int64)
    strategy = space.strategy(words, rows, groups)
    open_rows = np.ones(len(space), bool)
    refused = []
    for code, mask in illegal(request.model, request.cluster, request.work, strategy).items():
        broken = np.broadcast_to(mask, open_rows.shape) & open_rows
        if broken.any():
            refused.append((REASONS[code], np.flatnonzero(broken)))
            open_rows &= ~broken
    return np.flatnonzero(open_rows), refused


def _scan_words(
    request: Request,
    space: Space,
    words: Words,
    rows: Rows,
    evaluate: Evaluate,
    found: Scan,
    limits: Limits,
) -> None:
    """Bound, then evaluate, the rows of one combination of words; the most promising first."""
    r = request
    order = np.argsort(rows.floor_time, kind="stable")
    for start in range(0, len(order), CHUNK):
        chosen = order[start : start + CHUNK]
        strategy = space.strategy(words, rows.index[chosen], rows.groups[chosen])
        floor = np.broadcast_to(memory_floor(limits.parameters, strategy, r.profile), chosen.shape)
        # A strategy that cannot fit still matters while it may be the nearest miss of a search without plans.
        hopeless = floor > found.capacity_bytes
        if found.feasible == 0:
            hopeless &= floor >= (found.nearest.peak_bytes if found.nearest else np.inf)
        slow = rows.floor_time[chosen] > _threshold(found, strategy, limits)
        found.bounded[NO_MEMORY] += int(hopeless.sum())
        found.bounded[NO_TIME] += int((slow & ~hopeless).sum())
        chosen = chosen[~hopeless & ~slow]
        if len(chosen):
            strategy = space.strategy(words, rows.index[chosen], rows.groups[chosen])
            evaluation = evaluate(r.model, r.cluster, r.work, strategy, r.profile)
            _absorb(found, strategy, evaluation, limits)


def _loosest(found: Scan, limits: Limits) -> float:
    """The largest threshold that any strategy can have."""
    if len(found.best) < limits.top or any(t not in found.without for t in limits.techniques):
        return float("inf")
    bars = [found.without[t].step_time_s for t in limits.techniques]
    return max(found.best[-1].step_time_s, found.best[0].step_time_s * (1 + TIE), *bars)


def _threshold(found: Scan, strategy: Strategy, limits: Limits) -> FloatArray:
    """Seconds above which a strategy changes no answer, [n]: the worst of the plans it could displace."""
    shape = np.shape(strategy.dp)
    limit = np.full(shape, np.inf)
    if len(found.best) >= limits.top:
        limit[:] = max(found.best[-1].step_time_s, found.best[0].step_time_s * (1 + TIE))
    for technique in limits.techniques:
        bar = found.without[technique].step_time_s if technique in found.without else np.inf
        limit = np.where(does_without(technique, strategy), np.maximum(limit, bar), limit)
    return limit


def _absorb(found: Scan, strategy: Strategy, evaluation: Evaluation, limits: Limits) -> None:
    """Take a chunk's best plans, and its best without each technique, into what was found."""
    shape = np.shape(strategy.dp)
    time = np.broadcast_to(np.asarray(evaluation.step_time_s, float), shape)
    peak = np.broadcast_to(np.asarray(evaluation.peak_bytes, float), shape)
    found.searched += len(time)
    fits = peak <= evaluation.capacity_bytes
    found.feasible += int(fits.sum())
    found.rejected[UNFIT] += int((~fits).sum())
    if not fits.any():
        least = int(peak.argmin())
        if found.nearest is None or peak[least] < found.nearest.peak_bytes:
            found.nearest = Candidate(strategy.at(least), float(time[least]), float(peak[least]))
        return
    timed = np.where(fits, time, np.inf)

    def candidate(i: int) -> Candidate:
        return Candidate(strategy.at(i), float(time[i]), float(peak[i]))

    bar = found.best[-1].step_time_s if len(found.best) >= limits.top else np.inf
    better = np.flatnonzero(timed < bar)
    better = better[np.argsort(timed[better], kind="stable")[: limits.top]]
    if len(better):
        merged = found.best + [candidate(int(i)) for i in better]
        found.best = sorted(merged, key=lambda c: (c.step_time_s, c.peak_bytes))[: limits.top]
    for technique in limits.techniques:
        bar = found.without[technique].step_time_s if technique in found.without else np.inf
        among = np.where(does_without(technique, strategy), timed, np.inf)
        least = int(among.argmin())
        if among[least] < bar:
            found.without[technique] = candidate(least)


def _model_flops(request: Request, space: Space, evaluate: Evaluate) -> float:
    """Model FLOPs of a step, which no strategy changes, read off any one strategy; 0 for an empty space."""
    if not len(space):
        return 0.0
    words = next(space.families())[0][0]
    legal, _ = _legal(request, space, words)
    if not len(legal):
        return 0.0
    rows = legal[:1]
    strategy = space.strategy(words, rows, np.ones(1, np.int64))
    evaluation = evaluate(request.model, request.cluster, request.work, strategy, request.profile)
    flops = np.minimum(evaluation.model_flops, evaluation.hardware_flops)
    return float(np.ravel(flops)[0])
