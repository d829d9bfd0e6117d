"""What stands before the first and after the last layer: embedding, final norm, head and loss."""

from __future__ import annotations

from meshwright.cost.layers.parts import narrow, norm
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words


def embedding(d_model: int, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """Gather of rows; backward adds into the rows (fp32 accumulation)."""
    stream = 2.0 * narrow(shape, words) * d_model
    return (Stream("embedding", "kept", 2.0 * stream, 6.0 * stream, (1, 2)),)


def head(d_model: int, vocab: int, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """Final norm, output projection over the rank's share of the vocabulary, cross entropy.

    The projection stays in 16 bits. Unfused loss: logits written, cast to fp32, softmax and its gradient:
    about 22 bytes of traffic a logit; a fused loss about 8.
    """
    columns = vocab / shape.tp
    logits = shape.tokens * columns
    traffic = (4.0, 4.0) if words.fused_loss else (12.0, 10.0)
    whole = 2.0 * shape.tokens * d_model
    return (
        *norm("final_norm", d_model, shape, words),
        Message("head_gather", "kept", "tp", "all_gather", whole, 1.0, 0.0),
        Message("head_reduce", "kept", "tp", "all_reduce", whole, 0.0, 0.5 if words.sp else 1.0),
        Stream("head_in", "kept", 0.0, 0.0, (0, 0), saved=whole),
        Matmul("head", "kept", shape.tokens, d_model, columns, quantised=False),
        Stream("loss", "kept", traffic[0] * logits, traffic[1] * logits, (4, 3), fusible=False),
    )


def logit_bytes(vocab: int, shape: Shape, *, fused_loss: bool) -> object:
    """Peak bytes of logits and their copies: 16-bit logits, fp32 copy, softmax and gradient.

    Unfused 2 + 4 + 4 bytes a logit at the peak; a fused loss keeps the 16-bit logits and overwrites them
    with their gradient.
    """
    return shape.tokens * vocab / shape.tp * (4.0 if fused_loss else 10.0)
