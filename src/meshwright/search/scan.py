"""One pass over a space: legality as masks, bounds as proofs, cost in chunks; only the best survive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.checks import RULES, illegal
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
from meshwright.search.space import IntArray, Space, Words
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]

SHAPE_FIELDS = ("tp", "cp", "ep", "etp", "microbatch_size")
CHUNK = 16_384  # candidates a call: large enough to spread the call's own cost, small enough for the cache
TIE = 0.01  # plans closer than this are not told apart: the model's own repeatability on published reruns
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
        recompute = parse(words.recompute)
        if dict(words.constant)["placement"][:2] != ("tp", "cp") or recompute.layers or recompute.every > 1:
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
    combinations = list(space.combinations())
    legal_key: tuple[Any, ...] | None = None
    legal: IntArray = np.zeros(0, np.int64)
    refused: list[tuple[str, IntArray]] = []
    for i, words in enumerate(combinations):
        key = (words.constant, words.schedule, words.sp, words.cp_method)
        if key != legal_key:
            legal_key, (legal, refused) = key, _legal(request, space, words)
        mine = space.spelled(words)
        for reason, rows in refused:
            found.rejected[reason] += int(mine[rows].sum())
        rows = legal[mine[legal]]
        groups, double = space.group_sizes(words, request.cluster, rows)
        if double.any():
            rows, groups = rows[~double], groups[~double]
        if len(rows):
            _scan_words(request, space, words, rows, groups, evaluate, found, limits, busy)
        if progress is not None:
            progress(i + 1, len(combinations))
    found.rejected = +found.rejected
    found.bounded = +found.bounded
    return found


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
    rows: IntArray,
    groups: IntArray,
    evaluate: Evaluate,
    found: Scan,
    limits: Limits,
    busy: Busy,
) -> None:
    """Bound, then evaluate, the rows of one combination of words; the most promising first."""
    r = request
    whole = space.strategy(words, rows, groups)
    if words.zero:  # a zero_group given as a number may not divide dp x cp
        broken = illegal(r.model, r.cluster, r.work, whole)["MW160"]
        if broken.any():
            found.rejected[REASONS["MW160"]] += int(broken.sum())
            rows, groups = rows[~broken], groups[~broken]
            whole = space.strategy(words, rows, groups)
    capacity = found.capacity_bytes
    floor_bytes = np.broadcast_to(memory_floor(limits.parameters, whole, r.profile), rows.shape)
    taken = busy.of(words, rows)
    if taken is None:
        taken = busy_at_peak(limits.flops, r.cluster, r.work, whole)
    floor_time = time_floor(taken, r.work, whole)
    order = np.argsort(floor_time, kind="stable")
    for start in range(0, len(order), CHUNK):
        chosen = order[start : start + CHUNK]
        # A strategy that cannot fit still matters while it may be the nearest miss of a search without plans.
        hopeless = floor_bytes[chosen] > capacity
        if found.feasible == 0:
            smallest = found.nearest.peak_bytes if found.nearest else np.inf
            hopeless &= floor_bytes[chosen] >= smallest
        found.bounded[NO_MEMORY] += int(hopeless.sum())
        chosen = chosen[~hopeless]
        strategy = space.strategy(words, rows[chosen], groups[chosen])
        slow = floor_time[chosen] > _threshold(found, strategy, limits)
        found.bounded[NO_TIME] += int(slow.sum())
        chosen = chosen[~slow]
        if len(chosen):
            strategy = space.strategy(words, rows[chosen], groups[chosen])
            evaluation = evaluate(r.model, r.cluster, r.work, strategy, r.profile)
            _absorb(found, strategy, evaluation, limits)


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
    words = next(space.combinations(), None)
    if words is None or not len(space):
        return 0.0
    legal, _ = _legal(request, space, words)
    if not len(legal):
        return 0.0
    rows = legal[:1]
    strategy = space.strategy(words, rows, np.ones(1, np.int64))
    evaluation = evaluate(request.model, request.cluster, request.work, strategy, request.profile)
    flops = np.minimum(evaluation.model_flops, evaluation.hardware_flops)
    return float(np.ravel(flops)[0])
