"""A tree of terms: what an estimate is made of, each node a number with its formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwright.profiles.records import Provenance

Unit = Literal["s", "B", "FLOP", "1"]
Combine = Literal["leaf", "sum", "max", "product"]


@dataclass(frozen=True, slots=True)
class Term:
    """`value` (a number, or an array over candidates) in `unit`, combined from `children`."""

    name: str
    value: Any
    unit: Unit
    formula: str = ""
    combine: Combine = "leaf"
    children: tuple[Term, ...] = ()
    inputs: dict[str, Any] = field(default_factory=dict)
    provenance: Provenance | Literal["derived"] = "derived"  # from its children and inputs

    def walk(self, path: str = "") -> Iterator[tuple[str, Term]]:
        """Every node with its dotted path, parents first."""
        here = f"{path}.{self.name}" if path else self.name
        yield here, self
        for child in self.children:
            yield from child.walk(here)
