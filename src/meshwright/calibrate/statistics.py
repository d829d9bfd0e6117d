"""What is said of many errors at once: medians, bias by source, fit verdicts, ranking of layouts."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

TIE = 0.03  # two layouts closer than this are not told apart by a repeated run
CLOSE_PERCENT = 25.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One comparison. `error_percent` is (predicted / measured - 1) * 100; None where there is no
    prediction."""

    error_percent: float | None
    source: str
    inside: bool | None = None  # measured within the predicted interval; None without an interval


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one quantity. Percentiles are over the `n` predicted; `within_25_percent` counts misses as
    wrong."""

    n: int
    missed: int
    median_abs_error_percent: float | None
    p90_abs_error_percent: float | None
    bias_percent: float | None  # mean of the signed errors
    median_of_source_medians_percent: float | None
    within_25_percent: float | None
    interval_coverage_percent: float | None

    def json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


def errors(judged: Iterable[Judged]) -> Errors:
    """The figures for `judged`.

    >>> e = errors([Judged(10.0, "a"), Judged(-20.0, "a"), Judged(40.0, "b"), Judged(None, "b")])
    >>> e.n, e.missed, e.median_abs_error_percent, e.bias_percent, e.median_of_source_medians_percent
    (3, 1, 20.0, 10.0, 27.5)
    >>> e.within_25_percent  # two of four
    50.0
    """
    rows = list(judged)
    pairs = [(r.error_percent, r.source) for r in rows if r.error_percent is not None]
    missed = len(rows) - len(pairs)
    if not pairs:
        return Errors(0, missed, None, None, None, None, 0.0 if missed else None, None)
    signed = np.array([e for e, _ in pairs])
    size = np.abs(signed)
    by_source: dict[str, list[float]] = {}
    for value, source in pairs:
        by_source.setdefault(source, []).append(abs(value))
    inside = [r.inside for r in rows if r.inside is not None]
    return Errors(
        n=len(pairs),
        missed=missed,
        median_abs_error_percent=float(np.median(size)),
        p90_abs_error_percent=float(np.percentile(size, 90)),
        bias_percent=float(np.mean(signed)),
        median_of_source_medians_percent=float(np.median([np.median(v) for v in by_source.values()])),
        within_25_percent=100.0 * float(np.sum(size <= CLOSE_PERCENT)) / len(rows),
        interval_coverage_percent=100.0 * sum(inside) / len(inside) if inside else None,
    )


@dataclass(frozen=True, slots=True)
class FitVerdict:
    """Running and failing runs against what was said of them.

    `ran` ran and state what they recompute; `refused` of these were called impossible. `oom` ran out of
    memory; `accepted` of these were called possible. `recompute_unstated` rows of both sorts do not say what
    they recompute and are left out of the four (`unstated_wrong` of them were judged wrongly).
    """

    ran: int = 0
    refused: int = 0
    oom: int = 0
    accepted: int = 0
    recompute_unstated: int = 0
    unstated_wrong: int = 0

    def json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


def fit_verdict(rows: Iterable[tuple[bool, bool, bool]]) -> FitVerdict:
    """The verdict over rows of (ran, fits by prediction, recompute stated).

    >>> fit_verdict([(True, True, True), (True, False, True), (False, True, True), (True, False, False)])
    FitVerdict(ran=2, refused=1, oom=1, accepted=1, recompute_unstated=1, unstated_wrong=1)
    """
    n = {"ran": 0, "refused": 0, "oom": 0, "accepted": 0, "recompute_unstated": 0, "unstated_wrong": 0}
    for ran, fits, stated in rows:
        if not stated:
            n["recompute_unstated"] += 1
            n["unstated_wrong"] += ran != fits
        elif ran:
            n["ran"] += 1
            n["refused"] += not fits
        else:
            n["oom"] += 1
            n["accepted"] += fits
    return FitVerdict(**n)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One measured layout of a ranking group, with what was predicted for it."""

    group: Hashable
    layout: Hashable
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well layouts of the same job are put in order.

    Regret: measured time of the layout that the prediction likes best, over the best measured, less 1.
    Kendall's tau counts pairs whose measured times differ by more than 3 %.
    """

    groups: int = 0
    pairs: int = 0
    top1_right: int = 0
    mean_regret_percent: float | None = None
    kendall_tau: float | None = None

    def json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


def ranking(rows: Iterable[Ranked]) -> Ranking:
    """The ranking figures. Repeated measurements of one layout are averaged first.

    >>> r = ranking([Ranked("g", "a", 1.0, 5.0), Ranked("g", "b", 2.0, 4.0), Ranked("g", "c", 4.0, 6.0)])
    >>> r.groups, r.pairs, r.top1_right, r.mean_regret_percent, round(r.kendall_tau, 3)
    (1, 3, 0, 100.0, 0.333)
    """
    groups: dict[Hashable, dict[Hashable, list[Ranked]]] = {}
    for row in rows:
        groups.setdefault(row.group, {}).setdefault(row.layout, []).append(row)
    regrets: list[float] = []
    right = agree = pairs = 0
    for layouts in groups.values():
        if len(layouts) < 2:
            continue
        points = [_mean(repeats) for repeats in layouts.values()]
        best = min(measured for measured, _ in points)
        chosen = min(points, key=lambda p: p[1])[0]
        regrets.append(100.0 * (chosen / best - 1.0))
        right += chosen == best
        for (m1, p1), (m2, p2) in combinations(points, 2):
            if max(m1, m2) / min(m1, m2) - 1.0 > TIE:
                pairs += 1
                agree += int(np.sign(m1 - m2) * np.sign(p1 - p2))
    return Ranking(
        groups=len(regrets),
        pairs=pairs,
        top1_right=right,
        mean_regret_percent=float(np.mean(regrets)) if regrets else None,
        kendall_tau=agree / pairs if pairs else None,
    )


def pooled(several: Iterable[Ranking]) -> Ranking:
    """Several tables' rankings as one: groups and pairs count alike, whatever table they are of.

    >>> one, two = Ranking(1, 3, 0, 10.0, 1.0), Ranking(3, 1, 2, 2.0, -1.0)
    >>> pooled([one, two])
    Ranking(groups=4, pairs=4, top1_right=2, mean_regret_percent=4.0, kendall_tau=0.5)
    """
    each = [r for r in several if r.groups]
    groups, pairs = sum(r.groups for r in each), sum(r.pairs for r in each)
    regret = sum((r.mean_regret_percent or 0.0) * r.groups for r in each)
    agree = sum((r.kendall_tau or 0.0) * r.pairs for r in each)
    return Ranking(
        groups=groups,
        pairs=pairs,
        top1_right=sum(r.top1_right for r in each),
        mean_regret_percent=regret / groups if groups else None,
        kendall_tau=agree / pairs if pairs else None,
    )


def _mean(repeats: Sequence[Ranked]) -> tuple[float, float]:
    return float(np.mean([r.measured for r in repeats])), float(np.mean([r.predicted for r in repeats]))
