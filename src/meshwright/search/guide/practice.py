"""Common practice, stated: chips for a model, tokens of a step, and the jobs that the guide is fitted to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from typing import Any

from meshwright import units
from meshwright.hardware import chips
from meshwright.hardware.cluster import build
from meshwright.hardware.records import Chip
from meshwright.model import presets
from meshwright.model.params import active_params, total_params
from meshwright.model.records import Model
from meshwright.profiles import load as profiles
from meshwright.search.bounds import Request
from meshwright.work import Work

_AT_DEPTH = " at "  # "Kimi-K2 at 122 layers": a preset with so many


@cache
def practice() -> dict[str, Any]:
    """The rules and the jobs with their sources, as `practice.json` has them."""
    found: dict[str, Any] = json.loads(
        files(__package__).joinpath("practice.json").read_text(encoding="utf-8")
    )
    return found


def tokens_per_step(model: Model) -> int:
    """Tokens that a step of pre-training usually has, by total parameters.

    >>> tokens_per_step(presets.load("llama-3.1-405b"))
    16777216
    """
    steps = practice()["tokens_per_step"]["steps"]
    return int(next(tokens for most, tokens in steps if most is None or total_params(model) <= most))


def swept_tokens_per_step() -> int:
    """Tokens of a step at every point of a sweep over lengths that names no batch.

    >>> swept_tokens_per_step()
    4194304
    """
    return int(practice()["swept_tokens_per_step"]["tokens"])


def n_chips(model: Model, chip: Chip) -> int:
    """Chips that a model is usually trained on: 6 FLOPs a parameter in use and token, at a usual
    utilisation, in a usual time, to the nearest power of two.

    >>> n_chips(presets.load("llama-3.1-405b"), chips.load("h100"))
    16384
    """
    rule = practice()["chips"]
    flops = 6.0 * active_params(model) * rule["total_tokens"]
    seconds = rule["days"] * units.SECONDS_PER_DAY
    return int(2 ** max(round(log2(flops / (rule["utilisation"] * chip.bf16_flops * seconds))), 0))


@dataclass(frozen=True, slots=True)
class Job:
    """A training job of the guide; `model` may be a preset at another depth."""

    model: str
    cluster: int  # its place in the list of clusters
    seq_len: int

    def __str__(self) -> str:
        return f"{self.model}, {practice()['clusters'][self.cluster]['name']}, {self.seq_len} tokens"

    def loaded(self) -> Model:
        """The model itself."""
        name, _, depth = self.model.partition(_AT_DEPTH)
        model = presets.load(name)
        return model.with_layers(int(depth.split()[0])) if depth else model

    def request(self) -> Request:
        """What is planned: chips and tokens of a step by the rules."""
        machine, model = practice()["clusters"][self.cluster], self.loaded()
        chip = chips.load(machine["chip"])
        figures = {k: v for k, v in machine.items() if k not in ("name", "chip")}
        cluster = build(chip, n_chips(model, chip), figures)
        work = Work(self.seq_len, max(tokens_per_step(model) // self.seq_len, 1))
        return Request(model, cluster, work, profiles.load(None, chip, "", None))


def jobs() -> Iterator[Job]:
    """Every model on every cluster at every length."""
    listed = practice()
    for model in listed["models"]:
        for place in range(len(listed["clusters"])):
            for seq_len in listed["lengths"]:
                yield Job(model, place, seq_len)
