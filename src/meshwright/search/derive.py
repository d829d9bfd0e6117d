"""What a strategy leaves out is derived, and says why; what it states is never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.checks import run
from meshwright.checks.layout import TWO_CHUNKS
from meshwright.checks.shapes import moe
from meshwright.errors import Diagnostic, InputError
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search.given import read
from meshwright.search.ways import spelled, ways
from meshwright.strategy.records import Strategy
from meshwright.units import counted
from meshwright.work import Work

# What Megatron-type frameworks mean by `selective` when they name no module.
BARE_SELECTIVE = "selective:core_attn"

# Rules that only repeat, for a dp that nobody gave, that the other degrees do not fit the chips.
FOLLOWS_FROM_DP = frozenset({"MW101", "MW114", "MW120", "MW121", "MW122", "MW160"})


@dataclass(frozen=True, slots=True)
class Derived:
    """A value that was not given, and why it is what it is."""

    value: Any
    because: str


@dataclass(frozen=True, slots=True)
class Completed:
    """A complete, legal strategy and what of it was derived."""

    strategy: Strategy
    derived: dict[str, Derived]


def complete(
    model: Model, cluster: Cluster, work: Work, given: Mapping[str, Any], profile: Profile
) -> Completed:
    """`given` with every missing field derived: degrees 1, dp the rest of the chips, habits by `profile`.

    Raises InputError with every fault: fields that cannot be read, or every rule that the result breaks.
    """
    values = read(given)

    def faults_of(changed: Mapping[str, Any]) -> tuple[Completed, list[Diagnostic]]:
        done = _filled(model, cluster, work, changed, profile)
        found = run(model, cluster, work, done.strategy, profile=profile)
        return done, [d for d in found if d.severity == "error"]

    completed, faults = faults_of(values)
    if faults:
        raise InputError(*_told(completed.strategy, values, cluster.n_chips, faults, faults_of))
    return completed


def _told(
    strategy: Strategy,
    given: Mapping[str, Any],
    chips: int,
    faults: list[Diagnostic],
    faults_of: Callable[[Mapping[str, Any]], tuple[Completed, list[Diagnostic]]],
) -> list[Diagnostic]:
    """The faults, that of the degrees with ways that were tried, and without what only repeats it."""
    product = next((d for d in faults if d.code == "MW101"), None)
    if product is None:
        return faults
    degrees = {name: int(getattr(strategy, name)) for name in ("dp", "tp", "pp", "cp")}
    known = {d.code for d in faults if d is not product}  # these have hints of their own

    def works(change: Mapping[str, Any]) -> bool:
        return {d.code for d in faults_of({**given, **change})[1]} <= known

    tried = ways(given, degrees, chips, works)
    hint = spelled(tried) if tried else f"give degrees that multiply to {chips}"
    if "dp" in given:
        return [replace(d, hint=hint) if d is product else d for d in faults]
    rest = degrees["tp"] * degrees["pp"] * degrees["cp"]
    said = (
        f"tp {degrees['tp']} x pp {degrees['pp']} x cp {degrees['cp']} = {rest} does not divide the "
        f"{counted(chips, 'chip')}: dp would be {chips} / {rest} = {chips / rest:.4g}, not whole"
    )
    return [replace(product, message=said, hint=hint), *(d for d in faults if d.code not in FOLLOWS_FROM_DP)]


def _filled(
    model: Model, cluster: Cluster, work: Work, given: Mapping[str, Any], profile: Profile
) -> Completed:
    """What was given with the rest derived, whatever rules that breaks."""
    values = dict(given)
    derived: dict[str, Derived] = {}

    def fill(name: str, value: Any, because: str) -> Any:
        if name not in values:
            values[name] = value
            derived[name] = Derived(value, because)
        return values[name]

    habits = f"{profile.framework.name} {profile.framework.generation}".strip()
    tp, pp, cp = (fill(name, 1, "not given") for name in ("tp", "pp", "cp"))
    _fill_chunks(fill, values, pp)
    chips, rest = cluster.n_chips, tp * pp * cp
    dp = fill("dp", max(chips // rest, 1), f"{counted(chips, 'chip')} / (tp {tp} x pp {pp} x cp {cp})")
    fill("microbatch_size", 1, "not given")
    fill("cp_method", "ring", "not given" if cp > 1 else "cp is 1")
    _fill_experts(fill, model, work, profile, habits)
    sp_because = f"the habit of {habits} when tp > 1" if tp > 1 else "tp is 1"
    fill("sp", bool(tp > 1 and profile.framework.default_sp), sp_because)
    interleaved = pp > 1 and values["vpp"] > 1
    stages = f"pp is {pp} and vpp is {values['vpp']}"
    fill("schedule", "interleaved-1f1b" if interleaved else "1f1b", stages)
    fill("zero", profile.framework.default_zero, f"the habit of {habits}")
    if values.get("zero_group") == "all":
        del values["zero_group"]
    fill("zero_group", dp * cp, f"all ranks with the same weights, dp {dp} x cp {cp}")
    values["zero_group"] = int(group_size(values["zero_group"], dp, cp, tp, cluster))
    _fill_recompute(fill, values, derived, profile, habits)
    if "bf16-optimizer" in work.options:
        fill("optimizer", "adamw-bf16", "option bf16-optimizer")
    fill("optimizer", "adamw", "not given")
    fill("offload", "none", "not given")
    fill("moe_balance", "microbatch", "not given")
    fill("placement", ("tp", "cp", "dp", "pp"), "the axis with most traffic on the fastest network")
    fill("layers_per_stage", None, "balanced by the seconds of forward passes, embedding and head counted")
    return Completed(Strategy(**values), derived)


def _fill_chunks(fill: Any, values: dict[str, Any], pp: int) -> None:
    """Chunks a rank: from the listed layers, else what the schedule word asks for, else 1."""
    layers, schedule = values.get("layers_per_stage"), values.get("schedule")
    if layers is not None and len(layers) % pp == 0:
        fill(
            "vpp",
            len(layers) // pp,
            f"layers_per_stage lists {counted(len(layers), 'virtual stage')} for pp {pp}",
        )
    elif schedule in TWO_CHUNKS or schedule == "interleaved-1f1b":
        fill("vpp", 2, f"the least that {schedule} works with")
    else:
        fill("vpp", 1, "not given")


def _fill_experts(fill: Any, model: Model, work: Work, profile: Profile, habits: str) -> None:
    because = "not given" if moe(model) else "the model has no experts"
    fill("ep", 1, because)
    fill("etp", 1, because)
    named = [word for word in ("deep-ep", "hybrid-ep", "all-to-all") if word in work.options]
    if named:
        fill("dispatcher", named[0], f"option {named[0]}")
    else:
        fill("dispatcher", profile.framework.default_dispatcher, f"the habit of {habits}")


def _fill_recompute(
    fill: Any, values: dict[str, Any], derived: dict[str, Derived], profile: Profile, habits: str
) -> None:
    """A bare `selective` means the modules that the framework chooses itself."""
    word = fill("recompute", profile.framework.default_recompute, f"the habit of {habits}")
    if word == "selective":
        values["recompute"] = bare_selective(profile)
        derived["recompute"] = Derived(values["recompute"], f"what {habits} means by selective")


def bare_selective(profile: Profile) -> str:
    """The recompute word that `profile`'s framework means by a bare `selective`."""
    own = profile.framework.default_recompute
    return own if own.startswith("selective:") else BARE_SELECTIVE


def domain_group(dp: Any, cp: Any, tp: Any, cluster: Cluster, size: int | None = None) -> Any:
    """Largest group of ranks with the same weights that lies in one fast domain (`size` chips); broadcasts.

    The ranks of dp x cp lie around tp, so domain / tp of them share a domain; the group must divide dp x cp.
    """
    ranks = np.asarray(dp) * cp
    room = np.maximum((size or cluster.scale_up_size) // np.asarray(tp), 1)
    return np.gcd(ranks, room)


def group_size(wanted: int | str, dp: Any, cp: Any, tp: Any, cluster: Cluster) -> Any:
    """Ranks that share one copy of the sharded state, from a number or all, domain or node; broadcasts."""
    if wanted == "all":
        return np.asarray(dp) * cp
    if wanted == "domain":
        return domain_group(dp, cp, tp, cluster)
    if wanted == "node":
        return domain_group(dp, cp, tp, cluster, cluster.chip.chips_per_node)
    return int(wanted)
