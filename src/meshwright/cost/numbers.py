"""Numbers of programs and libraries that no profile fits: `numbers.csv`, each with a source and a date."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def numbers() -> Mapping[str, float]:
    """Every number by name.

    >>> numbers()["kernel_s"]
    3e-06
    """
    text = files("meshwright.cost").joinpath("numbers.csv").read_text(encoding="utf-8")
    return {row["name"]: float(row["value"]) for row in csv.DictReader(text.splitlines())}
