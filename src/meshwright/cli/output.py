"""stdout for data, stderr for narration: JSON, rich consoles and progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.errors import Diagnostic

WIDE = 140  # columns when stdout is no terminal: tables in files and pipes should not fold at 80


def print_json(value: dict[str, Any]) -> None:
    """One object on stdout; a value that JSON lacks is our bug, not output."""
    import json

    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a terminal in another encoding, or half a surrogate pair in a name
        text = json.dumps(value, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def console() -> Console:
    """The console of stdout: plain text in pipes and where NO_COLOR is set."""
    from rich.console import Console

    class Piped(Console):
        """A console that lets a closed pipe be handled where every end of the command is."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    terminal = sys.stdout.isatty()
    return Piped(
        width=None if terminal else WIDE,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,  # a model may be called [bold]
        emoji=False,
        soft_wrap=not terminal,
    )


def say(text: str) -> None:
    """One line of narration; a closed or full stderr is no reason to fail, nor to mix it with the data."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # What is left in the buffer goes nowhere, or the interpreter would complain of it at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def warn(found: Sequence[Diagnostic], most: int = 20) -> None:
    """Findings that stop nothing, as narration; at most `most` of them."""
    from meshwright.report.terminal.findings import findings_text

    say(findings_text(found[:most]))
    if len(found) > most:
        say(f"{len(found) - most:,} more warnings")


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr while stderr is a terminal, else a line now and then of what takes long.

    The callback takes (done, total). `quiet` leaves the lines away, for a program that reads both streams.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda *_: None) if quiet else _lines(title)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(done: float, total: float | None = None, *_: Any) -> None:
            bar.update(task, completed=done, total=total)

        yield update


FIRST_S, EVERY_S = 1.0, 10.0  # when a line of progress comes, and when the next ones do


def _lines(title: str, now: Callable[[], float] = monotonic) -> Callable[..., None]:
    """Progress for a pipe or a log: nothing of what is done at once, then a line every few seconds."""
    began = now()
    due = began + FIRST_S

    def update(done: float, total: float | None = None, *_: Any) -> None:
        nonlocal due
        at = now()
        if at < due:
            return
        due = at + EVERY_S
        share = f" {done / total:.0%}" if total else ""
        say(f"{title}{share}, {at - began:.0f} s so far")

    return update
