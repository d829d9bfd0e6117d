"""Many candidates, and the distinct combinations among them, so that what repeats is computed once.

A part of the model that looks at a few degrees only is evaluated where those differ, and candidates read it
by index. One plan is one combination.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Values = npt.NDArray[Any]
# Places of candidates, as short as they can be: long ones take more to write and to read than to find.
# `Picked` makes them long again where they lie side by side, to be reckoned with.
Short = npt.NDArray[Any]

_SMALL = 1 << 21  # whole numbers below this are looked up in a table, others by bisection


@dataclass(frozen=True, slots=True)
class Axis:
    """Distinct `values` [d], rising, and `at` [n]: which of them each candidate has."""

    values: Values
    at: Short

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Distinct:
    """Distinct combinations, `values[name]` [d] each, and `at` [n]: which of them each candidate has."""

    values: dict[str, Values]
    at: Short
    size: int

    def __len__(self) -> int:
        return self.size

    def only(self, which: int) -> Distinct:
        """One of the combinations, for candidates that all have it."""
        return Distinct({name: x[which : which + 1] for name, x in self.values.items()}, self.at[:0], 1)


class Candidates:
    """n candidates by field; what is asked of a field is found out once."""

    def __init__(self, fields: Mapping[str, Any], n: int) -> None:
        self.fields, self.n = dict(fields), n
        self._axes: dict[str, Axis] = {}
        self._combined: dict[tuple[str, ...], Distinct] = {}

    @property
    def orders(self) -> tuple[str, ...]:
        """The field that holds the order of their axes, where they differ in it."""
        return ("placement",) if "placement" in self.fields else ()

    def axis(self, name: str) -> Axis:
        """The distinct values of a field."""
        if name not in self._axes:
            value = self.fields[name]
            one = np.size(value) == 1
            self._axes[name] = axis(np.ravel(value), self.n) if not one else _single(value, self.n)
        return self._axes[name]

    def cut(self, part: Picked, names: Iterable[str]) -> dict[str, Axis]:
        """Fields of some of the candidates."""
        of_all = {name: self.axis(name) for name in names}
        return {name: Axis(one.values, part(one.at)) for name, one in of_all.items()}

    def add(self, name: str, values: Any) -> None:
        """One more field, derived from others."""
        self.fields[name] = values
        self._axes.pop(name, None)
        self._combined = {names: found for names, found in self._combined.items() if name not in names}

    def derive(self, name: str, values: Values, among: Distinct) -> None:
        """One more field, of which each of the combinations has a value."""
        of_each = axis(values, len(among))
        self._axes[name] = Axis(of_each.values, of_each.at.take(among.at))
        self._combined = {names: found for names, found in self._combined.items() if name not in names}

    def distinct(self, *names: str) -> Distinct:
        """The distinct combinations of some fields.

        >>> found = Candidates({"tp": np.array([8, 1, 8]), "cp": 2}, 3).distinct("tp", "cp")
        >>> found.values["tp"], found.values["cp"], found.at
        (array([1, 8]), array([2, 2]), array([1, 0, 1], dtype=uint8))
        """
        if names not in self._combined:
            self._combined[names] = combined({name: self.axis(name) for name in names}, self.n)
        return self._combined[names]

    def all(self, *names: str) -> Distinct:
        """Every candidate as a combination of its own, alike or not."""
        n = self.n
        values = {name: np.broadcast_to(np.ravel(self.fields[name]), (n,)) for name in names}
        return Distinct(values, np.arange(n), n)


def axis(numbers: Values, n: int) -> Axis:
    """The distinct values among n numbers.

    >>> axis(np.array([4, 2, 4]), 3)
    Axis(values=array([2, 4]), at=array([1, 0, 1], dtype=uint8))
    """
    if numbers.dtype.kind in "iu" and int(numbers.min()) >= 0 and (top := int(numbers.max())) < _SMALL:
        return Axis(*_present(numbers, top + 1))
    return Axis(*_unique(numbers))


def combined(axes: Mapping[str, Axis], n: int) -> Distinct:
    """The distinct combinations of several axes of the same n candidates."""
    levels = math.prod(len(one) for one in axes.values())
    code: Values = np.zeros(n, np.int32 if levels < 1 << 31 else np.int64)
    for one in axes.values():
        if len(one) > 1:
            code *= len(one)
            code += one.at
    codes, at = _present(code.astype(np.int64, copy=False), levels)  # cast once: both uses of it would
    values: dict[str, Values] = {}
    rest = codes
    for name in reversed(list(axes)):
        if len(axes[name]) > 1:
            rest, digit = np.divmod(rest, len(axes[name]))
            values[name] = axes[name].values[digit]
        else:
            values[name] = np.full(len(codes), axes[name].values[0])
    return Distinct(values, at, len(codes))


def lookup(values: Values, numbers: Any, n: int) -> IntArray:
    """Place of each of n numbers among distinct rising `values`; assumes that all are there.

    >>> lookup(np.array([1, 2, 8]), np.array([8, 8, 1]), 3)
    array([2, 2, 0])
    """
    if len(values) == 1:
        return np.zeros(n, np.int64)
    numbers = np.broadcast_to(np.ravel(numbers), (n,))
    if values.dtype.kind in "iu" and numbers.dtype.kind in "iu" and int(values[-1]) < _SMALL:
        place = np.zeros(int(values[-1]) + 1, np.int64)
        place[values] = np.arange(len(values))
        return np.asarray(place.take(numbers), np.int64)
    return np.asarray(np.searchsorted(values, numbers), np.int64)


class Picked:
    """The places of some of the candidates, in any order, or of a slice of them; those of each array are
    picked out once."""

    def __init__(self, part: IntArray | slice) -> None:
        self.part = part
        self._known: dict[int, tuple[Short, Short]] = {}

    def __call__(self, at: Short) -> Short:
        if id(at) not in self._known:
            part = self.part
            found = at[part].astype(np.int64, copy=False) if isinstance(part, slice) else at.take(part)
            self._known[id(at)] = at, found  # while it is kept nothing else has its identity
        return self._known[id(at)][1]


def _single(value: Any, n: int) -> Axis:
    return Axis(np.ravel(value), np.zeros(n, _short(1)))


def _present(code: Values, levels: int) -> tuple[Values, Short]:
    """Distinct codes below `levels`, rising, and the place of each code among them."""
    if levels == 1:
        return np.zeros(1, np.int64), np.zeros(len(code), _short(1))
    if levels > _SMALL:
        return _unique(code)
    seen = np.zeros(levels, bool)
    seen[code] = True
    codes = np.flatnonzero(seen)
    place = np.zeros(levels, _short(len(codes)))
    place[codes] = np.arange(len(codes))
    return codes, place.take(code)


def _unique(numbers: Values) -> tuple[Values, Short]:
    values, at = np.unique(numbers, return_inverse=True)
    return values, at.ravel().astype(_short(len(values)))


def _short(count: int) -> npt.DTypeLike:
    """A kind of whole number that holds so many places."""
    return np.min_scalar_type(count - 1)
