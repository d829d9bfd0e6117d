"""Tables of layers under several recompute words as one, so that strategies under all of them are evaluated
at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.cost.rows import Grid, IntArray, LayerTable, Places, Sum


class AllWords:
    """Tables for the same n candidates which differ in words: what each of them says of each candidate."""

    def __init__(self, tables: Sequence[LayerTable], n: int) -> None:
        self.size = (len(tables), n)
        places = tables[0].grid.places
        sums = _AllSums([table.sums for table in tables], places, self.size)
        whole = {
            name: _all_of([table.whole[name] for table in tables], places, self.size)
            for name in tables[0].whole
        }
        self.table = replace(tables[0], sums=sums, whole=whole)

    def at(self, which: IntArray, part: IntArray) -> LayerTable:
        """The table of candidates that read table number `which` [n], each where candidate `part` [n] of
        those that the tables were made for does."""
        grid = Grid(self.table.grid.values, self.size, Places(self.size, (which, part)))
        return replace(self.table, grid=grid)


class _AllSums(dict[str, tuple[Sum, ...]]):
    """Sums of several tables by name, each joined on first use."""

    def __init__(
        self, several: Sequence[dict[str, tuple[Sum, ...]]], places: Places, size: tuple[int, int]
    ) -> None:
        super().__init__()
        self.several, self.places, self.size = several, places, size

    def __missing__(self, name: str) -> tuple[Sum, ...]:
        columns = zip(*(sums[name] for sums in self.several))
        self[name] = tuple(_all_of(column, self.places, self.size) for column in columns)
        return self[name]


def _all_of(costs: Sequence[Sum], places: Places, size: tuple[int, int]) -> Sum:
    """Sums that candidates read at their `places`, by table and candidate."""
    if any(cost.on for cost in costs):
        values = np.empty(size)
        for own, cost in zip(values, costs):
            own[:] = places.read(cost)
        return Sum(values.ravel(), (0, 1))
    if all(cost.values == costs[0].values for cost in costs):
        return costs[0]
    return Sum(np.array([cost.values for cost in costs]), (0,))
