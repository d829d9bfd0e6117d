"""How far predicted step times and peaks are from measured ones: the intervals around an estimate.

Quantiles of ln(predicted / measured) over published runs, by framework and architecture. Times are predicted
by a fit that saw no run of their source; peaks are not fitted, and are compared in the sense that their
source prints. `error_bands.csv` and `memory_bands.csv` hold them; `docs/accuracy.py` writes both.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import quantiles

from meshwright.calibrate.cases import Case
from meshwright.model.records import Attention, LatentAttention, Model, Moe

INSIDE = 0.8  # share of runs that an interval is made to hold
ENOUGH = (20, 3)  # runs and sources below which a group says too little, and a wider one is asked
ANY = "any"
COLUMNS = ("framework", "architecture", "low", "high", "n_runs", "n_sources", "date")
Residual = tuple[str, str, str, float]  # framework, architecture, source, ln(predicted / measured)
Band = tuple[float, float]  # factors on a predicted time or peak
TIME, MEMORY = "error_bands.csv", "memory_bands.csv"


def architecture(model: Model) -> str:
    """`dense`, `moe`, `mla-moe`, `hybrid` or `hybrid-moe`: what a reader looks for first."""
    moe = any(isinstance(b.ffn, Moe) for b in model.blocks)
    mixers = [b.mixer for b in model.blocks if b.mixer is not None]
    if any(not isinstance(m, Attention | LatentAttention) for m in mixers):
        return "hybrid-moe" if moe else "hybrid"
    if any(isinstance(m, LatentAttention) for m in mixers):
        return "mla-moe" if moe else "mla"
    return "moe" if moe else "dense"


def interval(framework: str, model: Model, predicted: float, name: str = TIME) -> Band | None:
    """Seconds (bytes with MEMORY) between which INSIDE of the measured steps (peaks) lie; None where nothing
    is known."""
    table, kind = bands(name), architecture(model)
    for key in ((framework, kind), (ANY, kind), (framework, ANY), (ANY, ANY)):
        if key in table:
            low, high = table[key]
            return predicted * low, predicted * high
    return None


def of_case(case: Case, step_time_s: float) -> Band | None:
    """The interval of a run's predicted step."""
    return interval(case.framework or "", case.model, step_time_s)


@cache
def bands(name: str = TIME) -> Mapping[tuple[str, str], Band]:
    """Factors by (framework, architecture)."""
    text = files("meshwright.calibrate").joinpath(name).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(r["framework"], r["architecture"]): (float(r["low"]), float(r["high"])) for r in rows}


def measured_bands(residuals: Iterable[Residual]) -> dict[tuple[str, str], tuple[float, float, int, int]]:
    """Factors, runs and sources of each group that says enough; (any, any) always.

    low = exp(-q90), high = exp(-q10) of the residuals, and an estimate lies in its own interval: where a
    group is off to one side without its source, the interval reaches from the estimate there. A source counts
    as much as it has runs.

    >>> flat = [("f", "dense", str(i % 5), 0.01 * (i % 11 - 5)) for i in range(110)]
    >>> [round(x, 3) for x in measured_bands(flat)["f", "dense"][:2]]
    [0.961, 1.041]
    """
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for framework, kind, source, residual in residuals:
        for key in ((framework, kind), (ANY, kind), (framework, ANY), (ANY, ANY)):
            found.setdefault(key, []).append((source, residual))
    bounds = {}
    for key, members in sorted(found.items()):
        n_sources = len({source for source, _ in members})
        if key != (ANY, ANY) and (len(members) < ENOUGH[0] or n_sources < ENOUGH[1]):
            continue
        cuts = quantiles([r for _, r in members], n=10, method="inclusive")
        low, high = min(math.exp(-cuts[-1]), 1.0), max(math.exp(-cuts[0]), 1.0)
        bounds[key] = (low, high, len(members), n_sources)
    return bounds


def write(path: Path, residuals: Iterable[Residual], date: str) -> None:
    """Write the bands of some residuals."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for (framework, kind), (low, high, runs, sources) in measured_bands(residuals).items():
            out.writerow((framework, kind, f"{low:.4f}", f"{high:.4f}", runs, sources, date))
