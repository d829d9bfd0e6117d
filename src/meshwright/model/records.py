"""Architecture as data: a model is a pattern over a few distinct blocks, a block is a mixer and a feed-forward.

Records only hold shapes; parameter counts are in `params`, costs in `cost.layers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with `n_heads` query heads of width `head_dim` over `n_kv_heads` key/value heads."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None  # tokens each query sees; None is the whole causal prefix
    bias_qkv: bool = False
    bias_out: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # norm over each head, or over all heads at once
    output_gate: bool = False
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): keys and values through one latent of width `kv_lora_rank`."""

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int
    index_n_heads: int = 0  # sparse-attention indexer, 0 where there is none
    index_head_dim: int = 0
    index_topk: int = 0


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space of Mamba-1: `d_inner` channels, state `d_state` each."""

    d_inner: int
    d_state: int
    d_conv: int
    dt_rank: int
    inner_norms: bool = False  # Jamba and Falcon-Mamba normalise dt, B and C


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space duality of Mamba-2: `n_heads` heads of width `head_dim`, `n_groups` shared B and C."""

    d_inner: int
    d_state: int
    d_conv: int
    n_heads: int
    head_dim: int
    n_groups: int


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta net, lightning attention or KDA: linear in length, state of k_dim x v_dim a head."""

    kind: Literal["gated_deltanet", "lightning", "kda"]
    n_k_heads: int
    n_v_heads: int
    k_dim: int
    v_dim: int
    d_conv: int = 0


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Gated short convolution (LFM2)."""

    d_conv: int


Mixer = Attention | LatentAttention | Mamba1 | Mamba2 | LinearAttention | ShortConv


@dataclass(frozen=True, slots=True)
class Mlp:
    """Dense feed-forward: two matrices, three when gated."""

    d_ff: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: `top_k` of `n_experts` of width `d_ff`, and a shared expert of `shared_d_ff`."""

    n_experts: int
    top_k: int
    d_ff: int
    gated: bool = True
    bias: bool = False
    shared_d_ff: int = 0  # summed width of all shared experts
    shared_gate: bool = False
    latent_dim: int = 0  # experts run on this width when positive (latent MoE)
    router_bias: bool = False
    n_groups: int = 1  # group-limited routing: experts in n_groups, a token reaches topk_groups of them
    topk_groups: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """One layer kind. Either part may be absent (an attention-only or MLP-only layer of a hybrid)."""

    mixer: Mixer | None
    ffn: Mlp | Moe | None
    n_norms: int = 2
    extra_params: int = 0  # parameters no other field explains (adapters, learned scales), replicated over tp


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder: `blocks` are the distinct layer kinds, `pattern[i]` says which one layer i is."""

    name: str
    d_model: int
    vocab: int
    blocks: tuple[Block, ...]
    pattern: tuple[int, ...]
    tied_embeddings: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    n_positions: int = 0  # rows of a learned position table
    mtp_layers: int = 0  # multi-token-prediction layers, trained with the model, not counted in its size
    extra_params: int = 0  # outside the layers (embedding norms and the like)
    shared_block: Block | None = None  # one set of weights used at several layers (Zamba2); see shared_at
    shared_at: tuple[int, ...] = ()
    family: str = ""
    source: str = ""

    @property
    def n_layers(self) -> int:
        """Number of layers, L."""
        return len(self.pattern)

    def count(self, kind: int) -> int:
        """How many layers are of kind `kind`."""
        return self.pattern.count(kind)

    def with_layers(self, n_layers: int) -> Model:
        """The same model cut or extended to `n_layers`, repeating its pattern."""
        from dataclasses import replace

        pattern = tuple(self.pattern[i % len(self.pattern)] for i in range(n_layers))
        return replace(self, pattern=pattern)
