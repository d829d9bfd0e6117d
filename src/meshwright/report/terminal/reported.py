"""What a report is about and what was computed for it, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright import units
from meshwright.report.terminal.estimate import print_headline

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.report.document import Report


def print_reported(found: Report, console: Console) -> None:
    """The headline, what binds, and what stands in the page."""
    print_headline(found.estimate, console)
    console.print()
    console.print(found.explanation.sentences[0].text)
    console.print()
    search = found.search
    console.print(
        f"searched {units.count_text(search.searched)} {units.plural(search.searched, 'strategy')} in "
        f"{units.seconds_text(search.search_seconds)}, {units.count_text(search.feasible)} fit"
    )
    if found.simulated is not None:
        console.print(f"simulated {units.count_text(len(found.simulated.timeline.network.kind))} passes")
    for diagnostic in found.unsimulated:
        console.print(f"not simulated: {diagnostic.message}")
    for one in found.what_ifs:
        console.print(
            f"what if {one.field}: {units.counted(len(one.sweep.points), 'value')} in "
            f"{units.seconds_text(one.sweep.seconds)}"
        )
