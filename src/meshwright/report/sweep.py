"""A sweep: the best and the simplest plan at each point, and between which points the best one changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Diagnostic
from meshwright.report import as_json
from meshwright.report.contrast import contrast
from meshwright.report.error_json import diagnostics_json
from meshwright.report.records import Because, Estimate
from meshwright.search.why import Sentence
from meshwright.units import GIB

# Fields that follow from the others and the chips: their change alone is no other strategy.
FOLLOWS = ("dp", "zero_group")


@dataclass(frozen=True, slots=True)
class Point:
    """One model at some values. Nothing fits: `best` is None and `nearest` the closest miss, or `faults` say
    why there is no legal plan. `taken` holds values that stood in for those asked."""

    model: str
    at: dict[str, Any]
    best: Estimate | None = None
    simplest: Estimate | None = None
    nearest: Estimate | None = None
    faults: tuple[Diagnostic, ...] = ()
    taken: dict[str, Because] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """The best strategy changes between two neighbouring values of `field`, the others at `at`."""

    model: str
    field: str
    between: tuple[Any, Any]
    at: dict[str, Any]
    before: Point
    after: Point

    def differs(self) -> dict[str, tuple[Any, Any]]:
        """Strategy fields with their two values; empty where a plan appears or ends."""
        return _differs(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points in order: by model, then by field, the last field running fastest. `searched` points had a
    search of their own; the others were found among the strategies that searches kept, with the same answer.
    `derived` holds what was not given and is the same at all points. `simulated`: steps are those of
    simulated pipelines, as `plan` tells them; of very many points closed forms decide.
    """

    models: tuple[str, ...]
    over: dict[str, tuple[Any, ...]]
    points: tuple[Point, ...]
    slack: float
    searched: int
    seconds: float
    derived: dict[str, Because] = field(default_factory=dict)
    simulated: bool = True

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """How several models differ along one field."""
        return contrast(self)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Where the best strategy changes, by model and field."""
        return tuple(_changes(self))

    def json(self) -> dict[str, Any]:
        """The object that `meshwright sweep --json` prints (see docs/json.md)."""
        return sweep_object(self)


def _differs(before: Point, after: Point) -> dict[str, tuple[Any, Any]]:
    if before.best is None or after.best is None:
        return {}
    a, b = (as_json.plain(p.best.strategy) for p in (before, after) if p.best is not None)
    return {name: (a[name], b[name]) for name in a if a[name] != b[name] and name not in FOLLOWS}


def _changes(sweep: Sweep) -> Iterator[Change]:
    by_place = {(p.model, *p.at.values()): p for p in sweep.points}
    for name, values in sweep.over.items():
        for point in sweep.points:
            i = values.index(point.at[name])
            if i + 1 == len(values):
                continue
            at = {**point.at, name: values[i + 1]}
            after = by_place[(point.model, *at.values())]
            appears = (point.best is None) != (after.best is None)
            if appears or _differs(point, after):
                others = {k: v for k, v in point.at.items() if k != name}
                yield Change(point.model, name, (values[i], values[i + 1]), others, point, after)


def summary(estimate: Estimate | None) -> dict[str, Any] | None:
    """A plan in short."""
    if estimate is None:
        return None
    e = estimate.evaluation
    return {
        "summary": as_json.strategy_line(estimate.strategy),
        "strategy": as_json.plain(estimate.strategy),
        "fits": estimate.fits,
        "step_time_s": estimate.step_time_s,
        "tokens_per_s_per_chip": estimate.tokens_per_s_per_chip,
        "mfu": estimate.mfu,
        "peak_gib": float(e.peak_bytes) / GIB,
        "capacity_gib": float(e.capacity_bytes) / GIB,
        "time_s": {name: float(seconds) for name, seconds in e.time_s.items()},
    }


def sweep_object(found: Sweep) -> dict[str, Any]:
    """The object of `sweep`; `model`, `cluster` and `work` are those of the first point that has a plan."""
    body: dict[str, Any] = {
        "models": found.models,
        "over": found.over,
        "slack": found.slack,
        "searched": found.searched,
        "simulated": found.simulated,
        "search_seconds": found.seconds,
        "points": [_point(p) for p in found.points],
        "changes": [_change(c) for c in found.changes],
        "derived": {name: {"value": b.value, "because": b.because} for name, b in found.derived.items()},
        "sentences": [sentence.json() for sentence in found.sentences],
    }
    first = next((e for p in found.points if (e := p.best or p.nearest) is not None), None)
    head = (
        as_json.envelope("sweep")
        if first is None
        else as_json.envelope("sweep", first.model, first.cluster, first.work)
    )
    shown: dict[str, Any] = as_json.plain(body)
    return head | shown


def _point(p: Point) -> dict[str, Any]:
    return {
        "model": p.model,
        **p.at,
        "best": summary(p.best),
        "simplest": summary(p.simplest),
        "nearest": summary(p.nearest),
        "taken": {name: {"value": b.value, "because": b.because} for name, b in p.taken.items()},
        "diagnostics": diagnostics_json(p.faults),
    }


def _change(c: Change) -> dict[str, Any]:
    def line(p: Point) -> str | None:
        return None if p.best is None else as_json.strategy_line(p.best.strategy)

    return {
        "model": c.model,
        "field": c.field,
        "between": c.between,
        "at": c.at,
        "from": line(c.before),
        "to": line(c.after),
        "differs": c.differs(),
    }


def told(points: Sequence[Point]) -> list[Diagnostic]:
    """All faults of points, each once."""
    return list(dict.fromkeys(fault for p in points for fault in p.faults))
