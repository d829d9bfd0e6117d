"""Meshwright plans, explains, checks and validates hybrid-parallel training of large language models.

The public face is small and loaded on first use, so that `import meshwright` costs nothing:
`plan`, `guide`, `estimate`, `explain`, `check`, `compare`, `sweep`, `improve`, `largest`, `ranks`, `report`,
`save`, `validate`, and the nouns `Model`, `Cluster`, `Work`, `Strategy`, `Plan`, `Estimate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.api import (
        Cluster,
        Estimate,
        Model,
        Plan,
        Strategy,
        Work,
        check,
        compare,
        estimate,
        explain,
        guide,
        improve,
        largest,
        plan,
        ranks,
        save,
        sweep,
        validate,
    )
    from meshwright.errors import Diagnostic, InputError, MeshwrightError
    from meshwright.reporting import report

__version__ = "0.1.0"

_ERRORS = ("Diagnostic", "InputError", "MeshwrightError")

__all__ = [
    "Cluster",
    "Diagnostic",
    "Estimate",
    "InputError",
    "MeshwrightError",
    "Model",
    "Plan",
    "Strategy",
    "Work",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "guide",
    "improve",
    "largest",
    "plan",
    "ranks",
    "report",
    "save",
    "sweep",
    "validate",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    if name == "report":  # a package that can be called: the verb of that name
        return importlib.import_module("meshwright.report")
    room = "errors" if name in _ERRORS else "api"
    return getattr(importlib.import_module(f"meshwright.{room}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
