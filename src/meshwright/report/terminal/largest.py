"""The answer of `max` for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.largest import Maximum
from meshwright.report.terminal.estimate import print_headline, print_run, print_tables
from meshwright.report.terminal.findings import print_findings
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.search.largest import MOST_BATCH_TOKENS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# Fields whose fixed value keeps memory from being saved.
_HOLDS = ("tp", "pp", "cp", "zero", "microbatch_size", "recompute", "offload")


def print_maximum(found: Maximum, console: Console) -> None:
    """Verdict, the plan at the largest value, what binds above it, and the values that were searched."""
    if found.value is None:
        console.print(Text(f"no {found.quantity} fits{_fixed(found)}", style="bold red"))
    else:
        said = f"{found.quantity} up to {_value(found, found.value)} {found.unit}"
        if found.bound == "range":
            said += f", {_end(found)}"
        elif found.above is not None and found.above.value - found.value > 1:
            said += f" (tried in steps of {_value(found, found.above.value - found.value)})"
        console.print(Text(said, style="bold green"))
    if found.plan is not None:
        console.print()
        print_headline(found.plan, console)
        print_tables(found.plan, console)
        print_run(found.plan, console)
    console.print()
    console.print(_bound_text(found))
    if len(found.tried) > 1:
        console.print()
        print_table(console, _tried(found), spare=("tokens/s/chip",))
    console.print()
    console.print(
        f"searched {units.counted(found.searched, 'strategy')} in {units.seconds_text(found.search_seconds)}"
    )
    if found.plan is not None and found.plan.diagnostics:
        console.print()
        print_findings(found.plan.diagnostics, console)


def _end(found: Maximum) -> str:
    """What ends the range: `--up-to`, the batch, or how far is tried where nothing is said."""
    if found.quantity == "microbatch_size" and found.value == found.work.global_batch_size:
        return "the whole batch"
    if found.up_to is not None:
        return "the end of the range that was asked"
    tokens = units.length_text(MOST_BATCH_TOKENS)
    most = f" ({tokens} tokens a step)" if found.quantity == "global_batch" else ""
    return f"as far as is tried without --up-to{most}"


def _fixed(found: Maximum) -> str:
    """What was fixed, where anything was."""
    flags = {name: value for name, value in found.fixed.items() if name not in found.of_file}
    held = [f"{name} {found.fixed[name]}" for name in found.of_file if name in _HOLDS]
    of_file = "this file's strategy" + (f" ({', '.join(held)})" if held else "")
    told = [of_file] if found.of_file else []
    told += [f"{name} {_given(value)}" for name, value in flags.items()]
    return f" with {', '.join(told)}" if told else ""


def _given(value: object) -> str:
    return " or ".join(map(_given, value)) if isinstance(value, list | tuple) else str(value)


def _bound_text(found: Maximum) -> str:
    """What stops the value from being larger."""
    if found.above is None:
        if found.quantity == "microbatch_size" and found.value == found.work.global_batch_size:
            return "memory does not bind: the whole batch is one microbatch"
        only = "a larger batch only adds microbatches; " if found.quantity == "global_batch" else ""
        return f"memory does not bind: {only}--up-to raises the end"
    near = "" if found.above.plan is None else f" ({strategy_line(found.above.plan.strategy)})"
    said = f"at {_value(found, found.above.value)} nothing fits{_fixed(found)}: {found.needs}{near}"
    free = next((name for name in ("recompute", "zero", "tp") if name in found.of_file), None)
    if free is not None:
        said += f"\na flag frees what the file fixes: --{free} any"
    return said


def _tried(found: Maximum) -> Table:
    table = plain_table(
        f">{found.quantity}", "fits", ">memory", ">step", ">tokens/s/chip", "strategy",
        title="values searched: the fastest plan that fits, else the nearest miss",
    )  # fmt: skip
    for point in found.tried:
        cells = ["", "", "", "no legal strategy"]
        if point.plan is not None:
            cells = [
                units.bytes_text(point.plan.evaluation.peak_bytes),
                units.seconds_text(point.plan.step_time_s),
                units.number_text(point.plan.tokens_per_s_per_chip),
                strategy_line(point.plan.strategy),
            ]
        table.add_row(_value(found, point.value), "yes" if point.fits else "no", *cells)
    return table


def _value(found: Maximum, value: int) -> str:
    return units.length_text(value) if found.quantity == "seq_len" else f"{value:,}"
