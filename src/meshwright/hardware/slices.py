"""Torus slices: which shapes a generation offers, the most cubic one for a count, and which axes close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from meshwright.hardware.chips import read_table


@dataclass(frozen=True, slots=True)
class TorusRule:
    """What a generation lets one take: `small` shapes by name, and any axes that are multiples of `multiple`
    (0: the named shapes only) up to `largest_axis`, `largest` chips in all. An axis closes into a ring where
    its length is a multiple of `wrap_multiple`."""

    chip: str
    dims: int
    largest: int
    wrap_multiple: int
    small: tuple[tuple[int, ...], ...]
    multiple: int
    largest_axis: int
    source: str

    def legal(self, shape: tuple[int, ...]) -> bool:
        """Whether a slice of this shape exists, its axes in any order."""
        if len(shape) != self.dims or prod(shape) > self.largest:
            return False
        cubes = self.multiple and all(a % self.multiple == 0 and 0 < a <= self.largest_axis for a in shape)
        return bool(cubes) or tuple(sorted(shape)) in {tuple(sorted(s)) for s in self.small}

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which axes close into a ring."""
        return tuple(a % self.wrap_multiple == 0 for a in shape)

    def most_cubic(self, n_chips: int) -> tuple[int, ...] | None:
        """The legal shape of `n_chips` chips with the smallest surface, shortest axis first, or None."""
        shapes = [tuple(sorted(s)) for s in self.small if prod(s) == n_chips]
        if self.multiple and n_chips <= self.largest:
            shapes += [s for s in _ordered_factors(n_chips, self.dims, self.multiple) if self.legal(s)]
        return min(shapes, key=lambda s: (sum(s), max(s)), default=None)

    def nearest_counts(self, n_chips: int) -> tuple[int | None, int | None]:
        """The closest counts below and above that one slice can have."""
        low = next((n for n in range(min(n_chips, self.largest), 0, -1) if self.most_cubic(n)), None)
        high = next((n for n in range(n_chips, self.largest + 1) if self.most_cubic(n)), None)
        return low, high

    def equal_slices(self, n_chips: int) -> tuple[int, tuple[int, ...]] | None:
        """The fewest equal slices that make up `n_chips`, and their shape; None if none do."""
        for size in range(min(self.largest, n_chips), 0, -1):
            if n_chips % size == 0:
                shape = self.most_cubic(size)
                if shape is not None:
                    return n_chips // size, shape
        return None


@cache
def rules() -> Mapping[str, TorusRule]:
    """The rule of every torus chip, by its canonical name."""
    found = {}
    for row in read_table("torus.csv"):
        small = tuple(shape(text) for text in row["small_slices"].split(";"))
        found[row["chip"]] = TorusRule(
            chip=row["chip"],
            dims=len(small[0]),
            largest=int(row["largest_slice"]),
            wrap_multiple=int(row["wrap_multiple"]),
            small=small,
            multiple=int(row["large_slice_multiple"]),
            largest_axis=int(row["largest_axis"]),
            source=row["source"],
        )
    return found


def shape(text: str) -> tuple[int, ...]:
    """Axes of `8x16x24`.

    >>> shape("8x16x24")
    (8, 16, 24)
    """
    return tuple(int(axis) for axis in text.lower().replace("×", "x").split("x"))


def spell(axes: tuple[int, ...]) -> str:
    """The inverse of `shape`."""
    return "x".join(str(a) for a in axes)


def _ordered_factors(n: int, dims: int, multiple: int, least: int = 1) -> list[tuple[int, ...]]:
    """Every `dims` numbers, none falling, that multiply to `n`, each a multiple of `multiple`."""
    if dims == 1:
        return [(n,)] if n % multiple == 0 and n >= least else []
    start = max(least, multiple)
    return [
        (a, *rest)
        for a in range(start + -start % multiple, int(n ** (1 / dims) + 1e-9) + 1, multiple)
        if n % a == 0
        for rest in _ordered_factors(n // a, dims - 1, multiple, a)
    ]
