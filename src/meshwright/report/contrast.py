"""How models that were swept along one field differ: in speed, in the means of their best plans, in what
they wait for. Every sentence holds the values that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.search.why import PARTS, Sentence

if TYPE_CHECKING:
    from meshwright.report.sweep import Point, Sweep

# What a plan may do beside plain data parallelism, and the most of each field that is nothing of it.
MEANS: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero": 1, "recompute": "none"}
SHOWN = 0.01  # of a step; less is not told


def contrast(sweep: Sweep) -> tuple[Sentence, ...]:
    """Sentences about several models along one field of numbers; none for anything else, and none of a
    model that has a plan at fewer than two values."""
    if len(sweep.over) != 1:
        return ()
    ((field, values),) = sweep.over.items()
    by_model = {
        model: [p for p in sweep.points if p.model == model and p.best is not None] for model in sweep.models
    }
    found = {model: points for model, points in by_model.items() if len(points) > 1}
    if len(found) < 2 or not all(isinstance(value, int | float) for value in values):
        return ()
    return (
        _speed(field, found),
        *(_means(field, model, points) for model, points in found.items()),
        _waits(field, found),
    )


def value_text(name: str, value: Any) -> str:
    """A value of a field as a person writes it."""
    if name == "seq_len" and isinstance(value, int):
        return units.length_text(value)
    if isinstance(value, float):
        return units.number_text(value, 4)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _key(model: str, field: str, point: Point, what: str) -> str:
    """The name of a value that a sentence rests on."""
    return f"{model}[{field}={value_text(field, point.at[field])}].{what}"


def _speed(field: str, found: dict[str, list[Point]]) -> Sentence:
    """Tokens a second at both ends of each model, those that lose most first."""
    told: list[tuple[float, str]] = []
    cited: dict[str, Any] = {}
    for model, points in found.items():
        first, last = (_speed_at(p) for p in (points[0], points[-1]))
        ends = " to ".join(value_text(field, p.at[field]) for p in (points[0], points[-1]))
        text = f"{units.number_text(first)} to {units.number_text(last)}"
        told.append(
            (
                last / first,
                f"{model} keeps {units.percent_text(last / first, 0)} of its speed from {ends} ({text})",
            )
        )
        for point in (points[0], points[-1]):
            cited[_key(model, field, point, "tokens_per_s_per_chip")] = _speed_at(point)
    listed = "; ".join(text for _, text in sorted(told))
    return Sentence(f"Tokens a second and chip: {listed}.", (), cited)


def _speed_at(point: Point) -> float:
    assert point.best is not None
    return point.best.tokens_per_s_per_chip


def _means(field: str, model: str, points: Sequence[Point]) -> Sentence:
    """What the best plans of a model do beside data parallelism, and at which values."""
    told: list[str] = []
    cited: dict[str, Any] = {}
    for name, nothing in MEANS.items():
        at = [(p, getattr(p.best.strategy, name)) for p in points if p.best is not None]
        used = [(p, amount) for p, amount in at if amount not in (0, nothing)]
        if used:
            told.append(f"{name} {_amounts([a for _, a in used])} {_where(field, points, used)}")
            cited |= {_key(model, field, p, name): amount for p, amount in used}
    peaks = [float(p.best.evaluation.peak_bytes) for p in points if p.best is not None]
    memory = f"memory {units.bytes_text(min(peaks))} to {units.bytes_text(max(peaks))}"
    return Sentence(f"{model}: {', '.join(told) or 'data parallelism alone'}; {memory}.", (), cited)


def _amounts(amounts: Sequence[Any]) -> str:
    """The amounts of a means in short.

    >>> _amounts([2, 4, 8]), _amounts(["full", "full"])
    ('2 to 8', 'full')
    """
    distinct = list(dict.fromkeys(amounts))
    if len(distinct) == 1:
        return str(distinct[0])
    if all(isinstance(amount, int) for amount in distinct):
        return f"{min(distinct)} to {max(distinct)}"
    return " or ".join(str(amount) for amount in distinct)


def _where(field: str, points: Sequence[Point], used: Sequence[tuple[Point, Any]]) -> str:
    """The values at which a means is used: everywhere, from one on, or listed."""
    if len(used) == len(points):
        return "everywhere"
    places = [points.index(p) for p, _ in used]
    at = [value_text(field, p.at[field]) for p, _ in used]
    if len(at) == 1 or places != list(range(places[0], places[0] + len(places))):
        return f"at {', '.join(at)}"
    return f"from {at[0]} {'on' if places[-1] == len(points) - 1 else f'to {at[-1]}'}"


def _waits(field: str, found: dict[str, list[Point]]) -> Sentence:
    """What each model spends most on at its last value, beside computing everything once."""
    told: list[str] = []
    cited: dict[str, Any] = {}
    for model, points in found.items():
        best = points[-1].best
        assert best is not None
        seconds = {**best.evaluation.time_s, "recompute": best.evaluation.recompute_s}
        shares = {k: float(v) / best.step_time_s for k, v in seconds.items() if k != "compute"}
        largest = [k for k in sorted(shares, key=lambda k: -shares[k])[:2] if shares[k] >= SHOWN]
        words = {**PARTS, "recompute": "computing again what was not kept"}
        listed = " and ".join(f"{units.percent_text(shares[k], 0)} {words[k]}" for k in largest)
        told.append(f"{model} {listed or 'next to nothing'}")
        cited |= {_key(model, field, points[-1], f"step.time.{k}"): float(seconds[k]) for k in largest}
    ends = dict.fromkeys(value_text(field, points[-1].at[field]) for points in found.values())
    said = f"Of the step at {', '.join(ends)}, beside computing it once: {'; '.join(told)}."
    return Sentence(said, (), cited)
