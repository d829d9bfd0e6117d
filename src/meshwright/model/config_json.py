"""Hugging Face `config.json` to `Model`, for the families in `SUPPORTED`.

Only data is read: no code that a repository ships beside its configuration is run. Keys that do not change
shapes (activation, rotary settings, quantisation, token ids) are ignored. Absent optional keys mean what
the family's class in `transformers` 5.24.0 takes them to mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.model.readers.fields import Fields, shown
from meshwright.model.readers.registry import READERS, Reader
from meshwright.model.records import Model

SUPPORTED: tuple[str, ...] = tuple(sorted(READERS))

# A configuration is a few kilobytes; anything much larger is another kind of file.
_MOST_BYTES = 8 << 20


def read(source: Path | str | Mapping[str, Any], name: str = "") -> Model:
    """The model that a `config.json` (its path, its folder, or its content) describes.

    Raises `InputError` with every fault found: torn JSON, missing keys, wrong types, sizes out of bounds,
    contradictions, or a model type without a reader.

    >>> read({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100,
    ...       "n_positions": 32}).n_layers
    2
    """
    if isinstance(source, Mapping):
        values, where = source, "config"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        values, where = _parsed(path), str(path)
    fields = Fields(values, where)
    reader = _reader(fields)
    model = reader(fields, name or _own_name(values, source)) if reader else None
    if fields.faults or model is None:
        raise InputError(*fields.faults)
    return model


def _parsed(path: Path) -> Mapping[str, Any]:
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise _unreadable(path, f"{path} has {size} bytes, a configuration at most {_MOST_BYTES}")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as e:  # ValueError: not UTF-8, or a null byte in the path
        reason = e.strerror if isinstance(e, OSError) and e.strerror else "not UTF-8 text"
        raise _unreadable(path, f"cannot read {path}: {reason}") from e
    try:
        values = json.loads(text)
    except json.JSONDecodeError as e:
        message = f"{path} is not JSON: {e.msg} at line {e.lineno}, column {e.colno}"
        raise _unreadable(path, message, "the file may be cut off; fetch it again") from e
    except (ValueError, RecursionError) as e:
        raise _unreadable(path, f"{path} is not JSON that can be read: {e}") from e
    if not isinstance(values, dict):
        raise _unreadable(path, f"{path} holds {shown(values)}, not an object with keys")
    return values


def _unreadable(path: Path, message: str, hint: str = "") -> InputError:
    return InputError(Diagnostic("MW840", message, where=str(path), hint=hint))


def _reader(fields: Fields) -> Reader | None:
    kind = fields.values.get("model_type")
    if isinstance(kind, str) and kind in READERS:
        return READERS[kind]
    known = f"model types that can be read: {', '.join(SUPPORTED)}"
    if kind is None:
        fields.fault("MW841", "model_type is missing", "model_type", hint=known)
        return None
    near = did_you_mean(kind, SUPPORTED) if isinstance(kind, str) else ""
    inner = fields.values.get("text_config")
    if isinstance(inner, Mapping) and inner.get("model_type") in READERS:
        near = f"its text_config is of type {inner['model_type']}: give that part as the configuration"
    hint = f"{near}; {known}" if near else known
    fields.fault("MW846", f"model_type {shown(kind)} has no reader", "model_type", hint=hint)
    return None


def _own_name(values: Mapping[str, Any], source: object) -> str:
    told = values.get("_name_or_path")
    if isinstance(told, str) and told.strip("./"):
        return told.rstrip("/").rsplit("/", 1)[-1]
    if isinstance(source, Path | str):
        path = Path(source)
        folder = path if path.is_dir() else path.resolve().parent
        return folder.name if path.name in ("config.json", folder.name) else path.stem
    return str(values.get("model_type"))
