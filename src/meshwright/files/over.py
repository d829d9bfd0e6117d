"""Values that a sweep goes over: `8,16,32`, `100:3200`, `4k:1M:9`, in the words of the field."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import frexp, inf
from typing import Any

import numpy as np

from meshwright import units
from meshwright.errors import Diagnostic, InputError
from meshwright.files.fields import canonical
from meshwright.files.given import override
from meshwright.search.given import COUNTS

POINTS = 16  # of a range that does not say how many
MOST = 10_000  # points of one field
BITS = (3, 2, 1)  # significant bits of whole numbers in a range, tried in this order
_WHOLE: dict[str, Callable[[Any], int]] = {
    "seq_len": units.parse_length,
    "global_batch_size": units.parse_length,
    "tokens_per_step": units.parse_length,
    "total_tokens": units.parse_count,
    "n_chips": units.parse_length,
    "cluster.scale_up_size": units.parse_length,
    **dict.fromkeys(COUNTS, units.parse_length),
}


@dataclass(frozen=True, slots=True)
class Over:
    """A field and its values; each is a tuple of alternatives, of which the first that suits is taken."""

    field: str
    values: tuple[tuple[Any, ...], ...]


def over(field: str, given: str | Iterable[Any]) -> Over:
    """The values of `field` from a list, from `A,B,C`, or from `A:B[:N]` (geometric, 16 points unless N).

    Whole numbers of a range have few significant bits, so that degrees divide them: where the nearest such
    number does not suit the request, a rounder one stands in.

    >>> over("pp", "1,2,4").values
    ((1,), (2,), (4,))
    >>> [v[0] for v in over("seq_len", "4k:1M:5").values]
    [4096, 16384, 65536, 262144, 1048576]
    """
    name = canonical(field)
    if not isinstance(given, str):
        listed = tuple((tuple(value) if isinstance(value, list) else value,) for value in given)
        if not listed:
            raise _fault(field, "", "holds no value")
        for (value,) in listed:
            if not isinstance(value, Hashable):
                raise _fault(field, "", f"holds {value!r:.60}, which is no value of a field")
        return Over(name, listed)
    text = given.strip()
    number = _number(name)
    if number is not None and ":" in text:
        return Over(name, _range(name, text, number))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise _fault(field, given, "holds no value")
    return Over(name, tuple((_read(name, part, number),) for part in parts))


def _number(name: str) -> Callable[[Any], float] | None:
    """How a number of this field is read; None for a field of words."""
    if name in _WHOLE:
        return _WHOLE[name]
    if name.startswith("cluster."):
        figure = name.removeprefix("cluster.")
        return lambda text: override(figure, text)
    return None


def _read(name: str, text: str, number: Callable[[Any], float] | None) -> Any:
    if number is None or (name == "zero_group" and not text[:1].isdigit()):
        return text
    try:
        return number(text)
    except units.UnitError as error:
        raise _fault(name, text, str(error)) from None


def _range(name: str, text: str, number: Callable[[Any], float]) -> tuple[tuple[Any, ...], ...]:
    ends = text.split(":")
    if not 2 <= len(ends) <= 3:
        raise _fault(name, text, "is not a range A:B or A:B:N")
    low, high = (float(_read(name, end, number)) for end in ends[:2])
    if not 0 < low < high < inf:
        raise _fault(name, text, f"does not rise: {low:g} to {high:g}")
    points = POINTS
    if len(ends) == 3:
        points = int(ends[2]) if ends[2].strip().isdigit() else 0
        if not 2 <= points <= MOST:
            raise _fault(name, text, f"asks for {ends[2]!r} points, not 2 to {MOST:,}")
    targets = [low, *np.geomspace(low, high, points)[1:-1].tolist(), high]
    if name not in _WHOLE:
        return tuple(dict.fromkeys((float(f"{target:.6g}"),) for target in targets))
    inner = [tuple(dict.fromkeys(_rounded(target, bits) for bits in BITS)) for target in targets[1:-1]]
    return tuple(dict.fromkeys([(int(low),), *inner, (int(high),)]))


def _rounded(value: float, bits: int) -> int:
    """The nearest whole number with so many significant bits.

    >>> _rounded(5928, 3), _rounded(5928, 2), _rounded(5928, 1)
    (6144, 6144, 4096)
    """
    _, exponent = frexp(value)
    unit = 2.0 ** (exponent - bits)
    return max(int(round(value / unit) * unit), 1)


def _fault(field: str, text: str, said: str) -> InputError:
    message = f"--over {field}={text} {said}" if text else f"--over {field} {said}"
    hint = f"for example --over {field}=8,16,32 or --over {field}=100:3200 (geometric)"
    return InputError(Diagnostic("MW911", message, where="--over", hint=hint))
