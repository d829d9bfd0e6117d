"""Model files: a shape written out, or a preset or config.json with another depth.

The schema of every block part is made from its record in `model.records`, so a field added there can be
written here at once; the part is named by its `type` key.
"""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model, model_validator

from meshwright.errors import Diagnostic, InputError
from meshwright.files.schema import Strict, validate, version_fault
from meshwright.files.text import fault, read_text
from meshwright.files.yaml import Document, Key
from meshwright.model.records import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Model,
    Moe,
    ShortConv,
)
from meshwright.units import counted

MOST_LAYERS = 10_000  # as in config.json
MOST_SIZE = 2**30  # the longest context and the largest vocabulary are far below

_MIXERS: dict[str, type] = {
    "attention": Attention,
    "latent_attention": LatentAttention,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "linear_attention": LinearAttention,
    "short_conv": ShortConv,
}
_FFNS: dict[str, type] = {"mlp": Mlp, "moe": Moe}
_RECORDS = _MIXERS | _FFNS
_TYPE_OF = {record: name for name, record in _RECORDS.items()}


def _fields(record: type, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of dataclass `record` as pydantic wants them; sizes without a default are at least 1."""
    hints = typing.get_type_hints(record)
    out: dict[str, Any] = {}
    for f in dataclasses.fields(record):
        if f.name in but:
            continue
        default = ... if f.default is dataclasses.MISSING else f.default
        bounds: dict[str, Any] = {}
        if hints[f.name] in (int, int | None):
            bounds |= {"ge": 1 if default is ... else 0, "le": MOST_SIZE}
        out[f.name] = (hints[f.name], Field(default, **bounds))
    return out


def _part(name: str, record: type) -> type[BaseModel]:
    """The strict file record of a block part: its dataclass fields and the `type` that names it."""
    fields: dict[str, Any] = {"type": (Literal[name], ...), **_fields(record)}
    return create_model(f"{record.__name__}Part", __base__=Strict, **fields)


@cache
def _block_schema() -> type[BaseModel]:
    """The strict record of one layer kind."""

    def union(records: dict[str, type]) -> Any:
        members = tuple(_part(name, record) for name, record in records.items())
        return Annotated[typing.Union[members], Field(discriminator="type")] | None  # noqa: UP007

    return create_model(
        "BlockPart",
        __base__=Strict,
        mixer=(union(_MIXERS), None),
        ffn=(union(_FFNS), None),
        **_fields(Block, but=("mixer", "ffn")),
    )


@cache
def _shape() -> type[BaseModel]:
    """The strict record of a whole model shape."""
    block = _block_schema()
    made: Any = {
        "version": (Literal[1], 1),
        "n_layers": (int | None, Field(None, ge=1, le=MOST_LAYERS)),
        "blocks": (list[block], Field(min_length=1)),  # type: ignore[valid-type]
        "pattern": (list[int] | None, Field(None, max_length=MOST_LAYERS)),
        "shared_block": (block | None, None),
        "shared_at": (list[int], []),
    }
    return create_model("ModelShape", __base__=Strict, **made, **_fields(Model, but=tuple(made)))


class FromPreset(Strict):
    """A preset by name, or another depth of it."""

    version: Literal[1] = 1
    preset: str = Field(min_length=1)
    n_layers: int | None = Field(None, ge=1, le=MOST_LAYERS)


class FromConfig(Strict):
    """A Hugging Face config.json beside the file, or another depth of it."""

    version: Literal[1] = 1
    config: str = Field(min_length=1)
    n_layers: int | None = Field(None, ge=1, le=MOST_LAYERS)

    @model_validator(mode="after")
    def _named(self) -> FromConfig:
        if not self.config.endswith(".json"):
            raise ValueError(f"config names a Hugging Face config.json, not {self.config!r}")
        return self


def model_of(document: Document, at: Key = ()) -> Model:
    """The model that the mapping at `at` describes; InputError with every fault."""
    value: Any = document.data
    for step in at:
        value = value[step]
    if not at:
        stale = version_fault(document, "model")
        if stale is not None:
            raise InputError(stale)
    if "preset" in value:
        from meshwright.model import presets

        named = validate(document, FromPreset, at)
        return _at_depth(presets.load(named.preset), named.n_layers)
    if "config" in value:
        from meshwright.model import config_json

        found = validate(document, FromConfig, at)
        path = document.path.parent / found.config
        read_text(path)  # a missing, empty, binary or huge file is named for what it is
        return _at_depth(config_json.read(path), found.n_layers)
    return _built(document, at, validate(document, _shape(), at))


def _at_depth(model: Model, n_layers: int | None) -> Model:
    return model if n_layers is None or n_layers == model.n_layers else model.with_layers(n_layers)


def _built(document: Document, at: Key, shape: BaseModel) -> Model:
    """The record from a shape whose types are right; what its figures contradict is reported here."""
    s: Any = shape
    faults: list[Diagnostic] = []
    path: Path = document.path

    def wrong(key: str, message: str, hint: str = "") -> None:
        faults.append(fault(path, "MW813", message, line=document.line((*at, key)), hint=hint))

    if not s.name.isprintable():
        wrong("name", f"name is {s.name!r}, with characters that do not print", "write a plain name")
    if s.pattern is None and s.n_layers is None:
        wrong("blocks", "the model has neither n_layers nor a pattern", "add n_layers: N")
    if s.pattern is None and len(s.blocks) > 1:
        wrong(
            "blocks",
            f"{len(s.blocks)} kinds of block and no pattern that says which layer is which",
            "add pattern: [0, 1, ...]",
        )
    pattern = list(s.pattern if s.pattern is not None else [0])
    for i in sorted({i for i in pattern if not 0 <= i < len(s.blocks)}):
        wrong("pattern", f"pattern names block {i}, and there are {len(s.blocks)} (0 to {len(s.blocks) - 1})")
    if not pattern:
        wrong("pattern", "pattern is empty")
    depth = s.n_layers or len(pattern)
    for i in [i for i in s.shared_at if not 0 <= i < depth]:
        wrong("shared_at", f"shared_at names layer {i}, and there are {depth} (0 to {depth - 1})")
    for n, block in enumerate(s.blocks):
        mixer = block.mixer
        if mixer is not None and mixer.type == "attention" and mixer.n_heads % mixer.n_kv_heads:
            wrong(
                "blocks",
                f"block {n}: {counted(mixer.n_heads, 'query head')} over "
                f"{counted(mixer.n_kv_heads, 'key/value head')} "
                f"is {mixer.n_heads / mixer.n_kv_heads:.2f}, not whole",
            )
        if block.ffn is not None and block.ffn.type == "moe" and block.ffn.top_k > block.ffn.n_experts:
            wrong(
                "blocks",
                f"block {n}: top_k {block.ffn.top_k} is more than its "
                f"{counted(block.ffn.n_experts, 'expert')}",
            )
        if mixer is None and block.ffn is None:
            wrong("blocks", f"block {n} has neither a mixer nor a ffn")
    if faults:
        raise InputError(*faults)
    kept = {f.name: getattr(s, f.name) for f in dataclasses.fields(Model)}
    kept |= {
        "blocks": tuple(_block(b) for b in s.blocks),
        "pattern": tuple(pattern[i % len(pattern)] for i in range(depth)),
        "shared_block": None if s.shared_block is None else _block(s.shared_block),
        "shared_at": tuple(s.shared_at),
    }
    return Model(**kept)


def _block(part: Any) -> Block:
    def record(inner: Any) -> Any:
        if inner is None:
            return None
        return _RECORDS[inner.type](**{k: v for k, v in inner.model_dump().items() if k != "type"})

    kept = {f.name: getattr(part, f.name) for f in dataclasses.fields(Block)}
    return Block(**(kept | {"mixer": record(part.mixer), "ffn": record(part.ffn)}))


def model_mapping(model: Model) -> dict[str, Any]:
    """`model` as the mapping that `model_of` reads back to an equal record; defaults are left out."""
    special = ("blocks", "pattern", "shared_block", "shared_at")
    plain = {k: v for k, v in _stated(model).items() if k not in special}
    out: dict[str, Any] = plain | {
        "n_layers": model.n_layers,
        "blocks": [_block_mapping(b) for b in model.blocks],
    }
    if len(model.blocks) > 1:
        out["pattern"] = _period(model.pattern)
    if model.shared_block is not None:
        out["shared_block"] = _block_mapping(model.shared_block)
        out["shared_at"] = list(model.shared_at)
    return out


def _period(pattern: tuple[int, ...]) -> list[int]:
    """The shortest prefix of `pattern` that repeats to all of it."""
    n = len(pattern)
    for length in range(1, n + 1):
        if all(pattern[i] == pattern[i % length] for i in range(n)):
            return list(pattern[:length])
    return list(pattern)


def _block_mapping(block: Block) -> dict[str, Any]:
    parts = {"mixer": block.mixer, "ffn": block.ffn}
    out: dict[str, Any] = {
        name: {"type": _TYPE_OF[type(part)], **_stated(part)}
        for name, part in parts.items()
        if part is not None
    }
    return out | {k: v for k, v in _stated(block).items() if k not in parts}


def _stated(record: Any) -> dict[str, Any]:
    """The fields of a record that differ from their defaults, or have none."""
    return {
        f.name: getattr(record, f.name)
        for f in dataclasses.fields(record)
        if f.default is dataclasses.MISSING or getattr(record, f.name) != f.default
    }
