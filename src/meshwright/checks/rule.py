"""What a rule is: one mask over a million strategies, one message about a single one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from meshwright.errors import Diagnostic, Severity
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.work import Work

Mask = npt.NDArray[np.bool_]


class Rule(ABC):
    """One rule with a stable code: `violated` broadcasts over degrees, `explain` wants plain numbers."""

    code: ClassVar[str]
    reason: ClassVar[str]  # a few words, for counts of rejected candidates
    where: ClassVar[str]  # the fields that it speaks of
    severity: ClassVar[Severity] = "error"

    @abstractmethod
    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        """Where the rule is broken, in the broadcast shape of the degrees that it reads. Degrees are >= 1."""

    @abstractmethod
    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        """Message with the arithmetic, and a hint that works, for a strategy that breaks the rule."""

    def diagnostic(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Diagnostic | None:
        """The finding for one strategy of plain numbers, None where it keeps the rule."""
        if not bool(np.any(self.violated(model, cluster, work, strategy))):
            return None
        message, hint = self.explain(model, cluster, work, strategy)
        return Diagnostic(self.code, message, self.severity, self.where, hint)


def mask(value: Any) -> Mask:
    """`value` as an array of booleans."""
    return np.asarray(value, dtype=bool)


def indivisible(n: Any, by: Any) -> Mask:
    """Where `by` does not divide `n`; both broadcast."""
    return mask(np.asarray(n) % np.asarray(by) != 0)


def divisors(n: int) -> list[int]:
    """Divisors of `n`, rising.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def nearest_divisors(n: int, wanted: int, most: int = 2) -> list[int]:
    """Divisors of `n` closest to `wanted` on either side.

    >>> nearest_divisors(64, 12)
    [8, 16]
    """
    found = divisors(n)
    below = [d for d in found if d <= wanted][-1:]
    above = [d for d in found if d > wanted][:1]
    return (below + above)[:most]


def listed(numbers: list[int], word: str = "") -> str:
    """`2 or 4`, with `word` before each number."""
    return " or ".join(f"{word} {n}".strip() for n in numbers)
