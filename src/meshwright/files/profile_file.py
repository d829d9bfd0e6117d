"""Profile files: the numbers that a calibration on someone's own runs found, as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from meshwright.errors import Diagnostic, InputError
from meshwright.files.text import fault, read_text, write_text

SCHEMA = "meshwright.profile/1"
TABLES = {"base": 1, "chip_prior": 2, "fitted_base": 1, "chip": 2, "framework": 2, "pair": 2}  # nesting depth


def read_profile(path: Path) -> dict[str, Any]:
    """The numbers of a profile file, as `profiles.load.load` takes them; InputError with every fault."""
    text = read_text(path)
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise InputError(fault(path, "MW806", f"{path} is not valid JSON: {what}", line=line)) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        said = f"{path} is no profile: its schema is not {SCHEMA}"
        raise InputError(fault(path, "MW814", said, hint="meshwright calibrate writes one"))
    faults: list[Diagnostic] = []
    for name, depth in TABLES.items():
        if not isinstance(data.get(name), dict):
            faults.append(fault(path, "MW812", f"{name} is missing from {path}", hint="calibrate again"))
        else:
            faults.extend(_entries(path, name, data[name], depth))
    if faults:
        raise InputError(*faults)
    return {name: data[name] for name in ("about", *TABLES) if name in data}


def _entries(path: Path, name: str, table: dict[str, Any], depth: int) -> list[Diagnostic]:
    """Faults of the numbers in `table`, `depth` levels down."""
    found: list[Diagnostic] = []
    for key, value in table.items():
        here = f"{name}.{key}"
        if not isinstance(value, dict):
            found.append(fault(path, "MW813", f"{here} is {value!r}, not a table"))
        elif depth > 1:
            found.extend(_entries(path, here, value, depth - 1))
        else:
            number = value.get("value")
            plain = isinstance(number, int | float) and not isinstance(number, bool)
            if not plain or not 0 <= float(str(number)) < math.inf:
                found.append(fault(path, "MW813", f"{here}.value is {number!r}, not a number of 0 or more"))
            if value.get("provenance") not in ("datasheet", "measured", "fitted", "assumed"):
                said = f"{here}.provenance is {value.get('provenance')!r}"
                found.append(fault(path, "MW813", said, hint="datasheet, measured, fitted or assumed"))
            elif value["provenance"] == "fitted" and not all(
                isinstance(value.get(n), int) for n in ("n_runs", "n_sources")
            ):
                found.append(fault(path, "MW812", f"{here} is fitted and does not say n_runs and n_sources"))
    return found


def write_profile(path: Path, numbers: dict[str, Any]) -> None:
    """Write the numbers of a calibration, whole or not at all."""
    write_text(path, json.dumps({"schema": SCHEMA, **numbers}, indent=1, allow_nan=False) + "\n")
