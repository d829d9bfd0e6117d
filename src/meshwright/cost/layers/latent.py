"""Multi-head latent attention (DeepSeek-V2, section 2.1), trained in its expanded form."""

from __future__ import annotations

from meshwright.cost.layers.attention import core, keys_seen, scoring
from meshwright.cost.layers.parts import linear_in, linear_out, narrow, norm
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words, element_bytes
from meshwright.model.records import LatentAttention


def operations(
    block: LatentAttention, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Norm, down-projections (each tensor rank on its own tokens), up-projections, core, output."""
    tokens, own = shape.tokens, narrow(shape, words)
    size = min(2.0, element_bytes(words.precision))
    heads = block.n_heads / shape.tp
    qk = block.qk_nope_dim + block.qk_rope_dim
    latent = block.kv_lora_rank + block.qk_rope_dim
    ops: list[Operation] = [
        *norm("norm", d_model, shape, words, norm_kernels),
        Stream("down_in", "norm", 0.0, 0.0, (0, 0), saved=size * own * d_model),
    ]
    rank = block.q_lora_rank or 0
    if rank:
        ops += [
            Matmul("q_down", "qkv", own, d_model, rank),
            Stream("q_norm", "qkv", 4.0 * own * rank, 6.0 * own * rank, (1, 2), saved=4.0 * own * rank),
            Matmul("q_up", "mla_up", tokens, rank, heads * qk),
        ]
    else:
        ops += linear_in("q", "qkv", d_model, heads * qk, shape, words)
    ops += [
        Matmul("kv_down", "qkv", own, d_model, latent),
        Stream("kv_norm", "qkv", 4.0 * own * latent, 6.0 * own * latent, (1, 2), saved=4.0 * own * latent),
        Message("latent_gather", "mla_up", "tp", "all_gather", 2.0 * tokens * (latent + rank), 1.0, 0.0),
        Message("latent_scatter", "mla_up", "tp", "reduce_scatter", 2.0 * tokens * (latent + rank), 0.0, 1.0),
        Matmul("kv_up", "mla_up", tokens, block.kv_lora_rank, heads * (block.qk_nope_dim + block.v_head_dim)),
    ]
    # Rotary part, concatenation to whole q and k: each head's q and k are written once more.
    heads_bytes = 2.0 * tokens * heads * (2.0 * qk + block.v_head_dim)
    ops.append(Stream("rope", "mla_up", 2.0 * heads_bytes, 2.0 * heads_bytes, (6, 6), saved=heads_bytes))
    kv_bytes = 2.0 * tokens * heads * (qk + block.v_head_dim)
    ops += core(
        shape, words, block.n_heads, qk, block.v_head_dim, keys_seen(block, shape.attended_len), kv_bytes
    )
    ops += scoring(block, shape)
    ops += linear_out("proj", "kept", heads * block.v_head_dim, d_model, shape, words)
    return tuple(ops)
