"""Parameters of the sequence mixers, from the shapes of their matrices.

Symbols as in the glossary: D width, N query heads, K key/value heads, H head width; r a low rank.
**Source**: the parameters of the `transformers` 5.24.0 class of each kind, held equal by the tests.
"""

from __future__ import annotations

from meshwright.model.count import ParamCount, capped_count, total_count
from meshwright.model.records import (
    Attention,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    ShortConv,
)


def mixer_params(mixer: Mixer, d_model: int) -> ParamCount:
    """Parameters of a sequence mixer between two activations of width `d_model`."""
    match mixer:
        case Attention():
            return _attention(mixer, d_model)
        case LatentAttention():
            return _latent_attention(mixer, d_model)
        case Mamba1():
            return _mamba1(mixer, d_model)
        case Mamba2():
            return _mamba2(mixer, d_model)
        case LinearAttention():
            return _linear_attention(mixer, d_model)
        case ShortConv():
            # In to three streams (two gates and the signal), one filter a channel, and out.
            return ParamCount(sharded=d_model * (3 * d_model + mixer.d_conv + d_model))


def _attention(a: Attention, d_model: int) -> ParamCount:
    d_in = d_model if a.d_in is None else a.d_in
    q_width, k_width = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    v_width, o_width = a.n_kv_heads * a.v_dim, a.n_heads * a.v_dim
    gate = 2 if a.output_gate else 1  # the gate comes out of the query projection
    kv = {"own": k_width + v_width, "shared": k_width, "below": 0}[a.kv_from]

    query_in = d_in if a.q_lora_rank is None else a.q_lora_rank
    sharded = query_in * q_width * gate
    replicated = 0 if a.q_lora_rank is None else a.q_lora_rank * (d_in + 1)  # factor and its norm
    keys_values = d_in * kv
    if a.bias_qkv:
        sharded += q_width * gate
        keys_values += kv
    if a.o_lora_rank:
        # Each group of heads shares a factor of rank o_lora_rank; the second matrix joins the groups.
        sharded += (o_width // a.o_groups) * a.o_groups * a.o_lora_rank + a.o_groups * a.o_lora_rank * d_model
    else:
        sharded += o_width * d_model
    replicated += d_model if a.bias_out else 0
    sharded += a.n_heads if a.sinks else 0

    if a.qk_norm == "head":
        replicated += 2 * a.head_dim  # a layer that takes keys from below norms them again (Hunyuan-Large)
    elif a.qk_norm == "full":
        sharded += q_width
        keys_values += k_width
    return total_count(
        [
            ParamCount(sharded=sharded, replicated=replicated),
            capped_count(keys_values, a.n_kv_heads),
            ParamCount(replicated=_compressor(a, d_in) + _indexer(a, d_in)),
        ]
    )


def beside_params(mixer: Attention | LatentAttention, d_model: int) -> int:
    """Parameters of sparse attention's indexer and compressor, which every tensor rank holds."""
    if isinstance(mixer, LatentAttention):
        return _latent_indexer(mixer, d_model)
    d_in = d_model if mixer.d_in is None else mixer.d_in
    return _compressor(mixer, d_in) + _indexer(mixer, d_in)


def _compressor(a: Attention, d_in: int) -> int:
    """DeepSeek-V4: pools `compress_ratio` tokens by learned weights into one key/value entry.

    With an indexer, windows overlap, so entry and weight projections are twice as wide, and the indexer has
    a compressor of its own for its keys.
    """
    if not a.compress_ratio:
        return a.head_dim if a.o_lora_rank else 0  # only the norm of the shared key/value head
    overlap = 2 if a.index_n_heads else 1

    def pool(width: int) -> int:
        # Entries and pooling weights from the input, a bias for each place in the window, a norm.
        return 2 * d_in * overlap * width + a.compress_ratio * overlap * width + width

    own = pool(a.head_dim) + a.head_dim  # and the norm of the uncompressed key/value head
    return own + (pool(a.index_head_dim) if a.index_n_heads else 0)


def _indexer(a: Attention, d_in: int) -> int:
    if not a.index_n_heads:
        return 0
    queries = a.index_n_heads * a.index_head_dim
    if a.compress_ratio:  # queries from the query factor, one weight a head; keys come from its compressor
        return (a.q_lora_rank or d_in) * queries + d_in * a.index_n_heads
    return d_in * (queries + a.index_head_dim) + 2 * a.index_head_dim  # q, one key, and their norms


def _latent_attention(a: LatentAttention, d: int) -> ParamCount:
    qk = a.qk_nope_dim + a.qk_rope_dim
    query_in = d if a.q_lora_rank is None else a.q_lora_rank
    up = query_in * a.n_heads * qk + a.kv_lora_rank * a.n_heads * (a.qk_nope_dim + a.v_head_dim)
    out = a.n_heads * a.v_head_dim * d
    down = d * (a.kv_lora_rank + a.qk_rope_dim) + a.kv_lora_rank  # and the latent's norm
    if a.q_lora_rank is not None:
        down += (d + 1) * a.q_lora_rank
    bias = a.kv_lora_rank + a.qk_rope_dim + (a.q_lora_rank or 0) + d if a.bias else 0
    return ParamCount(sharded=up + out, replicated=down + bias + _latent_indexer(a, d))


def _latent_indexer(a: LatentAttention, d: int) -> int:
    """Queries from the query factor, one key with a layernorm (scale and bias), a weight for each head."""
    query_in = d if a.q_lora_rank is None else a.q_lora_rank
    heads, width = a.index_n_heads, a.index_head_dim
    return query_in * heads * width + (d + 2) * width + d * heads if heads else 0


def _mamba1(m: Mamba1, d: int) -> ParamCount:
    inner, low = m.d_inner, m.dt_rank + 2 * m.d_state
    project = d * 2 * inner + inner * low + m.dt_rank * inner + inner * d
    channels = inner * (m.d_conv + 1) + inner + inner * m.d_state + inner  # conv and bias, dt bias, A, D
    norms = low if m.inner_norms and m.inner_norm_weights else 0
    return ParamCount(sharded=project + channels, replicated=norms)


def _mamba2(m: Mamba2, d: int) -> ParamCount:
    groups = 2 * m.n_groups * m.d_state  # B and C
    heads = 3 * m.n_heads  # dt bias, A, D
    project = d * (2 * m.d_inner + m.n_heads) + m.d_inner * d
    channels = m.d_inner * (m.d_conv + 1) + m.d_inner  # conv and bias, gated norm
    return ParamCount(sharded=project + channels + heads) + capped_count(
        groups * (d + m.d_conv + 1), m.n_groups
    )


def _linear_attention(a: LinearAttention, d: int) -> ParamCount:
    keys, values = a.n_k_heads * a.k_dim, a.n_v_heads * a.v_dim
    conv_qk, conv_v = 2 * keys * a.d_conv, values * a.d_conv
    match a.kind:
        case "gated_deltanet":
            # q, k; v and gate z; write strength and decay a value head; A and dt bias; norm of one head.
            values_side = d * (2 * values + 2 * a.n_v_heads) + conv_v + 2 * a.n_v_heads + values * d
            own = ParamCount(sharded=values_side, replicated=a.v_dim)
            return own + capped_count(d * 2 * keys + conv_qk, a.n_k_heads)
        case "lightning":
            return ParamCount(sharded=d * (2 * keys + values) + values + 2 * d * values + conv_qk + conv_v)
        case "kda":
            # Decay and output gate go through a factor one head wide; decay is kept a key channel.
            sharded = d * (2 * keys + values) + conv_qk + conv_v + values * d
            sharded += a.k_dim * keys + keys + a.n_k_heads + d * a.n_k_heads + a.v_dim * values
            return ParamCount(sharded=sharded, replicated=d * (a.k_dim + a.v_dim) + a.v_dim)
