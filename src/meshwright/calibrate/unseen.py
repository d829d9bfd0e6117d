"""How well runs are predicted that the fit never saw: each source by a fit without it.

`left_out.csv` holds the figures; `docs/accuracy.py` writes it with the page of accuracy.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

ALL = "all"  # the row of every source together
COLUMNS = ("source", "n_runs", "median_abs_error_percent", "p90_abs_error_percent", "date")


@dataclass(frozen=True, slots=True)
class Unseen:
    """Errors of the step time of one source, or of all, left out of the fit; percent."""

    n_runs: int
    median_abs_error_percent: float
    p90_abs_error_percent: float
    date: str

    def json(self) -> dict[str, Any]:
        """Plain types."""
        return asdict(self)


@cache
def unseen() -> Mapping[str, Unseen]:
    """The figures by source, and of all together under `ALL`."""
    text = files("meshwright.calibrate").joinpath("left_out.csv").read_text(encoding="utf-8")
    return {
        row["source"]: Unseen(
            int(row["n_runs"]), float(row["median_abs_error_percent"]), float(row["p90_abs_error_percent"]),
            row["date"],
        )
        for row in csv.DictReader(text.splitlines())
    }  # fmt: skip


def write(path: Path, errors: Mapping[str, Sequence[float]], date: str) -> None:
    """Write `left_out.csv` from the absolute errors of each source in percent."""
    every = [error for own in errors.values() for error in own]
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for source, own in (*errors.items(), (ALL, every)):
            figures = (statistics.median(own), float(np.percentile(own, 90)))
            out.writerow((source, len(own), *(f"{one:.1f}" for one in figures), date))
