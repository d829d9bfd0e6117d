"""Softmax attention: multi-head, grouped, multi-query, sliding window."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from meshwright.cost.layers.parts import linear_in, linear_out, narrow, norm, norm_plain
from meshwright.cost.ops import Core, Matmul, Message, Operation, Shape, Stream, Words
from meshwright.model.records import Attention, LatentAttention
from meshwright.strategy.records import Num

# Matrix units load 16 bytes at a time: batches of heads that are no multiple of 8 wide fell to vector units
# in the libraries of unfused programs. Source: NVIDIA, matrix multiplication background user's guide,
# requirements to use tensor cores. Fused kernels pad heads themselves.
_LANES = 8


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


def tiled(mixer: Attention, seq_len: Num, tile: float) -> Num:
    """Keys that a kernel computes for a query of `mixer` over those that it attends to.

    Of a window it takes whole tiles: queries of a tile and the `w` keys before each span
    `ceil((w - 1) / tile) + 1` tiles of keys. The causal triangle's own edge is in the measured rate.

    >>> from meshwright.model.records import Attention
    >>> narrow = Attention(n_heads=64, n_kv_heads=8, head_dim=64, window=128)
    >>> [round(float(tiled(narrow, 1 << 20, tile)), 3) for tile in (128, 512)]
    [2.0, 7.997]
    """
    if mixer.window is None or mixer.chunked:
        return 1.0
    whole = tile * (1 + math.ceil((mixer.window - 1) / tile))
    return keys_seen(replace(mixer, window=round(whole)), seq_len) / keys_seen(mixer, seq_len)


def keys_seen(mixer: Attention | LatentAttention, seq_len: Num) -> Num:
    """Mean number of keys a query of `mixer` attends to: causal band, window, or what an indexer keeps.

    With a compressor (DeepSeek-V4) the window of plain keys and one entry for every `compress_ratio` tokens,
    the indexer's `index_topk` of them at most.
    """
    if isinstance(mixer, LatentAttention):
        kept = mixer.index_topk or None
        return attended(seq_len, kept)
    plain = attended(seq_len, mixer.window, chunked=mixer.chunked)
    if mixer.compress_ratio:
        entries = seq_len / (2.0 * mixer.compress_ratio)
        return plain + (np.minimum(entries, mixer.index_topk) if mixer.index_topk else entries)
    return np.minimum(plain, attended(seq_len, mixer.index_topk)) if mixer.index_topk else plain


def scoring(mixer: Attention | LatentAttention, shape: Shape) -> tuple[Operation, ...]:
    """The indexer's scores: every query against every earlier key (or entry), on narrow heads."""
    if not mixer.index_n_heads:
        return ()
    ratio = getattr(mixer, "compress_ratio", 0) or 1
    seen = shape.attended_len / (2.0 * ratio)
    flops = 2.0 * shape.tokens / shape.tp * seen * mixer.index_n_heads * mixer.index_head_dim
    return (Core("index_scores", "core_attn", flops, 2.0, (mixer.index_head_dim,)),)


def core(
    shape: Shape,
    words: Words,
    n_heads: Num,
    qk_dim: int,
    v_dim: int,
    keys: Num,
    kv_bytes: Num,
    excess: Num = 1.0,
) -> tuple[Operation, ...]:
    """The core alone: flash (scores stay on chip) or the unfused products and softmax of 2021-22.

    Causal FLOPs: 2 * tokens * keys * heads * (qk + v), of which a flash kernel spends `excess` times as many;
    saved: output and log-sum-exp; unfused also 5 a s^2 b bytes of scores, probabilities and mask (Korthikanti
    et al. 2022, eq. 1).
    """
    heads = n_heads / shape.tp
    tokens = shape.tokens
    out_bytes = 2.0 * tokens * heads * v_dim
    spent = keys * (excess if words.flash else 1.0)
    messages = context_messages(shape, words, heads, qk_dim, v_dim, kv_bytes, spent)
    if words.flash:
        flops = 2.0 * tokens * keys * heads * (qk_dim + v_dim)
        parts, merged = merges(shape, words, heads, qk_dim, v_dim, kv_bytes)
        kept = Core(
            "core", "core_attn", flops, 2.5, (qk_dim, v_dim), 4.0 * tokens * heads, parts, tiled=excess
        )
        return (*messages, kept, *merged, Stream("core_out", "kept", 0.0, 0.0, (0, 0), saved=out_bytes))
    square = tokens * shape.seq_len * heads  # scores, computed whole
    scores = Matmul("scores", "core_attn", tokens / shape.microbatch_size, qk_dim, shape.seq_len,
                    heads * shape.microbatch_size, quantised=False, vector=qk_dim % _LANES > 0)  # fmt: skip
    values = Matmul("values", "core_attn", tokens / shape.microbatch_size, shape.seq_len, v_dim,
                    heads * shape.microbatch_size, quantised=False, vector=v_dim % _LANES > 0)  # fmt: skip
    # Scale, mask and softmax in one kernel (2 read, 2 written), dropout (2 + 2 + 1): forward 9 bytes a score,
    # backward the same tensors once more.
    softmax = Stream(
        "softmax", "core_attn", 9.0 * square, 11.0 * square, (2, 2), saved=5.0 * square, fusible=False
    )
    out = Stream("core_out", "kept", 2.0 * out_bytes, 2.0 * out_bytes, (2, 2), saved=out_bytes)
    return (*messages, scores, softmax, values, out)


def merges(
    shape: Shape, words: Words, heads: Num, qk_dim: int, v_dim: int, kv_bytes: Num
) -> tuple[Num, tuple[Stream, ...]]:
    """Kernels of the core under a ring, one a block of keys, and what adds their partial results up.

    A block's output is scaled and added to what is there (two reads and a write of 16 bits), backward the
    gradients of q, k and v are; causal order halves the queries or the keys of a block: of four halves three.
    **Source**: TransformerEngine's context_parallel.py. A ring over domains has too few blocks to count.
    """
    if words.cp_method != "ring":
        return 1, ()
    blocks = shape.cp - 1.0
    sums = 0.75 * 6.0 * blocks * shape.tokens * heads
    gradients = sums * qk_dim + 0.75 * 3.0 * blocks * kv_bytes
    kernels = (2.0 * blocks, 2.0 * blocks)
    return shape.cp, (Stream("merge", "core_attn", sums * v_dim, gradients, kernels, fusible=False),)


def context_messages(
    shape: Shape, words: Words, heads: Num, qk_dim: int, v_dim: int, kv_bytes: Num, keys: Num
) -> tuple[Message, ...]:
    """What context parallelism sends: keys and values around a ring, to everyone, or heads against sequence.

    Ring: (cp-1) blocks of K and V forward, with their gradients twice that backward, beside the blocks'
    compute (`keys`: those that a kernel computes). All-gather: the whole K and V before the core, again
    backward, and their gradients scattered; a rank holds them meanwhile. All-to-all: q, k, v in and o out.
    Hierarchical: all-to-all inside the fast domain, a ring over domains of the blocks that this leaves, as
    large as before. Bytes per rank.
    **Source**: ring attention (arXiv 2310.01889); Llama 3 (2407.21783), section 3.3.2; DeepSpeed-Ulysses
    (2309.14509); unified sequence parallelism (2405.07719).
    """
    word = words.cp_method
    flops, widths = 2.0 * shape.tokens * keys * heads * (qk_dim + v_dim), (qk_dim, v_dim)
    if word == "all-gather":
        whole = kv_bytes * shape.cp
        held = np.where(np.asarray(shape.cp) > 1, whole, 0.0)[()]
        return (
            Message("gather", "core_attn", "cp", "all_gather", whole, 1.0, 1.0, buffer=held),
            Message("scatter", "core_attn", "cp", "reduce_scatter", whole, 0.0, 1.0),
        )
    moved = 2.0 * shape.tokens * heads * (qk_dim + v_dim) + kv_bytes
    if word == "all-to-all":
        return (Message("heads", "core_attn", "cp", "all_to_all", moved, 1.0, 1.0),)
    if word == "hierarchical":
        return (
            Message("heads", "core_attn", "cp", "all_to_all", moved, 1.0, 1.0, level="local"),
            Message("ring", "core_attn", "cp", "ring", kv_bytes, 1.0, 2.0, flops, widths, level="remote"),
        )
    return (Message("ring", "core_attn", "cp", "ring", kv_bytes, 1.0, 2.0, flops, widths),)


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
    q_width = heads * block.head_dim
    width = q_width + kv_heads * own
    gate = heads * block.v_dim if block.output_gate else 0.0
    qkv_bytes = 2.0 * tokens * width
    kv_bytes = 2.0 * tokens * kv_heads * (block.head_dim + block.v_dim)
    turned = tokens * (heads + kv_heads) * block.head_dim
    rope = 4.0 * turned
    ops: list[Operation] = [
        *norm("norm", d_model, shape, words, norm_kernels),
        *_projections(block, d_model, q_width, kv_heads * own, gate, shape, words),
        Stream("qkv_out", "qkv", 0.0, 0.0, (0, 0), saved=qkv_bytes + 2.0 * tokens * gate),
        # In plain tensor operations (two products, a negated half, its concatenation, a sum) 20 bytes each.
        *(
            (Stream("rope", "qkv", rope, rope, (2, 2), plain=(4.0 * rope, 4.0 * rope)),)
            if block.rotary
            else ()
        ),
    ]
    if block.qk_norm != "none":
        ops.append(
            Stream("qk_norm", "qkv", rope, 1.5 * rope, (2, 4), saved=rope / 2.0, eager=rope,
                   plain=norm_plain(turned))
        )  # fmt: skip
    ops += core(shape, words, block.n_heads, block.head_dim, block.v_dim,
                keys_seen(block, shape.attended_len), kv_bytes,
                tiled(block, shape.attended_len, words.score_tile))  # fmt: skip
    ops += scoring(block, shape)
    o_width = heads * block.v_dim
    if block.o_lora_rank:  # groups of heads to a factor each, then the factors to the width
        groups = block.o_groups / shape.tp
        ops.append(Matmul("o_down", "kept", tokens, o_width / groups, block.o_lora_rank, groups))
        o_width = groups * block.o_lora_rank
    ops += linear_out("proj", "kept", o_width, d_model, shape, words)
    return tuple(ops)


def _projections(
    block: Attention, d_model: int, q_width: Num, kv_width: Num, gate: Num, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Queries (through a factor where the model has one), keys, values and the output gate, from the norm."""
    d_in = block.d_in or d_model
    apart = (kv_width / 2.0,) * 2 if block.kv_from == "own" else (kv_width,)  # keys and values
    if block.q_lora_rank is None:
        parts = (q_width + gate, *apart)
        return linear_in("qkv", "qkv", d_in, q_width + kv_width + gate, shape, words, parts)
    rank, own = block.q_lora_rank, narrow(shape, words)
    return (
        *linear_in("kv", "qkv", d_in, kv_width, shape, words, apart),
        Matmul("q_down", "qkv", own, d_in, rank, saved=2.0 * own * rank),
        Message("q_gather", "qkv", "tp", "all_gather", 2.0 * shape.tokens * rank, 1.0, 0.0),
        Matmul("q_up", "qkv", shape.tokens, rank, q_width + gate),
    )
