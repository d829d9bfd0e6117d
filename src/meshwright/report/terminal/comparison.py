"""A comparison for a person: sentences, then what was asked differently, then terms side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.calibrate import bands
from meshwright.report.as_json import strategy_line
from meshwright.report.comparison import Comparison, Row
from meshwright.report.terminal.estimate import ends_text, range_text
from meshwright.report.terminal.table import plain_table, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from meshwright.report.records import Estimate, Run

SHORT = 4  # entries of a list, or runs of equal ones, that are told one by one


def print_comparison(found: Comparison, console: Console) -> None:
    """The whole comparison."""
    for letter, side in zip(found.letters, found.sides):
        console.print(
            f"{letter}  {side.model.name} on {units.count_text(side.cluster.n_chips)} x "
            f"{side.cluster.chip.name}: {strategy_line(side.strategy)}"
        )
    console.print()
    for said in found.sentences:
        console.print(said.text)
    console.print()
    print_table(console, _figures(found))
    if found.differs:
        console.print()
        print_table(console, _differs(found))
    unit = "time, exposed on the slowest rank" + ("" if found.time_unit == "s" else f"; {found.time_unit}")
    console.print()
    print_table(console, _terms(unit, found.letters, found.time, units.seconds_text))
    console.print()
    print_table(console, _terms("memory of the fullest rank", found.letters, found.memory, units.bytes_text))


def _table(title: str, letters: Sequence[str]) -> Table:
    return plain_table("", *(f">{letter}" for letter in letters), title=title)


def _figures(found: Comparison) -> Table:
    """What people quote."""
    table = _table("figures", found.letters)
    sides = found.sides
    such = f"  {units.percent_text(bands.INSIDE, 0)} of such runs"
    table.add_row("step time", *(units.seconds_text(e.step_time_s) for e in sides))
    if any(e.interval_s for e in sides):
        table.add_row(such, *(ends_text(e.interval_s, units.seconds_text) or "-" for e in sides))
    if any(e.interval_because for e in sides):
        table.add_row("  that of jobs with", *(e.interval_because or "-" for e in sides))
    table.add_row("tokens/s/chip", *(units.number_text(e.tokens_per_s_per_chip) for e in sides))
    table.add_row("MFU", *(units.percent_text(e.mfu) for e in sides))
    if len({e.peak_flops for e in sides}) > 1:
        peaks = (f"{units.flops_text(e.peak_flops)} {e.work.precision}" for e in sides)
        table.add_row("  of a dense peak", *peaks)
        table.caption = "MFUs are shares of different peaks; tokens/s/chip compares"
    table.add_row("peak memory", *(units.bytes_text(e.evaluation.peak_bytes) for e in sides))
    if any(e.interval_bytes for e in sides):
        table.add_row(such, *(ends_text(e.interval_bytes, units.bytes_text) or "-" for e in sides))
    table.add_row("fits", *("yes" if e.fits else "no" for e in sides))
    _add_runs(table, sides)
    return table


def _add_runs(table: Table, sides: Sequence[Estimate]) -> None:
    """Days, chip-hours and cost of the whole run, where its length and a price are known."""
    runs = [(e, e.run) for e in sides]
    if not any(run for _, run in runs):
        return

    def add(name: str, value: Callable[[Run], float | None], text: Callable[[float], str]) -> None:
        """One figure that grows with the step, and its range."""
        found = [(e, None if run is None else value(run)) for e, run in runs]
        if any(v is not None for _, v in found):
            cells = ("-" if v is None else f"{text(v)}{range_text(e, v, text)}" for e, v in found)
            table.add_row(name, *cells)

    add("days", lambda run: run.days, units.number_text)
    add("chip-hours", lambda run: run.chip_hours, lambda hours: units.count_text(round(hours)))
    prices = {run.price_per_chip_hour for _, run in runs if run is not None}
    price = next(iter(prices)) if len(prices) == 1 else None
    rate = "" if price is None else f" at {units.money_text(price)} a chip-hour"
    add(f"cost{rate}", lambda run: run.cost_usd, units.money_text)


def _differs(found: Comparison) -> Table:
    table = _table("asked or derived differently", found.letters)
    for name, values in found.differs.items():
        table.add_row(name, *(_word(v) for v in values))
    return table


def _word(value: Any) -> str:
    if isinstance(value, list):
        return units.runs_text(value, SHORT) if len(value) > SHORT else ",".join(str(v) for v in value) or "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "-" if value is None else f"{value:,.6g}" if isinstance(value, float) else str(value)


def _terms(title: str, letters: Sequence[str], rows: Sequence[Row], text: Callable[[float], str]) -> Table:
    """Terms with each side's value and its difference from A; what is nothing on every side is left away."""
    table = _table(title, [*letters, *(f"{letter} - A" for letter in letters[1:])])
    top = rows[0].term.count(".")
    for row in rows:
        if not any(row.values):
            continue
        indent = "  " * (row.term.count(".") - top)
        changes = (f"{'+' if d > 0 else '-'}{text(abs(d))}" if d else "same" for d in row.differences[1:])
        table.add_row(f"{indent}{row.term.rpartition('.')[2]}", *(text(v) for v in row.values), *changes)
    return table
