"""The answer of `max`: the largest value that fits, the plan there, and what binds just above."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.report import as_json
from meshwright.report.records import Estimate
from meshwright.units import GIB
from meshwright.work import Work

UNITS = {
    "seq_len": "tokens",
    "microbatch_size": "sequences",
    "n_layers": "layers",
    "global_batch": "sequences a step",
}


@dataclass(frozen=True, slots=True)
class Point:
    """A value that was searched whole: its fastest plan, or the nearest miss (None: no legal strategy)."""

    value: int
    fits: bool
    plan: Estimate | None


@dataclass(frozen=True, slots=True)
class Maximum:
    """The largest `value` of a quantity that fits (None: none does) and the fastest plan there.

    `bound` is memory, rules (no legal strategy above) or range (the end of what was asked fits). `above` is
    the next value, with its nearest miss, and `needs` what that lacks. `model` and `work` are those asked of;
    `up_to` ended the range where it was given, `fixed` are the strategy's fields that were, `of_file`
    the ones that a plan file brought.
    """

    quantity: str
    value: int | None
    plan: Estimate | None
    bound: str
    above: Point | None
    needs: str
    tried: tuple[Point, ...]
    searched: int
    search_seconds: float
    model: Model
    cluster: Cluster
    work: Work
    up_to: int | None = None
    fixed: dict[str, Any] = field(default_factory=dict)
    of_file: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """What the value counts."""
        return UNITS[self.quantity]

    def json(self) -> dict[str, Any]:
        """The object that `meshwright max --json` prints (see docs/json.md)."""
        at = self.plan
        head = as_json.envelope(
            "max", self.model if at is None else at.model, self.cluster, self.work if at is None else at.work
        )
        above = None
        if self.above is not None:
            near = self.above.plan
            above = {
                "value": self.above.value,
                "nearest": None if near is None else as_json.plan_json(near),
                "needs": self.needs,
            }
        return head | {
            "quantity": self.quantity,
            "unit": self.unit,
            "value": self.value,
            "bound": self.bound,
            "plan": None if at is None else as_json.plan_json(at),
            "above": above,
            "tried": [_point_json(p) for p in self.tried],
            "searched": self.searched,
            "search_seconds": self.search_seconds,
        }


def _point_json(point: Point) -> dict[str, Any]:
    plan = point.plan
    return {
        "value": point.value,
        "fits": point.fits,
        "step_time_s": None if plan is None else plan.step_time_s,
        "tokens_per_s_per_chip": None if plan is None else plan.tokens_per_s_per_chip,
        "peak_gib": None if plan is None else float(plan.evaluation.peak_bytes) / GIB,
        "strategy": None if plan is None else as_json.strategy_line(plan.strategy),
    }
