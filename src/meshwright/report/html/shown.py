"""A number on the page: what it says, and its exact value for machines. Every figure of the page is one."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from meshwright import units
from meshwright.units import GIB

ROUNDED = 1e-12  # s


@dataclass(frozen=True, slots=True)
class Shown:
    """A value, in the unit that the JSON has it in, and its text."""

    value: float
    text: str

    def __html__(self) -> str:
        return Markup('<data value="{}">{}</data>').format(repr(self.value), self.text)

    def __str__(self) -> str:
        return self.text


def seconds(value: float) -> Shown:
    """Seconds; what a sum leaves of a clock's rounding is none."""
    return Shown(float(value), units.seconds_text(value if abs(value) > ROUNDED else 0.0))


def gib(value: float) -> Shown:
    """GiB."""
    return Shown(float(value), units.bytes_text(value * GIB))


def share(value: float) -> Shown:
    """A fraction, as percent."""
    return Shown(float(value), units.percent_text(value))


def percent(value: float) -> Shown:
    """A number of percent."""
    return Shown(float(value), units.percent_text(value / 100))


def number(value: float) -> Shown:
    """A plain number."""
    return Shown(float(value), units.number_text(value))


def count(value: float) -> Shown:
    """A count."""
    return Shown(float(value), units.count_text(value))
