"""Strict records for files: unknown keys are errors that name the nearest key, quantities may carry units."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from meshwright import units
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.files.text import fault
from meshwright.files.yaml import Document, Key


class Strict(BaseModel):
    """The base of every file record: no key is ignored and no value is bent into another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _plain_or(parse: Callable[[str], float], per: float) -> Callable[[Any], Any]:
    """Reader of a value that is either a plain number in the field's own unit or text with a unit."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return parse(value) / per

    return read


Gib = Annotated[float, BeforeValidator(_plain_or(units.parse_bytes, units.GIB))]
GbytesPerS = Annotated[float, BeforeValidator(_plain_or(units.parse_rate, 1e9))]
GbitsPerS = Annotated[float, BeforeValidator(_plain_or(units.parse_rate, 1e9 / 8))]
Tflops = Annotated[float, BeforeValidator(_plain_or(units.parse_flops, 1e12))]
Microseconds = Annotated[float, BeforeValidator(_plain_or(units.parse_time, 1e-6))]
Length = Annotated[int, BeforeValidator(lambda v: units.parse_length(v) if isinstance(v, str) else v)]
Budget = Annotated[int, BeforeValidator(lambda v: units.parse_count(v) if isinstance(v, str | float) else v)]

MAX_FAULTS = 50  # of one record: more than a person mends at once

Record = TypeVar("Record", bound=BaseModel)


def validate(document: Document, record: type[Record], at: Key = ()) -> Record:
    """The value at `at` of `document` as `record`; InputError with every fault and its line."""
    value: Any = document.data
    for step in at:
        value = value[step]
    try:
        return record.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [_diagnostic(document, record, at, dict(e)) for e in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            said = f"{len(found) - MAX_FAULTS:,} more faults in {document.path} ({len(found):,} in all)"
            faults.append(fault(document.path, "MW813", said, hint="mend these and read it again"))
        raise InputError(*_distinct(faults)) from None


def _distinct(faults: list[Diagnostic]) -> list[Diagnostic]:
    return list(dict.fromkeys(faults))


def _diagnostic(document: Document, record: type[BaseModel], at: Key, error: dict[str, Any]) -> Diagnostic:
    """One pydantic error in this project's words."""
    loc = tuple(step for step in error["loc"] if isinstance(step, str | int))
    key = _key_in_data(document, at, loc, missing=error["type"] == "missing")
    name = ".".join(str(k) for k in key) or "the file"
    path, line = document.path, document.line(key)
    given = error.get("input")
    if error["type"] == "extra_forbidden":
        parent = record_at(record, loc[:-1])
        known = sorted(parent.model_fields) if parent is not None else []
        hint = did_you_mean(str(loc[-1]), known) or (f"known keys: {', '.join(known)}" if known else "")
        return fault(path, "MW811", f"unknown key {name}", line=line, hint=hint)
    if error["type"] == "missing":
        return fault(
            path,
            "MW812",
            f"{name} is missing",
            line=line,
            hint="add it; nothing is assumed for it",
        )
    if error["type"] == "value_error":
        return fault(path, "MW813", f"{name}: {error['ctx']['error']}", line=line, hint=_WAY_OUT)
    return fault(path, "MW813", f"{name} is {_shown(given)}: {_reason(error)}", line=line, hint=_WAY_OUT)


_WAY_OUT = "correct the value, or leave the key out where it has a default"


def _reason(error: dict[str, Any]) -> str:
    message = str(error["msg"])
    return message[0].lower() + message[1:]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key_in_data(document: Document, at: Key, loc: tuple[str | int, ...], *, missing: bool) -> Key:
    """`loc` without the union tags that pydantic puts between keys: they are not in the file."""
    key: Key = at
    value: Any = document.data
    for step in at:
        value = value[step]
    for i, step in enumerate(loc):
        inside = (isinstance(value, dict) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if inside:
            value = value[step]
            key = (*key, step)
        elif missing and i == len(loc) - 1:
            key = (*key, step)  # a missing key is named although it is not there
    return key


def record_at(record: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The record class that holds the key after `loc`, through optionals, lists and tagged unions."""
    found: list[type[BaseModel]] = [record]
    for step in loc:
        if isinstance(step, int):
            continue
        following: list[type[BaseModel]] = []
        for candidate in found:
            if step in candidate.model_fields:
                following += _classes(candidate.model_fields[step].annotation)
        # A step that is no field is a union tag: keep the classes that carry it.
        found = following or [c for c in found if _tag(c) == step] or found
    return found[0] if found else None


def _classes(annotation: Any) -> list[type[BaseModel]]:
    from typing import get_args

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for inner in get_args(annotation) for c in _classes(inner)]


def _tag(record: type[BaseModel]) -> str | None:
    from typing import get_args

    kind = record.model_fields.get("type")
    tags = get_args(kind.annotation) if kind is not None else ()
    return str(tags[0]) if tags else None


def version_fault(document: Document, kind: str) -> Diagnostic | None:
    """A fault unless the document says `version: 1`."""
    version = document.data.get("version")
    if version == 1 and not isinstance(version, bool):
        return None
    path: Path = document.path
    if "version" not in document.data:
        return fault(
            path,
            "MW814",
            f"{path} has no version",
            line=1,
            hint=f"a {kind} file starts with: version: 1",
        )
    return fault(
        path, "MW814", f"{path} is of version {version!r}; this release reads version 1",
        line=document.line(("version",)), hint="write: version: 1",
    )  # fmt: skip
