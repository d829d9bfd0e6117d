"""Findings of `check` for a person."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from meshwright.report.as_json import strategy_line
from meshwright.report.records import Checked
from meshwright.report.terminal.findings import print_findings
from meshwright.units import counted

if TYPE_CHECKING:
    from rich.console import Console


def print_checked(found: Checked, console: Console) -> None:
    """The findings, then the verdict."""
    if found.strategy is not None:
        console.print(f"{found.model.name} on {found.cluster.name}: {strategy_line(found.strategy)}")
    print_findings(found.diagnostics, console)
    counts = Counter(d.severity for d in found.diagnostics)
    listed = ", ".join(f"{counted(counts[s], s)}" for s in ("error", "warning", "note") if counts[s])
    console.print(
        Text(f"ok{f' ({listed})' if listed else ''}", style="bold green")
        if found.ok
        else Text(f"not ok ({listed})", style="bold red")
    )
