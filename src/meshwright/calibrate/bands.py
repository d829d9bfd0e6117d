"""How far predicted step times and peaks are from measured ones: the intervals around an estimate.

Quantiles of ln(predicted / measured) over published runs. Of times by what runs cover of a job and by whether
it has experts, predicted by fits that saw no run of their source; peaks are not fitted, and are compared in
the sense that their source prints, by framework and architecture. `error_bands.csv` and `memory_bands.csv`
hold them; `docs/accuracy.py` writes both.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.calibrate import coverage
from meshwright.calibrate.cases import Case
from meshwright.calibrate.coverage import COVERED, ONE, SEVERAL, Held, architecture
from meshwright.calibrate.predict import profile_of
from meshwright.hardware.records import Chip
from meshwright.model.records import Model

INSIDE = 0.8  # share of runs that an interval is made to hold
ENOUGH = (20, 3)  # runs and sources below which a group says too little, and a wider one is asked
ANY = "any"
EXPERTS, NO_EXPERTS = "experts", "no experts"
TIME, MEMORY = "error_bands.csv", "memory_bands.csv"
COLUMNS = {
    TIME: ("coverage", "experts", "low", "high", "n_runs", "n_sources", "date"),
    MEMORY: ("framework", "architecture", "low", "high", "n_runs", "n_sources", "date"),
}
Band = tuple[float, float]  # factors on a predicted time or peak
Group = tuple[str, str]  # the first two columns


class Residual(NamedTuple):
    """ln(predicted / measured) of a run, and the group that it counts to."""

    group: Group
    source: str
    value: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Factors between which INSIDE of the runs of a group lie, and how many runs and sources it has."""

    low: float
    high: float
    n_runs: int
    n_sources: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between which INSIDE of the measured steps of jobs lie that runs cover as well as this one;
    `because`: what no run has of it, where anything."""

    ends: Band
    because: str


def interval(chip: Chip, framework: str, model: Model, seconds: float) -> Interval:
    """The interval of a predicted step."""
    missing = coverage.unseen(coverage.kind_of(chip, framework, model), coverage.covered())
    low, high = _asked(bands(TIME), _of_time(coverage.coverage(missing), architecture(model)))
    return Interval((low * seconds, high * seconds), coverage.said(missing, chip, framework, model))


def peak_interval(framework: str, model: Model, nbytes: float) -> Band:
    """Bytes between which INSIDE of the measured peaks lie."""
    low, high = _asked(bands(MEMORY), (framework, architecture(model)))
    return low * nbytes, high * nbytes


def of_case(case: Case, step_time_s: float) -> Band:
    """The interval of a run's predicted step."""
    framework = profile_of(case).framework.name
    return interval(case.cluster.chip, framework, case.model, step_time_s).ends


@cache
def bands(name: str) -> Mapping[Group, Band]:
    """Factors by the first two columns of a file."""
    text = files("meshwright.calibrate").joinpath(name).read_text(encoding="utf-8")
    group = COLUMNS[name][:2]
    rows = csv.DictReader(text.splitlines())
    return {(r[group[0]], r[group[1]]): (float(r["low"]), float(r["high"])) for r in rows}


def of_times(held: Iterable[Held]) -> list[Residual]:
    """Runs as fits without them predict them, by the group of their interval."""
    return [Residual(_of_time(h.coverage, h.kind.architecture), h.source, h.residual) for h in held]


def measured(residuals: Iterable[Residual]) -> dict[Group, Measured]:
    """Factors of each group that says enough, of wider ones and of (any, any).

    low = exp(-q90), high = exp(-q10) of the residuals, and an estimate lies in its own interval: where a
    group is off to one side, the interval reaches from the estimate there. A source weighs as the root of its
    runs: they share a part of their error.

    >>> flat = [Residual(("f", "dense"), str(i % 5), 0.01 * (i % 11 - 5)) for i in range(110)]
    >>> found = measured(flat)["f", "dense"]
    >>> round(found.low, 3), round(found.high, 3)
    (0.961, 1.041)
    """
    groups: defaultdict[Group, list[Residual]] = defaultdict(list)
    for one in residuals:
        for group in _wider(one.group):
            groups[group].append(one)
    out = {}
    for group, members in sorted(groups.items()):
        runs = Counter(one.source for one in members)
        if group != (ANY, ANY) and (len(members) < ENOUGH[0] or len(runs) < ENOUGH[1]):
            continue
        weights = [runs[one.source] ** -0.5 for one in members]
        below, above = _quantiles([one.value for one in members], weights)
        out[group] = Measured(min(math.exp(-above), 1.0), max(math.exp(-below), 1.0), len(members), len(runs))
    return out


def measured_times(residuals: Iterable[Residual]) -> dict[Group, Measured]:
    """`measured` of `of_times`; what runs cover less is never held for the more certain."""
    found = measured(residuals)
    for experts in (EXPERTS, NO_EXPERTS, ANY):
        known = [group for c in (COVERED, ONE, SEVERAL) if (group := (c, experts)) in found]
        for more, less in pairwise(known):
            low, high = min(found[more].low, found[less].low), max(found[more].high, found[less].high)
            found[less] = replace(found[less], low=low, high=high)
    return found


def without_source(residuals: Sequence[Residual]) -> list[bool]:
    """Of each residual of a time, whether the interval holds it that the other sources make."""
    tables = {}
    for source in dict.fromkeys(one.source for one in residuals):
        others = measured_times(one for one in residuals if one.source != source)
        tables[source] = {group: (m.low, m.high) for group, m in others.items()}

    def inside(one: Residual) -> bool:
        low, high = _asked(tables[one.source], one.group)
        return low <= math.exp(-one.value) <= high

    return [inside(one) for one in residuals]


def write(path: Path, found: Mapping[Group, Measured], date: str) -> None:
    """Write the bands of a file of that name."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS[path.name])
        for group, m in found.items():
            out.writerow((*group, f"{m.low:.4f}", f"{m.high:.4f}", m.n_runs, m.n_sources, date))


def _of_time(covered: str, kind: str) -> Group:
    return covered, EXPERTS if "moe" in kind else NO_EXPERTS


def _wider(group: Group) -> tuple[Group, ...]:
    first, second = group
    return (group, (ANY, second), (first, ANY), (ANY, ANY))


def _asked(table: Mapping[Group, Band], group: Group) -> Band:
    """The narrowest group of the table that holds `group`."""
    return next(table[g] for g in _wider(group) if g in table)


def _quantiles(values: Sequence[float], weights: Sequence[float]) -> Band:
    """The quantiles between which INSIDE of the weight lies; between two values their line."""
    order = np.argsort(values)
    ranked, weight = np.asarray(values)[order], np.asarray(weights)[order]
    middle = (np.cumsum(weight) - weight / 2.0) / np.sum(weight)
    tail = (1.0 - INSIDE) / 2.0
    below, above = np.interp((tail, 1.0 - tail), middle, ranked).tolist()
    return below, above
