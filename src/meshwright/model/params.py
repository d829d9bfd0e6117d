"""Parameter counts from shapes: exact totals, and the split by what tensor and expert parallelism divide.

Every count is exact: no preset of `models.csv` needs `extra_params`, which stays for shapes given by hand.
Symbols as in the glossary: D width, N query heads, K key/value heads, H head width, F feed-forward width,
E experts, V vocabulary; r a low rank; N_s the state width of a state-space layer.

Left out on purpose, as `transformers` leaves them out of its parameters: buffers that no optimizer updates
(the selection bias of DeepSeek-V3, rotary tables, the token hash of DeepSeek-V4's first routers) and the
multi-token-prediction layers (see `mtp_params`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.model.records import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
    ShortConv,
)


@dataclass(frozen=True, slots=True)
class ParamCount:
    """Parameters of a part of a model, by how parallelism divides them.

    `sharded` is divided by tp; `replicated` (norms, router, latent down-projections) stands on every tensor
    rank; `expert` (routed experts) is divided by ep * etp. All exclude embedding and head unless stated.

    `capped` singles out the part of `sharded` that cannot be cut at will: pairs (parameters, most ways),
    such as the keys and values of K heads or Mamba-2's B and C of g groups. Beyond that tp they are copied.
    """

    sharded: int = 0
    replicated: int = 0
    expert: int = 0
    capped: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """All of them, each once."""
        return self.sharded + self.replicated + self.expert

    def __add__(self, other: ParamCount) -> ParamCount:
        """Sum part by part."""
        return ParamCount(
            self.sharded + other.sharded,
            self.replicated + other.replicated,
            self.expert + other.expert,
            _merge((*self.capped, *other.capped)),
        )

    def times(self, n: int) -> ParamCount:
        """`n` equal parts."""
        capped = tuple((p * n, ways) for p, ways in self.capped)
        return ParamCount(self.sharded * n, self.replicated * n, self.expert * n, capped if n else ())

    def per_rank(self, tp: Any = 1, ep: Any = 1, etp: Any = 1) -> Any:
        """Parameters one rank holds: sharded/tp + replicated + expert/(ep etp), copies of capped parts too.

        Degrees are numbers or arrays. **Assumes** heads and groups divide evenly where they are cut.

        >>> ParamCount(sharded=80, replicated=5, expert=64, capped=((16, 2),)).per_rank(tp=4, ep=8)
        37.0
        """
        copies = sum(p * (1 / np.minimum(tp, ways) - 1 / tp) for p, ways in self.capped)
        rank = self.sharded / tp + copies + self.replicated + self.expert / (ep * etp)
        return rank if isinstance(rank, np.ndarray) else float(rank)


def block_params(block: Block, model: Model) -> ParamCount:
    """Parameters of one layer of kind `block` (norms included)."""
    d = model.d_model
    parts = [ParamCount(replicated=block.n_norms * norm_params(model) + block.extra_params)]
    if block.mixer is not None:
        parts.append(mixer_params(block.mixer, d))
        if isinstance(block.mixer, Attention) and block.mixer.d_in is not None:
            # The norm before a mixer that reads another width has that width.
            parts.append(ParamCount(replicated=norm_params(model, block.mixer.d_in) - norm_params(model)))
    if block.ffn is not None:
        parts.append(ffn_params(block.ffn, d))
    if model.residual_streams > 1:
        parts.append(ParamCount(replicated=2 * _stream_mixing_params(model)))
    return _total(parts)


def norm_params(model: Model, width: int | None = None) -> int:
    """Parameters of one norm: a scale, and a bias where the model's layernorms have one."""
    w = model.d_model if width is None else width
    return w * (2 if model.norm == "layernorm" and model.norm_bias else 1)


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


def ffn_params(ffn: Mlp | Moe, d_model: int) -> ParamCount:
    """Parameters of a feed-forward of either kind."""
    return _mlp(ffn, d_model) if isinstance(ffn, Mlp) else _moe(ffn, d_model)


def embedding_params(model: Model) -> int:
    """Input embedding V x D, learned positions, and the norm after them where there is one."""
    norm = norm_params(model) if model.embedding_norm else 0
    return (model.vocab + model.n_positions) * model.d_model + norm


def head_params(model: Model) -> int:
    """Output projection D x V and its bias; without the matrix when that is tied to the embedding."""
    matrix = 0 if model.tied_embeddings else model.vocab * model.d_model
    return matrix + (model.vocab if model.head_bias else 0)


def final_params(model: Model) -> int:
    """What stands between the last layer and the head: final norm, merging of residual streams, extras."""
    streams = model.residual_streams
    merge = streams * streams * model.d_model + streams + 1 if streams > 1 else 0
    return (norm_params(model) if model.final_norm else 0) + merge + model.extra_params


def shared_params(model: Model) -> ParamCount:
    """Weights of the block used at several layers: its sets, and per use an adapter and an output matrix.

    The adapter adds D x r and r x 2F to the gated MLP's input; the output matrix is D x D (Zamba2).
    """
    block = model.shared_block
    if block is None:
        return ParamCount()
    d, rank, uses = model.d_model, model.shared_adapter_rank, len(model.shared_at)
    wide = block.ffn.d_ff * (2 if block.ffn.gated else 1) if isinstance(block.ffn, Mlp) else 0
    per_use = ParamCount(sharded=rank * wide, replicated=rank * d + d * d)
    return block_params(block, model).times(model.shared_sets) + per_use.times(uses)


def layer_params(model: Model) -> ParamCount:
    """All layers and shared blocks, without embedding, final norm and head."""
    parts = [block_params(block, model).times(model.count(kind)) for kind, block in enumerate(model.blocks)]
    return _total([*parts, shared_params(model)])


def total_params(model: Model) -> int:
    """Every parameter of the model, as `transformers` counts it (multi-token-prediction layers left out)."""
    return embedding_params(model) + layer_params(model).total + final_params(model) + head_params(model)


def active_params(model: Model, *, embedding: bool = True) -> int:
    """Parameters one token uses: all that are not routed experts, plus top_k of n_experts of those.

    Without `embedding`, both vocabulary matrices are left out (positions, norms and biases stay).
    """
    idle = sum(model.count(kind) * _idle_experts(block, model) for kind, block in enumerate(model.blocks))
    matrices = 0 if embedding else model.vocab * model.d_model * (1 if model.tied_embeddings else 2)
    return total_params(model) - idle - matrices


def mtp_blocks(model: Model) -> tuple[Block, ...]:
    """The layers inside one multi-token-prediction module: one like the last layer of the model.

    A hybrid whose last layer is only a mixer or only a feed-forward gets one of each, the mixer being
    attention (Nemotron-3's modules are one attention and one expert layer).
    """
    if not model.mtp_layers:
        return ()
    last = model.blocks[model.pattern[-1]]
    if last.mixer is not None and last.ffn is not None:
        return (last,)
    kinds = [model.blocks[k] for k in reversed(model.pattern)]
    attention = [b for b in kinds if isinstance(b.mixer, Attention | LatentAttention)]
    mixers = attention or [b for b in kinds if b.mixer is not None]
    ffns = [b for b in kinds if b.ffn is not None]
    return (*mixers[:1], *ffns[:1])


def mtp_params(model: Model) -> ParamCount:
    """Parameters of all multi-token-prediction modules, which `total_params` leaves out.

    Each is its layers, a projection from hidden state and next embedding (2D x D), a norm of either and a
    norm before the head; embedding and head are the model's own.

    **Source**: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2, figure 3.
    """
    d = model.d_model
    joint = ParamCount(sharded=2 * d * d, replicated=3 * norm_params(model))
    module = _total([joint, *(block_params(b, model) for b in mtp_blocks(model))])
    return module.times(model.mtp_layers)


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
    return _total(
        [
            ParamCount(sharded=sharded, replicated=replicated),
            _capped(keys_values, a.n_kv_heads),
            ParamCount(replicated=_compressor(a, d_in) + _indexer(a, d_in)),
        ]
    )


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
    index = 0
    if a.index_n_heads:
        # Queries from the query factor, one key with a layernorm (scale and bias), a weight for each head.
        heads, width = a.index_n_heads, a.index_head_dim
        index = query_in * heads * width + (d + 2) * width + d * heads
    return ParamCount(sharded=up + out, replicated=down + bias + index)


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
    return ParamCount(sharded=project + channels + heads) + _capped(groups * (d + m.d_conv + 1), m.n_groups)


def _linear_attention(a: LinearAttention, d: int) -> ParamCount:
    keys, values = a.n_k_heads * a.k_dim, a.n_v_heads * a.v_dim
    conv_qk, conv_v = 2 * keys * a.d_conv, values * a.d_conv
    match a.kind:
        case "gated_deltanet":
            # q, k; v and gate z; write strength and decay a value head; A and dt bias; norm of one head.
            values_side = d * (2 * values + 2 * a.n_v_heads) + conv_v + 2 * a.n_v_heads + values * d
            own = ParamCount(sharded=values_side, replicated=a.v_dim)
            return own + _capped(d * 2 * keys + conv_qk, a.n_k_heads)
        case "lightning":
            return ParamCount(sharded=d * (2 * keys + values) + values + 2 * d * values + conv_qk + conv_v)
        case "kda":
            # Decay and output gate go through a factor one head wide; decay is kept a key channel.
            sharded = d * (2 * keys + values) + conv_qk + conv_v + values * d
            sharded += a.k_dim * keys + keys + a.n_k_heads + d * a.n_k_heads + a.v_dim * values
            return ParamCount(sharded=sharded, replicated=d * (a.k_dim + a.v_dim) + a.v_dim)


def _mlp(f: Mlp, d: int) -> ParamCount:
    wide = f.d_ff * (2 if f.gated else 1)
    return ParamCount(sharded=d * (wide + f.d_ff) + (wide if f.bias else 0), replicated=d if f.bias else 0)


def _moe(f: Moe, d: int) -> ParamCount:
    router = d * f.n_experts + (f.n_experts if f.router_bias else 0)
    router += d + f.n_experts if f.router_scales else 0
    latent = 2 * d * f.latent_dim
    shared = _mlp(Mlp(f.shared_d_ff, f.gated, f.bias), d) if f.shared_d_ff else ParamCount()
    gate = d if f.shared_gate else 0
    experts = f.n_experts * _mlp(Mlp(f.d_ff, f.gated, f.bias), f.latent_dim or d).total
    return shared + ParamCount(replicated=router + latent + gate, expert=experts)


def _idle_experts(block: Block, model: Model) -> int:
    if not isinstance(block.ffn, Moe):
        return 0
    one = ffn_params(block.ffn, model.d_model).expert // block.ffn.n_experts
    return one * (block.ffn.n_experts - block.ffn.top_k)


def _stream_mixing_params(model: Model) -> int:
    """Hyper-connection around one part of a layer: n read, n write and n x n mixing weights from n D inputs.

    A matrix, a bias of its width, and one scale for each of the three.
    """
    n = model.residual_streams
    return (2 * n + n * n) * (n * model.d_model + 1) + 3


def _capped(params: int, ways: int) -> ParamCount:
    return ParamCount(sharded=params, capped=((params, ways),) if params else ())


def _total(parts: Iterable[ParamCount]) -> ParamCount:
    total = ParamCount()
    for part in parts:
        total += part
    return total


def _merge(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: dict[int, int] = {}
    for params, ways in pairs:
        merged[ways] = merged.get(ways, 0) + params
    return tuple((params, ways) for ways, params in sorted(merged.items()))
