"""Strategy fields as someone gives them: read, typed, with every fault found at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from meshwright.cost.schedule import names as schedules
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import AXES, CpMethod, MoeBalance, Optimizer, Strategy
from meshwright.units import counted

MOST = 10**7  # no cluster and no batch has more of anything

COUNTS = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatch_size")
GROUPS = ("all", "domain", "node")
ANY = "any"  # every value that a field may have
DISPATCHERS = ("all-to-all", "deep-ep", "hybrid-ep", "all-gather")


@dataclass(frozen=True, slots=True)
class Between:
    """`A:B`: the values of a field from `low` to `high`, both included."""

    low: int
    high: int

    def of(self, values: Iterable[int]) -> tuple[int, ...]:
        """Those of `values` that lie between."""
        return tuple(v for v in values if self.low <= v <= self.high)

    def __str__(self) -> str:
        return f"{self.low}:{self.high}"


def fields() -> tuple[str, ...]:
    """Names of the strategy fields that can be given."""
    from dataclasses import fields as fields_of

    return tuple(f.name for f in fields_of(Strategy))


def read(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with numbers as int, words checked and layers as a tuple; None means not given.

    `zero_group` may stay one of the words all, domain and node. Raises InputError with all faults.
    """
    values: dict[str, Any] = {}
    faults: list[Diagnostic] = []
    for name, value in given.items():
        if value is None:
            continue
        if name not in fields():
            hint = did_you_mean(name, fields()) or f"the fields are {', '.join(fields())}"
            faults.append(Diagnostic("MW100", f"no strategy field {name!r}", where=name, hint=hint))
            continue
        try:
            values[name] = _reader(name)(name, value)
        except InputError as error:
            faults.extend(error.diagnostics)
    if faults:
        raise InputError(*faults)
    return values


def read_choices(fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Like `read`, where a field may also be a list of values, a range `A:B` of a number (a `Between`) or
    `any`; each comes out as a tuple without doubles."""
    choices: dict[str, tuple[Any, ...]] = {}
    faults: list[Diagnostic] = []
    for name, value in fixed.items():
        if value is None:
            continue
        options = _options(name, value)
        if not options:
            faults.append(Diagnostic("MW103", f"{name} lists no value", where=name, hint=f"leave {name} out"))
        for option in options:
            try:
                choices[name] = (*choices.get(name, ()), _choice(name, option))
            except InputError as error:
                faults.extend(error.diagnostics)
    if faults:
        raise InputError(*faults)
    return {name: tuple(dict.fromkeys(options)) for name, options in choices.items()}


def stated(choices: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The first value of each field of `choices` that is one: ranges and `any` leave a field open."""
    plain = {name: [v for v in values if not _open(v)] for name, values in choices.items()}
    return {name: values[0] for name, values in plain.items() if values}


def _open(value: Any) -> bool:
    return isinstance(value, Between) or (isinstance(value, str) and value == ANY)


def _options(name: str, value: Any) -> list[Any]:
    """The values that a field lists; a list that is itself one value stays whole."""
    single = {"layers_per_stage": int, "placement": str}.get(name)
    many = isinstance(value, list | tuple | set | frozenset | range | np.ndarray)
    if single is not None and many and all(isinstance(v, single | np.integer) for v in value):
        # Orders of axes may also be listed as text: each then names several axes.
        texts = name == "placement" and any("," in v or "-" in v or v == ANY for v in value)
        many = texts
    return list(value) if many else [value]


def _choice(name: str, option: Any) -> Any:
    """One value of a field, a range or `any`."""
    if isinstance(option, str) and option.strip().lower() == ANY and name in fields():
        return ANY
    if isinstance(option, str) and ":" in option and name in (*COUNTS, "zero", "zero_group"):
        ends = option.split(":")
        if len(ends) != 2:
            raise _fault(name, f"{name} is {option!r}, not a range", f"write {name} 2:8")
        reader = _zero if name == "zero" else _count
        low, high = (reader(name, end) for end in ends)
        if low > high:
            raise _fault(name, f"{name} {option} runs backwards", f"write {name} {high}:{low}")
        return Between(low, high)
    found = read({name: option})
    if name not in found:
        raise _fault(name, f"{name} lists an empty value", "leave it out")
    return found[name]


def _reader(name: str) -> Callable[[str, Any], Any]:
    if name in COUNTS:
        return _count
    return {
        "sp": _flag,
        "zero": _zero,
        "zero_group": _zero_group,
        "recompute": _recompute,
        "offload": _offload,
        "finetune": _finetune,
        "layers_per_stage": _layers,
        "placement": _placement,
    }.get(name, _word)


def _fault(name: str, message: str, hint: str, code: str = "MW103") -> InputError:
    return InputError(Diagnostic(code, message, where=name, hint=hint))


def _whole(name: str, value: Any) -> int:
    """`value` as an int; text of digits counts."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
        text = int(text)
    whole = isinstance(text, int | np.integer) or (isinstance(text, float | np.floating) and text % 1 == 0)
    if isinstance(text, bool | np.bool_) or not whole:
        raise _fault(name, f"{name} is {value!r}, but it must be a whole number", f"write it as in {name} 8")
    return int(text)


def _count(name: str, value: Any) -> int:
    n = _whole(name, value)
    if n < 1:
        hint = f"leave {name} out to have it derived, or give 1 or more"
        raise _fault(name, f"{name} is {n}, but it must be a whole number of at least 1", hint, "MW102")
    if n > MOST:
        raise _fault(name, f"{name} is {n}, above {MOST}, which no cluster reaches", f"lower {name}", "MW102")
    return n


def _flag(name: str, value: Any) -> bool:
    words = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = words.get(str(value).strip().lower())
    if found is None:
        raise _fault(name, f"{name} is {value!r}, neither on nor off", "give true or false")
    return found


def _zero(name: str, value: Any) -> int:
    n = _whole(name, value)
    if not 0 <= n <= 3:
        raise _fault(name, f"zero is {n}, but the stages are 0, 1, 2 and 3", "give a stage from 0 to 3")
    return n


def _zero_group(name: str, value: Any) -> int | str:
    if isinstance(value, str) and value.strip().lower() in GROUPS:
        return value.strip().lower()
    return _count(name, value)


def _recompute(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _fault(name, f"recompute is {value!r}, not a word", "give none, full or selective:core_attn")
    return parse(value).word


def _layers(name: str, value: Any) -> tuple[int, ...]:
    items: Iterable[Any]
    way = "name the decoder layers of each virtual stage in order, as in 8,8,8,8 for 32 layers over 4 stages"
    if isinstance(value, str):
        items = [part for part in value.replace("+", ",").split(",") if part.strip()]
    elif isinstance(value, list | tuple | np.ndarray):
        items = list(value)
    else:
        raise _fault(name, f"{name} is {value!r}, not a list of layers", way)
    try:
        layers = tuple(_whole(name, item) for item in items)
    except InputError as error:
        raise _fault(name, error.diagnostics[0].message, way) from None
    wrong = [n for n in layers if not 0 <= n <= MOST]
    if wrong or not 1 <= len(layers) <= MOST:
        said = (
            f"{wrong[0]} is not 0 to {MOST:,} layers"
            if wrong
            else f"it lists {counted(len(layers), 'stage')}"
        )
        raise _fault(name, f"{name} is {value!r:.60}, and {said}", way)
    return layers


def _offload(name: str, value: Any) -> str:
    return parse_offload(str(value)).word


def _finetune(name: str, value: Any) -> str:
    return parse_finetune(str(value)).word


def _placement(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, str | list | tuple):
        raise _fault(name, f"{name} is {value!r}, not an order of axes", f"write {','.join(AXES)}")
    axes = value.replace("-", ",").split(",") if isinstance(value, str) else value
    order = tuple(str(axis).strip().lower() for axis in axes)
    if sorted(order) != sorted(AXES):
        said = f"placement {','.join(order)} is not an order of the axes {', '.join(AXES)}"
        raise _fault(name, said, f"name each once, fastest network first: {','.join(AXES)}")
    return order


def _word(name: str, value: Any) -> str:
    known: tuple[str, ...] = {
        "schedule": schedules(),
        "cp_method": get_args(CpMethod),
        "optimizer": get_args(Optimizer),
        "dispatcher": DISPATCHERS,
        "moe_balance": get_args(MoeBalance),
    }[name]
    text = str(value).strip().lower()
    if text not in known:
        hint = did_you_mean(text, known) or f"one of {', '.join(known)}"
        raise _fault(name, f"{name} is {value!r}, but the words are {', '.join(known)}", hint)
    return text
