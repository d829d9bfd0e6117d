"""The requests of a sweep, one for each model and combination of values; faults stay with their point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from meshwright.errors import Diagnostic, InputError
from meshwright.files import request as requests
from meshwright.files.fields import settled
from meshwright.files.over import Over, over
from meshwright.files.request import Request
from meshwright.report.records import Because

DOMAIN = "cluster.scale_up_size"
MOST = 100_000  # points of a sweep
REQUEST = frozenset(requests.read.__kwdefaults__ or {}) | {"model", "cluster"}


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
) -> tuple[dict[str, tuple[Any, ...]], list[Asked]]:
    """The values of each field and all points, the last field running fastest.

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
    return values, asked


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
    wanted = int(at[DOMAIN])
    plain = _request(found)
    chips = plain.cluster.cluster.n_chips
    size = next(d for d in range(min(wanted, chips), 0, -1) if chips % d == 0)
    request = _request(settled(found, {DOMAIN: size}))
    if size == wanted:
        return request, {}
    because = f"the largest divisor of {chips} chips within a domain of {wanted}"
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
