"""Exceptions for callers and diagnostics for plans: what is wrong, the arithmetic, and a way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeVar

Read = TypeVar("Read")
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: a stable code, what is wrong with its arithmetic, where the value came from, a hint."""

    code: str
    message: str
    severity: Severity = "error"
    where: str = ""
    hint: str = ""


class MeshwrightError(Exception):
    """Root of every exception that Meshwright raises on purpose."""


class InputError(MeshwrightError):
    """The request cannot be read or is contradictory. Carries every fault found, not only the first."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = diagnostics
        super().__init__("; ".join(d.message for d in diagnostics))


class Faults:
    """Faults of the parts of something that is read, to be raised all at once."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def part(self, read: Callable[[], Read]) -> Read | None:
        """What `read` returns; None where it raises InputError, whose faults are kept."""
        try:
            return read()
        except InputError as error:
            self.found.extend(error.diagnostics)
            return None

    def raise_any(self) -> None:
        """Raise what was found, each once."""
        if self.found:
            raise InputError(*dict.fromkeys(self.found))


def did_you_mean(name: str, known: Sequence[str], n: int = 3) -> str:
    """A hint naming the closest known spellings, or the way to list them when none is close.

    >>> did_you_mean("lama", ["llama", "mixtral"])
    'did you mean llama?'
    """
    close = get_close_matches(name.lower(), [k.lower() for k in known], n=n, cutoff=0.6)
    spelled = {k.lower(): k for k in known}
    return f"did you mean {' or '.join(spelled[c] for c in close)}?" if close else ""
