"""Estimates side by side: what was asked differently, and where time and memory differ, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright import units
from meshwright.cost.terms import Term
from meshwright.report import as_json
from meshwright.report.records import Estimate
from meshwright.search.why import PARTS, Sentence
from meshwright.units import GIB

TINY = 5e-4  # of the whole: smaller differences are not told in a sentence
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
PER_TOKEN = "chip-seconds per million tokens"


@dataclass(frozen=True, slots=True)
class Row:
    """One term on every side: in bytes or the comparison's unit of time; 0 where a side lacks it."""

    term: str
    unit: str
    values: tuple[float, ...]
    formula: str = ""

    @property
    def differences(self) -> tuple[float, ...]:
        """Each side's value less the first side's."""
        return tuple(v - self.values[0] for v in self.values)

    @property
    def largest(self) -> float:
        """The largest difference from the first side, either way."""
        return max(abs(d) for d in self.differences)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more estimates; `A` is the first, which the others are compared with.

    `differs` holds every stated or derived field in which sides differ, one value a side. `time` and `memory`
    list terms, the largest difference first and each followed by its parts. Sides whose steps take in
    different tokens or run on different chips have their time per token (`time_unit`).
    """

    sides: tuple[Estimate, ...]
    differs: dict[str, tuple[Any, ...]]
    time: tuple[Row, ...]
    memory: tuple[Row, ...]
    time_unit: str
    sentences: tuple[Sentence, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """What each side is called: A, B, ..."""
        return tuple(LETTERS[: len(self.sides)])

    def json(self) -> dict[str, Any]:
        """The object that `meshwright compare --json` prints (see docs/json.md)."""
        return comparison_object(self)


def compared(sides: Sequence[Estimate], depth: int = 1) -> Comparison:
    """The comparison of estimates that hold their trees; `depth` levels of terms below time and memory."""
    steps = {(float(e.work.tokens_per_step), e.cluster.n_chips) for e in sides}
    scales = [_chip_seconds(e) if len(steps) > 1 else 1.0 for e in sides]
    time = _rows([_part(e, "time") for e in sides], scales, depth)
    memory = _rows([_part(e, "memory") for e in sides], [1.0] * len(sides), depth)
    unit = "s" if len(steps) == 1 else PER_TOKEN
    differs = differences(sides)
    sentences = tuple(
        said
        for i in range(1, len(sides))
        for said in (
            _changed(differs, i),
            _time_sentence(sides, time, i, unit),
            _memory_sentence(sides, memory, i),
        )
    )
    return Comparison(tuple(sides), differs, time, memory, unit, sentences)


def _chip_seconds(estimate: Estimate) -> float:
    """What seconds of a step are multiplied by for chip-seconds per million tokens."""
    return estimate.cluster.n_chips / float(estimate.work.tokens_per_step) * 1e6


def _part(estimate: Estimate, name: str) -> Term:
    root = estimate.evaluation.terms
    assert root is not None
    return next(child for child in root.children if child.name == name)


def _rows(parts: Sequence[Term], scales: Sequence[float], depth: int) -> tuple[Row, ...]:
    return tuple(_nested("step", [[part] for part in parts], scales, depth + 1))


def _nested(path: str, parts: Sequence[Sequence[Term]], scales: Sequence[float], depth: int) -> Iterator[Row]:
    """Rows of terms of one name on all sides, the largest difference first, each before its own parts."""
    named = [{term.name: term for term in terms} for terms in parts]
    rows = []
    for name in dict.fromkeys(name for terms in named for name in terms):
        found = [terms.get(name) for terms in named]
        some = next(term for term in found if term is not None)
        values = tuple(0.0 if t is None else float(t.value) * k for t, k in zip(found, scales))
        rows.append((Row(f"{path}.{name}", some.unit, values, some.formula), found))
    for row, found in sorted(rows, key=lambda pair: -pair[0].largest):
        yield row
        if depth > 1:
            below = [() if term is None else term.children for term in found]
            yield from _nested(row.term, below, scales, depth - 1)


def differences(sides: Sequence[Estimate]) -> dict[str, tuple[Any, ...]]:
    """Every field of model, cluster, work, profile and strategy in which sides differ."""
    asked = [_asked(side) for side in sides]
    found = {name: tuple(one.get(name) for one in asked) for name in asked[0]}
    return {name: values for name, values in found.items() if any(v != values[0] for v in values)}


def _asked(side: Estimate) -> dict[str, Any]:
    rooms: dict[str, dict[str, Any]] = {
        "model": as_json.model_json(side.model),
        "cluster": as_json.cluster_json(side.cluster),
        "work": as_json.work_json(side.work),
        "strategy": as_json.strategy_of(side),
    }
    fields = {f"{room}.{name}": value for room, named in rooms.items() for name, value in named.items()}
    del fields["cluster.name"]  # a spelling of the other figures
    return fields | {"profile": as_json.profile_name(side)}


def _changed(differs: dict[str, tuple[Any, ...]], i: int) -> Sentence:
    """What was asked or derived differently for side `i`."""
    own = {name: values for name, values in differs.items() if values[i] != values[0]}
    # Stages repeat what pp and vpp say of the same model.
    told = [name for name in own if name != "strategy.stages"] or list(own)
    listed = ", ".join(f"{_short(name)} {_word(own[name][i])} (A: {_word(own[name][0])})" for name in told)
    values = {f"{name}.{LETTERS[j]}": own[name][j] for name in own for j in (0, i)}
    return Sentence(f"{LETTERS[i]} differs from A in {listed or 'nothing that is asked'}.", (), values)


def _short(field: str) -> str:
    return field.removeprefix("strategy.").removeprefix("work.")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return "+".join(str(v) for v in value) or "none"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time_sentence(sides: Sequence[Estimate], rows: Sequence[Row], i: int, unit: str) -> Sentence:
    """How much longer side `i` takes, and which terms say so."""
    total, parts = _total(rows)
    gap, first = total.differences[i], total.values[0]
    per = "a step" if unit == "s" else "of a chip for a million tokens"
    name = LETTERS[i]
    moved = _moved(parts, i, TINY * first)
    listed = ", ".join(f"{_signed(d)} {PARTS.get(_leaf(row), _leaf(row))}" for row, d in moved)
    if abs(gap) < TINY * first:
        said = f"{name} takes as long as A, {units.seconds_text(total.values[i])} {per}"
    else:
        word = "more" if gap > 0 else "less"
        said = f"{name} takes {units.seconds_text(abs(gap))} {per} {word} than A ({gap / first:+.1%})"
    values = {f"{r.term}.{LETTERS[j]}": r.values[j] for r in (total, *(r for r, _ in moved)) for j in (0, i)}
    tail = f": {listed}" if listed else ""
    return Sentence(f"{said}{tail}.", tuple(r.term for r, _ in moved) or (total.term,), values)


def _memory_sentence(sides: Sequence[Estimate], rows: Sequence[Row], i: int) -> Sentence:
    """How much more side `i` holds, which terms say so, and who fits."""
    total, parts = _total(rows)
    gap, name = total.differences[i], LETTERS[i]
    moved = _moved(parts, i, TINY * total.values[0])
    listed = ", ".join(f"{_leaf(row)} {d / GIB:+.2f}" for row, d in moved)
    if abs(gap) < TINY * total.values[0]:
        said = f"{name}'s fullest rank holds as much as A's, {units.bytes_text(total.values[i])}"
    else:
        word = "more" if gap > 0 else "less"
        said = f"{name}'s fullest rank holds {abs(gap) / GIB:.2f} GiB {word} than A's"
    tail = f" ({listed})" if listed else ""
    fit = "; ".join(
        f"{LETTERS[j]} {'fits' if sides[j].fits else 'does not fit'}: "
        f"{total.values[j] / GIB:.1f} of {float(sides[j].evaluation.capacity_bytes) / GIB:.1f} GiB"
        for j in (0, i)
    )
    values: dict[str, Any] = {
        f"{r.term}.{LETTERS[j]}": r.values[j] for r in (total, *(r for r, _ in moved)) for j in (0, i)
    }
    values |= {f"fits.{LETTERS[j]}": sides[j].fits for j in (0, i)}
    return Sentence(f"{said}{tail}. {fit}.", tuple(r.term for r, _ in moved) or (total.term,), values)


def _total(rows: Sequence[Row]) -> tuple[Row, list[Row]]:
    """The row of the whole and the rows of its parts."""
    total = rows[0]
    deep = total.term.count(".") + 1
    return total, [row for row in rows[1:] if row.term.count(".") == deep]


def _moved(parts: Sequence[Row], i: int, least: float) -> list[tuple[Row, float]]:
    """The parts that differ most on side `i`, at most four."""
    found = sorted(((row, row.differences[i]) for row in parts), key=lambda pair: -abs(pair[1]))
    return [pair for pair in found if abs(pair[1]) > least][:4]


def _leaf(row: Row) -> str:
    return row.term.rpartition(".")[2]


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else '-'}{units.seconds_text(abs(seconds))}"


def comparison_object(found: Comparison) -> dict[str, Any]:
    """The object of `compare`; `model`, `cluster` and `work` are those of the first side."""
    first = found.sides[0]

    def rows(listed: Sequence[Row]) -> list[dict[str, Any]]:
        return [
            {
                "term": row.term, "unit": row.unit, "formula": row.formula,
                "values": list(row.values), "differences": list(row.differences),
            }
            for row in listed
        ]  # fmt: skip

    body: dict[str, Any] = {
        "sides": [
            {
                "name": letter,
                "model": as_json.model_json(side.model),
                "cluster": as_json.cluster_json(side.cluster),
                "work": as_json.work_json(side.work),
                "plan": as_json.plan_json(side),
            }
            for letter, side in zip(found.letters, found.sides)
        ],
        "differs": found.differs,
        "time_unit": found.time_unit,
        "time": rows(found.time),
        "memory": rows(found.memory),
        "sentences": [said.json() for said in found.sentences],
    }
    shown: dict[str, Any] = as_json.plain(body)
    return as_json.envelope("compare", first.model, first.cluster, first.work) | shown
