"""The operations of each column of the split matrix, and the words of a run that they depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.cost import schedule
from meshwright.cost.adapters import adapted_products, plain_adapters
from meshwright.cost.layer import COMPILED
from meshwright.cost.layers import ends, is_hybrid, operations, shared_operations
from meshwright.cost.numbers import numbers
from meshwright.cost.ops import Matmul, Operation, Shape, Words
from meshwright.model.params import mtp_blocks
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import BASE_BYTES
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.records import Strategy
from meshwright.work import Work

# Switches under which whole logits never exist, and those whose loss makes no copies of them.
CHUNKED_LOSS = frozenset({"liger", "chunked-ce", "vocab-tiling"})
FUSED_LOSS = frozenset({"fused-loss", "te-cross-entropy"})


def loss_word(work: Work, profile: Profile) -> str:
    """How the loss holds its logits: chunked, fused or whole."""
    if work.options & CHUNKED_LOSS:
        return "chunked"
    return "fused" if profile.framework.fused_loss or work.options & FUSED_LOSS else "whole"


def switches(work: Work, strategy: Strategy) -> frozenset[str]:
    """The run's options, with those that its schedule brings."""
    joined = schedule.load(strategy.schedule).JOINED
    return work.options | ({"ep-overlap"} if joined else set())


def words_of(work: Work, strategy: Strategy, profile: Profile) -> Words:
    """The words that layer costs depend on, from strategy, work and the framework's habits."""
    finetune = parse_finetune(strategy.finetune)
    unbalanced = "dropless" in work.options and "balanced-routing" not in work.options
    return Words(
        sp=strategy.sp,
        cp_method=strategy.cp_method,
        precision=work.precision,
        flash=profile.framework.attention_kernel != "unfused",
        regathers_input=profile.framework.regathers_input,
        dispatcher=strategy.dispatcher,
        imbalance=work.capacity or (float(profile["imbalance"]) if unbalanced else 1.0),
        padded=work.capacity is not None,
        fused_experts="cuda-graphs-full" in work.options,
        dropless="token-drop" not in work.options and work.capacity is None,
        score_tile=profile.framework.score_tile or numbers()["score_tile"],
        compiled=profile.framework.compiled or bool(work.options & COMPILED),
        loss=loss_word(work, profile),
        adapted=adapted_products(strategy.finetune),
        plain_adapters=plain_adapters(profile, strategy.finetune, work.options),
        adapter_rank=finetune.rank,
        base_bytes=BASE_BYTES[finetune.base] if finetune.base else 0.0,
    )


def mtp_operations(model: Model, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """One multi-token-prediction layer: joins two streams (2h to h), a block like the last, the head again.

    **Source**: DeepSeek-V3 report, section 2.2.
    """
    h = model.d_model
    if words.precision == "nvfp4" and is_hybrid(model):
        words = replace(words, precision="bf16")
    return (
        Matmul(
            "mtp_join", "kept", shape.tokens / shape.tp, 2 * h, h, saved=4.0 * shape.tokens / shape.tp * h
        ),
        *(op for block in mtp_blocks(model) for op in operations(block, model, shape, words)),
        *ends.head(h, model.vocab, shape, words),
    )


def tokens_of(work: Work, strategy: Strategy) -> Any:
    """Tokens of one row of each sequence of a microbatch on one rank."""
    return strategy.microbatch_size * work.seq_len / strategy.cp


def shape_on(work: Work, strategy: Strategy, tokens: Any) -> Shape:
    """What a rank sees of a layer: `tokens` of one microbatch, and the degrees of the strategy."""
    s = strategy
    rows = parse_finetune(s.finetune).rows
    size = rows * s.microbatch_size
    return Shape(rows * tokens, work.seq_len, size, s.tp, s.cp, s.ep, s.etp, work.document_len)


def columns(model: Model, shape: Shape, words: Words) -> list[tuple[str, tuple[Operation, ...], bool, int]]:
    """(name, operations, whether it is a layer that the recompute word speaks of, how many the model has) of
    each column of the split matrix."""
    shared = shared_operations(model, shape, words)
    found = [
        (f"layer_{i}", operations(block, model, shape, words) + shared, True, model.count(i))
        for i, block in enumerate(model.blocks)
    ]
    mtp = mtp_operations(model, shape, words) if model.mtp_layers else ()
    return [
        *found,
        ("embedding", ends.embedding(model.d_model, shape, words), False, 1),
        ("head", ends.head(model.d_model, model.vocab, shape, words), False, 1),
        ("mtp", mtp, False, model.mtp_layers),
    ]
