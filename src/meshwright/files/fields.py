"""Fields of a request by name, for what changes one and keeps the rest: `pp`, `seq_len`, `on`, `n_chips`,
`cluster.scale_out_gbits_s`.

A request is a mapping of arguments as `files.request.read` takes them, with strategy fields among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.files.given import OVERRIDES, override
from meshwright.hardware import cluster as clusters
from meshwright.search.given import fields as strategy_fields

WORK = (
    "seq_len",
    "global_batch_size",
    "tokens_per_step",
    "total_tokens",
    "precision",
    "framework",
    "profile",
)
_OTHER_NAMES = {"cluster": "on", "global_batch": "global_batch_size", "mbs": "microbatch_size"}
_EITHER = {"global_batch_size": "tokens_per_step", "tokens_per_step": "global_batch_size"}


def names() -> tuple[str, ...]:
    """Every field that `changed` knows, as a person writes it."""
    figures = tuple(f"cluster.{name}" for name in OVERRIDES)
    return ("model", "on", "n_chips", *WORK, "options", *figures, *strategy_fields())


def canonical(field: str) -> str:
    """The one name of a field; InputError with close names when there is no such field.

    >>> canonical("global-batch")
    'global_batch_size'
    """
    name = field.strip().lstrip("-").replace("-", "_")
    if name not in (*names(), *_OTHER_NAMES):
        hint = did_you_mean(name, names()) or f"the fields are {', '.join(names())}"
        raise InputError(Diagnostic("MW910", f"no field {field!r} to change", where=field, hint=hint))
    return _OTHER_NAMES.get(name, name)


def changed(arguments: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """`arguments` with `field` set to `value`; the batch and the tokens of a step replace each other."""
    name = canonical(field)
    found = dict(arguments)
    if name.startswith("cluster."):
        figure = name.removeprefix("cluster.")
        number = override(figure, value) if isinstance(value, str) else value
        found["overrides"] = {**(found.get("overrides") or {}), figure: number}
    elif name == "n_chips":
        found["cluster"] = _resized(found.get("cluster"), value)
    elif name == "on":
        found["cluster"] = value
    elif name == "options":
        found["options"] = tuple(value.split("+")) if isinstance(value, str) else value
    else:
        found[name] = value
        if name in _EITHER:
            found.pop(_EITHER[name], None)
    return found


def settled(arguments: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with several fields set; InputError with the faults of all. What spells the cluster goes
    first, what changes its count next."""
    faults: list[Diagnostic] = []
    found = dict(arguments)
    order = ("on", "cluster", "n_chips")
    for field in sorted(fields, key=lambda name: order.index(name) if name in order else len(order)):
        try:
            found = changed(found, field, fields[field])
        except InputError as error:
            faults.extend(error.diagnostics)
    if faults:
        raise InputError(*faults)
    return found


def _resized(cluster: Any, n_chips: Any) -> str:
    """The cluster's spelling with another count of chips."""
    if not isinstance(cluster, str):
        said = "n_chips cannot change: the cluster was not spelled COUNTxCHIP"
        raise InputError(Diagnostic("MW910", said, where="n_chips", hint="add --on 64xh100, for example"))
    return clusters.resized(cluster, n_chips)
