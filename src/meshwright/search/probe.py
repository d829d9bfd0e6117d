"""The same plan on other figures: what its step leans on, and where its communication stops hiding.

Nothing here knows a formula: the cost model is asked again with one figure changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.numbers import changed, records, watched
from meshwright.cost.step import evaluate
from meshwright.hardware.records import Chip, Cluster
from meshwright.profiles.records import Number, Profile, Provenance
from meshwright.search.bounds import Request
from meshwright.strategy.records import Strategy

# What shows of a communication is called hidden while it is at most this share of the step: it is then about
# what plans that a person would call alike differ by, and what the model's own error hides.
HIDES = 0.05
NUDGE = 0.01  # a figure is changed by this much to see what moves
REACH = 64.0  # bandwidths are tried from so many times slower to so many times faster
_HALVINGS = 12  # of a bracket of log(64): the crossing to 0.1 %
COMMUNICATIONS = ("tp", "cp", "ep", "dp", "pp")
RESOURCES = ("flops", "hbm", "scale_up", "scale_out")
ESTIMATED = ("context_gib", "alone_gib", "fragments")  # habits that no code or recipe states
_FLOPS = ("bf16_flops", "fp8_flops", "fp4_flops")


def faster(request: Request, resource: str, factor: float) -> Request:
    """The request on chips or links whose `resource` is `factor` times as fast."""
    return replace(request, cluster=_faster(request.cluster, resource, factor))


def _faster(cluster: Cluster, resource: str, factor: float) -> Cluster:
    if resource == "scale_up":
        up, link = cluster.scale_up_bytes_s * factor, cluster.link_bytes_s * factor
        return replace(cluster, scale_up_bytes_s=up, link_bytes_s=link)
    if resource == "scale_out":
        out = cluster.scale_out_bytes_s
        return replace(cluster, scale_out_bytes_s=None if out is None else out * factor)
    names = _FLOPS if resource == "flops" else ("hbm_bytes_s",)
    return replace(cluster, chip=_scaled(cluster.chip, names, factor))


def _scaled(chip: Chip, names: tuple[str, ...], factor: float) -> Chip:
    values: dict[str, Any] = {n: getattr(chip, n) * factor for n in names if getattr(chip, n) is not None}
    return replace(chip, **values)


def again(request: Request, strategy: Strategy) -> Evaluation:
    """The plan under `request`, whatever it was made for."""
    r = request
    return evaluate(r.model, r.cluster, r.work, strategy, r.profile)


def moved(before: Evaluation, after: Evaluation, factor: float) -> dict[str, float]:
    """Seconds of each part of the step that scale with a figure: those that a change by `factor` saved,
    over ln(factor)."""
    seconds = {k: (float(v) - float(after.time_s[k])) / log(factor) for k, v in before.time_s.items()}
    return seconds | {"step": sum(seconds.values())}


def leans_on(request: Request, strategy: Strategy, found: Evaluation) -> dict[str, dict[str, float]]:
    """Seconds of the step, by part and in all (`step`), that scale with the speed of each of RESOURCES."""
    factor = 1.0 + NUDGE
    return {r: moved(found, again(faster(request, r, factor), strategy), factor) for r in RESOURCES}


@dataclass(frozen=True, slots=True)
class Leaning:
    """A number that is no data sheet's: the seconds of the step, and of each of its `parts`, and the bytes of
    the peak (`nbytes`) that scale with it, and where it is from.

    `name` begins with `profile.` (a number of the profile), `habit.` (an estimate among the habits of the
    framework), `chip.` (a figure of the chip) or `constant.` (a row of `cost/numbers.csv` or, of a kind of
    link, of `cost/collective_curves.csv`).
    """

    name: str
    value: float
    seconds: float
    provenance: Provenance
    source: str
    parts: dict[str, float]
    nbytes: float


def numbers_leant_on(request: Request, strategy: Strategy, found: Evaluation) -> tuple[Leaning, ...]:
    """Every number that the plan reads and that neither a data sheet nor a definition gives, by what of the
    step scales with it, the largest first: of the profile, of habits, of the chip, and the constants of
    formulas."""
    leanings = []
    for name, number, after in _nudged(request, strategy):
        seconds = {k: abs(s) for k, s in moved(found, after, 1.0 + NUDGE).items()}
        step = seconds.pop("step")
        nbytes = abs(float(after.peak_bytes) - float(found.peak_bytes)) / log(1.0 + NUDGE)
        leanings.append(Leaning(name, number.value, step, number.provenance, number.source, seconds, nbytes))
    return tuple(sorted(leanings, key=lambda one: -one.seconds))


def _nudged(request: Request, strategy: Strategy) -> Iterator[tuple[str, Number, Evaluation]]:
    """Each number and the plan with that one a little larger."""
    profile, cluster = request.profile, request.cluster
    for name, number in profile.numbers.items():
        larger = replace(number, value=number.value * (1.0 + NUDGE))
        changed_profile: Profile = replace(profile, numbers=profile.numbers | {name: larger})
        yield f"profile.{name}", number, again(replace(request, profile=changed_profile), strategy)
    habits = profile.framework
    for name in ESTIMATED:
        value = float(getattr(habits, name))
        more: dict[str, Any] = {name: value * (1.0 + NUDGE)}
        other = replace(profile, framework=replace(habits, **more))
        estimated = Number(value, "assumed", source=f"usual of such programs, {habits.name} among them")
        yield f"habit.{name}", estimated, again(replace(request, profile=other), strategy)
    for name, source in cluster.chip.assumed:
        value = getattr(cluster.chip, name)
        if isinstance(value, float):
            chip = _scaled(cluster.chip, (name,), 1.0 + NUDGE)
            on_other = replace(request, cluster=replace(cluster, chip=chip))
            yield f"chip.{name}", Number(value, "assumed", source=source), again(on_other, strategy)
    with watched() as read:
        again(request, strategy)
    for name in sorted(read):
        number = records()[name]
        if number.provenance != "datasheet":
            with changed(name, 1.0 + NUDGE):
                yield f"constant.{name}", number, again(request, strategy)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where one communication begins to hide along one field, or stops to.

    `share` is what it shows of the step now, at the value `now`. It hides from `at` on upwards; None when it
    hides nowhere in `low` to `high`, or everywhere (`always`).
    """

    communication: str
    field: str
    now: float
    share: float
    at: float | None
    always: bool
    low: float
    high: float


def share_of(found: Evaluation, part: str) -> Any:
    """Share of the step that a part of it takes."""
    return found.time_s[part] / found.step_time_s


def networks(request: Request, strategy: Strategy, leanings: dict[str, dict[str, float]]) -> dict[str, str]:
    """The network that each communication of the plan runs on, `scale_up` or `scale_out`: the one whose speed
    moves more of its seconds, and of a communication that hides now, of those that show on a slow network."""
    both = ("scale_up", "scale_out")
    slow = {network: again(faster(request, network, 1 / REACH), strategy).time_s for network in both}
    found = {}
    for part in COMMUNICATIONS:
        by_network = {n: (leanings[n][part] > 0, leanings[n][part], float(slow[n][part])) for n in both}
        network = max(both, key=by_network.__getitem__)
        if by_network[network][2] > 0:
            found[part] = network
    return found


def crossings(
    request: Request, strategy: Strategy, found: Evaluation, leanings: dict[str, dict[str, float]]
) -> tuple[Crossing, ...]:
    """For each communication of the plan: the bandwidth, the batch and the domain from which on it hides."""
    parts = networks(request, strategy, leanings)
    return (
        *(_bandwidth(request, strategy, found, part, network) for part, network in parts.items()),
        *_batches(request, strategy, found, list(parts)),
        *_domains(request, strategy, found, list(parts)),
    )


def _bandwidth(request: Request, strategy: Strategy, found: Evaluation, part: str, network: str) -> Crossing:
    """By halving the bracket: a faster network never slows its own communication."""

    def share(power: float) -> float:
        return float(share_of(again(faster(request, network, REACH**power), strategy), part))

    cluster = request.cluster
    up = network == "scale_up"
    now = cluster.scale_up_bytes_s / 1e9 if up else float(cluster.scale_out_bytes_s or 0.0) * 8e-9
    field = "cluster.scale_up_gbytes_s" if up else "cluster.scale_out_gbits_s"
    power, always = _first(share, -1.0, 1.0)
    at = None if power is None else now * REACH**power
    return Crossing(part, field, now, float(share_of(found, part)), at, always, now / REACH, now * REACH)


def _first(share: Callable[[float], float], low: float, high: float) -> tuple[float | None, bool]:
    """Where a falling share passes HIDES; (None, True): it hides from the start; (None, False): never."""
    if share(low) <= HIDES:
        return None, True
    if share(high) > HIDES:
        return None, False
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) <= HIDES else (middle, high)
    return high, False


def _batches(request: Request, strategy: Strategy, found: Evaluation, parts: list[str]) -> Iterator[Crossing]:
    """All multiples of what one microbatch a rank makes, up to 64 times the batch, in one evaluation."""
    work = request.work
    least = int(strategy.dp) * int(strategy.microbatch_size)
    now = float(work.global_batch_size)
    most = max(now * REACH / least, 1.0)
    batches = least * np.unique(np.rint(np.geomspace(1.0, most, 256)))
    many = again(replace(request, work=replace(work, global_batch_size=batches)), strategy)
    for part in parts:
        hides = np.asarray(share_of(many, part)) <= HIDES
        yield _along("global_batch_size", part, found, now, batches, hides)


def _domains(request: Request, strategy: Strategy, found: Evaluation, parts: list[str]) -> Iterator[Crossing]:
    """Every domain that divides the chips, one evaluation each. A torus has no such size."""
    cluster = request.cluster
    if cluster.torus or cluster.scale_out_bytes_s is None or not np.isfinite(cluster.scale_up_bytes_s):
        return
    n = cluster.n_chips
    sizes = [d for d in range(1, n + 1) if n % d == 0]
    each = [again(replace(request, cluster=replace(cluster, scale_up_size=size)), strategy) for size in sizes]
    for part in parts:
        hides = np.array([float(share_of(one, part)) <= HIDES for one in each])
        domain = float(cluster.scale_up_size)
        yield _along("cluster.scale_up_size", part, found, domain, np.array(sizes, float), hides)


def _along(field: str, part: str, found: Evaluation, now: float, values: Any, hides: Any) -> Crossing:
    """The first of rising `values` from which on all hide."""
    shows = np.flatnonzero(~hides)
    first = 0 if not len(shows) else int(shows[-1]) + 1
    at = float(values[first]) if 0 < first < len(values) else None
    share = float(share_of(found, part))
    return Crossing(part, field, now, share, at, first == 0, float(values[0]), float(values[-1]))
