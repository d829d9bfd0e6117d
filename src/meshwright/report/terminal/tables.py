"""Lists for a person: presets, chips, machines, and one cluster in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.report.terminal.table import plain_table, print_table

if TYPE_CHECKING:
    from rich.console import Console


def print_models(found: dict[str, Any], console: Console) -> None:
    """Presets with sizes."""
    table = plain_table("name", "family", ">layers", ">parameters", ">active", "also")
    for m in found["models"]:
        table.add_row(
            m["name"], m["family"], str(m["layers"]), units.count_text(m["total"]),
            units.count_text(m["active"]), ", ".join(m["aliases"][:3]),
        )  # fmt: skip
    if not found["models"]:
        console.print("no preset holds these words; a config.json or a model YAML works too")
        return
    print_table(console, table, spare=("also", "family"))


def _number(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{units.number_text(value)}{unit}"


def print_chips(found: dict[str, Any], console: Console, *, sources: bool) -> None:
    """Data sheets: dense peaks, bandwidths per chip and direction."""
    if not found["chips"]:
        console.print("no chip's name, maker, family or alias holds these words; without any, all are listed")
        return
    table = plain_table(
        "name", ">HBM GiB", ">usable", ">HBM GB/s", ">bf16", ">fp8", ">fp4 TFLOP/s", ">domain", ">up GB/s",
        ">out Gbit/s", ">W", "aliases",
    )  # fmt: skip
    for c in found["chips"]:
        table.add_row(
            c["name"], _number(c["hbm_gib"]), _number(c["usable_gib"]), _number(c["hbm_gbytes_s"]),
            _number(c["bf16_tflops"]), _number(c["fp8_tflops"]), _number(c["fp4_tflops"]),
            "-" if c["scale_up_size"] is None else str(c["scale_up_size"]),
            _number(c["scale_up_gbytes_s"]), _number(c["scale_out_gbits_s"]), _number(c["tdp_w"]),
            ", ".join(c["aliases"]),
        )  # fmt: skip
    print_table(console, table, spare=("aliases", "W", "HBM GiB", "HBM GB/s", "fp4 TFLOP/s", "fp8"))
    if sources:
        for c in found["chips"]:
            console.print(f"{c['name']}: {c['source']}")
            if c["notes"]:
                console.print(f"  {c['notes']}")


def print_machines(found: dict[str, Any], console: Console) -> None:
    """Named machines, then every way to spell a cluster."""
    table = plain_table("machine", ">chips", "chip")
    for m in found["machines"]:
        table.add_row(m["name"], str(m["n_chips"]), m["chip"])
    print_table(console, table)
    spellings = plain_table("--on", "means", title="spellings")
    for s in found["spellings"]:
        spellings.add_row(s["example"], s["means"])
    print_table(console, spellings)


def print_cluster(found: dict[str, Any], console: Console) -> None:
    """Every figure of a cluster that an estimate would use."""
    table = plain_table("figure", "value")
    for name, value in found["cluster"].items():
        if value in (None, []) or (name == "n_slices" and value == 1):
            continue
        shown = value
        if isinstance(value, list):  # of a torus: its sides, and whether each closes
            flags = {True: "yes", False: "no"}
            words = [flags[v] if isinstance(v, bool) else str(v) for v in value]
            shown = (", " if any(isinstance(v, bool) for v in value) else "x").join(words)
        table.add_row(name, _number(shown) if isinstance(shown, float) else str(shown))
    print_table(console, table)
    for name, d in found["derived"].items():
        console.print(f"derived {name} {d['value']}: {d['because']}")


def print_calibration(found: dict[str, Any], console: Console) -> None:
    """How well the fitted numbers explain the runs."""
    seen, unseen = found["median_abs_error_percent"], found["left_out_median_abs_error_percent"]
    runs = f"{units.counted(found['runs'], 'run')} of {units.counted(found['sources'], 'source')}"
    console.print(f"fitted to {runs}: median error {units.percent_text(seen / 100)}")
    if unseen is not None:
        error = units.percent_text(unseen / 100)
        console.print(f"each source predicted by a fit without it: median error {error}")
        table = plain_table("source", ">runs", ">median error", ">90 % below", title="each left out in turn")
        for source, errors in found["left_out"].items():
            shares = (errors["median_abs_error_percent"] / 100, errors["p90_abs_error_percent"] / 100)
            table.add_row(source, f"{errors['n']:,}", *(units.percent_text(x) for x in shares))
        print_table(console, table)
    table = plain_table("of", "number", ">factor", ">runs", ">sources", "known by", title="numbers")
    for number in found["fitted"]:
        counts = (f"{number['n_runs']:,}", f"{number['n_sources']:,}")
        table.add_row(number["of"], number["kind"], f"{number['value']:.3f}", *counts, number["provenance"])
    print_table(console, table)
