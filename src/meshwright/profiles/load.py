"""Profiles by framework name, release and chip: habits from one file, numbers from another."""

from __future__ import annotations

import csv
import json
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.records import Chip
from meshwright.profiles.records import MOST_OF_PEAK, Framework, Number, Profile

# Which numbers a framework generation and a chip family may carry.
FRAMEWORK_KINDS = ("matrix", "attention", "traffic", "tp_exposed", "dp_exposed", "gather_exposed", "host")
CHIP_KINDS = ("matrix", "memory", "attention", "scale_up", "scale_out", "low_precision")

# A chip that no prior and no family covers.
_NO_PRIOR = {
    kind: {"value": value, "provenance": "assumed", "source": "typical of the chips that were measured"}
    for kind, value in (("matrix", 0.7), ("memory", 0.8), ("attention", 0.45), ("scale_up", 0.7),
                        ("scale_out", 0.7), ("low_precision", 0.9))
}  # fmt: skip

# Kinds that are a share of a data sheet's figure.
SHARES = ("matrix", "memory", "attention", "scale_up", "scale_out")

_ALIASES = {
    "megatron": "megatron-core", "nemo": "megatron-core", "megatron-bridge": "megatron-core",
    "nemo-rl": "megatron-core", "nemo-aligner": "megatron-core", "metaseq": "megatron-lm",
    "picotron": "nanotron", "t5x/pathways": "t5x", "neuronx-distributed": "neuronx", "keras": "maxtext",
    "fsdp": "pytorch", "pytorch-ddp": "pytorch", "nanochat": "pytorch", "peft": "hf-trainer",
    "accelerate": "hf-trainer", "lit-gpt": "litgpt", "swift": "ms-swift", "llamafactory": "llama-factory",
}  # fmt: skip


@cache
def habits() -> tuple[dict[str, Any], ...]:
    """Every framework generation as written in `frameworks.json`."""
    return tuple(json.loads(files("meshwright.profiles").joinpath("frameworks.json").read_text("utf-8")))


@cache
def habit_shares() -> dict[tuple[str, str, str], dict[str, Any]]:
    """What a habit makes of a number, by (kind, habit, family of chips or ""): `habit_shares.csv`.

    Attention: the share of a chip family's best kernel that an older one reaches; FlashAttention 1 and 2 were
    written for Ampere and leave the asynchronous units of newer chips idle. Traffic: what is left of an eager
    program's element-wise passes where a compiler fuses neighbours. 1 where not listed.
    """
    text = files("meshwright.profiles").joinpath("habit_shares.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["kind"], row["habit"], row["family"]): {**row, "value": float(row["share"])} for row in rows}


def _compiled() -> dict[str, Any]:
    """What a compiler makes of element-wise traffic."""
    return habit_shares()["traffic", "compiled", ""]


@cache
def shipped_numbers() -> dict[str, Any]:
    """`numbers.json`: base, chip, framework and pair numbers with their records."""
    loaded: dict[str, Any] = json.loads(
        files("meshwright.profiles").joinpath("numbers.json").read_text("utf-8")
    )
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
                "MW850",
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
                "MW851",
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
    picked: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in written.items() if k in known
    }
    return Framework(**picked)


def lineage(generation: str) -> tuple[str, ...]:
    """The generation (`name@generation`) and those it descends from, oldest last."""
    like = {f"{h['name']}@{h['generation']}": h["like"] for h in habits()}
    chain = [generation]
    while like.get(chain[-1]):
        chain.append(like[chain[-1]])
    return tuple(chain)


def compose(framework: Framework, chip: Chip, numbers: dict[str, Any]) -> dict[str, Number]:
    """Every kind as the product of its factors: base, chip prior, and what was fitted.

    A generation multiplies onto the one it descends from, a chip onto the family it derives from; a chip
    without a prior of its own takes that family's.
    """
    own = f"{framework.name}@{framework.generation}"
    families = (chip.family, chip.derives_from) if chip.derives_from else (chip.family,)
    priors = [numbers["chip_prior"][f] for f in families if f in numbers["chip_prior"]]
    prior: dict[str, Any] = priors[0] if priors else {}
    composed: dict[str, Number] = {}
    for kind, base in numbers["base"].items():
        of_chip = prior.get(kind, _NO_PRIOR.get(kind))
        on_chip = [numbers["chip"].get(f, {}).get(kind) for f in families]
        of_pair = numbers["pair"].get(f"{own}|{chip.family}", {}).get(kind)
        on_chip.append(of_pair)
        of_framework = [numbers["framework"].get(g, {}).get(kind) for g in lineage(own)]
        of_kernel = habit_shares().get(("attention", framework.attention_kernel, chip.family))
        of_habit = {"attention": of_kernel, "traffic": _compiled() if framework.compiled else None}.get(kind)
        found = [base, of_chip, numbers["fitted_base"].get(kind), *on_chip, *of_framework, of_habit]
        parts = [p for p in found if p]
        value = 1.0
        for part in parts:
            value *= part["value"]
        if kind in SHARES:
            value = min(value, MOST_OF_PEAK)
        fitted = [p for p in parts if p["provenance"] == "fitted"]
        # What other chips' runs say of the framework says nothing of a chip whose own share is a guess.
        guessed = of_chip is not None and of_chip["provenance"] == "assumed" and not any(on_chip)
        if of_habit is not None and of_habit["provenance"] == "assumed":
            # Nor do other programs' runs of what a compiler saves, nor other chips' of an old kernel's share.
            guessed = guessed or not any([of_pair] if kind == "attention" else [of_pair, *of_framework])
        composed[kind] = Number(
            value,
            "assumed" if guessed else "fitted" if fitted else parts[-1]["provenance"],
            min((int(p["n_runs"]) for p in fitted), default=0),
            min((int(p["n_sources"]) for p in fitted), default=0),
            "; ".join(dict.fromkeys(p.get("source", "") for p in parts if p.get("source"))),
        )
    low = composed["low_precision"]
    most = MOST_OF_PEAK / composed["matrix"].value
    composed["low_precision"] = replace(low, value=min(low.value, most))
    return composed


def when_compiled(traffic: Number) -> Number:
    """Element-wise traffic of an eager program once a compiler fuses neighbouring passes."""
    return replace(traffic, value=traffic.value * _compiled()["value"])


def load(
    framework: str | None, chip: Chip, release: str = "", numbers: dict[str, Any] | None = None
) -> Profile:
    """The profile of `framework` (default: megatron-core on GPUs, maxtext on TPUs) on `chip`.

    `framework` may name a generation (`megatron-core@bridge-26.06`); else `release` picks it, else the chip
    (where a framework has a generation for old chips), else the newest. `numbers`: a calibration to use
    instead of the shipped one. Raises InputError with the known names when there is no such framework.
    """
    usual = "maxtext" if chip.is_tpu else "megatron-core"
    written = _pick(usual if framework is None else framework, chip, release)
    record = framework_record(written)
    table = numbers or shipped_numbers()
    return Profile(record, chip.family, compose(record, chip, table))
