"""Data sheets of chips: `chips.csv` beside this file, one row a chip with its source."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import cast

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.records import Chip, Fabric, LinkKind
from meshwright.units import GIB

_TOPOLOGIES: dict[str, Fabric] = {
    "switched": "switched", "mesh": "mesh", "torus2d": "torus", "torus3d": "torus", "none": "none",
}  # fmt: skip
# Wiring of chips whose sheet does not name it, by the kind of link: NVLink between superchips goes through
# a switch or joins a single pair (the same thing), xGMI joins packages directly, as on the sibling boards.
_WIRING_WHERE_UNREAD: dict[str, Fabric] = {"nvlink": "switched", "xgmi": "mesh", "neuronlink": "switched"}
_HOST = ("host_bytes_s", "host_memory_bytes_s")  # fields that `host_links.csv` gives


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of the CSV `name` that lies beside this module."""
    text = files("meshwright.hardware").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def key(name: str) -> str:
    """A name without case and punctuation: what two spellings of one chip have in common.

    >>> key("TPU v5p") == key("tpu-v5p")
    True
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def table() -> Mapping[str, Chip]:
    """Every chip by its canonical name, in the order of the table."""
    latencies = {row["link_kind"]: row for row in read_table("latencies.csv")}
    hosts = {row["family"]: row for row in read_table("host_links.csv")}
    return {row["name"]: _chip(row, latencies, hosts) for row in read_table("chips.csv")}


def names() -> tuple[str, ...]:
    """Canonical chip names."""
    return tuple(table())


def aliases() -> dict[str, str]:
    """Other spellings and the canonical name each stands for."""
    return {alias: chip.name for chip in table().values() for alias in chip.aliases}


def as_listed(chip: Chip) -> Chip:
    """The chip with its data sheet's own peaks and memory bandwidth, whatever figures were changed since; as
    it is where no table has it.

    >>> from dataclasses import replace
    >>> as_listed(replace(load("a100"), bf16_flops=1e15)).bf16_flops
    312000000000000.0
    """
    listed = table().get(chip.sheet or chip.name, chip)
    own = {name: getattr(listed, name) for name in _RATES}
    return chip if all(getattr(chip, name) == own[name] for name in _RATES) else replace(chip, **own)


_RATES = ("bf16_flops", "fp8_flops", "fp4_flops", "hbm_bytes_s")


def load(name: str) -> Chip:
    """The chip that `name` stands for, whatever its case and punctuation.

    An ambiguous name (`v100`: two memory sizes) or an unknown one raises `InputError` with the candidates.

    >>> load("TPU v5P").name, load("a100").hbm_bytes / 2**30
    ('TPU-v5p', 80.0)
    """
    wanted = key(name)
    found = _spellings().get(wanted)
    if found is not None:
        return table()[found]
    starts = [c for c in names() if wanted and key(c).startswith(wanted)]
    if len(starts) > 1:
        message = f"chip {name!r} is ambiguous: {', '.join(starts)} all begin so"
        raise InputError(Diagnostic("MW828", message, hint=f"write one of {', '.join(starts)}"))
    hint = f"did you mean {starts[0]}?" if starts else did_you_mean(name, [*names(), *aliases()])
    raise InputError(
        Diagnostic(
            "MW827",
            f"chip {name!r} is none of the {len(names())} known ones",
            hint=hint or "`meshwright chips` lists them",
        )
    )


@cache
def _spellings() -> Mapping[str, str]:
    canonical = {key(n): n for n in names()}
    return {key(alias): n for alias, n in aliases().items()} | canonical


def _number(row: Mapping[str, str], column: str) -> float | None:
    return float(row[column]) if row[column] else None


def _scaled(row: Mapping[str, str], column: str, unit: float) -> float | None:
    number = _number(row, column)
    return None if number is None else number * unit


def _latency(
    row: Mapping[str, str], column: str, kind: str, latencies: Mapping[str, Mapping[str, str]]
) -> tuple[float, str]:
    """Seconds, and the source where the chip's own row has none."""
    own = _number(row, column)
    if own is not None:
        return own * 1e-6, ""
    return float(latencies[kind]["latency_us"]) * 1e-6, latencies[kind]["source"]


def _chip(
    row: Mapping[str, str], latencies: Mapping[str, Mapping[str, str]], hosts: Mapping[str, Mapping[str, str]]
) -> Chip:
    """One row in internal units. The maker's memory size counts in GiB (80 GB boards report 80 GiB less a
    little), and what a driver prints goes before it; peaks are dense."""
    up, up_source = _latency(row, "scale_up_latency_us", row["link_kind"], latencies)
    out, out_source = _latency(row, "scale_out_latency_us", "network", latencies)
    host = hosts.get(row["family"]) or hosts.get(row["derives_from"]) or hosts["other"]
    fabric = _TOPOLOGIES[row["topology"]] if row["topology"] else _WIRING_WHERE_UNREAD[row["link_kind"]]
    assumed = [
        ("scale_up_latency_s", up_source),
        ("scale_out_latency_s", out_source),
        ("fabric", "" if row["topology"] else f"wiring usual for {row['link_kind']}"),
        ("usable_bytes", row["usable_basis"] if row["usable_basis"].startswith("assumed") else ""),
        *((f, host["source"] if host["provenance"] == "assumed" else "") for f in _HOST),
        ("compute_units", row["compute_units_source"] if "assumed" in row["compute_units_source"] else ""),
        ("systolic_side", row["systolic_source"] if "assumed" in row["systolic_source"] else ""),
    ]
    domain, node, year = (_number(row, c) for c in ("scale_up_domain_size", "chips_per_node", "release_year"))
    return Chip(
        name=row["name"],
        vendor=row["vendor"],
        family=row["family"],
        hbm_bytes=float(row["hbm_gib_reported"] or row["hbm_gb"]) * GIB,
        usable_bytes=float(row["usable_gib"]) * GIB,
        hbm_bytes_s=float(row["hbm_bw_TBps"]) * 1e12,
        bf16_flops=float(row["bf16_dense_tflops"]) * 1e12,
        fp8_flops=_scaled(row, "fp8_dense_tflops", 1e12),
        fp4_flops=_scaled(row, "fp4_dense_tflops", 1e12),
        fabric=fabric,
        scale_up_size=None if domain is None else int(domain),
        scale_up_bytes_s=_scaled(row, "scale_up_bw_GBps_per_direction_per_chip", 1e9),
        links=int(row["links_per_chip"] or 0),
        link_bytes_s=_scaled(row, "link_bw_GBps_per_direction", 1e9) or 0.0,
        scale_out_bytes_s=_scaled(row, "scale_out_bw_Gbps_per_chip", 1e9 / 8),
        chips_per_node=None if node is None else int(node),
        scale_up_latency_s=up,
        scale_out_latency_s=out,
        compute_units=int(row["compute_units"]),
        systolic_side=int(row["systolic_side"]),
        tdp_w=_number(row, "tdp_w"),
        year=None if year is None else int(year),
        aliases=tuple(a for a in row["aliases"].split(";") if a),
        source=row["source"],
        notes=row["notes"],
        derives_from=row["derives_from"],
        link_kind=cast(LinkKind, row["link_kind"]),
        host_bytes_s=float(host["gbytes_s"]) * 1e9,
        host_memory_bytes_s=float(host["memory_gbytes_s"]) * 1e9,
        in_switch_reduction=row["in_switch_reduction"] == "1",
        assumed=tuple((f, s) for f, s in assumed if s),
        lacks=tuple(row["lacks"].split(";")) if row["lacks"] else (),
    )
