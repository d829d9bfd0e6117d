"""Profiles by framework name, release and chip: habits from one file, numbers from another."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.records import Chip
from meshwright.profiles.records import Framework, Number, Profile

# Which numbers a framework generation and a chip family may carry, six kinds each.
FRAMEWORK_KINDS = ("matrix", "attention", "traffic", "tp_exposed", "dp_exposed", "host")
CHIP_KINDS = ("matrix", "memory", "attention", "scale_up", "scale_out", "low_precision")

_ALIASES = {
    "megatron": "megatron-core", "nemo": "megatron-core", "megatron-bridge": "megatron-core", "fsdp": "pytorch",
    "pytorch-ddp": "pytorch", "t5x/pathways": "t5x", "neuronx-distributed": "neuronx", "metaseq": "megatron-lm",
    "picotron": "nanotron", "hf-trainer": "pytorch", "litgpt": "pytorch", "torchtune": "pytorch", "trl": "pytorch",
    "llama-factory": "pytorch", "ms-swift": "pytorch", "fsdp-qlora": "pytorch", "prime-rl": "pytorch",
    "qwen-finetune": "pytorch", "llama-cookbook": "pytorch", "nemo-rl": "megatron-core", "nanochat": "pytorch",
    "nemo-aligner": "megatron-core", "keras": "maxtext",
}  # fmt: skip


@cache
def habits() -> tuple[dict[str, Any], ...]:
    """Every framework generation as written in `frameworks.json`."""
    return tuple(json.loads(files("meshwright.profiles").joinpath("frameworks.json").read_text("utf-8")))


@cache
def shipped_numbers() -> dict[str, Any]:
    """`numbers.json`: base, chip, framework and pair numbers with their records."""
    loaded: dict[str, Any] = json.loads(files("meshwright.profiles").joinpath("numbers.json").read_text("utf-8"))
    return loaded


def names() -> tuple[str, ...]:
    """Framework names that `load` knows, without generations."""
    return tuple(dict.fromkeys(h["name"] for h in habits()))


def generations(framework: str) -> tuple[str, ...]:
    """Generations of a framework, newest first."""
    return tuple(h["generation"] for h in habits() if h["name"] == framework)


def _pick(framework: str, chip: Chip, release: str) -> dict[str, Any]:
    text = framework.strip().lower().replace("_", "-").replace(" ", "-")
    name, _, generation = text.partition("@")
    name = _ALIASES.get(name, name)
    own = [h for h in habits() if h["name"] == name]
    if not own:
        raise InputError(
            Diagnostic(
                "MW160",
                f"no framework {framework!r}",
                where="framework",
                hint=did_you_mean(name, names()) or f"one of {', '.join(names())}",
            )
        )
    if generation:
        for h in own:
            if h["generation"] == generation:
                return h
        raise InputError(
            Diagnostic(
                "MW161",
                f"{name} has no generation {generation!r}",
                where="framework",
                hint=f"one of {', '.join(generations(name))}",
            )
        )
    for h in own:
        if release and any(release.startswith(prefix) for prefix in h["releases"]):
            return h
    for h in own:
        if chip.family in h["families"]:
            return h
    return own[0]


def framework_record(written: dict[str, Any]) -> Framework:
    """One entry of `frameworks.json` as a record."""
    known = {f.name for f in fields(Framework)}
    picked = {k: tuple(v) if isinstance(v, list) else v for k, v in written.items() if k in known}
    return Framework(**picked)


def compose(framework: Framework, like: str, family: str, numbers: dict[str, Any]) -> dict[str, Number]:
    """base * framework * chip * pair of every kind; a generation without runs borrows from `like`."""
    own = f"{framework.name}@{framework.generation}"
    composed: dict[str, Number] = {}
    for kind, base in numbers["base"].items():
        value = base["value"]
        parts = [base]
        for table, key, spare in (
            ("framework", own, like),
            ("chip", family, ""),
            ("pair", f"{own}|{family}", ""),
        ):
            entry = numbers[table].get(key, {}).get(kind) or numbers[table].get(spare, {}).get(kind)
            if entry:
                value = value * entry["value"]
                parts.append(entry)
        last = parts[-1]
        composed[kind] = Number(
            value,
            last["provenance"],
            max(int(p.get("n_runs", 0)) for p in parts),
            max(int(p.get("n_sources", 0)) for p in parts),
            "; ".join(dict.fromkeys(p.get("source", "") for p in parts if p.get("source"))),
        )
    return composed


def load(
    framework: str | None, chip: Chip, release: str = "", numbers: dict[str, Any] | None = None
) -> Profile:
    """The profile of `framework` (default: megatron-core on GPUs, maxtext on TPUs) on `chip`.

    `framework` may name a generation (`megatron-core@bridge-26.06`); else `release` picks it, else the chip
    (where a framework has a generation for old chips), else the newest. `numbers`: a calibration to use
    instead of the shipped one. Raises InputError with the known names when there is no such framework.
    """
    written = _pick(framework or ("maxtext" if chip.is_tpu else "megatron-core"), chip, release)
    record = framework_record(written)
    table = numbers or shipped_numbers()
    return Profile(record, chip.family, compose(record, written["like"], chip.family, table))
