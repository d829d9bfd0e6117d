"""Diagnostics as JSON, apart from the other objects: a fault is reported without loading the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshwright import __version__
from meshwright.errors import Diagnostic


def diagnostics_json(found: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Findings with their code, severity, message, place and hint."""
    return [
        {"code": d.code, "severity": d.severity, "message": d.message, "where": d.where, "hint": d.hint}
        for d in found
    ]


def error_object(found: Iterable[Diagnostic]) -> dict[str, Any]:
    """The object printed instead of a result when the request cannot be read."""
    return {"schema": "meshwright.error/1", "version": __version__, "diagnostics": diagnostics_json(found)}
