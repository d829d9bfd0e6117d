"""How far predicted step times and peaks are from measured ones: the intervals around an estimate.

Quantiles of ln(predicted / measured) over published runs. Of times by what runs cover of a job and by whether
it has experts, predicted by fits that saw no run of their source; peaks are not fitted, and are compared in
the sense that their source prints, of sources off which no number was read, by what trains, experts and
length. Which quantiles is decided by sources left out: the intervals that the others make hold INSIDE of
them. `error_bands.csv` and `memory_bands.csv` hold them; `docs/accuracy.py` writes both.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from meshwright.calibrate import coverage
from meshwright.calibrate.cases import Case
from meshwright.calibrate.coverage import ALL, COVERED, ONE, SEVERAL, SHORT, Held, Kind
from meshwright.calibrate.predict import profile_of
from meshwright.hardware.records import Chip

INSIDE = 0.8  # share of runs that an interval is made to hold
MOST_INSIDE = 0.99  # share of the runs that make an interval, at most
ENOUGH = (15, 3)  # runs and sources below which a group says too little, and a wider one is asked
ANY = "any"
EXPERTS, NO_EXPERTS = "experts", "no experts"
# All parameters with a program of the training runs; adapters, pairs or other programs, which tune models.
WHOLE, TUNED = "training", "tuning"
LONGER = "longer"  # than SHORT
TIME, MEMORY = "error_bands.csv", "memory_bands.csv"
GROUPS = {TIME: ("coverage", "experts"), MEMORY: ("job", "experts", "length")}
FIGURES = ("low", "high", "n_runs", "n_predictions", "n_sources", "date")
# Words of a column from what is known best on: a later one is never held for more certain.
ORDER = (COVERED, ONE, SEVERAL), (WHOLE, TUNED), (SHORT, LONGER)
Band = tuple[float, float]  # factors on a predicted time or peak
Group = tuple[str, ...]  # the first columns


class Residual(NamedTuple):
    """ln(predicted / measured) of a run, and the group that it counts to."""

    group: Group
    source: str
    value: float
    run: str = ""  # one that is predicted several times is one run


@dataclass(frozen=True, slots=True)
class Measured:
    """Factors between which a share of the predictions of a group lie, and how many runs and sources it
    has."""

    low: float
    high: float
    n_runs: int
    n_predictions: int
    n_sources: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between which INSIDE of the measured steps of jobs lie that runs cover as well as this one;
    `because`: what no run has of it, where anything."""

    ends: Band
    because: str


def interval(chip: Chip, kind: Kind, seconds: float) -> Interval:
    """The interval of a predicted step of a job of that kind on `chip`."""
    missing = coverage.unseen(kind, coverage.covered())
    low, high = asked(bands(TIME), _of_time(coverage.coverage(missing), kind))
    return Interval((low * seconds, high * seconds), coverage.said(missing, chip, kind))


def peak_interval(kind: Kind, nbytes: float) -> Band:
    """Bytes between which INSIDE of the measured peaks of jobs of that kind lie."""
    low, high = asked(bands(MEMORY), of_peak(kind))
    return low * nbytes, high * nbytes


def of_case(case: Case, step_time_s: float) -> Band:
    """The interval of a run's predicted step."""
    framework, chip = profile_of(case).framework.name, case.cluster.chip
    word = case.given.get("finetune", "none")
    kind = coverage.kind_of(chip, framework, case.model, case.work.seq_len, word)
    return interval(chip, kind, step_time_s).ends


@cache
def bands(name: str) -> Mapping[Group, Band]:
    """Factors by the first columns of a file."""
    text = files("meshwright.calibrate").joinpath(name).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {tuple(r[c] for c in GROUPS[name]): (float(r["low"]), float(r["high"])) for r in rows}


def of_times(held: Iterable[Held]) -> list[Residual]:
    """Runs as fits without them predict them, by the group of their interval."""
    return [Residual(_of_time(h.coverage, h.kind), h.source, h.residual, h.id) for h in held]


def of_peak(kind: Kind) -> Group:
    """The group of a peak."""
    known = any(kind.framework == run.framework for run in coverage.covered())
    job = WHOLE if known and kind.trains == ALL else TUNED
    return job, _experts(kind), SHORT if kind.length == SHORT else LONGER


def measured(residuals: Iterable[Residual], share: float = INSIDE) -> dict[Group, Measured]:
    """Factors between which `share` of each group that says enough lies, of wider ones and of all.

    low = exp(-q90), high = exp(-q10) of the residuals at a share of 0.8, and an estimate lies in its own
    interval: where a group is off to one side, the interval reaches from the estimate there. A source weighs
    as the root of its runs: they share a part of their error.

    >>> flat = [Residual(("f", "dense"), str(i % 5), 0.01 * (i % 11 - 5), str(i)) for i in range(110)]
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
        predicted = Counter(one.source for one in members)
        runs = Counter(source for source, _ in {(one.source, one.run) for one in members})
        enough = runs.total() >= ENOUGH[0] and len(runs) >= ENOUGH[1]
        if not enough and set(group) != {ANY}:
            continue
        weights = [runs[one.source] ** 0.5 / predicted[one.source] for one in members]
        below, above = _quantiles([one.value for one in members], weights, share)
        low, high = min(math.exp(-above), 1.0), max(math.exp(-below), 1.0)
        out[group] = Measured(low, high, runs.total(), len(members), len(runs))
    return out


def without_source(
    residuals: Sequence[Residual], judged: Sequence[Residual], share: float = INSIDE
) -> list[bool]:
    """Of each of `judged` whether the interval holds it that the other sources make of `residuals`."""
    tables = {}
    for source in dict.fromkeys(one.source for one in judged):
        others = measured((one for one in residuals if one.source != source), share)
        tables[source] = {group: (m.low, m.high) for group, m in others.items()}

    def inside(one: Residual) -> bool:
        low, high = asked(tables[one.source], one.group)
        return low <= math.exp(-one.value) <= high

    return [inside(one) for one in judged]


def held(judged: Sequence[Residual], inside: Sequence[bool]) -> Band:
    """The share of `judged` that is inside, and the mean of the shares of each source."""
    of: defaultdict[str, list[bool]] = defaultdict(list)
    for one, whether in zip(judged, inside, strict=True):
        of[one.source].append(whether)
    return mean(inside), mean(map(mean, of.values()))


def share_that_holds(residuals: Sequence[Residual], judged: Sequence[Residual]) -> float:
    """The least share of the runs that make an interval (in hundredths, from INSIDE on) with which it holds
    INSIDE of `judged`, of all of them and in the mean of their sources, where their own source makes no part
    of it.

    Quantiles of few sources are narrower than what a new source brings.
    """
    share = INSIDE
    while share < MOST_INSIDE and min(held(judged, without_source(residuals, judged, share))) < INSIDE:
        share = round(share + 0.01, 2)
    return share


def write(path: Path, found: Mapping[Group, Measured], date: str) -> None:
    """Write the bands of a file of that name."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*GROUPS[path.name], *FIGURES))
        for group, m in found.items():
            counts = (m.n_runs, m.n_predictions, m.n_sources)
            out.writerow((*group, f"{m.low:.4f}", f"{m.high:.4f}", *counts, date))


def _of_time(covered: str, kind: Kind) -> Group:
    return covered, _experts(kind)


def _experts(kind: Kind) -> str:
    return EXPERTS if "moe" in kind.architecture else NO_EXPERTS


def _wider(group: Group) -> Iterator[Group]:
    """The group and those that hold it, by how late the first column gives way to `any`.

    >>> list(_wider(("a", "b")))
    [('a', 'b'), ('any', 'b'), ('a', 'any'), ('any', 'any')]
    """
    for words in product(*((word, ANY) for word in reversed(group))):
        yield words[::-1]


def asked(table: Mapping[Group, Band], group: Group) -> Band:
    """The factors of the narrowest group of the table that holds `group`, and of those of which more is
    known: it is never held for more certain than they are."""
    known = [next((o[: o.index(word) + 1] for o in ORDER if word in o), (word,)) for word in group]
    found = [next(table[g] for g in _wider(own) if g in table) for own in product(*known)]
    return min(low for low, _ in found), max(high for _, high in found)


def _quantiles(values: Sequence[float], weights: Sequence[float], share: float) -> Band:
    """The quantiles between which `share` of the weight lies; between two values their line."""
    order = np.argsort(values)
    ranked, weight = np.asarray(values)[order], np.asarray(weights)[order]
    middle = (np.cumsum(weight) - weight / 2.0) / np.sum(weight)
    tail = (1.0 - share) / 2.0
    below, above = np.interp((tail, 1.0 - tail), middle, ranked).tolist()
    return below, above
