"""Seconds of a step: what a rank of each stage class does, and the pipeline that it waits in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import balance, collectives, schedule
from meshwright.cost.choice import Choice, Classes
from meshwright.cost.exchange import beside
from meshwright.cost.host_link import Waits
from meshwright.cost.rows import added
from meshwright.cost.schedule import Schedule
from meshwright.cost.schedule.actions import Own
from meshwright.cost.stages import Layers, Stages, over_classes
from meshwright.cost.tables import Tables
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]

_SUMMED = ("tp", "cp", "ep", "recompute", "host")  # read off the slowest stage's layers


@dataclass(frozen=True, slots=True)
class Part:
    """n candidates and what their step is timed from: `strategy` flat, `profile` with an axis for classes,
    `stages` [n, C] of `classes`, `microbatches` [n]."""

    model: Model
    cluster: Cluster
    work: Work
    profile: Profile
    strategy: Strategy
    tables: Tables
    stages: Stages
    classes: Classes
    layers: Layers
    plan: Schedule
    reach: dict[str, Span]
    microbatches: Any
    n: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Numbers of the step by name, each [n]; the class of the rank that does most; and within its step the
    seconds of launches, of waits for the host link, and those that all wait for a slow rank."""

    numbers: dict[str, Any]
    slowest: IntArray
    host: Any
    offload: Any
    waiting: Any


@dataclass(frozen=True, slots=True)
class _Spent:
    """What a rank of each stage class spends besides computing, [n, C]: waits of one microbatch's passes for
    the host link; `exchange`, `optimizer` and `counts` (of experts) once a step. Of all, [n]: `hops`, a
    microbatch's sends that show, and `counting`, forwards run before for the counts."""

    waits: Waits
    hops: Any
    exchange: Any
    optimizer: Any
    counts: Any
    counts_sent: Any
    counting: Any

    @property
    def once(self) -> Any:
        """Seconds once a step."""
        return added([self.exchange, self.optimizer, self.counts])

    @property
    def waited(self) -> Any:
        """Seconds that a microbatch's passes wait for the host link."""
        return added([self.waits.forward, self.waits.backward])


def timed(part: Part) -> Timed:
    """Seconds of the step of the rank that does most, by part; its bubble is what it waits for others."""
    spent, classes = _spent(part), part.classes
    forward, backward = part.stages.cost["forward"], part.stages.cost["backward"]
    busy = added([forward, backward, spent.hops[:, None], spent.waited])
    counting = spent.counting
    twice = over_classes(counting) * forward if np.ndim(counting) else 0.0
    once = spent.once
    passes = added([part.microbatches[:, None] * busy, twice])
    does = passes + once
    last, first = classes.largest(does), classes.chosen(_first_class(part.tables))
    piped = np.asarray(part.strategy.pp) > 1
    paths = passes + over_classes(piped * 1.0) * _idle(part, spent)  # not what rounding leaves
    bubble = classes.largest(paths).of(paths) + first.of(once) - last.of(does)
    return _of_slowest(part, spent, last, bubble)


def _first_class(tables: Tables) -> IntArray:
    """The class of each candidate's rank 0, [n] or [1] for all."""
    first = tables.lines.first
    return first[:1] if (first == first[0]).all() else first.take(tables.where.pair)


def _spent(part: Part) -> _Spent:
    model, strategy, profile, tables = part.model, part.strategy, part.profile, part.tables
    options, m = part.work.options, part.microbatches[:, None]
    waited = schedule.sends_block(strategy.schedule, profile.framework, options)
    hop = hop_seconds(model, part.work, strategy, profile, part.reach["pp"], waited=waited)
    shown = 1.0 if waited else schedule.shown_of_sends(part.plan)
    piped = np.asarray(strategy.pp) > 1
    hops = np.broadcast_to(hop * (piped * 2.0 * strategy.vpp * shown), (part.n,))
    sent = tables.groups.traffic()
    waits, dp = beside(part.stages, part.layers, sent, m, strategy, profile, options, part.cluster)
    optimizer = tables.groups.optimizer()
    counting = balance.counting_forwards(strategy.moe_balance, part.microbatches)
    counts, counts_sent = balance.exchange(
        model, strategy, profile, tables.lines.counts, tables.where.pair, part.reach, m
    )
    return _Spent(waits, hops, dp, optimizer, counts, counts_sent, counting)


def _of_slowest(part: Part, spent: _Spent, last: Choice, bubble: Any) -> Timed:
    """The parts of a step of the class `last` of each candidate."""
    microbatches, counting, cluster = part.microbatches, spent.counting, part.cluster
    slow_forward, slow_backward = (last.of(part.stages.cost[name]) for name in ("forward", "backward"))
    held = part.layers.of(last.chosen)

    def own(name: str) -> Any:
        """A sum over the layers of the rank that does most, one microbatch."""
        if name == "host" and part.plan.SPLITS_BACKWARD:
            piped = np.asarray(part.strategy.pp) > 1
            return part.layers.over(held, name) + piped * part.layers.over(held, "split")
        return part.layers.over(held, name)

    straggler = straggler_share(cluster, part.profile)
    step = {name: seconds * microbatches if np.ndim(seconds := own(name)) else 0.0 for name in _SUMMED}
    messages = step["tp"] + step["cp"] + step["ep"]
    computed = microbatches * (slow_forward + slow_backward) - messages - step["host"]
    parts = {
        "compute": computed + counting * slow_forward if np.ndim(counting) else computed,
        "tp": step["tp"],
        "cp": step["cp"],
        "ep": added([step["ep"], last.of(spent.counts)]),
        "dp": last.of(spent.exchange),
        "pp": microbatches * spent.hops,
        "bubble": np.maximum(bubble, 0.0),
        "optimizer": last.of(spent.optimizer),
    }
    host, waited = step["host"], spent.waited
    offload = microbatches * last.of(waited) if np.ndim(waited) else 0.0
    waiting = slow_rank_seconds(part.work, parts["compute"], host, parts["optimizer"])
    subtotal = added([host, offload, waiting, *parts.values()])
    parts["other"] = added([host, offload, waiting, straggler * subtotal])
    ranks = cluster.n_chips / np.asarray(part.strategy.pp)
    numbers = {f"{name}_s": value for name, value in parts.items()} | {
        "step_s": (1.0 + straggler) * subtotal,
        "recompute_s": step["recompute"],
        "counts_sent": last.of(spent.counts_sent),
        "hardware_flops": ranks * _flops(part, counting),
        "floor_s": microbatches * part.stages.cost["floor"].max(-1),
    }
    return Timed(numbers, last.chosen, host, offload, waiting)


def _flops(part: Part, counting: Any) -> Any:
    """Arithmetic of a step of one pipeline with everything done twice, [n]."""
    whole, places = part.tables.layers.whole, part.tables.places
    flops = part.microbatches * places.read(whole["flops"])
    return flops + counting * places.read(whole["flops_forward"]) if np.any(counting) else flops


def _idle(part: Part, spent: _Spent) -> Any:
    """Seconds of a step that the longest path through a pipeline spends on other ranks than one of each
    class, [n, C], as the schedule says; without a pipeline what rounding leaves."""
    strategy, plan, tables, per_rank = part.strategy, part.plan, part.tables, part.stages
    each, sends = spent.waits, (np.asarray(strategy.pp) - 1.0) * spent.hops / 2.0

    def others(name: str, of_class: Any, waits: Any, sends: Any = 0.0) -> Any:
        """A sum over the layers of all ranks but one of the class, with what they wait for the host link."""
        if np.ndim(waits):
            of_class, sends = of_class + waits, sends + (waits * per_rank.multiplicity).sum(-1)
        whole = tables.places.read(tables.layers.whole[name])
        if name == "backward" and plan.SPLITS_BACKWARD:
            whole = whole + (np.asarray(strategy.pp) > 1) * tables.places.read(tables.layers.whole["split"])
        return over_classes(whole + sends) - of_class

    forward, backward = per_rank.cost["forward"], per_rank.cost["backward"]
    held_weight: Any = 0.0
    own = None
    if plan.SPLITS_BACKWARD:  # a rank fills the time in which it waits for others with passes of its own
        weight = part.layers.summed("weight")
        held_weight = others("weight", weight, each.weight)
        weight = added([weight, each.weight])
        gradient = added([backward, each.backward]) - weight
        ranks = over_classes(np.asarray(strategy.pp) - 1.0)
        own = Own(*(ranks * x for x in (added([forward, each.forward]), gradient, weight)))
    return plan.bubble(
        others("forward", forward, each.forward, sends),
        others("backward", backward, each.backward, sends),
        held_weight,
        over_classes(strategy.vpp),
        over_classes(strategy.pp),
        part.microbatches[:, None],
        own,
    )


def hop_seconds(
    model: Model, work: Work, strategy: Strategy, profile: Profile, pipeline: Span, *, waited: bool
) -> Any:
    """Seconds of a microbatch's activations (or their gradient) from stage to stage, nothing hidden.

    A program that waits for a send (`waited`) and then for its device has no launches under way when the
    next pass may begin: the device idles until the first of them is made.
    **Source**: Megatron-LM, core/pipeline_parallel/p2p_communication.py, which waits for its requests and
    then calls torch.cuda.synchronize().
    """
    finetune = parse_finetune(strategy.finetune)
    # A reference model's forward goes through the pipeline as well: three sends where others have two.
    row_bytes = 2.0 * finetune.rows * (1.5 if finetune.pairs else 1.0) * model.d_model * work.seq_len
    sent = collectives.send_recv_time(
        row_bytes * strategy.microbatch_size / (strategy.cp * strategy.tp),
        pipeline, _flat_number(profile["scale_up"]), _flat_number(profile["scale_out"]),
    )  # fmt: skip
    launches = "cuda-graphs-full" not in work.options and not profile.framework.compiled
    if waited and launches and profile.framework.synchronises_sends:
        sent = sent + _flat_number(profile["host"]) * (np.asarray(pipeline.degree) > 1)
    return sent


def straggler_share(cluster: Cluster, profile: Profile) -> Any:
    """Share of a step that the slowest of many chips adds."""
    return _flat_number(profile["straggler"]) * np.log2(max(cluster.n_chips / 8.0, 1.0))


def slow_rank_seconds(work: Work, compute: Any, host: Any, optimizer: Any) -> Any:
    """Seconds that all wait for a rank whose passes and update take `work.slowness` times as long."""
    return (work.slowness - 1.0) * (compute + host + optimizer) if work.slowness != 1.0 else 0.0


def _flat_number(value: Any) -> Any:
    """A profile's number without the axis for classes."""
    return value[..., 0] if np.ndim(value) else value
