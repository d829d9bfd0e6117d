"""Costs of pipeline stages: layer rows gathered by the split matrix, for a million candidates or for one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from meshwright.cost.flops import split_weights
from meshwright.cost.layer import FIELDS, NO_OFFLOAD, LayerCost, layer_cost, shape_of
from meshwright.cost.layers import ends, operations, shared_operations
from meshwright.cost.ops import Matmul, Operation, Shape, Words
from meshwright.hardware.records import Cluster
from meshwright.model.params import (
    block_params,
    embedding_params,
    final_params,
    head_params,
    mtp_blocks,
    mtp_params,
    shared_params,
)
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import spans
from meshwright.strategy.recompute import Recompute, parse
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Classes, stage_classes
from meshwright.work import Work

Array = npt.NDArray[np.float64]

# Fields of a layer row, in the order of the table's last axis; `whole_saved`: kept under full recomputation.
COLUMNS = (*FIELDS, "whole_saved")


@dataclass(frozen=True, slots=True)
class Stages:
    """Per candidate and stage class: `cost[name]` [n, C] for one microbatch, and what a class is.

    `dense`, `expert`: parameters a rank of the class holds (after tp, ep, etp), `largest_layer` the
    parameters of its largest gathered unit, `multiplicity` [n, C] its ranks (0 is padding).
    """

    cost: dict[str, Array]
    dense: Array
    expert: Array
    largest_dense: Array
    largest_expert: Array
    offloaded: Array  # bytes of a microbatch that go to the host and back
    staged: Array  # bytes of the two layers on their way
    live: Array  # bytes, the largest layer's working set
    head: Array  # 1 where the class holds the head
    multiplicity: Array
    first_rank: Array
    rows: dict[str, LayerCost]


CHUNKED_LOSS = frozenset({"liger", "chunked-ce", "vocab-tiling", "fused-kernels"})


def loss_word(work: Work, profile: Profile) -> str:
    """How the loss holds its logits: chunked, fused or whole."""
    if work.options & CHUNKED_LOSS:
        return "chunked"
    return "fused" if profile.framework.fused_loss or "fused-loss" in work.options else "whole"


def words_of(model: Model, work: Work, strategy: Strategy, profile: Profile) -> Words:
    """The words that layer costs depend on, from strategy, work and the framework's habits."""
    unbalanced = "dropless" in work.options and "balanced-routing" not in work.options
    return Words(
        sp=strategy.sp,
        cp_method=strategy.cp_method,
        precision=work.precision,
        flash=profile.framework.attention_kernel != "unfused",
        regathers_input=profile.framework.regathers_input,
        dispatcher=strategy.dispatcher,
        imbalance=float(profile["imbalance"]) if unbalanced else 1.0,
        fused_experts="cuda-graphs-full" in work.options,
        loss=loss_word(work, profile),
    )


def mtp_operations(model: Model, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """One multi-token-prediction layer: joins two streams (2h to h), a block like the last, the head again.

    **Source**: DeepSeek-V3 report, section 2.2.
    """
    h = model.d_model
    return (
        Matmul(
            "mtp_join", "kept", shape.tokens / shape.tp, 2 * h, h, saved=4.0 * shape.tokens / shape.tp * h
        ),
        *(op for block in mtp_blocks(model) for op in operations(block, model, shape, words)),
        *ends.head(h, model.vocab, shape, words),
    )


def kind_rows(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile, recompute: Recompute
) -> list[tuple[str, LayerCost, LayerCost]]:
    """(name, cost under the recompute word, cost when recomputed whole) of each column of the split."""
    words = words_of(model, work, strategy, profile)
    offload = parse_offload(strategy.offload)
    shape = shape_of(
        work.seq_len, strategy.microbatch_size, strategy.tp, strategy.cp, strategy.ep, strategy.etp
    )
    reach = spans(cluster, strategy)
    keep = replace(recompute, modules=frozenset())
    rows: list[tuple[str, LayerCost, LayerCost]] = []

    def row(name: str, ops: tuple[Operation, ...], word: Recompute, *, layer: bool) -> None:
        taken = offload if layer else NO_OFFLOAD
        plain = layer_cost(ops, words, reach, cluster.chip, profile, word, work.options, taken)
        whole = plain
        if layer:
            whole = layer_cost(
                ops, words, reach, cluster.chip, profile, word, work.options, taken, whole=True
            )
        rows.append((name, plain, whole))

    for i, block in enumerate(model.blocks):
        ops = operations(block, model, shape, words) + shared_operations(model, shape, words)
        row(f"layer_{i}", ops, recompute, layer=True)
    row("embedding", ends.embedding(model.d_model, shape, words), keep, layer=False)
    row("head", ends.head(model.d_model, model.vocab, shape, words), keep, layer=False)
    row("mtp", mtp_operations(model, shape, words) if model.mtp_layers else (), keep, layer=False)
    return rows


def layer_table(rows: list[tuple[str, LayerCost, LayerCost]], share: Any) -> Array:
    """[..., kinds, COLUMNS]: rows mixed by the share of layers that is recomputed whole (no word but
    every:N and layers:N has a share between 0 and 1)."""
    columns = []
    for _, plain, whole in rows:
        mixed = [(1 - share) * getattr(plain, f) + share * getattr(whole, f) for f in FIELDS]
        columns.append([*mixed, whole.saved])
    shape = np.broadcast_shapes(*(np.shape(v) for c in columns for v in c))
    table = np.empty((*shape, len(columns), len(COLUMNS)))
    for k, column in enumerate(columns):
        for j, value in enumerate(column):
            table[..., k, j] = value
    return table


def parameter_table(model: Model, tp: Any, ep: Any, etp: Any) -> tuple[Array, Array]:
    """Dense and expert parameters of each column of the split matrix on one rank, [..., kinds]."""
    dense, expert = [], []
    shared = shared_params(model)
    for block in model.blocks:
        count = block_params(block, model)
        spread = shared.per_rank(tp) / model.n_layers  # a shared block's weights, evenly over the layers
        dense.append(count.per_rank(tp, ep, etp) - count.expert / (ep * etp) + spread)
        expert.append(count.expert / (ep * etp))
    mtp = mtp_params(model) if model.mtp_layers else None
    head = head_params(model) or model.vocab * model.d_model
    dense += [embedding_params(model) / tp, head / tp + final_params(model)]
    expert += [0.0 * tp, 0.0 * tp]
    dense.append(mtp.per_rank(tp, ep, etp) - mtp.expert / (ep * etp) if mtp else 0.0 * tp)
    expert.append(mtp.expert / (ep * etp) if mtp else 0.0 * tp)
    shape = np.broadcast_shapes(*(np.shape(x) for x in (*dense, *expert)))
    return (
        np.stack([np.broadcast_to(np.asarray(d, float), shape) for d in dense], axis=-1),
        np.stack([np.broadcast_to(np.asarray(e, float), shape) for e in expert], axis=-1),
    )


def _compressed(strategy: Strategy, n: int) -> tuple[Strategy, npt.NDArray[np.int64]]:
    """Distinct layer shapes among n candidates, and the index that spreads them again."""
    fields = ["tp", "cp", "ep", "etp", "microbatch_size"]
    if strategy.placement[:2] != ("tp", "cp"):
        fields += ["dp", "pp"]
    code: npt.NDArray[np.int64] = np.zeros(n, np.int64)  # mixed radix over each field's distinct values
    for f in fields:
        values, digit = np.unique(
            np.broadcast_to(np.asarray(getattr(strategy, f)), (n,)), return_inverse=True
        )
        code = code * len(values) + digit.ravel()
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    every = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_group", "microbatch_size")
    picked = {f: np.broadcast_to(np.asarray(getattr(strategy, f)), (n,))[first] for f in every}
    small: Strategy = replace(strategy, **cast(dict[str, Any], picked))
    return small, np.asarray(index).ravel()


def stages(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile, n: int
) -> Stages:
    """Everything `step` and `memory` need of each stage class, one microbatch, for n candidates."""
    recompute = parse(strategy.recompute)
    numbers_vary = any(np.size(x.value) > 1 for x in profile.numbers.values())
    if n > 32 and not numbers_vary and np.size(work.seq_len) == 1:
        small, spread = _compressed(strategy, n)
    else:
        small, spread = strategy, np.zeros(0, np.int64)
    rows = kind_rows(model, cluster, work, small, profile, recompute)
    share = 1.0 if recompute.is_full else 0.0
    if not recompute.is_full and (recompute.every or recompute.layers):
        on_stage = model.n_layers / np.asarray(small.pp)
        share = recompute.full_share(on_stage)
    table = layer_table(rows, share)
    if spread.size:
        table = table[spread]
    table = np.broadcast_to(table, (n, *table.shape[-2:]))
    dense_kinds, expert_kinds = (
        np.broadcast_to(t, (n, t.shape[-1]))
        for t in parameter_table(model, strategy.tp, strategy.ep, strategy.etp)
    )
    classes, tied = _classes(model, work, strategy)
    counts = classes.counts[classes.index]
    counts = np.broadcast_to(counts, (n, *counts.shape[1:])).astype(float)
    summed = counts @ table  # [n, C, columns]
    cost = {name: summed[..., j] for j, name in enumerate(COLUMNS)}
    parameters = counts.copy()
    kinds = len(model.blocks)
    if tied:  # one copy where both ends stand on one rank
        parameters[..., kinds + 1] = np.where(parameters[..., kinds] > 0, 0.0, parameters[..., kinds + 1])
    present = counts > 0
    multiplicity = np.broadcast_to(classes.multiplicity[classes.index], (n, counts.shape[1]))
    first_rank = np.broadcast_to(classes.first_rank[classes.index], (n, counts.shape[1]))
    share = parse_offload(strategy.offload).share(model.n_layers / over_classes(strategy.pp))
    largest_offloaded = np.where(present, table[:, None, :, COLUMNS.index("offloaded")], 0.0).max(-1)
    live = np.where(present, table[:, None, :, COLUMNS.index("live")], 0.0).max(-1)
    return Stages(
        cost=cost,
        dense=(parameters @ dense_kinds[..., None])[..., 0],
        expert=(parameters @ expert_kinds[..., None])[..., 0],
        largest_dense=np.where(present, dense_kinds[:, None, :], 0.0).max(-1),
        largest_expert=np.where(present, expert_kinds[:, None, :], 0.0).max(-1),
        offloaded=cost["offloaded"] * share,
        staged=2.0 * largest_offloaded * (np.asarray(share) > 0),
        live=live,
        head=present[..., kinds + 1].astype(float),
        multiplicity=multiplicity.astype(float),
        first_rank=first_rank.astype(float),
        rows={name: plain for name, plain, _ in rows},
    )


def over_classes(value: Any) -> Any:
    """A per-candidate number with an axis for stage classes."""
    return np.asarray(value, float)[..., None] if np.ndim(value) else value


def _classes(model: Model, work: Work, strategy: Strategy) -> tuple[Classes, bool]:
    """The stage classes; an even split counts head and embedding by their arithmetic in layers."""
    weights, head = split_weights(model, work.seq_len)
    classes = stage_classes(model, strategy.pp, strategy.vpp, strategy.layers_per_stage, head, 0.0, weights)
    return classes, model.tied_embeddings
