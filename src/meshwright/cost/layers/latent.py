"""Multi-head latent attention (DeepSeek-V2, section 2.1), trained in its expanded form."""

from __future__ import annotations

from meshwright.cost.layers.attention import core, keys_seen, scoring
from meshwright.cost.layers.parts import linear_in, linear_out, narrow, norm
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words, element_bytes
from meshwright.model.records import LatentAttention
from meshwright.strategy.records import Num


def operations(
    block: LatentAttention, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Norm, down-projections (each tensor rank on its own tokens), up-projections, core, output."""
    tokens, own = shape.tokens, narrow(shape, words)
    size = min(2.0, element_bytes(words.precision))
    heads = block.n_heads / shape.tp
    qk = block.qk_nope_dim + block.qk_rope_dim
    latent = block.kv_lora_rank + block.qk_rope_dim
    kept = (2.0 + size) * own  # a norm's input for its own backward, its output for the product behind it
    ops: list[Operation] = [
        *norm("norm", d_model, shape, words, norm_kernels),
        Stream("down_in", "norm", 0.0, 0.0, (0, 0), saved=size * own * d_model),
    ]
    rank = block.q_lora_rank or 0
    if rank:
        ops += [
            Matmul("q_down", "qkv", own, d_model, rank),
            Stream("q_norm", "qkv", 4.0 * own * rank, 6.0 * own * rank, (1, 2), saved=kept * rank),
            Matmul("q_up", "mla_up", tokens, rank, heads * qk),
        ]
    else:
        ops += linear_in("q", "qkv", d_model, heads * qk, shape, words)
    ops += [
        Matmul("kv_down", "qkv", own, d_model, latent),
        Stream(
            "kv_norm",
            "qkv",
            4.0 * own * latent,
            6.0 * own * latent,
            (1, 2),
            saved=kept * latent,
        ),
        Message("latent_gather", "mla_up", "tp", "all_gather", 2.0 * tokens * (latent + rank), 1.0, 0.0),
        Message("latent_scatter", "mla_up", "tp", "reduce_scatter", 2.0 * tokens * (latent + rank), 0.0, 1.0),
        Matmul("kv_up", "mla_up", tokens, block.kv_lora_rank, heads * (block.qk_nope_dim + block.v_head_dim)),
    ]
    ops.append(_joined_heads(block, 2.0 * tokens * heads, words))
    kv_bytes = 2.0 * tokens * heads * (qk + block.v_head_dim)
    ops += core(
        shape, words, block.n_heads, qk, block.v_head_dim, keys_seen(block, shape.attended_len), kv_bytes
    )
    ops += scoring(block, shape)
    ops += linear_out("proj", "kept", heads * block.v_head_dim, d_model, shape, words)
    return tuple(ops)


def _joined_heads(block: LatentAttention, one: Num, words: Words) -> Stream:
    """Turning the rotary part and joining whole queries and keys; `one`: bytes of all heads at width 1.

    A compiler reads and writes the rotary part of q, reads what the up-projection gave and writes k and v.
    Plain operations turn the part in about ten passes, then write q, k and v anew. **Source**: counted in
    Megatron-Core's multi_latent_attention.py. Kernels that do it at once say no more of runs (decisions.md).
    """
    qk = block.qk_nope_dim + block.qk_rope_dim
    keys = (block.qk_nope_dim + block.v_head_dim) + (qk + block.v_head_dim)
    saved = one * (2.0 * qk + block.v_head_dim)
    if words.compiled:
        nbytes = one * (2.0 * block.qk_rope_dim + keys)
        return Stream("rope", "mla_up", nbytes, nbytes, (2, 2), saved=saved)
    nbytes = one * (10.0 * block.qk_rope_dim + 2.0 * qk + keys)
    return Stream("rope", "mla_up", nbytes, nbytes, (16, 16), saved=saved, fusible=False)
