"""The answer of `improve`: a strategy, its neighbours with what each moves, and the best plan of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.report import as_json
from meshwright.report.records import Estimate
from meshwright.search.improve import Neighbour, changed, spelled
from meshwright.search.shift import sentence
from meshwright.units import GIB


@dataclass(frozen=True, slots=True)
class Improved:
    """`base` is the strategy asked about; `neighbours` those one step away, the most helpful first.

    `best` is the fastest plan of a whole search (None: nothing fits) with the same optimizer and fine-tuning,
    whose step takes `search_s`; where a neighbour or `base` itself is faster, that one (`found_by`). `beyond`
    are the neighbours that `framework` cannot be told.
    """

    base: Estimate
    neighbours: tuple[Neighbour, ...]
    rejected: dict[str, int]
    best: Estimate | None
    searched: int
    found_by: str
    search_s: float | None
    framework: str
    beyond: tuple[Neighbour, ...] = ()

    @property
    def helpful(self) -> tuple[Neighbour, ...]:
        """Neighbours that fit and are faster; where `base` does not fit, all that fit."""
        return self._helpful(self.neighbours)

    @property
    def helpful_beyond(self) -> tuple[Neighbour, ...]:
        """The same of those that the framework cannot be told."""
        return self._helpful(self.beyond)

    def _helpful(self, some: tuple[Neighbour, ...]) -> tuple[Neighbour, ...]:
        return tuple(n for n in some if n.fits and (n.gain > 0 or not self.base.fits))

    @property
    def best_gain(self) -> float | None:
        """Share of throughput that the best plan wins over `base`."""
        return None if self.best is None else self.base.step_time_s / self.best.step_time_s - 1.0

    @property
    def best_why(self) -> str:
        """What moves between `base` and the best plan."""
        return "" if self.best is None else sentence(self.base.evaluation, self.best.evaluation)

    @property
    def best_changes(self) -> str:
        """Fields in which the best plan differs, in words."""
        return "" if self.best is None else spelled(changed(self.base.strategy, self.best.strategy))

    def json(self) -> dict[str, Any]:
        """The object that `meshwright improve --json` prints (see docs/json.md)."""
        base, best = self.base, None
        if self.best is not None and self.best_gain is not None:
            best = {
                "plan": as_json.plan_json(self.best),
                "gain_percent": 100.0 * self.best_gain,
                "changes": self.best_changes,
                "why": self.best_why,
                "found_by": self.found_by,
            }
        shown: dict[str, Any] = as_json.plain(
            {
                "base": as_json.plan_json(base),
                "neighbours": [self._neighbour_json(n) for n in self.neighbours],
                "framework": self.framework,
                "beyond": [self._neighbour_json(n) | {"lacks": list(n.lacks)} for n in self.beyond],
                "rejected": self.rejected,
                "best": best,
                "searched": self.searched,
                "search_step_time_s": self.search_s,
            }
        )
        return as_json.envelope("improve", base.model, base.cluster, base.work) | shown

    def _neighbour_json(self, neighbour: Neighbour) -> dict[str, Any]:
        e = neighbour.evaluation
        return {
            "change": spelled(neighbour.changes),
            "changes": {name: {"from": a, "to": b} for name, (a, b) in neighbour.changes.items()},
            "fits": neighbour.fits,
            "gain_percent": 100.0 * neighbour.gain,
            "step_time_s": float(e.step_time_s),
            "peak_gib": float(e.peak_bytes) / GIB,
            "memory_change_gib": (float(e.peak_bytes) - float(self.base.evaluation.peak_bytes)) / GIB,
            "why": neighbour.why,
            "strategy": as_json.strategy_line(neighbour.strategy),
        }
