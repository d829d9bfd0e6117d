"""Cluster files: a cluster as `--on` spells it, with figures of network, memory or chip replaced."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from meshwright.errors import InputError
from meshwright.files.given import OVERRIDES, ClusterGiven, named
from meshwright.files.schema import GbitsPerS, GbytesPerS, Gib, Strict, Tflops, validate, version_fault
from meshwright.files.text import fault
from meshwright.files.yaml import Document, Key
from meshwright.hardware import cluster as clusters
from meshwright.hardware import slices
from meshwright.hardware.records import Chip, Cluster
from meshwright.units import GIB


class ChipFigures(Strict):
    """Figures of the chip that differ from the named data sheet. Peaks are dense."""

    name: str | None = Field(None, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")
    bf16: Tflops | None = Field(None, ge=1e-3, le=1e6)
    fp8: Tflops | None = Field(None, ge=1e-3, le=1e6)
    fp4: Tflops | None = Field(None, ge=1e-3, le=1e6)
    hbm: Gib | None = Field(None, gt=0, le=1e5)
    hbm_gbytes_s: GbytesPerS | None = Field(None, ge=1e-3, le=1e6)
    tdp_w: float | None = Field(None, gt=0, le=1e6)
    source: str | None = None


class ClusterFile(Strict):
    """A cluster file: `on` is what `--on` takes; the rest replaces figures, each per chip and direction."""

    version: Literal[1] = 1
    on: str = Field(min_length=1)
    scale_up_size: int | None = Field(None, ge=1)
    scale_up_gbytes_s: GbytesPerS | None = Field(None, gt=0)
    scale_out_gbits_s: GbitsPerS | None = Field(None, gt=0)
    oversubscription: float | None = Field(None, ge=1)
    usable_gib: Gib | None = Field(None, gt=0)
    chip: ChipFigures | None = None


def cluster_of(document: Document, at: Key = (), overrides: dict[str, float] | None = None) -> ClusterGiven:
    """The cluster that the mapping at `at` describes; `overrides` (of flags) win over the file's."""
    if not at:
        stale = version_fault(document, "cluster")
        if stale is not None:
            raise InputError(stale)
    record = validate(document, ClusterFile, at)
    stated = {name: getattr(record, name) for name in OVERRIDES if getattr(record, name) is not None}
    figures_given = stated | (overrides or {})
    if record.chip is None:
        return named(record.on, figures_given)
    # Where the file replaces the memory, what a process can use of it is judged by that.
    usable_gib = figures_given.pop("usable_gib", None) if record.chip.hbm is not None else None
    given = named(record.on, figures_given)
    hbm, sheet = record.chip.hbm, given.cluster.chip
    taken = (sheet.hbm_bytes - sheet.usable_bytes) / GIB
    if hbm is not None and hbm <= taken:
        raise InputError(
            fault(
                document.path, "MW813",
                f"chip.hbm is {hbm:g} GiB, of which driver and context take {taken:.3g}: "
                f"{hbm:g} - {taken:.3g} = {hbm - taken:.3g} GiB are left for a process",
                line=document.line((*at, "chip", "hbm")), hint=f"give more than {taken:.3g} GiB",
            )
        )  # fmt: skip
    figures = record.chip.model_dump(exclude_none=True)
    chip = _with_figures(given.cluster.chip, record.chip)
    usable = given.cluster.usable_bytes
    if hbm is not None:
        # What the driver and the context take is kept: it does not grow with the memory.
        usable = chip.usable_bytes
    if hbm is not None and usable_gib is not None:
        if not 0.1 <= usable_gib <= hbm:
            said = f"usable_gib is {usable_gib:g}, outside 0.1 to {hbm:g} (chip.hbm, GiB)"
            hint = f"leave it out for {chip.usable_bytes / GIB:.4g}"
            line = document.line((*at, "usable_gib"))
            raise InputError(fault(document.path, "MW813", said, line=line, hint=hint))
        usable = usable_gib * GIB
        given = replace(given, overrides=given.overrides | {"usable_gib": usable_gib})
    return replace(given, cluster=replace(given.cluster, chip=chip, usable_bytes=usable), chip=figures)


def of_record(cluster: Cluster, overrides: dict[str, float] | None = None) -> ClusterGiven:
    """A cluster that was built in Python, with `overrides` in the units of their names.

    What a file needs to build it again: how `--on` spells it, and the figures in which it or its chip differs
    from the data sheet.
    """
    plain = _spelled(cluster)
    own = _figures(cluster)
    sheet = _figures(plain) if plain is not None else {}
    figures = {name: value for name, value in own.items() if sheet.get(name) != value} | (overrides or {})
    chip = _differing(cluster.chip, plain.chip) if plain is not None else {}
    if overrides:
        facts = tuple(d for d in cluster.derived if d[0] in ("n_chips", "torus"))
        cluster = clusters.build(
            cluster.chip, cluster.n_chips, own | overrides, torus=cluster.torus, n_slices=cluster.n_slices,
            name=cluster.name, derived=facts,
        )  # fmt: skip
    return ClusterGiven(cluster, plain.name if plain is not None else cluster.name, figures, chip)


def _spelled(cluster: Cluster) -> Cluster | None:
    """The same count of the same chip with the figures of its sheet, named as `--on` takes it; None where
    the sheet alone makes no cluster."""
    counted = f"{cluster.n_chips}x{cluster.chip.name}"
    if cluster.torus:
        counted = f"{cluster.n_slices}*{cluster.chip.name}:{slices.spell(cluster.torus)}"
    for text in (cluster.name, counted):
        try:
            found = clusters.parse(text)
        except InputError:
            continue
        same = (found.chip.name, found.n_chips, found.torus) == (
            cluster.chip.name, cluster.n_chips, cluster.torus,
        )  # fmt: skip
        if same:
            return found
    return None


def _figures(cluster: Cluster) -> dict[str, float]:
    """The figures of a cluster that `--set cluster.FIELD` takes, in the units of their names."""
    found = {"usable_gib": cluster.usable_bytes / GIB}
    if not cluster.torus:
        found["scale_up_size"] = cluster.scale_up_size
    if math.isfinite(cluster.scale_up_bytes_s):  # a domain of one chip has no link
        found["scale_up_gbytes_s"] = cluster.scale_up_bytes_s / 1e9
    if cluster.scale_out_bytes_s is not None:
        found["scale_out_gbits_s"] = cluster.scale_out_bytes_s * cluster.oversubscription * 8 / 1e9
    if cluster.oversubscription != 1:
        found["oversubscription"] = cluster.oversubscription
    return found


# Of the chip: field of the file, field of the record, unit.
_CHIP = (
    ("bf16", "bf16_flops", 1e12), ("fp8", "fp8_flops", 1e12), ("fp4", "fp4_flops", 1e12),
    ("hbm", "hbm_bytes", GIB), ("hbm_gbytes_s", "hbm_bytes_s", 1e9), ("tdp_w", "tdp_w", 1.0),
)  # fmt: skip


def _differing(chip: Chip, sheet: Chip) -> dict[str, Any]:
    """The figures of `chip` that are not its sheet's, as a cluster file has them."""
    return {
        name: getattr(chip, target) / unit
        for name, target, unit in _CHIP
        if getattr(chip, target) is not None and getattr(chip, target) != getattr(sheet, target)
    }


def _with_figures(chip: Chip, figures: ChipFigures) -> Chip:
    changed: dict[str, Any] = {}
    for name, target, unit in _CHIP:
        value = getattr(figures, name)
        if value is not None:
            changed[target] = value * unit
    if figures.hbm is not None:
        taken = chip.hbm_bytes - chip.usable_bytes
        changed["usable_bytes"] = figures.hbm * GIB - taken
    if figures.name is not None:
        changed |= {"name": figures.name, "sheet": chip.name}
    return replace(
        chip, **changed, source=figures.source or f"{chip.source}; figures replaced by the cluster file"
    )
