"""Diagnostics as lines: severity, code, message, where it stands, and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from meshwright.errors import Diagnostic

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def findings_text(found: Iterable[Diagnostic]) -> str:
    """Plain lines, one finding after the other, without loading any renderer."""
    lines: list[str] = []
    for d in found:
        place = f" ({d.where})" if d.where and d.where not in d.message else ""
        lines.append(f"{d.severity}[{d.code}]: {d.message}{place}")
        if d.hint:
            lines.append(f"  hint: {d.hint}")
    return "\n".join(lines)


def print_findings(found: Iterable[Diagnostic], console: Console) -> None:
    """The same lines with the severity in colour."""
    from rich.text import Text

    for d in found:
        place = f" ({d.where})" if d.where and d.where not in d.message else ""
        line = Text.assemble((f"{d.severity}[{d.code}]", _STYLE[d.severity]), f": {d.message}{place}")
        console.print(line)
        if d.hint:
            console.print(Text(f"  hint: {d.hint}"))
