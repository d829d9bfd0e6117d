"""A simulated step as plain JSON: rank by rank, and against the closed forms of the array result."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from meshwright.cost.evaluation import Evaluation
from meshwright.simulate.timeline import Idle
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.simulate.exact import Exact

CAUSES = tuple(field.name for field in fields(Idle))


def simulated_json(exact: Exact, closed: Evaluation) -> dict[str, Any]:
    """The `simulated` of an estimate (see docs/json.md); `closed` is the array result of the same plan."""
    idle, busy = exact.idle, exact.timeline.busy_s
    ranks = [
        {
            "rank": r,
            "begins_s": float(exact.timeline.begin_s[r]),
            "busy_s": float(busy[r]),
            "bubble_s": bubble_json(idle, r),
            "exchange_s": float(exact.exchange_s[r]),
            "optimizer_s": float(exact.optimizer_s[r]),
            "in_flight": float(exact.in_flight[r]),
            "activations_gib": float(exact.held_bytes[r]) / GIB,
            "peak_gib": float(exact.peak_bytes[r]) / GIB,
        }
        for r in range(len(busy))
    ]
    return {
        "slowest_rank": exact.slowest_rank,
        "fullest_rank": exact.fullest_rank,
        "passes": len(exact.timeline.network.kind),
        "bubble_s": bubble_json(idle, exact.slowest_rank),
        "ranks": ranks,
        "closed_form": {
            "step_time_s": float(closed.step_time_s),
            "peak_gib": float(closed.peak_bytes) / GIB,
        },
    }


def bubble_json(idle: Idle, rank: int) -> dict[str, float]:
    """Idle seconds of one rank by cause."""
    return {cause.removesuffix("_s"): float(getattr(idle, cause)[rank]) for cause in CAUSES}
