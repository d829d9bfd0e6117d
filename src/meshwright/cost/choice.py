"""One stage class of each candidate, chosen by what is largest there, and values read off it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_CLASS = np.int16  # of a stage: short numbers take little time


@dataclass(frozen=True, slots=True)
class Choice:
    """One class of each candidate, [n]; `at` is where the values of all classes, one after another, have it,
    or the class where it is the same for all."""

    chosen: IntArray
    at: IntArray | int
    shape: tuple[int, int]

    def of(self, values: Any) -> Any:
        """The chosen class's value, [n]; a number for all stays one."""
        if np.ndim(values) < 2:
            return values
        if len(values) == 1:
            return values[0].take(self.chosen) if self.shape[1] == values.shape[1] else values[0, 0]
        if values.shape[1] == 1:
            return values[:, 0]
        return values[:, self.at] if np.ndim(self.at) == 0 else values.T.ravel().take(self.at)


class Classes:
    """Picks among the stage classes of each of n candidates; `ranks` [n, C], or [1, C] for all of them, is 0
    where there is no such class."""

    def __init__(self, ranks: Any, n: int) -> None:
        self.shape = (n, ranks.shape[1])
        self.padding = None if ranks.all() else ranks == 0.0

    def largest(self, values: Any) -> Choice:
        """The class with the largest value (the first of equals); values are not negative."""
        n, many = self.shape
        values = np.broadcast_to(values, self.shape)
        if self.padding is not None:
            values = np.where(self.padding, -1.0, values)
        best, chosen = values[:, 0], np.zeros(n, _CLASS)
        for c in range(1, many):
            np.maximum(chosen, (values[:, c] > best) * _CLASS(c), out=chosen)  # quicker than a choice
            best = np.maximum(best, values[:, c])
        return self.chosen(chosen.astype(np.int64))

    def chosen(self, which: IntArray) -> Choice:
        """The class `which` of each candidate, [n] or [1] for all."""
        n = self.shape[0]
        at = which * n + np.arange(n) if len(which) == n else which.item()
        return Choice(np.broadcast_to(which, (n,)), at, self.shape)
