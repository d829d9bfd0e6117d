"""Softmax attention: multi-head, grouped, multi-query, sliding window."""

from __future__ import annotations

import numpy as np

from meshwright.cost.layers.parts import linear_in, linear_out, norm
from meshwright.cost.ops import Core, Matmul, Message, Operation, Shape, Stream, Words
from meshwright.model.records import Attention
from meshwright.strategy.records import Num


def attended(seq_len: Num, window: int | None, *, chunked: bool = False) -> Num:
    """Mean number of keys a causal query sees: s/2, or w - w^2/(2s) under a window w <= s (w/2 in chunks).

    **Source**: count of the causal band; equals `2w - w^2/s` of the full-square convention halved.

    >>> float(attended(8192, None)), float(attended(8192, 4096))
    (4096.0, 3072.0)
    """
    if window is None:
        return seq_len / 2.0
    w = np.minimum(window, seq_len)
    if chunked:
        return w / 2.0
    return w - w * w / (2.0 * seq_len)


def core(
    shape: Shape, words: Words, n_heads: Num, qk_dim: int, v_dim: int, keys: Num, kv_bytes: Num
) -> tuple[Operation, ...]:
    """The core alone: flash (scores stay on chip) or the unfused products and softmax of 2021-22.

    Causal FLOPs: 2 * tokens * keys * heads * (qk + v); saved: output and log-sum-exp; unfused also
    5 a s^2 b bytes of scores, probabilities and mask (Korthikanti et al. 2022, eq. 1).
    """
    heads = n_heads / shape.tp
    tokens = shape.tokens
    out_bytes = 2.0 * tokens * heads * v_dim
    messages = context_messages(shape, words, heads, qk_dim, v_dim, kv_bytes, keys)
    if words.flash:
        flops = 2.0 * tokens * keys * heads * (qk_dim + v_dim)
        kept = Core("core", "core_attn", flops, 2.5, max(qk_dim, v_dim), saved=4.0 * tokens * heads)
        return (*messages, kept, Stream("core_out", "kept", 0.0, 0.0, (0, 0), saved=out_bytes))
    square = tokens * shape.seq_len * heads  # scores, computed whole
    scores = Matmul("scores", "core_attn", tokens / shape.microbatch_size, qk_dim, shape.seq_len,
                    heads * shape.microbatch_size, quantised=False)  # fmt: skip
    values = Matmul("values", "core_attn", tokens / shape.microbatch_size, shape.seq_len, v_dim,
                    heads * shape.microbatch_size, quantised=False)  # fmt: skip
    # Scale, mask and softmax in one kernel (2 read, 2 written), dropout (2 + 2 + 1): forward 9 bytes a score,
    # backward the same tensors once more.
    softmax = Stream(
        "softmax", "core_attn", 9.0 * square, 11.0 * square, (2, 2), saved=5.0 * square, fusible=False
    )
    out = Stream("core_out", "kept", 2.0 * out_bytes, 2.0 * out_bytes, (2, 2), saved=out_bytes)
    return (*messages, scores, softmax, values, out)


def context_messages(
    shape: Shape, words: Words, heads: Num, qk_dim: int, v_dim: int, kv_bytes: Num, keys: Num
) -> tuple[Message, ...]:
    """What context parallelism sends: keys and values around a ring, or heads against sequence.

    Ring: (cp-1) blocks of K and V forward, with their gradients twice that backward, beside the blocks'
    compute. All-to-all (Ulysses): q, k, v in and o out. Bytes per rank. **Source**: ring attention;
    DeepSpeed-Ulysses.
    """
    if words.cp_method == "ring":
        flops = 2.0 * shape.tokens * keys * heads * (qk_dim + v_dim)
        return (Message("ring", "core_attn", "cp", "ring", kv_bytes, 1.0, 2.0, hider_flops=flops),)
    moved = 2.0 * shape.tokens * heads * (qk_dim + v_dim) + kv_bytes
    return (Message("heads", "core_attn", "cp", "all_to_all", moved, 1.0, 1.0),)


def operations(
    block: Attention, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """One attention sublayer: norm, q k v, position, core, output, residual.

    Key/value heads below tp are replicated (each rank holds one).
    """
    tokens = shape.tokens
    heads = block.n_heads / shape.tp
    kv_heads = np.maximum(block.n_kv_heads / shape.tp, 1.0)
    own = {"own": block.head_dim + block.v_dim, "shared": block.head_dim, "below": 0}[block.kv_from]
    width = heads * block.head_dim + kv_heads * own
    gate = heads * block.v_dim if block.output_gate else 0.0
    qkv_bytes = 2.0 * tokens * width
    kv_bytes = 2.0 * tokens * kv_heads * (block.head_dim + block.v_dim)
    rope = 2.0 * 2.0 * tokens * (heads + kv_heads) * block.head_dim
    ops: list[Operation] = [
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("qkv", "qkv", block.d_in or d_model, width + gate, shape, words),
        Stream("rope", "qkv", rope, rope, (2, 2), saved=qkv_bytes + 2.0 * tokens * gate),
    ]
    if block.qk_norm != "none":
        ops.append(Stream("qk_norm", "qkv", rope, 1.5 * rope, (2, 4), saved=rope / 2.0))
    ops += core(shape, words, block.n_heads, block.head_dim, block.v_dim,
                attended(shape.seq_len, block.window, chunked=block.chunked), kv_bytes)  # fmt: skip
    ops += linear_out("proj", "kept", heads * block.v_dim, d_model, shape, words)
    return tuple(ops)
