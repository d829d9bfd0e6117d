"""The answer of `improve` for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.improvement import Improved
from meshwright.report.terminal.estimate import print_headline
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.search.improve import Neighbour, spelled
from meshwright.units import GIB

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

REASONS_TOLD = 3  # neighbours whose why is written out below the table


def print_improved(found: Improved, console: Console, *, shown: int) -> None:
    """The strategy, the steps that help, why, and how far the best plan is."""
    print_headline(found.base, console)
    helpful = found.helpful[:shown]
    console.print()
    if helpful:
        title = "one step away" if found.base.fits else "one step away, and it fits"
        print_table(console, _table(found, helpful, title))
        console.print()
        for neighbour in helpful[:REASONS_TOLD]:
            console.print(f"{spelled(neighbour.changes)}: {neighbour.why}")
    elif found.base.fits:
        console.print("no single step makes it faster and fits")
    else:
        console.print("no single step makes it fit; the nearest:")
        print_table(console, _table(found, found.neighbours[: min(shown, 3)], "one step away"))
    if found.base.fits:
        _print_too_large(found, console)
    if found.helpful_beyond:
        _print_beyond(found, console)
    console.print()
    _print_best(found, console)
    console.print()
    counts = f"{len(found.neighbours):,} neighbours, {len(found.helpful):,} help"
    if found.rejected:
        counts += f"; not legal: {', '.join(f'{reason} {n:,}' for reason, n in found.rejected.items())}"
    console.print(counts)


def _print_too_large(found: Improved, console: Console) -> None:
    """The neighbour that would be fastest if it fitted."""
    large = [n for n in found.neighbours if not n.fits and n.gain > 0]
    if large:
        fastest = max(large, key=lambda n: n.gain)
        over = float(fastest.evaluation.peak_bytes) - float(fastest.evaluation.capacity_bytes)
        console.print(
            f"{spelled(fastest.changes)} would win {fastest.gain:.1%} of tokens/s but does not fit: "
            f"{units.bytes_text(over)} too much"
        )


def _print_beyond(found: Improved, console: Console) -> None:
    """What the framework cannot be told, and the best of it."""
    first, *others = found.helpful_beyond
    more = f", and of {len(others):,} more that help" if others else ""
    console.print(
        f"{found.framework} cannot be told of {spelled(first.changes)} ({first.gain:+.1%}: it has no "
        f"{', '.join(first.lacks)}){more}"
    )


def _print_best(found: Improved, console: Console) -> None:
    if found.best is None or found.best_gain is None:
        console.print(Text("a whole search finds nothing that fits", style="bold red"))
        return
    step = units.seconds_text(found.best.step_time_s)
    if found.best.strategy == found.base.strategy:
        console.print(f"a whole search ({units.counted(found.searched, 'strategy')}) finds nothing faster")
        return
    whole = f"a whole search, {units.counted(found.searched, 'strategy')}"
    if found.found_by == "neighbour":
        least = "nothing that fits" if found.search_s is None else units.seconds_text(found.search_s)
        whole = f"one step away; {whole}, finds {least}"
    far = f"{found.best_gain:+.1%} tokens/s{'' if found.base.fits else ', and it fits'}"
    console.print(f"the best plan found ({whole}): {step}, {far}")
    console.print(f"  {strategy_line(found.best.strategy)}")
    console.print(f"  {found.best_changes}")
    console.print(f"  {found.best_why}")


def _table(found: Improved, neighbours: Sequence[Neighbour], title: str) -> Table:
    table = plain_table(
        "change", ">gain", ">step", ">memory", ">change of it", title=title,
        caption="gain: in tokens/s over the plan above",
    )  # fmt: skip
    base = float(found.base.evaluation.peak_bytes)
    for n in neighbours:
        peak = float(n.evaluation.peak_bytes)
        table.add_row(
            spelled(n.changes), f"{n.gain:+.1%}", units.seconds_text(float(n.evaluation.step_time_s)),
            units.bytes_text(peak), f"{(peak - base) / GIB:+.2f} GiB",
        )  # fmt: skip
    return table
