"""What stands before the first and after the last layer: embedding, final norm, head and loss."""

from __future__ import annotations

import numpy as np

from meshwright.cost.layers.parts import narrow, norm
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

    The projection stays in 16 bits. Unfused loss: logits written, cast to fp32, softmax and its gradient:
    about 22 bytes of traffic a logit; a fused loss about 8.
    """
    columns = np.ceil(vocab / (128.0 * shape.tp)) * 128.0  # padded, as programs do
    logits = shape.tokens * columns
    traffic = (12.0, 10.0) if words.loss == "whole" else (4.0, 4.0)
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


# Bytes a logit at the peak of losses that do not hold whole logits in fp32 (those copies are the framework's
# habit): a fused loss keeps the 16-bit logits and their gradient; a chunked one an eighth of that at a time
# (the usual number of chunks or tiles is 4 to 16).
_LOGIT_BYTES = {"fused": 4.0, "chunked": 0.5}
_LOGITS_FIRST = (
    2.0  # a program that cuts chunks of logits, not of what the head reads, has them all in 16 bits
)


def logit_bytes(vocab: int, shape: Shape, loss: str, whole: Num = 10.0, *, first: bool = False) -> object:
    """Peak bytes of logits and their copies on the rank that holds the head; `whole`: bytes a logit where
    the loss holds all of them; `first`: a chunked loss cuts logits that are there."""
    each = _LOGIT_BYTES.get(loss, whole) + _LOGITS_FIRST * (first and loss == "chunked")
    return shape.tokens * vocab / shape.tp * each
