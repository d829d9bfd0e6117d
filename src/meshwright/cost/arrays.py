"""Records of which some numbers are arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def arrays(record: Any) -> dict[str, Any]:
    """The fields of a record that are arrays, by name.

    >>> from meshwright.strategy.records import Strategy
    >>> arrays(Strategy(dp=np.array([1, 2]), tp=8))
    {'dp': array([1, 2])}
    """
    kind: Any = type(record)
    found = {name: getattr(record, name) for name in _names(kind)}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}


def with_arrays(record: T, change: Callable[[Any], Any]) -> T:
    """The record with `change` made to each of its arrays that have an axis."""
    found: dict[str, Any] = {name: change(value) for name, value in arrays(record).items() if value.ndim}
    return replace(record, **found) if found else record


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))
