"""What parameters are counted in: how many, and how parallelism divides them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class ParamCount:
    """Parameters of a part of a model, by how parallelism divides them.

    `sharded` is divided by tp; `replicated` (norms, router, latent down-projections) stands on every tensor
    rank; `expert` (routed experts) is divided by ep * etp. All exclude embedding and head unless stated.

    `capped` singles out the part of `sharded` that cannot be cut at will: pairs (parameters, most ways),
    such as the keys and values of K heads or Mamba-2's B and C of g groups. Beyond that tp they are copied.
    """

    sharded: int = 0
    replicated: int = 0
    expert: int = 0
    capped: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """All of them, each once."""
        return self.sharded + self.replicated + self.expert

    def __add__(self, other: ParamCount) -> ParamCount:
        """Sum part by part."""
        return ParamCount(
            self.sharded + other.sharded,
            self.replicated + other.replicated,
            self.expert + other.expert,
            _merge((*self.capped, *other.capped)),
        )

    def times(self, n: int) -> ParamCount:
        """`n` equal parts."""
        capped = tuple((p * n, ways) for p, ways in self.capped)
        return ParamCount(self.sharded * n, self.replicated * n, self.expert * n, capped if n else ())

    def per_rank(self, tp: Any = 1, ep: Any = 1, etp: Any = 1) -> Any:
        """Parameters one rank holds: sharded/tp + replicated + expert/(ep etp), copies of capped parts too.

        Degrees are numbers or arrays. **Assumes** heads and groups divide evenly where they are cut.

        >>> ParamCount(sharded=80, replicated=5, expert=64, capped=((16, 2),)).per_rank(tp=4, ep=8)
        37.0
        """
        copies = sum(p * (1 / np.minimum(tp, ways) - 1 / tp) for p, ways in self.capped)
        rank = self.sharded / tp + copies + self.replicated + self.expert / (ep * etp)
        return rank if isinstance(rank, np.ndarray) else float(rank)


def capped_count(params: int, ways: int) -> ParamCount:
    """Parameters that tensor parallelism divides at most `ways` ways."""
    return ParamCount(sharded=params, capped=((params, ways),) if params else ())


def total_count(parts: Iterable[ParamCount]) -> ParamCount:
    """Sum of `parts`."""
    total = ParamCount()
    for part in parts:
        total += part
    return total


def _merge(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: dict[int, int] = {}
    for params, ways in pairs:
        merged[ways] = merged.get(ways, 0) + params
    return tuple((params, ways) for ways, params in sorted(merged.items()))
