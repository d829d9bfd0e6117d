"""What stands before the first and after the last layer: embedding, final norm, head and loss."""

from __future__ import annotations

import numpy as np

from meshwright.cost.layers.parts import narrow, norm
from meshwright.cost.numbers import numbers
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words
from meshwright.strategy.records import Num


def embedding(d_model: int, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """Gather of rows; backward adds into the rows (fp32 accumulation)."""
    stream = 2.0 * narrow(shape, words) * d_model
    whole = 2.0 * shape.tokens * d_model
    lookup = Stream("embedding", "kept", 2.0 * stream, 6.0 * stream, (1, 2))
    # Each rank finds the tokens of its part of the vocabulary; the sum is every token's row.
    if words.sp:
        return (
            lookup,
            Message("embedding_scatter", "kept", "tp", "reduce_scatter", whole, 1.0, 0.0),
            Message("embedding_gather", "kept", "tp", "all_gather", whole, 0.0, 1.0),
        )
    return (lookup, Message("embedding_reduce", "kept", "tp", "all_reduce", whole, 1.0, 0.0))


def head(d_model: int, vocab: int, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """Final norm, output projection over the rank's share of the vocabulary, cross entropy.

    The projection stays in 16 bits. Unfused loss: logits written, cast to fp32, softmax and its gradient.
    """
    columns = np.ceil(vocab / (128.0 * shape.tp)) * 128.0  # padded, as programs do
    logits = shape.tokens * columns
    fused = (numbers()["fused_loss_bytes"],) * 2
    whole_loss = (numbers()["loss_forward_bytes"], numbers()["loss_backward_bytes"])
    traffic = whole_loss if words.loss == "whole" else fused
    whole = 2.0 * shape.tokens * d_model
    messages: tuple[Operation, ...] = (Message("head_reduce", "kept", "tp", "all_reduce", whole, 0.0, 1.0),)
    if words.sp:
        messages = (
            Message("head_gather", "kept", "tp", "all_gather", whole, 1.0, 0.0),
            Message("head_scatter", "kept", "tp", "reduce_scatter", whole, 0.0, 1.0),
        )
    return (
        *norm("final_norm", d_model, shape, words),
        *messages,
        Stream("head_in", "kept", 0.0, 0.0, (0, 0), saved=whole),
        Matmul("head", "kept", shape.tokens, d_model, columns, quantised=False),
        Stream("loss", "kept", traffic[0] * logits, traffic[1] * logits, (4, 3), fusible=False),
    )


def logit_bytes(vocab: int, shape: Shape, loss: str, whole: Num = 10.0, *, first: bool = False) -> object:
    """Peak bytes of logits and their copies on the rank that holds the head; `whole`: bytes a logit where
    the loss holds all of them in fp32 (a framework's habit), else `numbers` says; `first`: a chunked loss
    cuts logits that are there."""
    each = numbers().get(f"{loss}_logit_bytes", whole)
    if first and loss == "chunked":
        each = each + numbers()["late_chunk_logit_bytes"]
    return shape.tokens * vocab / shape.tp * each
