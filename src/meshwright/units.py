"""Quantities as text, both ways: the only place that reads a unit or formats a number for a person.

Inside Meshwright everything is plain bytes, bytes/s, FLOP/s, seconds, tokens and fractions. Spellings:

* bytes: `80GiB` (powers of 1024) and `80GB` (powers of 1000); `B` alone is a byte.
* rates: `900GB/s` (bytes) and `400Gbit/s` or `400Gbps` (bits); the result is bytes/s.
* lengths (tokens of a sequence): `8k` is 8 x 1024, `1M` is 1024^2.
* token budgets: `15T` is 15e12; k, M, B and T are powers of 1000.
* times: `350ms`, `12.5s`, `90min`, `3h`, `54d`.
* percent: `43.1%` is the fraction 0.431.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby
from numbers import Real

_NUMBER = re.compile(
    r"\s*([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL
)  # a comma parts thousands; 4,8 is a list and no number

SECONDS_PER_DAY = 86400.0
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
GIB = 2.0**30
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}
_BYTES = {f"{p}B": f for p, f in (_DECIMAL | _BINARY).items()} | {"KB": 1e3}
_BITS = {f"{p}bit": f / 8 for p, f in _DECIMAL.items()} | {f"{p}b": f / 8 for p, f in _DECIMAL.items()}
_RATES = (
    {f"{u}/s": f for u, f in (_BYTES | _BITS).items()}
    | {f"{p}bps": f / 8 for p, f in _DECIMAL.items()}
    | {f"{p}Bps": f for p, f in _DECIMAL.items()}
)
_LENGTHS = {"": 1.0, "k": 2.0**10, "M": 2.0**20, "Ki": 2.0**10, "Mi": 2.0**20}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_TIMES = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": SECONDS_PER_DAY,
}  # fmt: skip
_FLOPS = {f"{p}FLOP/s": f for p, f in _DECIMAL.items()} | {f"{p}FLOPS": f for p, f in _DECIMAL.items()}


class UnitError(ValueError):
    """A quantity that cannot be read; the message names the text and spellings that work."""


def _parse(text: str | int | float, table: dict[str, float], what: str, like: str) -> float:
    """`text` as a number of the base unit of `table`; unit spellings are exact, then matched by case."""
    if isinstance(text, bool):
        raise UnitError(f"{text!r} is not {what}; write it like {like}")
    if isinstance(text, Real):  # numbers of NumPy too
        try:
            value, unit = float(text), ""
        except OverflowError:
            value, unit = math.inf, ""
    elif not isinstance(text, str):
        raise UnitError(f"{text!r} is not {what}; write it like {like}")
    else:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise UnitError(f"{text!r} is not {what}; write it like {like}")
        value, unit = float(match[1].replace("_", "").replace(",", "")), match[2]
    factor = table.get(unit)
    if factor is None:
        # Case decides nothing where only one spelling is possible (`gib`, `KB/S`); Gb against GB it does.
        folded = {f for u, f in table.items() if u.lower() == unit.lower()}
        if len(folded) != 1:
            if unit == "":
                raise UnitError(f"{text!r} is not {what}: it needs a unit, like {like}")
            raise UnitError(f"{text!r} is not {what}: unknown unit {unit!r}; write it like {like}")
        factor = folded.pop()
    result = value * factor
    if not math.isfinite(result):
        raise UnitError(f"{text!r} is not {what}: it is not a finite number")
    return result


def parse_bytes(text: str) -> float:
    """Bytes from `80GiB`, `80GB`, `512MB`. A unit is required: GB and GiB differ by 7 %.

    >>> parse_bytes("80GiB") / 2**30
    80.0
    """
    return _parse(text, _BYTES, "an amount of memory", "80GiB or 80GB")


def parse_rate(text: str) -> float:
    """Bytes/s from `900GB/s` or `400Gbit/s`. A unit is required: bits and bytes differ by 8.

    >>> parse_rate("400Gbit/s") / 1e9
    50.0
    """
    return _parse(text, _RATES, "a bandwidth", "900GB/s or 400Gbit/s")


def parse_flops(text: str) -> float:
    """FLOP/s from `989TFLOP/s`.

    >>> parse_flops("989TFLOP/s") / 1e12
    989.0
    """
    return _parse(text, _FLOPS, "a compute rate", "989TFLOP/s")


def _whole(value: float, text: str | int | float, what: str) -> int:
    if value != int(value):
        raise UnitError(f"{text!r} is not {what}: {value:,.6g} is not a whole number")
    return int(value)


def parse_length(text: str | int | float) -> int:
    """Tokens of a sequence: `8k` is 8 x 1024 = 8192.

    >>> parse_length("8k"), parse_length("4096")
    (8192, 4096)
    """
    return _whole(_parse(text, _LENGTHS, "a length", "8192 or 8k (k = 1024)"), text, "a length")


def parse_count(text: str | int | float) -> int:
    """A token or parameter budget: `15T` is 15e12; k, M, B and T are powers of 1000.

    >>> parse_count("15T")
    15000000000000
    """
    value = _parse(text, _COUNTS, "a count", "15T or 300B (powers of 1000)")
    # 15.6 * 1e12 misses its whole number by one rounding; snap what is within it.
    nearest = float(round(value))
    return _whole(nearest if math.isclose(value, nearest, rel_tol=1e-12) else value, text, "a count")


def parse_time(text: str, like: str = "350ms or 12.5s") -> float:
    """Seconds from `350ms`, `12.5s`, `3h`; `like` is what a message shows in their place.

    >>> parse_time("90min")
    5400.0
    """
    return _parse(text, _TIMES, "a time", like)


def parse_percent(text: str | int | float) -> float:
    """A fraction from `43.1%` or from the bare number of percent `43.1`.

    >>> parse_percent("50%")
    0.5
    """
    return _parse(text, {"%": 0.01, "": 0.01}, "a percentage", "15%")


def _digits(value: float, digits: int) -> str:
    """`value` with `digits` significant digits, never in exponent form, thousands apart."""
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    """`value` in the largest unit of `steps` (descending) that keeps it at least 1."""
    if not math.isfinite(value):
        return "unbounded" if value > 0 else "unknown"
    for factor, unit in steps:
        if abs(value) >= factor:
            # Rounding may carry 999.96 to 1,000 of a unit; that is still right, only longer.
            return f"{_digits(value / factor, digits)}{unit}"
    factor, unit = steps[-1]
    return f"{_digits(value / factor, digits)}{unit}"


def bytes_text(value: float, digits: int = 3) -> str:
    """Bytes for a person, in powers of 1024.

    >>> bytes_text(80 * 2**30)
    '80.0 GiB'
    """
    steps = [(f, f" {u}B") for u, f in reversed(_BINARY.items()) if u != "Ei"]
    return _scaled(float(value), [*steps, (1.0, " B")], digits)


def rate_text(value: float, digits: int = 3) -> str:
    """Bytes/s for a person, in powers of 1000.

    >>> rate_text(450e9)
    '450 GB/s'
    """
    steps = [(f, f" {u}B/s") for u, f in reversed(_DECIMAL.items())]
    return _scaled(float(value), steps, digits)


def flops_text(value: float, digits: int = 3, *, per_second: bool = True) -> str:
    """FLOP/s (or FLOPs) for a person.

    >>> flops_text(989e12)
    '989 TFLOP/s'
    """
    suffix = "FLOP/s" if per_second else "FLOP"
    return _scaled(float(value), [(f, f" {u}{suffix}") for u, f in reversed(_DECIMAL.items())], digits)


def count_text(value: float, digits: int = 3) -> str:
    """A count for a person: whole below 100,000, else in k, M, B, T.

    >>> count_text(16384), count_text(405.9e9)
    ('16,384', '406B')
    """
    if abs(value) < 1e5 and float(value) == int(value):
        return f"{int(value):,}"
    return _scaled(float(value), [(f, u) for u, f in reversed(_COUNTS.items())], digits)


def plural(count: float, noun: str) -> str:
    """The noun as `count` of it are called.

    >>> plural(1, "chip"), plural(0, "microbatch"), plural(2, "strategy"), plural(3, "axis"), plural(2, "day")
    ('chip', 'microbatches', 'strategies', 'axes', 'days')
    """
    if count == 1:
        return noun
    if noun.endswith("axis"):
        return f"{noun[:-2]}es"
    if noun.endswith("y") and noun[-2] not in "aeou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "sh", "s", "x")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A whole number of things.

    >>> counted(1, "chip"), counted(16384, "chip")
    ('1 chip', '16,384 chips')
    """
    return f"{int(count):,} {plural(int(count), noun)}"


def runs_text(values: Sequence[object], most: int = 6) -> str:
    """A long list in runs of equal values, the middle left out where there are more than `most` runs.

    >>> runs_text([9, 8, 8, 8, 7]), runs_text([1, 2, 1, 2, 1, 2, 1, 2], most=4)
    ('9, 8 x3, 7', '1, 2, 1, ..., 2 (8 in all)')
    """
    runs = [(value, len(list(alike))) for value, alike in groupby(values)]
    told = [f"{value}{f' x{count}' if count > 1 else ''}" for value, count in runs]
    if len(told) <= most:
        return ", ".join(told)
    return f"{', '.join(told[: most - 1])}, ..., {told[-1]} ({len(values)} in all)"


def length_text(value: int) -> str:
    """Tokens of a sequence: `8k` where it is a whole multiple of 1024, else the number.

    >>> length_text(8192), length_text(5000)
    ('8k', '5000')
    """
    for factor, unit in ((2**20, "M"), (2**10, "k")):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def seconds_text(value: float, digits: int = 3) -> str:
    """Seconds for a person: ns to s below a minute, then min, h and days.

    >>> seconds_text(12.52), seconds_text(0.0042), seconds_text(54 * 86400)
    ('12.5 s', '4.20 ms', '54.0 days')
    """
    steps = [
        (2 * SECONDS_PER_DAY, SECONDS_PER_DAY, " days"), (2 * 3600.0, 3600.0, " h"), (120.0, 60.0, " min"),
        (1.0, 1.0, " s"), (1e-3, 1e-3, " ms"), (1e-6, 1e-6, " µs"), (0.0, 1e-9, " ns"),
    ]  # fmt: skip
    value = float(value)
    if not math.isfinite(value):
        return "unbounded"
    if value == 0:
        return "0 s"
    for least, factor, unit in steps:
        if abs(value) >= least:
            return f"{_digits(value / factor, digits)}{unit}"
    raise AssertionError("the last step takes everything")


def percent_text(fraction: float, decimals: int = 1) -> str:
    """A fraction as percent.

    >>> percent_text(0.431)
    '43.1 %'
    """
    return f"{100 * float(fraction):.{decimals}f} %"


def number_text(value: float, digits: int = 3) -> str:
    """A plain number with `digits` significant digits and thousands apart.

    >>> number_text(6187.4, 4)
    '6,187'
    """
    return _digits(float(value), digits) if math.isfinite(value) else "unbounded"


def money_text(value: float) -> str:
    """US dollars: cents below 1,000, k, M and B above.

    >>> money_text(2.5), money_text(78_643_200)
    ('$2.50', '$78.6M')
    """
    if abs(value) < 1000:
        return f"${value:,.2f}"
    return "$" + _scaled(float(value), [(f, u) for u, f in reversed(_COUNTS.items())], 3)


def energy_text(joules: float) -> str:
    """Energy for a person, in kWh to GWh.

    >>> energy_text(3.6e9)
    '1.00 MWh'
    """
    kwh = joules / 3.6e6
    return _scaled(kwh, [(1e6, " GWh"), (1e3, " MWh"), (1.0, " kWh")], 3)
