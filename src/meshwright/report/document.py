"""A whole report as data: one plan, why it is as it is, what else there was, and what if."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshwright.errors import Diagnostic
from meshwright.report import as_json
from meshwright.report.explanation import Explanation
from meshwright.report.ranks import RankMap
from meshwright.report.records import Estimate, Plan
from meshwright.report.sweep import Sweep, summary
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.simulate.exact import Exact

MOMENTS = 240  # of a rank's memory over time that are told, each the most that it held in between
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What becomes of a plan along one field, which is at `now`: planned anew at every point of `sweep`, and
    `kept` as it is; None where it is not legal."""

    now: Any
    sweep: Sweep
    kept: tuple[Estimate | None, ...]

    @property
    def field(self) -> str:
        """The field that changes."""
        return next(iter(self.sweep.over))

    def json(self) -> dict[str, Any]:
        """`{field, now, sweep, kept}`: points as `sweep` has them, each beside the kept plan in short."""
        return {
            "field": self.field,
            "now": self.now,
            "sweep": self.sweep.json(),
            "kept": [summary(one) for one in self.kept],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with its reasons (`explanation`), the search beside it, its ranks and groups, its step pass by
    pass (`unsimulated` says why not), and what-ifs."""

    explanation: Explanation
    search: Plan
    ranks: RankMap
    simulated: Exact | None
    unsimulated: tuple[Diagnostic, ...]
    what_ifs: tuple[WhatIf, ...]

    @property
    def estimate(self) -> Estimate:
        """The plan that is reported."""
        return self.explanation.estimate

    def html(self) -> str:
        """One HTML page that needs nothing else."""
        from meshwright.report.html.page import page

        return page(self)

    def json(self) -> dict[str, Any]:
        """The object that `meshwright report --json` prints (see docs/json.md): every figure of the page."""
        shown = self.explanation.json(plain=True) | {"schema": "meshwright.report/1"}
        simulated = self._simulated()
        body: dict[str, Any] = {
            "simulated": simulated,
            "unsimulated": [d.message for d in self.unsimulated],
            "groups": self.ranks.json()["groups"],
            "search": self.search.json(),
            "what_if": [one.json() for one in self.what_ifs],
        }
        added: dict[str, Any] = as_json.plain(body)
        return shown | added

    def _simulated(self) -> dict[str, Any] | None:
        if self.simulated is None:
            return None
        exact = replace(
            self.estimate,
            evaluation=self.simulated.evaluation,
            simulated=self.simulated,
        )
        told: dict[str, Any] = as_json.plan_json(exact)
        over_time = [
            {"rank": rank, "seconds": seconds, "gib": held / GIB}
            for rank in telling_ranks(self.simulated)
            for seconds, held in [moments(self.simulated, rank)]
        ]
        kept = {name: told[name] for name in ("step_time_s", "time_s", "memory", "simulated")}
        return kept | {"memory_over_time": over_time}


def telling_ranks(exact: Exact) -> tuple[int, ...]:
    """First, fullest and last rank along the pipeline."""
    last = exact.timeline.network.n_ranks - 1
    return tuple(sorted({0, exact.fullest_rank, last}))


def moments(exact: Exact, rank: int, most: int = MOMENTS) -> tuple[Array, Array]:
    """(seconds, bytes) of a rank's memory over its step, in at most `most` equal spans of time: the start
    of each and the most that is held in it."""
    seconds, held = exact.memory_over_time(rank)
    seconds = np.maximum.accumulate(seconds)  # passes that run at once are told one after the other
    if len(seconds) <= most:
        return seconds, held
    edges = np.linspace(seconds[0], seconds[-1], most, endpoint=False)
    first = np.searchsorted(seconds, edges, side="right") - 1  # what is held as a span begins counts for it
    return edges, np.maximum.reduceat(held, first)
