"""What ZeRO-3 holds beside its shards: weights gathered whole, gradients not yet scattered."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.adapters import frozen_bytes
from meshwright.cost.stages import Stages, over_classes
from meshwright.model.mixers import mixer_params
from meshwright.model.params import block_params, embedding_params, head_params
from meshwright.model.records import Block, Model, Moe
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy


def gathered_bytes(
    model: Model,
    strategy: Strategy,
    profile: Profile,
    stages: Stages,
    spans: dict[str, Span],
    shard: Any,
    unscattered: Any = 0.0,
) -> Any:
    """Bytes of weights that ZeRO-3 holds whole beside the shards, and of gradients not yet scattered, [n, C].

    This unit's and the next one's weights in 16 bits and one unit's gradients. A unit is a layer, or in a
    compiled program (GSPMD, arXiv 2105.04663: each operator is partitioned by itself) a matrix. Where
    embedding and head belong to the outermost unit they stay whole, with one layer's weights and gradients.
    Under a pipeline a stage's weights and gradients stay whole from microbatch to microbatch; elsewhere
    gradients do where `unscattered` is 1. A frozen model has no gradients; quantised weights travel as they
    are and one matrix at a time is unpacked. What piles up is the whole model and what was made of `shard`
    (parameters, [n, C]) to send it: a 16-bit cast of fp32 weights, and their copy from the host where they
    wait there (FlatParamHandle.pre_unshard of PyTorch's FSDP).
    """
    if strategy.zero < 3:
        return 0.0
    habits, finetune = profile.framework, parse_finetune(strategy.finetune)
    pipelined = over_classes(np.asarray(strategy.pp) > 1)
    whole = stages.dense + stages.expert
    # On one rank 16-bit weights are used where they are; fp32 ones are still cast.
    alone = over_classes(np.asarray(spans["shard"].degree) <= 1.0) * (habits.weight_bytes <= 2.0)
    sent = 0.0 if finetune.frozen else 1.0
    width = frozen_bytes(model, finetune, 2.0)
    tp = over_classes(np.asarray(strategy.tp))
    blocks = (*model.blocks, model.shared_block) if model.shared_block else model.blocks
    if habits.compiled:
        matrix = _largest([_matrix(b, model, strategy) for b in blocks])
        head = (head_params(model) or model.vocab * model.d_model) / tp * stages.head
        # No layer runs while the loss is taken: the head's weight and its gradient stand alone.
        at_once = np.maximum((2.0 * width + 2.0 * sent) * matrix, (width + 2.0 * sent) * head)
    elif habits.gathers_ends:
        ends = (embedding_params(model) + head_params(model)) / tp
        layer = _largest([
            block_params(b, model).per_rank(strategy.tp, strategy.ep, strategy.etp) for b in blocks
        ])  # fmt: skip
        at_once = 2.0 * ends + (width + 2.0 * sent) * layer
    else:
        at_once = (2.0 * width + 2.0 * sent) * stages.largest
    stays = stays_whole(model, strategy, profile, whole)
    most = width * whole
    if habits.keeps_gathered:
        wide = 4.0 if habits.upcasts_sharded else habits.weight_bytes
        copied = wide * parse_offload(strategy.offload).params
        at_once = most = width * whole + (2.0 * (wide > 2.0) + copied) * shard
    summed = unscattered * habits.grad_sent_bytes * sent * whole
    return (1.0 - alone) * np.where(pipelined, stays, np.minimum(at_once, most) + summed)


def stays_whole(model: Model, strategy: Strategy, profile: Profile, parameters: Any) -> Any:
    """Bytes of the weights and gradients of a stage with so many `parameters` that ZeRO-3 holds whole under a
    pipeline, from microbatch to microbatch."""
    finetune = parse_finetune(strategy.finetune)
    sent = 0.0 if finetune.frozen else 1.0
    return (frozen_bytes(model, finetune, 2.0) + profile.framework.grad_sent_bytes * sent) * parameters


def _largest(counts: list[Any]) -> Any:
    """The largest of several counts that broadcast, with an axis for classes."""
    return over_classes(np.max(np.broadcast_arrays(*counts), axis=0))


def _matrix(block: Block, model: Model, strategy: Strategy) -> Any:
    """Parameters of the largest matrix of a layer on one rank; its mixer counts as one, so no fewer."""
    mixer: Any = 0.0
    if block.mixer is not None:
        mixer = mixer_params(block.mixer, model.d_model).per_rank(strategy.tp, 1, 1)
    ffn = block.ffn
    wide: Any = 0.0
    if isinstance(ffn, Moe):  # one kind of matrix, all experts of the rank
        split = np.asarray(strategy.ep) * strategy.etp
        wide = ffn.n_experts * float(ffn.latent_dim or model.d_model) * ffn.d_ff / split
    elif ffn is not None:
        wide = model.d_model * float(ffn.d_ff) / np.asarray(strategy.tp)
    return np.maximum(mixer, wide)
