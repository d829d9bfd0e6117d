"""What a user may change of a cluster (`--set cluster.FIELD=VALUE`): reading and checking the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import Diagnostic, did_you_mean
from meshwright.hardware.records import Chip
from meshwright.units import GIB

FIELDS = ("scale_up_size", "scale_up_gbytes_s", "scale_out_gbits_s", "oversubscription", "usable_gib")

# Nothing built comes near these: beyond them a unit was mistaken (bits for bytes, bytes for gigabytes).
_RANGES: dict[str, tuple[float, float, str]] = {
    "scale_up_size": (1, 100_000, "chips"),
    "scale_up_gbytes_s": (0.1, 100_000, "GB/s a chip, one way"),
    "scale_out_gbits_s": (0.1, 100_000, "Gbit/s a chip, one way"),
    "oversubscription": (1, 1000, "times"),
}


@dataclass(frozen=True, slots=True)
class Overrides:
    """The user's figures, None where not given. Bandwidths per chip and direction."""

    scale_up_size: int | None = None
    scale_up_bytes_s: float | None = None
    scale_out_bytes_s: float | None = None
    oversubscription: float = 1.0
    usable_bytes: float | None = None


def read(raw: Mapping[str, object], chip: Chip) -> tuple[Overrides, list[Diagnostic]]:
    """The overrides, and every fault found in them (unknown key, not a number, out of range)."""
    faults: list[Diagnostic] = []
    given: dict[str, float] = {}
    for name, value in raw.items():
        field = name.removeprefix("cluster.")
        if field not in FIELDS:
            hint = did_you_mean(field, FIELDS) or f"known: {', '.join(FIELDS)}"
            faults.append(_fault("MW825", field, f"cluster.{field} is not a field", hint))
            continue
        number = _number(value)
        if number is None:
            message = f"cluster.{field}={value} is not a number"
            faults.append(_fault("MW826", field, message, _example(field, chip)))
            continue
        low, high, unit = _RANGES.get(field) or (0.1, chip.hbm_bytes / GIB, f"GiB that a {chip.name} holds")
        if not low <= number <= high:
            message = f"cluster.{field}={number:g} is outside {low:g} to {high:g} ({unit})"
            faults.append(_fault("MW826", field, message, _example(field, chip)))
        elif field == "scale_up_size" and number != int(number):
            message = f"cluster.{field}={number:g} is not a whole number"
            faults.append(_fault("MW826", field, message, _example(field, chip)))
        else:
            given[field] = number
    return (
        Overrides(
            scale_up_size=int(given["scale_up_size"]) if "scale_up_size" in given else None,
            scale_up_bytes_s=_scaled(given.get("scale_up_gbytes_s"), 1e9),
            scale_out_bytes_s=_scaled(given.get("scale_out_gbits_s"), 1e9 / 8),
            oversubscription=given.get("oversubscription", 1.0),
            usable_bytes=_scaled(given.get("usable_gib"), GIB),
        ),
        faults,
    )


def flag(field: str, value: object) -> str:
    """The command-line spelling that sets `field`.

    >>> flag("scale_out_gbits_s", 400)
    '--set cluster.scale_out_gbits_s=400'
    """
    return f"--set cluster.{field}={value}"


def _fault(code: str, field: str, message: str, hint: str) -> Diagnostic:
    return Diagnostic(code, message, where=f"cluster.{field}", hint=hint)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _example(field: str, chip: Chip) -> str:
    """A spelling that works, from the chip's own sheet where it has the figure."""
    sheet: dict[str, float | None] = {
        "scale_up_size": chip.scale_up_size,
        "scale_up_gbytes_s": _scaled(chip.scale_up_bytes_s, 1e-9),
        "scale_out_gbits_s": _scaled(chip.scale_out_bytes_s, 8e-9),
        "usable_gib": round(chip.usable_bytes / GIB, 1),
    }
    usual = {"scale_up_size": 8, "scale_up_gbytes_s": 300, "scale_out_gbits_s": 400, "oversubscription": 2}
    value = sheet.get(field) or usual[field]
    return f"for example {flag(field, f'{value:g}')}"
