"""What Meshwright knows, as JSON objects: presets, chips, machines, and one cluster in full."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshwright.hardware.records import Chip, Cluster
from meshwright.report.as_json import cluster_json, envelope, plain
from meshwright.units import GIB
from meshwright.work import PRECISIONS

if TYPE_CHECKING:
    from meshwright.calibrate.fit import Fitted

SPELLINGS = (
    ("2048xh800", "2,048 chips of a kind"),
    ("16xdgx-h100", "16 machines by name"),
    ("tpu-v5p:8x8x8", "one torus slice"),
    ("2*tpu-v5p:8x8x16", "slices over the data-centre network"),
    ("512xtpu-v5p", "the most cubic legal slice of 512 chips"),
    ("cluster.yaml", "a cluster file: on, scale_up_size, scale_up_gbytes_s, scale_out_gbits_s, ..."),
)


def _matches(words: tuple[str, ...], *texts: str) -> bool:
    haystack = " ".join(texts).lower()
    return all(w.lower() in haystack for w in words)


def models(words: tuple[str, ...]) -> dict[str, Any]:
    """Presets whose name, family or alias holds every word."""
    from meshwright.model import presets

    listed = [r for r in presets.rows() if _matches(words, r.name, r.family, *r.aliases)]
    return envelope("models") | {"models": plain(listed)}


def chips(words: tuple[str, ...]) -> dict[str, Any]:
    """Chips whose name, maker, family or alias holds every word."""
    from meshwright.hardware import chips as sheets

    listed = [sheets.load(name) for name in sheets.names()]
    kept = [c for c in listed if _matches(words, c.name, c.vendor, c.family, *c.aliases)]
    return envelope("chips") | {"chips": [chip_json(c) for c in kept]}


def chip_json(chip: Chip) -> dict[str, Any]:
    """A data sheet in the units people compare; bandwidths per chip and direction, peaks dense."""

    def scaled(value: float | None, unit: float) -> float | None:
        return None if value is None else value / unit

    shown: dict[str, Any] = plain(
        {
            "name": chip.name,
            "vendor": chip.vendor,
            "family": chip.family,
            "aliases": list(chip.aliases),
            "year": chip.year,
            "hbm_gib": chip.hbm_bytes / GIB,
            "usable_gib": chip.usable_bytes / GIB,
            "hbm_gbytes_s": chip.hbm_bytes_s / 1e9,
            "bf16_tflops": chip.bf16_flops / 1e12,
            "fp8_tflops": scaled(chip.fp8_flops, 1e12),
            "fp4_tflops": scaled(chip.fp4_flops, 1e12),
            "precisions": list(chip.precisions),
            "fabric": chip.fabric,
            "scale_up_size": chip.scale_up_size,
            "scale_up_gbytes_s": scaled(chip.scale_up_bytes_s, 1e9),
            "scale_out_gbits_s": scaled(chip.scale_out_bytes_s, 1e9 / 8),
            "chips_per_node": chip.chips_per_node,
            "tdp_w": chip.tdp_w,
            "source": chip.source,
            "notes": chip.notes,
        }
    )
    return shown


def machines() -> dict[str, Any]:
    """Named machines and the ways to spell a cluster."""
    from meshwright.hardware import cluster as clusters

    listed = [
        {"name": m.name, "chip": m.chip, "n_chips": m.n_chips, "source": m.source}
        for m in clusters.machines().values()
    ]
    spellings = [{"example": example, "means": means} for example, means in SPELLINGS]
    return envelope("clusters") | {"machines": listed, "spellings": spellings}


def cluster(found: Cluster) -> dict[str, Any]:
    """One cluster with every figure an estimate would use, and what was derived for it."""
    derived = {field: {"value": value, "because": because} for field, value, because in found.derived}
    return envelope("clusters", cluster=found) | {"chip": chip_json(found.chip), "derived": derived}


def calibration(fitted: Fitted, n_runs: int) -> dict[str, Any]:
    """How well fitted numbers explain the runs they saw, and those of each source they did not see."""

    def median(residuals: Sequence[tuple[str, str, float]]) -> float | None:
        return 100.0 * statistics.median(abs(math.expm1(r)) for *_, r in residuals) if residuals else None

    sources = sorted({source for _, source, _ in fitted.residuals})
    return envelope("calibrate") | {
        "runs": n_runs,
        "sources": len(sources),
        "median_abs_error_percent": median(fitted.residuals),
        "left_out_median_abs_error_percent": median(fitted.left_out) if len(sources) > 1 else None,
        "left_out": {source: errors for source in sources if (errors := left_out_errors(fitted, source))},
        "fitted": fitted_numbers(fitted.numbers),
        "numbers": plain(fitted.numbers),
        "rows": [
            {"id": id_, "source": source, "error_percent": 100.0 * math.expm1(r)}
            for id_, source, r in fitted.residuals
        ],
    }


def left_out_errors(fitted: Fitted, source: str) -> dict[str, Any]:
    """Errors of a source's runs, predicted by a fit that never saw them."""
    errors = sorted(100.0 * abs(math.expm1(r)) for _, of, r in fitted.left_out if of == source)
    if not errors:
        return {}
    last = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
    return {
        "n": len(errors),
        "median_abs_error_percent": statistics.median(errors),
        "p90_abs_error_percent": last,
    }


def fitted_numbers(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """Every fitted factor with its record: common ones, then by framework, chip and pair."""
    rows = [("all", kind, entry) for kind, entry in numbers["fitted_base"].items()]
    for table in ("framework", "chip", "pair"):
        rows += [(of, kind, entry) for of, group in numbers[table].items() for kind, entry in group.items()]
    return [{"of": of, "kind": kind, **entry} for of, kind, entry in rows]


def model_names() -> tuple[str, ...]:
    """Preset names."""
    from meshwright.model import presets

    return presets.names()


def chip_spellings() -> tuple[str, ...]:
    """Chip names and aliases in lower case."""
    from meshwright.hardware import chips as sheets

    return tuple(sorted({n.lower() for n in (*sheets.names(), *sheets.aliases())}))


__all__ = [
    "chip_json",
    "chip_spellings",
    "chips",
    "cluster",
    "cluster_json",
    "machines",
    "model_names",
    "models",
]


def words(flag: str) -> tuple[str, ...]:
    """Words that `flag` takes, for shell completion; empty where it takes numbers."""
    if flag == "--schedule":
        from meshwright.cost import schedule

        return tuple(schedule.names())
    if flag == "--target":
        from meshwright.strategy import targets

        return targets.names()
    if flag == "--framework":
        from meshwright.profiles import load

        return load.names()
    return PRECISIONS if flag == "--precision" else ()
