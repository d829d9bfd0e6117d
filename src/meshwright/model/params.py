"""Parameter counts from shapes: exact totals, and the split by what tensor and expert parallelism divide.

Every count is exact: no preset of `models.csv` needs `extra_params`, which stays for shapes given by hand.
Symbols as in the glossary: D width, F feed-forward width, E experts, V vocabulary; r a low rank.

Left out on purpose, as `transformers` leaves them out of its parameters: buffers that no optimizer updates
(the selection bias of DeepSeek-V3, rotary tables, the token hash of DeepSeek-V4's first routers) and the
multi-token-prediction layers (see `mtp_params`).
"""

from __future__ import annotations

from meshwright.model.count import ParamCount, total_count
from meshwright.model.mixers import mixer_params
from meshwright.model.records import Attention, Block, LatentAttention, Mlp, Model, Moe

__all__ = [
    "ParamCount",
    "active_params",
    "block_params",
    "embedding_params",
    "ffn_params",
    "final_params",
    "head_params",
    "layer_params",
    "mixer_params",
    "mtp_blocks",
    "mtp_params",
    "norm_params",
    "shared_params",
    "shared_set_params",
    "total_params",
]


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
    return total_count(parts)


def norm_params(model: Model, width: int | None = None) -> int:
    """Parameters of one norm: a scale, and a bias where the model's layernorms have one."""
    w = model.d_model if width is None else width
    return w * (2 if model.norm == "layernorm" and model.norm_bias else 1)


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


def shared_set_params(model: Model) -> ParamCount:
    """Weights of all sets of the block used at several layers, without what each use adds."""
    block = model.shared_block
    return ParamCount() if block is None else block_params(block, model).times(model.shared_sets)


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
    return shared_set_params(model) + per_use.times(uses)


def layer_params(model: Model) -> ParamCount:
    """All layers and shared blocks, without embedding, final norm and head."""
    parts = [block_params(block, model).times(model.count(kind)) for kind, block in enumerate(model.blocks)]
    return total_count([*parts, shared_params(model)])


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
    module = total_count([joint, *(block_params(b, model) for b in mtp_blocks(model))])
    return module.times(model.mtp_layers)


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
