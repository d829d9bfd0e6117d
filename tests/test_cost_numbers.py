"""Numbers of programs and libraries: each says its unit, how it is known and since when, and is read."""

from __future__ import annotations

import csv
from datetime import date
from importlib.resources import files
from pathlib import Path

import meshwright.cost
from meshwright.cost.numbers import numbers

KNOWN = {"datasheet", "measured", "fitted", "assumed", "derived"}  # derived: follows from what is counted


def test_every_number_has_a_unit_a_source_and_a_date() -> None:
    text = files("meshwright.cost").joinpath("numbers.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({row["name"] for row in rows}) == len(rows) == len(numbers())
    for row in rows:
        assert row["unit"], row
        assert row["source"], row
        assert row["provenance"] in KNOWN, row
        date.fromisoformat(row["date"])
        assert numbers()[row["name"]] > 0, row


def test_every_number_is_read_by_a_formula() -> None:
    """By its name, or as the bytes a logit of a loss whose word begins it."""
    (room,) = meshwright.cost.__path__
    code = "".join(path.read_text(encoding="utf-8") for path in Path(room).rglob("*.py"))
    losses = {f"{word}_logit_bytes" for word in ("fused", "chunked")}
    assert '{loss}_logit_bytes"' in code
    assert [name for name in numbers() if f'"{name}"' not in code and name not in losses] == []
