"""The request of an inverse question: everything but the quantity that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from meshwright import units
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.files import model_file
from meshwright.files import request as requests
from meshwright.files.request import Request
from meshwright.search.bounds import Request as Asked
from meshwright.search.largest import LEAST_LENGTH, MOST_LAYERS, QUANTITIES, Quantity

OWN_FLAGS = {
    "seq_len": ("seq_len",),
    "microbatch_size": ("microbatch_size",),
    "n_layers": (),
    "global_batch": ("global_batch_size", "tokens_per_step"),
}
FLAGS = {"global_batch_size": "--global-batch"}
LIMITS = {"seq_len": 10**9, "microbatch_size": 10**7, "n_layers": MOST_LAYERS, "global_batch": 10**9}


@dataclass(frozen=True, slots=True)
class Inverse:
    """What is asked. `request` holds some value of the quantity; `tokens_per_step` where that is fixed."""

    quantity: Quantity
    request: Request
    up_to: int | None
    tokens_per_step: int | None


def read_inverse(quantity: str, up_to: float | str | None, **request: Any) -> Inverse:
    """The inverse request that arguments of a search spell; one InputError with every fault."""
    faults: list[Diagnostic] = []
    name = quantity.strip().lower().replace("-", "_")
    name = {"global_batch_size": "global_batch", "layers": "n_layers"}.get(name, name)
    if name not in QUANTITIES:
        hint = did_you_mean(name, QUANTITIES) or f"one of {', '.join(QUANTITIES)}"
        faults.append(Diagnostic("MW911", f"{quantity!r} is nothing to maximise", where="max", hint=hint))
    for field in OWN_FLAGS.get(name, ()):
        if request.get(field) is not None:
            flag = FLAGS.get(field, f"--{field.replace('_', '-')}")
            said = f"{flag} is given, and {name} is what is asked for"
            faults.append(Diagnostic("MW911", said, where=flag, hint="leave it out; --up-to ends the range"))
            request[field] = None
    end = _end(name, up_to, faults)
    tokens = request.get("tokens_per_step") if name == "seq_len" else None
    if name == "seq_len":
        request["seq_len"] = LEAST_LENGTH
    if name == "global_batch":
        request["global_batch_size"] = 1
    try:
        found = requests.read_arguments(several=True, **request)
    except InputError as error:
        raise InputError(*faults, *error.diagnostics) from None
    if found.batches:
        said = "a range of batches is given, and each has its own maximum"
        faults.append(Diagnostic("MW911", said, where="--global-batch", hint="give one batch"))
    if faults:
        raise InputError(*faults)
    asked = cast(Quantity, name)
    strategy = {
        k: v for k, v in found.strategy.items() if k != "microbatch_size" or asked != "microbatch_size"
    }
    batch = int(found.work.tokens_per_step) if tokens is not None else None
    return Inverse(asked, replace(found, strategy=strategy), end, batch)


def at_value(request: Request, found: Asked) -> Request:
    """The request with the model and the work of one value, for the plan that is shown and written."""
    if found.model == request.model:
        return replace(request, work=found.work)
    return replace(
        request, model=found.model, model_as_given=model_file.model_mapping(found.model), work=found.work
    )


def _end(name: str, up_to: float | str | None, faults: list[Diagnostic]) -> int | None:
    """The end of the range."""
    if up_to is None or name not in LIMITS:
        return None
    try:
        end = units.parse_length(up_to)
    except units.UnitError as error:
        faults.append(Diagnostic("MW911", str(error), where="--up-to", hint="write --up-to 128k"))
        return None
    least = LEAST_LENGTH if name == "seq_len" else 1
    if not least <= end <= LIMITS[name]:
        said = f"--up-to is {end:,}; for {name} it must be {least:,} to {LIMITS[name]:,}"
        faults.append(Diagnostic("MW911", said, where="--up-to", hint="leave it out for the whole range"))
        return None
    return end
