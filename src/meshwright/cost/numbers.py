"""Numbers that no profile fits, each with a source: of programs and libraries (`numbers.csv`, with a date),
and how bandwidth grows with the message (`collective_curves.csv`).

Formulas read them through `numbers()` whenever they are asked, so that a block may have them read another
value (`changed`) or be told what they read (`watched`). Neither reaches beyond its block, nor into another
thread. Provenance as of any number: `datasheet` is what its maker states, of a program also what is counted
in its code.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import cast

from meshwright.profiles.records import Number, Provenance

_instead: ContextVar[Mapping[str, float] | None] = ContextVar("numbers", default=None)


def numbers() -> Mapping[str, float]:
    """Every number by name; those of a link's curve as `nvlink.exponent`.

    >>> numbers()["kernel_s"]
    3e-06
    """
    instead = _instead.get()
    return _shipped() if instead is None else instead


@cache
def records() -> Mapping[str, Number]:
    """Every number as shipped, with how it is known and its source, by the same names."""
    found = {row["name"]: _record(row, float(row["value"])) for row in _rows("numbers.csv")}
    for row in _rows("collective_curves.csv"):
        kind = row["link_kind"]
        found[f"{kind}.half_time_s"] = _record(row, float(row["half_time_us"]) * 1e-6)
        found[f"{kind}.exponent"] = _record(row, float(row["exponent"]))
        if row["switch_gain"]:
            found[f"{kind}.switch_gain"] = _record(row, float(row["switch_gain"]))
    return found


@contextmanager
def changed(name: str, factor: float) -> Iterator[None]:
    """Within the block formulas read the number `name` times `factor`.

    >>> with changed("kernel_s", 2.0):
    ...     numbers()["kernel_s"]
    6e-06
    """
    with _reading({**numbers(), name: numbers()[name] * factor}):
        yield


@contextmanager
def watched() -> Iterator[set[str]]:
    """The names that formulas read within the block.

    >>> with watched() as read:
    ...     twice = 2 * numbers()["kernel_s"]
    >>> read
    {'kernel_s'}
    """
    read: set[str] = set()
    with _reading(_Watched(numbers(), read)):
        yield read


@contextmanager
def _reading(instead: Mapping[str, float]) -> Iterator[None]:
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


@dataclass(frozen=True, slots=True)
class _Watched(Mapping[str, float]):
    """The same numbers; who asks for one is written down."""

    values_by_name: Mapping[str, float]
    read: set[str]

    def __getitem__(self, name: str) -> float:
        value = self.values_by_name[name]
        self.read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


@cache
def _shipped() -> Mapping[str, float]:
    return {name: float(record.value) for name, record in records().items()}


def _rows(name: str) -> list[dict[str, str]]:
    text = files("meshwright.cost").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _record(row: Mapping[str, str], value: float) -> Number:
    return Number(value, cast(Provenance, row["provenance"]), source=row["source"])
