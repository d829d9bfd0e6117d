"""Costs of pipeline stages: layer rows summed by the split matrix, for a million candidates or for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import laid, schedule
from meshwright.cost.distinct import Candidates, Distinct, Picked, Short, Values
from meshwright.cost.layer import LayerCost
from meshwright.cost.rows import LayerTable, Places, added, candidates, layer_table, over_classes
from meshwright.hardware.records import Cluster
from meshwright.model.params import (
    block_params,
    embedding_params,
    final_params,
    head_params,
    mtp_params,
    shared_params,
    shared_set_params,
)
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Line, stage_classes
from meshwright.work import Work

__all__ = ["Pipelines", "Stages", "over_classes", "pipelines", "stage_costs", "stages"]

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The stage classes of each distinct pipeline, and the parameters that their ranks hold.

    `pairs` are the `pp` and `vpp` of the pipelines `lines`. `counts` [kinds, C, u] layers of each kind and
    ends on a rank of the class; `multiplicity`, `fullest_rank` [C, u] as in `strategy.stages.Classes`,
    `first` [u] the class of rank 0. `dense`, `largest_dense` [C, u * tp] are parameters of a rank and of its
    largest layer, `expert`, `largest_expert` [C, u * experts].
    """

    pairs: Distinct
    lines: tuple[Line, ...]
    tp: Values
    experts: Distinct
    counts: Array
    multiplicity: Array
    fullest_rank: Array
    first: IntArray
    dense: Array
    largest_dense: Array
    expert: Array
    largest_expert: Array

    def held(self, stages_worth: float) -> Pipelines:
        """With so many stages' worth of parameters on each rank (2 where it holds a stage of each way)."""
        if stages_worth == 1.0:
            return self
        return replace(self, dense=stages_worth * self.dense, expert=stages_worth * self.expert)

    def classes(self) -> IntArray:
        """Classes of each pair, [u]; the others are padding, which comes last."""
        return np.asarray(np.count_nonzero(self.multiplicity, axis=0), np.int64)

    def cut(self, classes: int) -> Pipelines:
        """For pairs with no more than so many classes."""
        names = ("multiplicity", "fullest_rank", "dense", "largest_dense", "expert", "largest_expert")
        arrays: dict[str, Any] = {name: getattr(self, name)[:classes] for name in names}
        return replace(self, counts=self.counts[:, :classes], **arrays)

    def only(self, pair: int, classes: int) -> Pipelines:
        """The one pair, which has so many classes."""
        widths = dict.fromkeys(("multiplicity", "fullest_rank"), 1)
        widths |= dict.fromkeys(("dense", "largest_dense"), len(self.tp))
        widths |= dict.fromkeys(("expert", "largest_expert"), len(self.experts))
        arrays: dict[str, Any] = {
            name: getattr(self, name)[:classes, pair * width : (pair + 1) * width]
            for name, width in widths.items()
        }
        return replace(
            self,
            pairs=self.pairs.only(pair),
            lines=self.lines[pair : pair + 1],
            counts=self.counts[:, :classes, pair : pair + 1],
            first=self.first[pair : pair + 1],
            **arrays,
        )


@dataclass(frozen=True, slots=True)
class Where:
    """Where candidates [n] read `Pipelines`: their (pp, vpp), their tp and their (ep, etp), of so many each
    (`sizes`)."""

    pair: Short
    tp: Short
    experts: Short
    sizes: tuple[int, int, int]

    def cut(self, part: Picked) -> Where:
        """Those of some of the candidates."""
        return Where(part(self.pair), part(self.tp), part(self.experts), self.sizes)

    def only(self, part: Picked) -> Where:
        """Those of some of the candidates, who all have one pair and read `Pipelines.only`."""
        tp, experts = part(self.tp), part(self.experts)
        return Where(np.zeros(len(tp), np.int64), tp, experts, (1, *self.sizes[1:]))

    @property
    def dense(self) -> IntArray:
        """Where they read what differs with the pair and tp."""
        return self._with_pair(self.tp, self.sizes[1])

    @property
    def expert(self) -> IntArray:
        """Where they read what differs with the pair and (ep, etp)."""
        return self._with_pair(self.experts, self.sizes[2])

    def _with_pair(self, at: Short, size: int) -> IntArray:
        at = at.astype(np.int64, copy=False)
        return at if self.sizes[0] == 1 else self.pair.astype(np.int64, copy=False) * size + at


def of_pairs(values: Array, pair: Short) -> Array:
    """What [C, u] pipelines have, for candidates with these pairs [n, C]; of one pipeline [1, C]."""
    return values.T if values.shape[1] == 1 else values.take(pair, axis=1).T


@dataclass(frozen=True, slots=True)
class Stages:
    """Per candidate and stage class: `cost[name]` [n, C] for one microbatch, and what a class is.

    `cost` holds forward and backward seconds and the `floor` in seconds. `dense`, `expert`:
    parameters a rank of the class holds (after tp, ep, etp), `largest` those of its largest layer where
    ZeRO-3 gathers one at a time, `multiplicity` its ranks (0 is padding).
    """

    dense: Any
    expert: Any
    cost: dict[str, Array] = field(default_factory=dict)
    largest: Any = 0.0
    offloaded: Any = 0.0  # bytes of a microbatch that go to the host and back
    staged: Any = 0.0  # bytes of the two layers on their way
    live: Any = 0.0  # bytes, the largest layer's working set
    head: Any = 0.0  # 1 where the class holds the head
    embeddings: Any = 0.0  # how many embeddings and heads there are parameters of
    heads: Any = 0.0
    multiplicity: Any = 1.0
    rows: dict[str, LayerCost] = field(default_factory=dict)


def parameter_table(model: Model, tp: Any, ep: Any, etp: Any) -> tuple[Array, Array]:
    """Dense parameters of each column of the split matrix on one rank, [kinds, tp], and expert parameters,
    [kinds, experts]. Of a block used at several layers only what each use adds, evenly over the layers."""
    dense, expert = [], []
    uses = shared_params(model).per_rank(tp) - shared_set_params(model).per_rank(tp)
    nothing, no_expert = 0.0 * tp, 0.0 * ep
    for block in model.blocks:
        count = block_params(block, model)
        dense.append(replace(count, expert=0).per_rank(tp, 1, 1) + uses / model.n_layers + nothing)
        expert.append(count.expert / (ep * etp) + no_expert)
    head = head_params(model) or model.vocab * model.d_model
    dense += [embedding_params(model) / tp, head / tp + final_params(model)]
    expert += [no_expert, no_expert]
    # The split counts modules; `mtp_params` is all of them.
    mtp = mtp_params(replace(model, mtp_layers=1)) if model.mtp_layers else None
    dense.append(replace(mtp, expert=0).per_rank(tp, 1, 1) + nothing if mtp else nothing)
    expert.append(mtp.expert / (ep * etp) + no_expert if mtp else no_expert)
    return np.array(dense, float), np.array(expert, float)


def pipelines(
    model: Model, strategy: Strategy, table: LayerTable, many: Candidates
) -> tuple[Pipelines, Where]:
    """The distinct pipelines of the candidates of `strategy`, whose degrees `many` holds and who read
    `table`."""
    tps, experts = many.axis("tp"), many.distinct("ep", "etp")
    pairs, lines = laid.lines(model, strategy, table, many)
    classes = stage_classes(model, lines)
    counts = np.ascontiguousarray(classes.counts.transpose(2, 1, 0).astype(float))
    kinds = len(model.blocks)
    both_ends = np.minimum(counts[kinds], counts[kinds + 1]) * model.tied_embeddings  # one matrix serves both
    once = both_ends[..., None] * (model.vocab * model.d_model / tps.values)
    dense, expert = parameter_table(
        model, tps.values.astype(float), experts.values["ep"].astype(float), experts.values["etp"]
    )
    c = counts.shape[1]
    present = counts > 0
    # Every stage that has layers holds all sets of the block that is used at several of them.
    sets = (counts[:kinds].sum(0) > 0)[..., None] * shared_set_params(model).per_rank(
        tps.values.astype(float)
    )
    held = Pipelines(
        pairs=pairs,
        lines=lines,
        tp=tps.values,
        experts=experts,
        counts=counts,
        multiplicity=np.ascontiguousarray(classes.multiplicity.T.astype(float)),
        fullest_rank=np.ascontiguousarray(classes.fullest_rank.T.astype(float)),
        first=counts[kinds].argmax(0),  # which holds the embedding
        dense=(np.einsum("kcu,kt->cut", counts, dense) - once + sets).reshape(c, -1),
        largest_dense=np.maximum(
            (present[..., None] * dense[:, None, None, :]).max(0), sets / max(model.shared_sets, 1)
        ).reshape(c, -1),
        expert=np.einsum("kcu,ke->cue", counts, expert).reshape(c, -1),
        largest_expert=(present[..., None] * expert[:, None, None, :]).max(0).reshape(c, -1),
    )
    return held, Where(pairs.at, tps.at, experts.at, (len(pairs), len(tps), len(experts)))


def on_classes(counts: Array, at: IntArray) -> list[list[Any]]:
    """`found[k][c]`: how many of kind k are on class c of each candidate, whose counts [kinds, C, u] are
    those at `at` [n]; a number where all have as many, None where none has any."""
    first = counts[..., 0].tolist()
    if counts.shape[-1] == 1:
        return [[many or None for many in of_kind] for of_kind in first]
    alike = (counts == counts[..., :1]).all(-1).tolist()
    return [
        [(one or None) if same else on_class.take(at) for on_class, one, same in zip(*of_kind)]
        for of_kind in zip(counts, first, alike)
    ]


def totals(on: list[list[Any]], rows: list[Any], n: int) -> Array:
    """The sum over so many layers of each kind on each class of `rows` of one layer ([n] or a number),
    [C, n]."""
    total = np.empty((len(on[0]), n))
    some = [(on_class, row) for on_class, row in zip(on, rows) if np.ndim(row) or row != 0.0]
    for c, of_class in enumerate(total):
        terms = [(on_class[c], row) for on_class, row in some if on_class[c] is not None]
        if not terms:
            of_class[:] = 0.0
        for i, (many, row) in enumerate(terms):
            if i == 0:
                np.multiply(many, row, out=of_class)
            else:
                of_class += many * row
    return total


class Layers:
    """The layers that each class of n candidates holds, and what a layer of each kind costs them.

    `fullest_rank` as in `Pipelines`.
    """

    def __init__(self, lines: Pipelines, where: Where, table: LayerTable, places: Places) -> None:
        # Multi-token prediction is part of the head's column.
        self.counts, self.pair = lines.counts[: len(table.sums["forward"])], where.pair
        self.table, self.places = table, places
        self.fullest_rank = lines.fullest_rank
        self._rows: dict[str, list[Any]] = {}

    @cached_property
    def on(self) -> list[list[Any]]:
        """The layers on each class, see `on_classes`."""
        return on_classes(self.counts, self.pair)

    def rows(self, name: str) -> list[Any]:
        """The sum `name` of a layer of each kind, [n] or a number."""
        if name not in self._rows:
            self._rows[name] = [self.places.read(cost) for cost in self.table.sums[name]]
        return self._rows[name]

    def summed(self, name: str) -> Array:
        """The sum over all layers of each class, [n, C]."""
        return totals(self.on, self.rows(name), len(self.pair)).T

    def largest(self, name: str) -> Array:
        """The largest among the layers of each class, [n, C]; sums are not negative."""
        found = np.zeros((self.counts.shape[1], len(self.pair)))
        for on_class, row in zip(self.on, self.rows(name)):
            if np.ndim(row) or row != 0.0:
                for c, on in enumerate(on_class):
                    if on is not None:
                        np.maximum(found[c], (on > 0) * row if np.ndim(on) else row, out=found[c])
        return found.T

    def of(self, chosen: IntArray) -> list[Any]:
        """Layers of each kind on the class `chosen` [n] of each candidate, [n] or None."""
        pairs = self.counts.shape[2]
        at = chosen if pairs == 1 else chosen * pairs + self.pair
        return [counts.take(at) if counts.any() else None for counts in self.counts]

    def over(self, held: Sequence[Any], name: str) -> Any:
        """The sum over so many layers of each kind, as `of` gives them, [n]; 0 where no kind has any."""
        some = [(on, row) for on, row in zip(held, self.rows(name)) if on is not None]
        return added(on * row for on, row in some if np.ndim(row) or row != 0.0)


def stage_costs(model: Model, strategy: Strategy, lines: Pipelines, where: Where, layers: Layers) -> Stages:
    """Everything that `step` and `memory` need of each stage class, one microbatch, for n candidates."""
    offloaded: Any = 0.0
    staged: Any = 0.0
    offload = parse_offload(strategy.offload)
    if offload.any:
        share = over_classes(offload.share(model.n_layers / np.asarray(strategy.pp, float)))
        offloaded = layers.summed("offloaded") * share
        staged = 2.0 * layers.largest("offloaded") * (np.asarray(share) > 0)
    largest: Any = 0.0
    if strategy.zero >= 3:
        largest = lines.largest_dense.take(where.dense, axis=1) + lines.largest_expert.take(
            where.expert, axis=1
        )
    embeddings, heads = (of_pairs(lines.counts[len(model.blocks) + i], where.pair) for i in (0, 1))
    plan = schedule.load(strategy.schedule)
    cost = {name: layers.summed(name) for name in ("forward", "backward", "floor")}
    if plan.SPLITS_BACKWARD:  # without a pipeline there is nothing to put off
        cost["backward"] += over_classes(np.asarray(strategy.pp) > 1) * layers.summed("split")
    return Stages(
        dense=lines.dense.take(where.dense, axis=1).T,
        expert=lines.expert.take(where.expert, axis=1).T,
        cost=cost,
        largest=np.transpose(largest),
        offloaded=offloaded,
        staged=staged,
        live=layers.largest("live"),
        head=(heads > 0) * 1.0,
        embeddings=plan.PARAMETERS_HELD * embeddings,
        heads=plan.PARAMETERS_HELD * heads,
        multiplicity=of_pairs(lines.multiplicity, where.pair),
        rows=layers.table.rows,
    )


def layers_per_stage(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
) -> tuple[int, ...]:
    """Decoder layers of each virtual stage of one strategy, in order."""
    many = candidates(strategy, 1)
    table = layer_table(model, cluster, work, strategy, profile, many)
    ((line,),) = laid.lines(model, strategy, table, many)[1:]
    return line.layers


def stages(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile, n: int
) -> Stages:
    """The stage classes of the n candidates of `strategy`, with tables of their own and every sum."""
    many = candidates(strategy, n)
    table = layer_table(model, cluster, work, strategy, profile, many)
    lines, where = pipelines(model, strategy, table, many)
    lines = lines.held(schedule.load(strategy.schedule).PARAMETERS_HELD)
    layers = Layers(lines, where, table, table.grid.places)
    held = stage_costs(model, strategy, lines, where, layers)
    return replace(held, cost={name: layers.summed(name) for name in table.sums})


def over_ranks(stages: Stages, at: IntArray) -> Stages:
    """Stage costs with an axis for ranks, whose classes are `at`, in place of the one for classes."""
    moved: dict[str, Any] = {}
    for field_ in fields(stages):
        value = getattr(stages, field_.name)
        if field_.name == "cost":
            moved["cost"] = {name: cost[:, at] for name, cost in value.items()}
        elif np.ndim(value) == 2:
            moved[field_.name] = value[:, at] if value.shape[1] > 1 else value
    return replace(stages, **(moved | {"multiplicity": np.ones((len(stages.multiplicity), len(at)))}))
