"""Published models by name: every row of `models.csv` as a `Model`, with its source.

`models.csv` holds the figures (a source in every row) and `structures.json` what a family's layers are made
of where the table has no column for it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.model.records import Model
from meshwright.model.table import model_from_row

# What hub names add that says how a model was tuned, stored or dated, or who made it, not what shape it has.
_TUNED = re.compile(r"[-_ ](instruct|chat|base|it|hf|fp8|bf16|nvfp4|thinking|\d{4})$", re.IGNORECASE)
_MAKER = re.compile(r"^(meta|nvidia|ai21)[-_ ]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PresetFigures:
    """What is published of a preset beside what its shape counts to, in parameters; None: not published."""

    name: str
    family: str
    layers: int
    total: int
    active: int
    active_no_embedding: int
    published_total: float | None
    published_active: float | None
    mtp_layers: int
    source: str
    published_source: str
    counted_by: str
    assumed: str
    notes: str
    aliases: tuple[str, ...]


def names() -> tuple[str, ...]:
    """Every preset's name, in the table's order."""
    return tuple(_table())


def load(name: str) -> Model:
    """The preset called `name`: case and punctuation ignored, aliases and hub ids understood.

    >>> load("meta-llama/Llama-3.1-8B").name, load("llama 3.1 405b").n_layers
    ('Llama-3.1-8B', 126)
    """
    return _load(resolve(name))


def resolve(name: str) -> str:
    """The table's spelling of `name`; an `InputError` with the nearest names where there is none."""
    if not isinstance(name, str) or not name.strip():
        raise InputError(
            Diagnostic(
                "MW832", f"a model name is text, not {name!r}", hint="list the names: meshwright models"
            )
        )
    index = _index()
    for spelling in _spellings(name):
        found = index.get(_key(spelling), ())
        # Where punctuation alone tells models apart (Mamba-2.8b, Mamba2-8B), it counts.
        found = tuple(name for name in found if _parts(name) == _parts(spelling)) or found
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                Diagnostic(
                    "MW831",
                    f"{name!r} names {len(found)} models",
                    where="model",
                    hint=f"say which: {', '.join(found)}",
                )
            )
    short = name.rsplit("/", 1)[-1]
    near = did_you_mean(short, names())
    raise InputError(
        Diagnostic(
            "MW830",
            f"no model is called {name!r} ({len(names())} presets)",
            where="model",
            hint=near or "list the names: meshwright models; or give the path of a Hugging Face config.json",
        )
    )


def rows() -> tuple[PresetFigures, ...]:
    """Published and counted figures of every preset, with sources."""
    return tuple(_figures(row) for row in _table().values())


def figures(name: str) -> PresetFigures:
    """Published and counted figures of one preset."""
    return _figures(_table()[resolve(name)])


@cache
def _load(name: str) -> Model:
    return model_from_row(_table()[name], traits(name))


def traits(name: str) -> Mapping[str, Any]:
    """Facts of structure of the preset spelled `name`: its family's, overridden by its own."""
    known = _structures()
    family = _table()[name]["family"]
    return MappingProxyType({**known["families"].get(family, {}), **known["models"].get(name, {})})


def _figures(row: Mapping[str, str]) -> PresetFigures:
    def billions(column: str) -> float | None:
        return float(row[column]) * 1e9 if row[column] else None

    return PresetFigures(
        name=row["name"],
        family=row["family"],
        layers=int(row["layers"]),
        total=int(row["params_total_exact"]),
        active=int(row["params_active_exact"]),
        active_no_embedding=int(row["params_active_no_embedding_exact"]),
        published_total=billions("params_total_B_published"),
        published_active=billions("params_active_B_published"),
        mtp_layers=int(row["mtp_layers"] or 0),
        source=row["source"],
        published_source=row["published_source"],
        counted_by=row["exact_by"],
        assumed=row["assumed_fields"],
        notes=row["notes"],
        aliases=_aliases(row),
    )


def _aliases(row: Mapping[str, str]) -> tuple[str, ...]:
    """Spellings that the measured tables use."""
    return tuple(a.strip() for a in row["aliases"].split(";") if a.strip())


@cache
def _table() -> dict[str, dict[str, str]]:
    text = files("meshwright.model").joinpath("models.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(text.splitlines())}


@cache
def _structures() -> dict[str, dict[str, dict[str, Any]]]:
    text = files("meshwright.model").joinpath("structures.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(text)
    return found


@cache
def _index() -> dict[str, tuple[str, ...]]:
    """From spelling key to the presets it can mean: a name beats an alias, two of either are ambiguous."""
    own: dict[str, tuple[str, ...]] = {}
    for name in _table():
        own[_key(name)] = (*own.get(_key(name), ()), name)
    aliases: dict[str, tuple[str, ...]] = {}
    for name, row in _table().items():
        for alias in (*_aliases(row), *traits(name).get("aliases", ())):
            for spelling in (alias, alias.rsplit("/", 1)[-1]):
                before = aliases.get(_key(spelling), ())
                aliases[_key(spelling)] = before if name in before else (*before, name)
    return {**aliases, **own}


def _spellings(name: str) -> list[str]:
    """`name`, then with what hub ids add taken off: owner, maker's prefix, tuning and storage endings."""
    found = [name]
    short = name.rsplit("/", 1)[-1]
    found.append(short)
    while (cut := _TUNED.sub("", found[-1])) != found[-1]:
        found.append(cut)
    return found + [_MAKER.sub("", s) for s in found[1:]]


def _parts(spelling: str) -> str:
    """A spelling with its parts kept apart, whatever stands between them.

    >>> _parts("mamba_2.8b"), _parts("Mamba2 8B")
    ('mamba-2.8b', 'mamba2-8b')
    """
    return re.sub(r"[^a-z0-9.]+", "-", spelling.lower())


def _key(spelling: str) -> str:
    return re.sub(r"[^a-z0-9]", "", spelling.lower())
