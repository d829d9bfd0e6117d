"""A sweep for a person: a row and a bar for each point, then where the best strategy changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.contrast import value_text
from meshwright.report.sweep import Change, Point, Sweep, told
from meshwright.report.terminal.findings import print_findings
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.search.arrange import MOST_SIMULATED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from meshwright.report.records import Estimate

ROWS = 40  # of a model; of more points the ends, both sides of every change and some between are shown
BAR = 16
BAR_COLUMN = ""  # its header


def print_sweep(found: Sweep, console: Console) -> None:
    """The whole sweep."""
    changes = found.changes
    for i, model in enumerate(found.models):
        if i:
            console.print()
        own = [p for p in found.points if p.model == model]
        table = _table(found, model, own, [c for c in changes if c.model == model])
        print_table(console, table, spare=(BAR_COLUMN, "MFU", "memory"))
    console.print()
    if changes:
        console.print("where the best strategy changes")
        for change in changes:
            console.print(f"  {change_text(change, several=len(found.models) > 1)}")
    else:
        console.print("the best strategy is the same everywhere")
    console.print()
    if sentences := found.sentences:
        console.print("how the models differ")
        for sentence in sentences:
            console.print(f"  {sentence.text}")
        console.print()
    own_search = f"{found.searched:,} searched, the rest followed from these" if found.searched else ""
    console.print(
        f"{units.counted(len(found.points), 'point')} in {units.seconds_text(found.seconds)}: {own_search}"
    )
    if not found.simulated:
        console.print(
            f"of more than {MOST_SIMULATED} points closed forms decide: `plan` at one of them simulates its "
            "pipeline and may say a few percent else"
        )
    for name, because in found.derived.items():
        console.print(f"derived {name} {value_text(name, because.value)}: {because.because}")
    for point in found.points:
        for name, taken in point.taken.items():
            console.print(
                f"took {name} {taken.value} for {value_text(name, point.at[name])}: {taken.because}"
            )
    if faults := told(found.points):
        print_findings(faults, console)


def _table(found: Sweep, model: str, points: Sequence[Point], changes: Sequence[Change]) -> Table:
    table = plain_table(
        *(f">{name.removeprefix('cluster.')}" for name in found.over), ">step", ">tokens/s/chip", BAR_COLUMN,
        ">MFU", ">memory", ">best", f"simplest within {units.percent_text(found.slack, 0)}", title=model,
    )  # fmt: skip
    most = max((p.best.tokens_per_s_per_chip for p in points if p.best is not None), default=1.0)
    names: dict[str, str] = {}
    for point in _shown(points, changes):
        values = [value_text(name, value) for name, value in point.at.items()]
        if point.best is None:
            why = "no legal plan" if point.nearest is None else "nothing fits"
            table.add_row(*values, "-", "-", "", "-", "-", "-", Text(why, style="red"))
            continue
        table.add_row(
            *values,
            units.seconds_text(point.best.step_time_s),
            units.number_text(point.best.tokens_per_s_per_chip),
            _bar(point.best.tokens_per_s_per_chip / most),
            units.percent_text(point.best.mfu),
            units.bytes_text(point.best.evaluation.peak_bytes),
            _named(point.best, names),
            _simplest(point.best, point.simplest, names),
        )
    table.caption = "\n".join(f"{name}  {line}" for line, name in names.items())
    return table


def _named(plan: Estimate, names: dict[str, str]) -> str:
    """What a strategy is called below: its number."""
    return names.setdefault(strategy_line(plan.strategy), str(len(names) + 1))


def _word(name: str, value: Any) -> str:
    """A field of a strategy; a list is one value (`16+16` layers)."""
    if isinstance(value, list | tuple):
        return "+".join(str(one) for one in value) or "-"
    return "-" if value is None else value_text(name, value)


def _simplest(best: Estimate, simplest: Estimate | None, names: dict[str, str]) -> str:
    if simplest is None or simplest.strategy == best.strategy:
        return "the same"
    more = simplest.step_time_s / best.step_time_s - 1.0
    return f"{_named(simplest, names)} (+{units.percent_text(more)} step)"


def _bar(share: float) -> str:
    return "█" * max(round(BAR * share), 1)


def _shown(points: Sequence[Point], changes: Sequence[Change]) -> Sequence[Point]:
    """All points where they are few; else the ends, both sides of changes, and evenly some of the others."""
    if len(points) <= ROWS:
        return points
    sides = {id(p) for c in changes for p in (c.before, c.after)}
    every = -(-len(points) // (ROWS // 2))
    return [p for i, p in enumerate(points) if i % every == 0 or i == len(points) - 1 or id(p) in sides][
        : 2 * ROWS
    ]


def change_text(change: Change, *, several: bool) -> str:
    """Between which values the best strategy changes, and how, with the model's name if there are several."""
    a, b = (value_text(change.field, v) for v in change.between)
    where = "".join(f" at {name} {value_text(name, v)}" for name, v in change.at.items())
    who = f"{change.model}: " if several else ""
    head = f"{who}{change.field} {a} to {b}{where}"
    if change.before.best is None or change.after.best is None:
        appears = change.before.best is None
        return f"{head}: {'a plan fits from there on' if appears else 'nothing fits any more'}"
    moved = ", ".join(
        f"{name} {_word(name, x)} to {_word(name, y)}" for name, (x, y) in change.differs().items()
    )
    return f"{head}: {moved}"
