"""Arguments of public verbs held against their signatures: one of a kind that no verb takes is a fault of the
request, with the way to write it, before anything is computed.

The annotations are the rule, so a verb says once what it takes.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from meshwright.errors import Diagnostic, InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The smallest number that an argument may be."""

    least: int


Count = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]

# How an argument is written, where its default does not show it.
_EXAMPLES = {
    "cluster": "'64xh100'", "deadline": "'60d'", "framework": "'torchtitan'", "global_batch_size": "512",
    "model": "'llama-3.1-8b'", "objective": "'cost'", "options": "['dropless']", "on": "'64xh100'",
    "over": "{'seq_len': '4k:1M'}", "overrides": "{'scale_out_gbits_s': 400}", "path": "'plan.yaml'",
    "precision": "'bf16'", "price_per_chip_hour": "2.5", "profile": "'numbers.json'", "quantity": "'seq_len'",
    "seq_len": "'8k'", "slack": "'3%'", "table": "'runs.csv'", "target": "'megatron-core'",
    "tokens_per_step": "'16M'", "total_tokens": "'15T'", "up_to": "'128k'", "chips_up_to": "4096",
    "words": "['llama', '70b']",
}  # fmt: skip
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "True or False", Path: "a path"}
_NUMBERS: dict[Any, type] = {int: Integral, float: Real}


def typed(verb: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`verb`, which first raises one InputError with every argument that its annotations do not allow.

    An argument that is missing or unknown stays a TypeError, as Python has it.
    """
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return verb(*args, **kwargs)  # which says it in Python's own words
        if faults := list(_faults(signature, _hints(verb), given)):
            raise InputError(*faults)
        return verb(*args, **kwargs)

    return called


@functools.cache
def _hints(verb: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters, resolved; what is returned may be known to a type checker alone."""
    named = {k: v for k, v in inspect.get_annotations(verb).items() if k != "return"}
    spoken = SimpleNamespace(__annotations__=named)
    return get_type_hints(spoken, globalns=getattr(verb, "__globals__", {}), include_extras=True)


def _faults(
    signature: inspect.Signature, hints: Mapping[str, Any], given: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    for name, value in given.items():
        parameter, hint = signature.parameters[name], hints.get(name, Any)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            for one in value:
                if not _fits(one, hint):
                    yield _fault(name.removesuffix("s"), one, hint, None)
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD and not _fits(value, hint):
            yield _fault(name, value, hint, parameter.default)


def _fault(name: str, value: Any, hint: Any, default: Any) -> Diagnostic:
    said = _said(hint)
    example = _EXAMPLES.get(name)
    if example is None and default not in (None, inspect.Parameter.empty):
        example = repr(default)
    way = f"for example {name}={example}" if example is not None else f"pass {name} as {said}"
    return Diagnostic("MW912", f"{name} is {value!r:.60}, and it must be {said}", where=name, hint=way)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a kind that an annotation allows; a number of NumPy is a number, a truth none."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return _fits(value, inner[0]) and all(value >= m.least for m in inner[1:] if isinstance(m, AtLeast))
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, os.PathLike)
    if origin is None:
        return isinstance(value, hint)
    if not isinstance(value, origin):
        return False
    if origin is Callable or not isinstance(value, Collection):
        return True
    if isinstance(value, Mapping):
        return all(_fits(k, inner[0]) and _fits(v, inner[-1]) for k, v in value.items())
    return all(_fits(one, inner[0]) for one in value)


def _said(hint: Any) -> str:
    """An annotation in words: `text, a path or a Model`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        least = [f" of {m.least} or more" for m in inner[1:] if isinstance(m, AtLeast)]
        return _said(inner[0]) + "".join(least)
    if origin in (Union, UnionType):
        words = [_said(one) for one in inner if one is not NoneType]
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    if origin is Callable:
        return "a function"
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping of text to {'values' if inner[1] is Any else _said(inner[1])}"
    if origin is not None:
        return "a list" if inner[0] is Any else f"a list of {_said(inner[0])}"
    named: str = getattr(hint, "__name__", str(hint))
    return _WORDS.get(hint, f"{'an' if named[0] in 'AEIOU' else 'a'} {named}")
