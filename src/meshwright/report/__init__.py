"""What results look like: records, JSON, and text for a terminal; `meshwright.report(...)` makes a page."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A package that can be called: its name is also that of the public verb, which an attribute of
    `meshwright` could not be, as importing the package replaces it."""

    def __call__(self, *args: Any, **request: Any) -> Any:
        """`meshwright.reporting.report`."""
        return importlib.import_module("meshwright.reporting").report(*args, **request)


sys.modules[__name__].__class__ = _Room
