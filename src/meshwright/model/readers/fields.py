"""Typed, bounded look-ups in a configuration that note every fault instead of stopping at the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from meshwright.errors import Diagnostic, did_you_mean
from meshwright.model.records import Block, Model, distinct
from meshwright.units import counted

# The most that is read as each kind of size: about ten times the largest published model of 2026.
MOST_WIDTH = 1 << 20
MOST_LAYERS = 10_000
MOST_HEADS = 1 << 14
MOST_VOCAB = 1 << 24
MOST_EXPERTS = 1 << 14
MOST_POSITIONS = 1 << 30

# Words for a layer's kind that older files use, and what newer ones write.
_OLD_WORDS = {
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "mamba": "linear_attention",
}


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of one configuration, the place it came from, and the faults found so far."""

    values: Mapping[str, Any]
    where: str
    faults: list[Diagnostic] = field(default_factory=list)
    faulty: set[str] = field(default_factory=set)

    def fault(self, code: str, message: str, *keys: str, hint: str = "") -> None:
        """Note a fault of `keys`; rules that rest on them are not judged any more."""
        where = f"{self.where}: {', '.join(keys)}" if keys else self.where
        self.faults.append(Diagnostic(code, message, where=where, hint=hint))
        self.faulty.update(keys)

    def rule(self, holds: bool, message: str, *keys: str, hint: str = "") -> None:
        """A relation between `keys` that must hold, judged only where each of them could be read."""
        if not holds and not self.faulty.intersection(keys):
            self.fault("MW845", message, *keys, hint=hint)

    def spelled(self, *keys: str) -> str:
        """The first of `keys` that this file uses; the first of all where it uses none."""
        return next((k for k in keys if self.values.get(k) is not None), keys[0])

    def integer(self, *keys: str, most: int, least: int = 1, default: int | None = None) -> int:
        """A whole number from `least` to `most` under the first of `keys` present; null counts as absent.

        Without `default` it must be there. After a fault `least` stands in, so that reading can go on.
        """
        if self.faulty.intersection(keys):
            return least  # told already, by an earlier look
        key = next((k for k in keys if self.values.get(k) is not None), None)
        if key is None:
            if default is not None:
                return default
            self._missing(keys)
            return least
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault(
                "MW842",
                f"{key} = {shown(value)} is {_kind(value)}, not a whole number",
                key,
                hint=f"write {key} as a number from {least} to {most}",
            )
            return least
        if not least <= value <= most:
            bound = f"below {least}" if value < least else f"above {most}, the most that is read"
            self.fault("MW843", f"{key} = {shown(value)} is {bound}", key)
            return least
        return value

    def optional(self, key: str, *, most: int, absent: int | None = None) -> int | None:
        """A whole number, or None where the key says null; `absent` where the key is not there."""
        if key not in self.values:
            return absent
        return None if self.values[key] is None else self.integer(key, most=most)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; `default` where absent or null."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fault("MW842", f"{key} = {shown(value)} is {_kind(value)}, not true or false", key)
            return default
        return value

    def auto(self, key: str, *, most: int, otherwise: int) -> int:
        """A whole number, or `otherwise` where the key is absent, null or says "auto"."""
        if self.values.get(key) == "auto":
            return otherwise
        return self.integer(key, most=most, default=otherwise)

    def part(self, key: str, *carried: str) -> Fields | None:
        """The object under `key`, its faults noted among these; None where absent or null.

        Of `carried` it takes over what it does not say itself.
        """
        value = self.values.get(key)
        if value is None or key in self.faulty:
            return None
        if not isinstance(value, Mapping):
            self.fault("MW842", f"{key} = {shown(value)} is {_kind(value)}, not an object", key)
            return None
        above = {k: self.values[k] for k in carried if k in self.values}
        # Where the depth could not be read, the length of a list in the part is not judged either.
        unread = self.faulty & {"num_hidden_layers"}
        return Fields({**above, **value}, f"{self.where}: {key}", self.faults, unread)

    def filled(self, **defaults: Any) -> Fields:
        """The same configuration, with `defaults` for keys that it lacks."""
        return replace(self, values={**defaults, **self.values})

    def unsupported(self, holds: bool, key: str, why: str) -> None:
        """A setting that can be read but asks for a structure that is not modelled."""
        if holds and key not in self.faulty:
            self.fault("MW846", f"{key} = {shown(self.values.get(key))}: {why}", key)

    def words(self, key: str, allowed: tuple[str, ...], length: int) -> list[str] | None:
        """A list with one of the `allowed` words for each of `length` layers; None where absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.fault("MW842", f"{key} = {shown(value)} is {_kind(value)}, not a list", key)
            return None
        value = [_OLD_WORDS.get(w, w) if isinstance(w, str) and w not in allowed else w for w in value]
        odd = sorted({shown(w) for w in value if not (isinstance(w, str) and w in allowed)})
        if odd:
            self.fault(
                "MW844",
                f"{key} has {', '.join(odd[:5])}{' ...' if len(odd) > 5 else ''}",
                key,
                hint=f"known: {', '.join(allowed)}",
            )
        self.rule(
            len(value) == length,
            f"{key} lists {counted(len(value), 'layer')}, num_hidden_layers says {length}",
            key,
            "num_hidden_layers",
        )
        return None if key in self.faulty else list(value)

    def letters(self, key: str, allowed: str, length: int | None) -> str | None:
        """Text with one of the `allowed` letters for each of `length` layers; None where absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value or set(value) - set(allowed):
            message = f"{key} = {shown(value)} is not text of the letters {' '.join(allowed)}"
            self.fault("MW844", message, key)
        else:
            self.rule(
                length is None or len(value) == length,
                f"{key} has {counted(len(value), 'layer')}, num_hidden_layers says {length}",
                key,
                "num_hidden_layers",
            )
        return None if key in self.faulty else str(value)

    def switches(self, key: str, length: int) -> list[bool] | None:
        """A list with 0 or 1 for each of `length` layers; None where absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(i, int) and i in (0, 1) for i in value):
            self.fault("MW842", f"{key} = {shown(value)} is not a list of 0 and 1", key)
            return None
        self.rule(
            len(value) == length,
            f"{key} lists {counted(len(value), 'layer')}, num_hidden_layers says {length}",
            key,
            "num_hidden_layers",
        )
        return None if key in self.faulty or len(value) != length else [bool(i) for i in value]

    def indices(self, key: str, length: int, *, first: int = 0) -> frozenset[int]:
        """A list of layers, the first of `length` numbered `first`, as numbers from 0; empty where absent."""
        value = self.values.get(key)
        if value is None:
            return frozenset()
        fine = isinstance(value, list | tuple) and all(
            isinstance(i, int) and not isinstance(i, bool) and first <= i < length + first for i in value
        )
        if not fine:
            if "num_hidden_layers" not in self.faulty:
                most = length - 1 + first
                message = f"{key} = {shown(value)} is not a list of layers {first} to {most}"
                self.fault("MW842", message, key)
            return frozenset()
        return frozenset(i - first for i in value)

    def _missing(self, keys: tuple[str, ...]) -> None:
        near = did_you_mean(keys[0], [k for k in self.values if isinstance(k, str)], n=1)
        spelled = " or ".join(keys)
        self.fault("MW841", f"{spelled} is missing", *keys, hint=near or f"add {keys[0]}")


def model_of(layers: list[Block], **rest: Any) -> Model:
    """A model of these layers in order, its other fields given by name."""
    blocks, pattern = distinct(layers)
    return Model(blocks=blocks, pattern=pattern, **rest)


def shown(value: object) -> str:
    """`value` as a message shows it: short whatever it is.

    >>> shown("8"), shown(10**30)
    ("'8'", 'about 2^99')
    """
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"about {'-' if value < 0 else ''}2^{abs(value).bit_length() - 1}"
    if isinstance(value, list | tuple | dict) and len(value) > 8:
        return f"{_kind(value)} of {len(value)} entries"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"{_kind(value)} that cannot be printed"
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: object) -> str:
    names = {bool: "true or false", str: "text", float: "a decimal number", list: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")
