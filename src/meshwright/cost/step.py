"""One optimizer step: time and memory of the worst rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import balance, collectives, data_parallel, detail, host_link, memory, schedule
from meshwright.cost.adapters import trained_share
from meshwright.cost.choice import Classes
from meshwright.cost.distinct import Candidates
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.flops import model_flops
from meshwright.cost.groups import Groups, groups
from meshwright.cost.memory_by_stage import by_stage
from meshwright.cost.rows import (
    LayerPrices,
    LayerTable,
    Places,
    added,
    candidates,
    layer_prices,
    numbers_vary,
    with_axes,
)
from meshwright.cost.schedule import Schedule
from meshwright.cost.schedule.actions import Own
from meshwright.cost.stages import Layers, Pipelines, Stages, Where, over_classes, pipelines, stage_costs
from meshwright.cost.terms import Term
from meshwright.cost.tree import tree
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]

CHUNK = 16384  # candidates at a time: their arrays stay in the cache
# Candidates of one pipeline, at least, and share of all, that are worth a part of their own: what lies far
# apart is slow to pick out.
ALIKE, OFTEN = 4096, 1 / 16
_TIMES = ("tp", "cp", "ep", "recompute", "host")  # read off the slowest stage's layers


def size_of(work: Work, strategy: Strategy, profile: Profile) -> tuple[int, ...]:
    """Shape that all numbers of a request broadcast to."""
    numbers = [getattr(strategy, f.name) for f in fields(strategy)]
    numbers += [work.seq_len, work.global_batch_size, *(x.value for x in profile.numbers.values())]
    return np.broadcast_shapes(*(np.shape(x) for x in numbers if isinstance(x, np.ndarray)))


def numbers_over_classes(profile: Profile) -> Profile:
    """The profile with an axis for stage classes on numbers that are arrays."""
    return with_axes(profile, 1)


@dataclass(frozen=True, slots=True)
class Shared:
    """What strategies share that differ only in words for schedule and ZeRO: tables of layers and of stages.

    `prices` makes tables of layers for other recompute words. `sent` is what they exchange, where that was
    found out for one schedule and ZeRO stage (see `exchanging`).
    """

    layers: LayerTable
    lines: Pipelines
    where: Where
    schedule: str  # that the tables were made for
    prices: LayerPrices
    sent: Groups | None = None

    def cut(self, part: IntArray) -> Shared:
        """The same for some of the strategies, in any order."""
        sent = self.sent.cut(part) if self.sent else None
        return replace(self, layers=self.layers.cut(part), where=self.where.cut(part), sent=sent)

    def exchanging(
        self, model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
    ) -> Shared:
        """The same with what the strategies exchange under the schedule and ZeRO words of `strategy`."""
        many = candidates(strategy, len(self.where.pair))
        known = self.laid(model, work, strategy, many)
        return replace(known, sent=_sent(model, cluster, work, strategy, profile, known, many))

    def laid(self, model: Model, work: Work, strategy: Strategy, many: Candidates) -> Shared:
        """The same with stages laid as the schedule of `strategy` wants them."""
        if layout_of(strategy.schedule) == layout_of(self.schedule):
            return self
        lines, where = pipelines(model, work, strategy, many)
        return replace(self, lines=lines, where=where, schedule=strategy.schedule)


def shared(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    many: Candidates,
    recomputes: Sequence[str] = (),
) -> Shared:
    """The tables of the strategies whose degrees `many` holds, each in one row, for its own recompute word or
    to be asked for several."""
    lines, where = pipelines(model, work, strategy, many)
    prices = layer_prices(model, cluster, work, strategy, profile, many, recomputes=recomputes)
    return Shared(prices.table(strategy), lines, where, strategy.schedule, prices)


def _sent(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    known: Shared,
    many: Candidates,
) -> Groups:
    """What the flat candidates exchange and update once."""
    lines = known.lines.held(schedule.load(strategy.schedule).PARAMETERS_HELD)
    trained = trained_share(model, strategy.finetune)
    by_class = numbers_over_classes(profile)
    return groups(cluster, work, strategy, by_class, lines, known.where, many, trained)


@dataclass(frozen=True, slots=True)
class _Tables:
    """What the candidates of one request share, and where each of them reads it."""

    layers: LayerTable
    lines: Pipelines
    groups: Groups
    places: Places
    where: Where

    def parts(self) -> Iterator[tuple[IntArray, _Tables]]:
        """All candidates in parts of up to CHUNK, each in rising order: many with one pipeline by themselves,
        the others with those that have as many stage classes, so that none computes much for padding."""
        classes = self.lines.classes()
        own = np.bincount(self.where.pair) >= max(ALIKE, OFTEN * len(self.where.pair))
        widest = int(classes.max()) + 1
        kind = np.where(own, widest + np.arange(len(own)), classes[: len(own)]).take(self.where.pair)
        kind = kind.astype(np.uint16) if kind.max() < 1 << 16 else kind  # short numbers sort in no time
        order = np.argsort(kind, kind="stable")
        start = 0
        for one, count in enumerate(np.bincount(kind).tolist()):
            pair = one - widest
            width = int(classes[pair]) if pair >= 0 else one
            lines = self.lines.only(pair, width) if pair >= 0 else self.lines.cut(width)
            for first in range(start, start + count, CHUNK):
                part = order[first : min(first + CHUNK, start + count)]
                where = self.where.only(part, pair, lines) if pair >= 0 else self.where.cut(part)
                shared = self.groups.cut(part, width)
                yield part, _Tables(self.layers, lines, shared, self.places.cut(part), where)
            start += count

    def strategy(self, strategy: Strategy, part: IntArray) -> Strategy:
        """Some candidates of a flat strategy, those of these tables; what their pipeline says is plain."""
        if len(self.lines.pairs) > 1:
            return _cut(strategy, part)
        pair = {name: value.item() for name, value in self.lines.pairs.values.items()}
        return _cut(replace(strategy, **pair), part)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Results of some candidates, each [n], and what the tree of terms wants besides."""

    numbers: dict[str, Any]
    stages: Stages
    microbatches: Any
    layers: Layers
    fullest: IntArray  # its class
    slowest: IntArray
    host: Any
    offload: Any
    waiting: Any


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
    outer = size_of(work, strategy, profile)
    n = int(np.prod(outer)) if outer else 1
    flat_work = flattened(work, outer)
    flat = flattened(strategy, outer)
    by_class = numbers_over_classes(profile)
    many = candidates(flat, n)
    if known is None or schedule.load(known.schedule).JOINED != schedule.load(flat.schedule).JOINED:
        known = shared(model, cluster, flat_work, flat, profile, many)
    known = known.laid(model, flat_work, flat, many)
    lines = known.lines.held(schedule.load(strategy.schedule).PARAMETERS_HELD)
    sent = known.sent or _sent(model, cluster, flat_work, flat, profile, known, many)
    tables = _Tables(known.layers, lines, sent, known.layers.grid.places, known.where)
    request = (model, cluster, flat_work, by_class)
    whole = n <= CHUNK or numbers_vary(profile) or np.ndim(work.seq_len) or np.ndim(work.global_batch_size)
    if whole:
        done = _passed(*request, flat, tables, n)
        numbers = done.numbers
    else:
        numbers = _in_parts(request, flat, tables, n)
    result = _evaluation(model, cluster, work, strategy.finetune, numbers, outer)
    if not (detail or operations):
        return result
    terms = _terms(result, done, model, cluster, work, strategy, profile, operations=operations)
    held = by_stage(
        model, flat_work, flat, by_class, done.stages, lines, sent.spans(), done.microbatches, cluster
    )
    return replace(result, terms=terms, by_stage=held)


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
    plan = schedule.load(strategy.schedule)
    in_flight = memory.microbatches_in_flight(strategy, done.stages, plan, done.microbatches)
    inside = detail.inside(done.layers, done.slowest, done.fullest, in_flight, done.stages.live)
    rows = detail.operation_rows(model, cluster, work, strategy, profile) if operations else {}
    return tree(
        result, done.stages, done.microbatches, strategy, work, done.host, done.offload, done.waiting,
        inside=inside, rows=rows,
    )  # fmt: skip


def _in_parts(
    request: tuple[Model, Cluster, Work, Profile], strategy: Strategy, tables: _Tables, n: int
) -> dict[str, Any]:
    """The numbers of n candidates, each [n], found part by part."""
    numbers: dict[str, Any] = {}
    for part, of_part in tables.parts():
        found = _passed(*request, of_part.strategy(strategy, part), of_part, len(part)).numbers
        if not numbers:  # one block for all, which the system hands out in large pages, full of zeros
            numbers = dict(zip(found, np.zeros((len(found), n))))
        for name, values in found.items():
            if np.ndim(values) or values != 0.0:
                numbers[name][part] = values
    return numbers


def _passed(
    model: Model, cluster: Cluster, work: Work, profile: Profile, strategy: Strategy, tables: _Tables, n: int
) -> _Pass:
    """Time and memory of n candidates, each number [n]; `profile` has an axis for classes."""
    plan = schedule.load(strategy.schedule)
    layers = Layers(tables.lines, tables.where, tables.layers, tables.places)
    per_rank = stage_costs(model, strategy, tables.lines, tables.where, layers)
    reach = tables.groups.spans()
    microbatches = np.broadcast_to(
        np.asarray(work.global_batch_size / (strategy.dp * strategy.microbatch_size), float), (n,)
    )
    numbers, *within = _times(
        model, cluster, work, profile, strategy, tables, per_rank, layers, plan, reach, microbatches, n
    )
    found = memory.peaks(model, work, strategy, profile, per_rank, reach, plan, microbatches, cluster)
    fullest = Classes(per_rank.multiplicity, n).largest(found.whole)
    own = {name: fullest.of(found.by_category[name]) for name in MEMORY_KEYS}
    numbers |= own | {
        "peak": fullest.of(found.whole),
        "kept": fullest.of(found.kept),
        "stage": fullest.of(per_rank.fullest_rank),
    }
    return _Pass(numbers, per_rank, microbatches, layers, fullest.chosen, *within)


def _times(
    model: Model,
    cluster: Cluster,
    work: Work,
    profile: Profile,
    strategy: Strategy,
    tables: _Tables,
    per_rank: Stages,
    layers: Layers,
    plan: Schedule,
    reach: dict[str, Span],
    microbatches: Any,
    n: int,
) -> tuple[dict[str, Any], IntArray, Any, Any, Any]:
    """Seconds of the slowest stage's step by part, its class, those of launches and of activations to and
    from the host within, and those that all wait for a slow rank."""
    forward, backward = per_rank.cost["forward"], per_rank.cost["backward"]
    m = microbatches[:, None]
    piped = np.asarray(strategy.pp) > 1
    waited = schedule.sends_block(strategy.schedule, profile.framework, work.options)
    hop = hop_seconds(model, work, strategy, profile, reach["pp"], waited=waited)
    shown = 1.0 if waited else plan.P2P_EXPOSED
    hops = np.broadcast_to(hop * (piped * 2.0 * strategy.vpp * shown), (n,))
    sent = tables.groups.traffic()
    each = host_link.Waits()
    if host_link.used(strategy):
        link = host_link.copies(
            per_rank.offloaded, sent.fetch / plan.PARAMETERS_HELD, strategy, profile.framework, cluster
        )
        each = link.waits(forward, backward, layers.summed("weight"), splits=plan.SPLITS_BACKWARD)
    waits = added([each.forward, each.backward])
    busy = added([forward, backward, hops[:, None], waits])

    # While a pass waits for the host link, the network goes on.
    hiders = added([forward, each.forward]), added([backward, each.backward])
    last_pass = hiders[1]
    if plan.SPLITS_BACKWARD:
        of_weight = added([layers.summed("weight"), each.weight])
        last_pass = data_parallel.last_passes(strategy, last_pass, of_weight)
    dp = data_parallel.exposed(sent, *hiders, last_pass, m, profile, work.options)
    optimizer = tables.groups.optimizer()
    classes = Classes(per_rank.multiplicity, n)
    counting = balance.counting_forwards(strategy.moe_balance, microbatches)
    counts, counts_sent = balance.exchange(
        model, strategy, profile, tables.lines.counts, tables.where.pair, reach, m
    )
    twice = over_classes(counting) * forward if np.ndim(counting) else 0.0
    once = added([dp, optimizer, counts])
    passes = added([m * busy, twice])
    does = passes + once
    last, first = classes.largest(does), classes.chosen(tables.lines.first.take(tables.where.pair))
    sends = (np.asarray(strategy.pp) - 1.0) * hops / 2.0

    idle = _idle(strategy, plan, tables, per_rank, layers, each, sends, m)
    paths = passes + over_classes(piped * 1.0) * idle  # not what rounding leaves
    bubble = classes.largest(paths).of(paths) + first.of(once) - last.of(does)
    slow_forward, slow_backward = last.of(forward), last.of(backward)
    held = layers.of(last.chosen)

    def own(name: str) -> Any:
        """A sum over the layers of the rank that does most, one microbatch."""
        if name == "host" and plan.SPLITS_BACKWARD:
            return layers.over(held, name) + piped * layers.over(held, "split")
        return layers.over(held, name)

    straggler = straggler_share(cluster, profile)
    step = {name: seconds * microbatches if np.ndim(seconds := own(name)) else 0.0 for name in _TIMES}
    messages = step["tp"] + step["cp"] + step["ep"]
    computed = microbatches * (slow_forward + slow_backward) - messages - step["host"]
    parts = {
        "compute": computed + counting * slow_forward if np.ndim(counting) else computed,
        "tp": step["tp"],
        "cp": step["cp"],
        "ep": added([step["ep"], last.of(counts)]),
        "dp": last.of(dp),
        "pp": microbatches * hops,
        "bubble": np.maximum(bubble, 0.0),
        "optimizer": last.of(optimizer),
    }
    host, offload = step["host"], microbatches * last.of(waits) if np.ndim(waits) else 0.0
    waiting = slow_rank_seconds(work, parts["compute"], host, parts["optimizer"])
    subtotal = added([host, offload, waiting, *parts.values()])
    parts["other"] = added([host, offload, waiting, straggler * subtotal])
    whole = tables.layers.whole
    flops = microbatches * tables.places.read(whole["flops"])
    if np.any(counting):
        flops = flops + counting * tables.places.read(whole["flops_forward"])
    ranks = cluster.n_chips / np.asarray(strategy.pp)
    numbers = {f"{name}_s": value for name, value in parts.items()} | {
        "step_s": (1.0 + straggler) * subtotal,
        "recompute_s": step["recompute"],
        "counts_sent": last.of(counts_sent),
        "hardware_flops": ranks * flops,
        "floor_s": microbatches * per_rank.cost["floor"].max(-1),
    }
    return numbers, last.chosen, host, offload, waiting


def _idle(
    strategy: Strategy,
    plan: Schedule,
    tables: _Tables,
    per_rank: Stages,
    layers: Layers,
    each: host_link.Waits,
    sends: Any,
    m: Any,
) -> Any:
    """Seconds of a step that the longest path through a pipeline spends on other ranks than one of each
    class, [n, C], as the schedule says; without a pipeline what rounding leaves."""

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
        weight = layers.summed("weight")
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
        m,
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
        capacity_bytes=cluster.usable_bytes,
        model_flops=model_flops(model, work.attended_len, finetune) * work.tokens_per_step,
        hardware_flops=found["hardware_flops"],
        floor_time_s=found["floor_s"],
    )


def shaped(values: Any, outer: tuple[int, ...]) -> Any:
    """A flat result as the request's shape; a plain number where the request held only plain numbers."""
    values = np.asarray(values, float)
    if not outer:
        return float(values.ravel()[0])
    return values.reshape(outer) if values.size == np.prod(outer) else np.broadcast_to(values, outer)


def flattened(record: Any, outer: tuple[int, ...]) -> Any:
    """The record with its arrays spread over the request and in one row."""
    arrays = {
        f.name: np.broadcast_to(getattr(record, f.name), outer).ravel()
        for f in fields(record)
        if isinstance(getattr(record, f.name), np.ndarray)
    }
    return replace(record, **arrays)


def _cut(strategy: Strategy, part: IntArray) -> Strategy:
    """Some of the candidates of a flat strategy."""
    arrays = {
        f.name: getattr(strategy, f.name).take(part)
        for f in fields(strategy)
        if isinstance(getattr(strategy, f.name), np.ndarray)
    }
    return replace(strategy, **arrays)


def _flat_number(value: Any) -> Any:
    """A profile's number without the axis for classes."""
    return value[..., 0] if np.ndim(value) else value
