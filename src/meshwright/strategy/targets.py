"""What a training framework can be told to do: the words that it has, from its own options.

One JSON file a framework in `targets/`; adding a framework adds a file. A field that a file does not name
may take any value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy

_FOLDER = "targets"


@dataclass(frozen=True, slots=True)
class Target:
    """`fields` lists the values that a strategy field may have; `forms` and `modules` are those of its
    recompute words, `precisions` of its matrix products. `zero_under_pipeline` is the highest ZeRO stage
    with pp > 1."""

    name: str
    title: str
    fields: dict[str, tuple[Any, ...]]
    forms: frozenset[str]
    modules: frozenset[str]
    precisions: tuple[str, ...]
    zero_under_pipeline: int
    copies_kv: bool  # for all-to-all context parallelism over more ranks than key/value heads (MW413)
    source: str

    def allows(self, field: str, value: Any) -> bool:
        """Whether the framework has `value` for a strategy's `field`.

        >>> load("torchtitan").allows("recompute", "every:2"), load("torchtitan").allows("zero", 1)
        (True, False)
        """
        if field != "recompute":
            return field not in self.fields or value in self.fields[field]
        word = parse(value)
        form = word.word.partition(":")[0]
        return form in self.forms and (form != "selective" or word.modules <= self.modules)

    def lacks(self, strategy: Strategy) -> tuple[str, ...]:
        """What of a strategy of plain numbers the framework cannot be told, as `field value`. Words that
        change nothing (sp without tp, a schedule without pp) do not count."""
        s = strategy
        idle = {"sp": s.tp == 1, "cp_method": s.cp == 1, "schedule": s.pp == 1, "placement": False,
                "zero": s.dp * s.cp == 1, "dispatcher": s.ep == 1}  # fmt: skip
        named = (*self.fields, "recompute")
        found = [
            f"{field} {spelled(getattr(s, field))}"
            for field in named
            if not idle.get(field) and not self.allows(field, getattr(s, field))
        ]
        if s.pp > 1 and s.zero > self.zero_under_pipeline:
            found.append(f"zero {s.zero} with pp {s.pp}")
        return tuple(found)

    def faults(self, choices: Mapping[str, Iterable[Any]], precision: str) -> list[Diagnostic]:
        """One finding for each field of which the framework has none of the values asked for."""
        found = []
        for field, values in choices.items():
            options = list(values)
            if options and not any(self.allows(field, v) for v in options):
                found.append(
                    Diagnostic(
                        "MW180",
                        f"{self.title} has no {field} {' or '.join(spelled(v) for v in options)}",
                        where=field, hint=f"it has {self.has(field)}; or leave --target out",
                    )
                )  # fmt: skip
        if precision not in self.precisions:
            said = f"{self.title} has no matrix products in {precision}"
            hint = f"it has {', '.join(self.precisions)}; or leave --target out"
            found.append(Diagnostic("MW180", said, where="--precision", hint=hint))
        return found

    def has(self, field: str) -> str:
        """The values of a field that the framework has, in words."""
        if field != "recompute":
            return ", ".join(spelled(v) for v in self.fields.get(field, ("any",)))
        forms = ", ".join(sorted(self.forms))
        return f"{forms} (modules {', '.join(sorted(self.modules))})" if self.modules else forms


def names() -> tuple[str, ...]:
    """Every framework there is a file for, in order."""
    found = (entry.name for entry in files("meshwright.strategy").joinpath(_FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in found if name.endswith(".json")))


@cache
def load(name: str) -> Target:
    """The framework called `name`. Raises InputError naming those there are."""
    word = name.strip().lower()
    if word not in names():
        hint = did_you_mean(word, names()) or f"one of {', '.join(names())}"
        said = f"no target {name!r}; what a framework can express is known of {', '.join(names())}"
        raise InputError(Diagnostic("MW181", said, where="--target", hint=hint))
    path = files("meshwright.strategy").joinpath(_FOLDER, f"{word}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    fields = {field: tuple(_value(field, v) for v in values) for field, values in data["allows"].items()}
    return Target(
        name=word,
        title=data["title"],
        fields=fields,
        forms=frozenset(data["recompute"]["forms"]),
        modules=frozenset(data["recompute"]["modules"]),
        precisions=tuple(data["precision"]),
        zero_under_pipeline=data.get("zero_under_pipeline", 3),
        copies_kv=data.get("copies_kv", True),
        source=f"{data['source']} ({data['date']})",
    )


def spelled(value: Any) -> str:
    """A field's value as a person writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _value(field: str, value: Any) -> Any:
    return tuple(value.split(",")) if field == "placement" else value
