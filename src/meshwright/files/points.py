"""The requests of a sweep, one for each model and combination of values; faults stay with their point."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import product
from typing import Any

from meshwright import units
from meshwright.errors import Diagnostic, InputError
from meshwright.files import request as requests
from meshwright.files.fields import settled
from meshwright.files.over import Over, over
from meshwright.files.request import Request
from meshwright.files.work_given import UNSAID
from meshwright.report.records import Because
from meshwright.search.guide.practice import swept_tokens_per_step

DOMAIN = "cluster.scale_up_size"
MOST = 100_000  # points of a sweep
REQUEST = frozenset(signature(requests.read).parameters)


@dataclass(frozen=True, slots=True)
class Asked:
    """One point: its model as named, its values, what was taken instead of a value, and the request or why
    there is none."""

    model: str
    at: dict[str, Any]
    taken: dict[str, Because]
    request: Request | None
    faults: tuple[Diagnostic, ...] = ()


def points(
    models: Sequence[Any], fields: Mapping[str, str | Iterable[Any]], arguments: Mapping[str, Any]
) -> tuple[dict[str, tuple[Any, ...]], list[Asked], dict[str, Because]]:
    """The values of each field, all points, the last field running fastest, and what was derived for all.

    Where lengths are swept and nothing says how large the batch is, all points have as many tokens a step
    as practice has it (the longest length, where that is more): the same work, cut into longer and longer
    pieces.

    Raises InputError for fields and values that cannot be read, and where no point can be.
    """
    faults: list[Diagnostic] = []
    axes: list[Over] = []
    for name, given in fields.items():
        try:
            axes.append(over(name, given))
        except InputError as error:
            faults.extend(error.diagnostics)
    if not faults and not 1 <= len(axes) <= 2:
        said = f"a sweep goes over one or two fields, not {len(axes)}"
        hint = "for example --over cluster.scale_up_size=8,72"
        faults.append(Diagnostic("MW911", said, where="--over", hint=hint))
    if not faults and len({axis.field for axis in axes}) < len(axes):
        said = f"{axes[0].field} is swept twice"
        faults.append(Diagnostic("MW911", said, where="--over", hint="list its values once"))
    if faults:
        raise InputError(*faults)
    lengths = [value for axis in axes if axis.field == "seq_len" for one in axis.values for value in one]
    usual = max([swept_tokens_per_step(), *_readable(lengths)]) if lengths else None
    arguments = {**arguments, "usual_tokens": usual}
    values = _chosen(models[0], axes, arguments)
    count = len(models)
    for column in values.values():
        count *= len(column)
    if count > MOST:
        said = f"{count:,} points are more than {MOST:,}"
        raise InputError(
            Diagnostic("MW911", said, where="--over", hint="ask for fewer: A:B:N gives N values")
        )
    asked = list(_asked(models, values, arguments))
    if all(one.request is None for one in asked):
        raise InputError(*dict.fromkeys(fault for one in asked for fault in one.faults))
    return values, asked, _derived(asked, usual)


def _readable(lengths: Iterable[Any]) -> Iterator[int]:
    """The lengths that can be read; the others are told at their points."""
    for length in lengths:
        with contextlib.suppress(units.UnitError):
            yield units.parse_length(length)


def _derived(asked: Sequence[Asked], usual: int | None) -> dict[str, Because]:
    """The tokens of a step, where they were not given but taken."""
    batches = [r.derived["global_batch_size"] for one in asked if (r := one.request) is not None
               and "global_batch_size" in r.derived]  # fmt: skip
    if usual is None or not any(because.because.startswith(UNSAID) for because in batches):
        return {}
    return {"tokens_per_step": Because(usual, f"{UNSAID}; the same tokens a step at every length")}


def _asked(
    models: Sequence[Any], values: Mapping[str, tuple[Any, ...]], arguments: Mapping[str, Any]
) -> Iterator[Asked]:
    for model in models:
        for combination in product(*values.values()):
            at = dict(zip(values, combination))
            name = model if isinstance(model, str) else str(getattr(model, "name", model))
            try:
                request, taken = _read({**arguments, "model": model}, at)
            except InputError as error:
                yield Asked(name, at, {}, None, error.diagnostics)
            else:
                yield Asked(name, at, taken, request)


def _read(arguments: Mapping[str, Any], at: Mapping[str, Any]) -> tuple[Request, dict[str, Because]]:
    """The request at some values. A domain that does not divide the chips is the largest below it that does,
    as it is for a chip's own domain."""
    found = settled(arguments, {name: value for name, value in at.items() if name != DOMAIN})
    if DOMAIN not in at:
        return _request(found), {}
    try:
        wanted = units.parse_length(at[DOMAIN])
    except units.UnitError:
        wanted = 0
    if wanted < 1:  # what is wrong with it is said where figures are read
        return _request(settled(found, {DOMAIN: at[DOMAIN]})), {}
    plain = _request(found)
    chips = plain.cluster.cluster.n_chips
    size = next(d for d in range(min(wanted, chips), 0, -1) if chips % d == 0)
    request = _request(settled(found, {DOMAIN: size}))
    if size == wanted:
        return request, {}
    because = f"the largest divisor of {units.counted(chips, 'chip')} within a domain of {wanted}"
    return request, {DOMAIN: Because(size, because)}


def _request(arguments: Mapping[str, Any]) -> Request:
    named = {name: value for name, value in arguments.items() if name in REQUEST}
    strategy = {name: value for name, value in arguments.items() if name not in REQUEST}
    named.setdefault("cluster", None)
    found = requests.read(**named, strategy=strategy, several=True)
    if len(found.batches) > 1:
        said = f"a range of batches ({found.batches[0]:,} to {found.batches[-1]:,}) has no one point"
        hint = f"sweep it: --over global_batch={found.batches[0]}:{found.batches[-1]}"
        raise InputError(Diagnostic("MW911", said, where="--global-batch", hint=hint))
    return found


def _chosen(model: Any, axes: Sequence[Over], arguments: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """One value of each tuple of alternatives: the first with which the request can be read, the other fields
    at their first values."""
    first = {axis.field: axis.values[0][0] for axis in axes}
    return {
        axis.field: tuple(
            dict.fromkeys(
                _suits({**arguments, "model": model}, first, axis.field, alternatives)
                for alternatives in axis.values
            )
        )
        for axis in axes
    }


def _suits(arguments: Mapping[str, Any], first: Mapping[str, Any], field: str, alternatives: Any) -> Any:
    if len(alternatives) > 1:
        for value in alternatives:
            try:
                _read(arguments, {**first, field: value})
            except InputError:
                continue
            return value
    return alternatives[0]
