"""Scripts of `docs/` as modules, for tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parent.parent / "docs"


def script(name: str) -> ModuleType:
    """`docs/NAME.py`, loaded once."""
    loaded = f"docs_{name}"
    if loaded not in sys.modules:
        spec = importlib.util.spec_from_file_location(loaded, DOCS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[loaded] = module  # its records look themselves up by their module
        spec.loader.exec_module(module)
    return sys.modules[loaded]
