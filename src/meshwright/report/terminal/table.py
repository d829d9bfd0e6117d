"""Tables without lines, and how one is shown where the terminal is narrower than it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.table import Column, Table

if TYPE_CHECKING:
    from rich.console import Console

UNBOUNDED = 10_000  # columns, to measure what a table would take
TEXT = 14  # columns that text is not folded below
PAD = 2  # columns between two of a table


def plain_table(
    *columns: str, title: str | None = None, caption: str | None = None, header: bool = True
) -> Table:
    """A table without lines. A leading `>` of a column's name aligns it right: numbers, which stay in one
    piece, where text is folded."""
    table = Table(
        title=title, title_justify="left", caption=caption, caption_justify="left", box=None,
        padding=(0, PAD, 0, 0), show_header=header,
    )  # fmt: skip
    for name in columns:
        number = name.startswith(">")
        table.add_column(
            name.lstrip(">"), justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    return table


def print_table(console: Console, table: Table, *, spare: Sequence[str] = ()) -> None:
    """The table; on a terminal that is too narrow for it less of it, or in parts, and nothing cut unsaid.

    Columns named in `spare` are left out, the first of them first, until the rest fits, and it is said which.
    What still does not fit is shown in parts below each other, each with the first column. Without a
    terminal there is no edge, and the table is as wide as it is.
    """
    if not console.is_terminal:
        edge = console.width
        console.width = max(edge, sum(least for least, _ in _widths(console, table)))
        console.print(_laid(console, table))
        console.width = edge
        return
    kept, left = list(table.columns), list[str]()
    for name in spare:
        if fits(console, _of(table, kept)):
            break
        found = [column for column in kept if column.header == name][:1]
        kept = [column for column in kept if column not in found]
        left += [name] if found else []
    parts = list(_parts(console, table, kept))
    for i, part in enumerate(parts):
        shown = _of(table, part)
        shown.title = table.title if i == 0 else None
        shown.caption = table.caption if i == len(parts) - 1 else None
        console.print(_laid(console, shown))
    if named := [name for name in left if name]:
        console.print(
            f"left out of {console.width} columns: {', '.join(named)}; a wider terminal, a file or --json "
            "has them"
        )


def fits(console: Console, table: Table) -> bool:
    """Whether the table stands on the console with every number whole and text folded between words."""
    return sum(least for least, _ in _widths(console, table)) <= console.width


def _widths(console: Console, table: Table) -> list[tuple[int, int]]:
    """Of each column the least and the most that it takes, with what parts it from the next."""
    options = console.options.update(width=UNBOUNDED)
    found = [Measurement.get(console, options, _of(table, [column])) for column in table.columns]
    return [(max(one.minimum, min(one.maximum, TEXT)), one.maximum) for one in found]


def _of(table: Table, columns: Iterable[Column]) -> Table:
    """The same rows with only these of their columns."""
    part = copy(table)
    part.columns = [replace(column, _index=i) for i, column in enumerate(columns)]
    return part


def _parts(console: Console, table: Table, columns: Sequence[Column]) -> Iterator[list[Column]]:
    """The columns in runs that fit, the first of them in every run."""
    part = [columns[0]]
    for column in columns[1:]:
        if len(part) > 1 and not fits(console, _of(table, [*part, column])):
            yield part
            part = [columns[0]]
        part.append(column)
    yield part


def _laid(console: Console, table: Table) -> Table:
    """The table with its width given to the columns of text that want it."""
    widths = _widths(console, table)
    room = console.width - sum(least for least, _ in widths)
    wanted = sum(most - least for least, most in widths)
    if 0 <= room < wanted:
        for column, (least, most) in zip(table.columns, widths):
            column.width = least - PAD + room * (most - least) // wanted
    return table
