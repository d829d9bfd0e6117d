"""One optimizer step: time and memory of the worst rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import detail as details
from meshwright.cost import memory, schedule
from meshwright.cost.activations import Activations, activations, moments
from meshwright.cost.choice import Choice, Classes
from meshwright.cost.distinct import Candidates
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.flops import model_flops
from meshwright.cost.memory_by_stage import by_stage
from meshwright.cost.parts import at_once, in_parts, in_place
from meshwright.cost.rows import candidates
from meshwright.cost.stages import Layers, stage_costs
from meshwright.cost.tables import (
    Shared,
    Tables,
    exchanged,
    flattened,
    numbers_over_classes,
    shared,
    size_of,
)
from meshwright.cost.terms import Term
from meshwright.cost.times import Part, Timed, timed
from meshwright.cost.tree import tree
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Pass:
    """Results of some candidates, each [n], and what the tree of terms wants besides."""

    numbers: dict[str, Any]
    part: Part
    fullest: Choice  # its class
    saved: Activations
    time: Timed


def evaluate(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    *,
    detail: bool = False,
    operations: bool = False,
    known: Shared | None = None,
) -> Evaluation:
    """Step time and peak memory of `strategy`; arrays in its degrees give arrays out (see `Evaluation`).

    Words (schedule, recompute, zero, sp, ...) are single values: loop over them. `detail` builds the tree of
    terms and wants plain numbers, `operations` brings it down to single operations. `known` are tables that
    the caller made for these strategies under other words for schedule and ZeRO. Assumes a legal strategy
    (see `checks`).

    Step = microbatches * slowest stage + bubble + exposed data-parallel traffic + optimizer. With stages of
    seconds t: m max(t) + (sum(t) - max(t)) / v for (interleaved) 1F1B. Of the paths through the pipeline that
    stay on one rank, the longest counts. The rank of the embedding begins a step and ends it, so its exchange
    and update follow the last pass; those of other ranks fall into their drain and fill, but no step is
    shorter than all that one rank does. Parts are those of the rank that does most, and what it waits for
    others is its bubble.
    """
    outer = size_of(cluster, work, strategy, profile)
    asked = _Asked.of(model, cluster, work, strategy, profile, outer)
    tables = _tables(asked, profile, known)
    words = (model, cluster, work, strategy.finetune)
    if not (detail or operations):
        return _evaluation(*words, _numbers(asked, tables), outer)
    done = _passed(asked, asked.strategy, tables, asked.n)
    result = _evaluation(*words, done.numbers, outer)
    terms = _terms(result, done, model, cluster, work, strategy, profile, operations=operations)
    return replace(result, terms=terms, by_stage=by_stage(done.part))


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked, in one row: figures and degrees of n candidates are [n] or numbers, and the profile has
    an axis for stage classes. `many` holds the degrees; `whole`: they are evaluated in one part."""

    model: Model
    cluster: Cluster
    work: Work
    strategy: Strategy
    profile: Profile
    many: Candidates
    n: int
    whole: bool

    @classmethod
    def of(
        cls,
        model: Model,
        cluster: Cluster,
        work: Work,
        strategy: Strategy,
        profile: Profile,
        outer: tuple[int, ...],
    ) -> _Asked:
        n = int(np.prod(outer)) if outer else 1
        flat_cluster, flat_work, flat = (flattened(one, outer) for one in (cluster, work, strategy))
        by_class, many = numbers_over_classes(profile), candidates(flat, n)
        whole = at_once(flat_cluster, work, profile, n)
        return cls(model, flat_cluster, flat_work, flat, by_class, many, n, whole)


def _tables(asked: _Asked, profile: Profile, known: Shared | None) -> Tables:
    """What the candidates share: what is `known` of them, laid as their schedule wants it, or made anew."""
    a = asked
    plan = schedule.load(a.strategy.schedule)
    if known is None or schedule.load(known.schedule).JOINED != plan.JOINED:
        known = shared(a.model, a.cluster, a.work, a.strategy, profile, a.many)
    known = known.laid(a.model, a.strategy, a.many)
    lines = known.lines.held(plan.PARAMETERS_HELD)
    sent = known.sent or exchanged(a.model, a.cluster, a.work, a.strategy, profile, known, a.many)
    held = moments(a.model, a.strategy, lines)
    if held and not a.whole and a.strategy.offload == "none":
        held = held.that_may_be(known.layers.over_grid("saved"))
    return Tables(known.layers, lines, sent, known.layers.grid.places, known.where, held)


def _numbers(asked: _Asked, tables: Tables) -> dict[str, Any]:
    """The numbers of the candidates, each [n]: found at once, or part by part."""
    if asked.whole:
        return _passed(asked, asked.strategy, tables, asked.n).numbers
    order, parts = in_parts(asked.strategy, asked.many, tables)
    return in_place(
        order, ((part.at, _passed(asked, part.strategy, part.tables, part.n).numbers) for part in parts)
    )


def _terms(
    result: Evaluation,
    done: _Pass,
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    *,
    operations: bool,
) -> Term:
    """The tree of one plan."""
    part, time = done.part, done.time
    in_flight = done.saved.layers(done.fullest, part.layers)
    inside = details.inside(part.layers, time.slowest, done.fullest.chosen, in_flight, part.stages.live)
    rows = details.operation_rows(model, cluster, work, strategy, profile) if operations else {}
    return tree(
        result, part.stages, part.microbatches, strategy, work, time.host, time.offload, time.waiting,
        inside=inside, rows=rows, operands={"dp": _operands_of_dp(part, time)},
    )  # fmt: skip


def _operands_of_dp(part: Part, time: Timed) -> dict[str, float]:
    """What `data_parallel.exposed` works with for the rank that does most of one plan; zeros are left out."""
    sent, cost = part.tables.groups.traffic(), part.stages.cost
    seconds = {
        "gradients_s": sent.gradients, "weights_s": sent.weights, "gathers_s": sent.gathers,
        "forward_s": cost["forward"], "backward_s": cost["backward"],
    }  # fmt: skip
    at = part.classes.chosen(time.slowest)
    shares = {"dp_exposed": part.profile["dp_exposed"]}
    if np.any(sent.gathers):
        shares["gather_exposed"] = part.profile["gather_exposed"]
    found = {name: details.number(at.of(value)) for name, value in seconds.items()} | {
        name: details.number(share) for name, share in shares.items()
    }
    return {name: value for name, value in found.items() if value}


def _passed(asked: _Asked, strategy: Strategy, tables: Tables, n: int) -> _Pass:
    """Time and memory of n of the candidates, each number [n]."""
    model, cluster, work, profile = asked.model, asked.cluster, asked.work, asked.profile
    plan = schedule.load(strategy.schedule)
    layers = Layers(tables.lines, tables.where, tables.layers, tables.places)
    per_rank = stage_costs(model, strategy, tables.lines, tables.where, layers)
    reach = tables.groups.spans()
    microbatches = np.broadcast_to(
        np.asarray(work.global_batch_size / (strategy.dp * strategy.microbatch_size), float), (n,)
    )
    classes = Classes(per_rank.multiplicity, n)
    part = Part(
        model, cluster, work, profile, strategy, tables, per_rank, classes, layers, plan, reach,
        microbatches, n,
    )  # fmt: skip
    time = timed(part)
    counted = parse_finetune(strategy.finetune).frozen
    saved = activations(strategy, layers, model.n_layers, tables.moments, microbatches, counted=counted)
    held = memory.contents(model, work, strategy, profile, per_rank, reach, saved, microbatches, cluster)
    fullest = classes.largest(held.peak)
    found = memory.peaks(held.of(fullest.of), cluster)
    numbers = (
        time.numbers
        | found.by_category
        | {"peak": found.whole, "kept": found.kept, "stage": saved.rank(fullest)}
    )
    return _Pass(numbers, part, fullest, saved, time)


def _evaluation(
    model: Model, cluster: Cluster, work: Work, finetune: str, numbers: dict[str, Any], outer: tuple[int, ...]
) -> Evaluation:
    """Flat results as the request's shape."""
    found = {name: shaped(values, outer) for name, values in numbers.items()}
    return Evaluation(
        step_time_s=found["step_s"],
        time_s={name: found[f"{name}_s"] for name in TIME_KEYS},
        recompute_s=found["recompute_s"],
        counts_sent_bytes=found["counts_sent"],
        memory_bytes={name: found[name] for name in MEMORY_KEYS},
        peak_bytes=found["peak"],
        peak_stage=found["stage"],
        kept_bytes=found["kept"],
        capacity_bytes=shaped(usable, outer) if np.ndim(usable := cluster.usable_bytes) else usable,
        model_flops=model_flops(model, work.attended_len, finetune) * work.tokens_per_step,
        hardware_flops=found["hardware_flops"],
        floor_time_s=found["floor_s"],
    )


def shaped(values: Any, outer: tuple[int, ...]) -> Any:
    """A flat result as the request's shape; a plain number where the request held only plain numbers."""
    values = np.asarray(values, float)
    if not outer:
        return values.item()
    return values.reshape(outer) if values.size == math.prod(outer) else np.broadcast_to(values, outer)
