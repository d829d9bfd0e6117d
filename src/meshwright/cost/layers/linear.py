"""Linear attention: gated delta net, KDA, lightning attention, and LFM2's short convolution."""

from __future__ import annotations

from meshwright.cost.layers.parts import chunked_scan, convolution, linear_in, linear_out, narrow, norm
from meshwright.cost.ops import Matmul, Operation, Shape, Stream, Words
from meshwright.model.records import LinearAttention, ShortConv

_CHUNK = 64  # tokens a chunk of the delta-rule kernels (flash-linear-attention)


def operations(
    block: LinearAttention, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """q, k, v, gates; convolution; chunked recurrence; gated norm; output.

    FLOPs of the recurrence: within a chunk T Q (k + v) per head, the state 4 T k v, the delta rule's solve
    about T Q k more. **Source**: Yang et al. 2024 (gated delta networks), section 3.3.
    """
    tokens, tp = shape.tokens, shape.tp
    keys, values = block.n_k_heads * block.k_dim / tp, block.n_v_heads * block.v_dim / tp
    heads = block.n_v_heads / tp
    mixed = 2.0 * keys + values
    # Beside q, k and v: gated delta net an output gate and two scalars a head, lightning an output gate; KDA
    # takes decay (a key channel) and gate (a value channel) through factors one head wide.
    factors: tuple[Operation, ...] = ()
    beside = {"gated_deltanet": values + 2.0 * heads, "lightning": values, "kda": heads}[block.kind]
    width = mixed + beside
    if block.kind == "kda":
        own = narrow(shape, words)
        factors = (
            Matmul("factor_down", "kept", own, d_model, block.k_dim + block.v_dim),
            Matmul("decay_up", "kept", tokens, block.k_dim, keys, saved=2.0 * tokens * keys),
            Matmul("gate_up", "kept", tokens, block.v_dim, values, saved=2.0 * tokens * values),
        )
    solve = 2.0 if block.kind != "lightning" else 1.0
    scan = (
        tokens
        * heads
        * (2.0 * _CHUNK * (solve * block.k_dim + block.v_dim) + 4.0 * block.k_dim * block.v_dim)
    )
    state = 4.0 * tokens / _CHUNK * heads * block.k_dim * block.v_dim
    boundary = shape.microbatch_size * heads * block.k_dim * block.v_dim * 2.0
    return (
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("in_proj", "kept", d_model, width, shape, words),
        *factors,
        Stream("projected", "kept", 0.0, 0.0, (0, 0), saved=2.0 * tokens * width),
        *((convolution(mixed, shape),) if block.d_conv else ()),
        *chunked_scan("recurrence", scan, values, state, boundary, shape, words),
        *linear_out("out_proj", "kept", values, d_model, shape, words),
    )


def short_conv_operations(
    block: ShortConv, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """In-projection to three streams, gated short convolution, out-projection."""
    inner = d_model / shape.tp
    stream = 2.0 * shape.tokens * inner
    return (
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("in_proj", "kept", d_model, 3.0 * inner, shape, words),
        Stream("conv", "ssm", 4.0 * stream, 7.0 * stream, (3, 4), saved=5.0 * stream),
        *linear_out("out_proj", "kept", inner, d_model, shape, words),
    )
