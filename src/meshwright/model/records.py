"""Architecture as data: a model is a pattern over a few blocks, a block is a mixer and a feed-forward.

Records only hold shapes; parameter counts are in `params`, costs in `cost.layers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

QkNorm = Literal["none", "head", "full"]
KvFrom = Literal["own", "shared", "below"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with `n_heads` query heads of width `head_dim` over `n_kv_heads` key/value heads.

    The fields after `sinks` describe variants; their defaults are the plain layer. `kv_from` says where keys
    and values come from: own projections, one projection for both ("shared": Gemma-4, DeepSeek-V4),
    or the layer below ("below", cross-layer attention: no projections and no cache of its own).
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int | None = None  # tokens each query sees; None is the whole causal prefix
    bias_qkv: bool = False
    bias_out: bool = False
    qk_norm: QkNorm = "none"  # norm over each head, or over all heads at once
    output_gate: bool = False
    sinks: bool = False  # one learned logit a head
    rotary: bool = True  # queries and keys are rotated; False: learned positions or ALiBi
    v_head_dim: int | None = None  # width of a value head; None is head_dim
    chunked: bool = False  # `window` cuts the text into chunks (Llama-4) instead of sliding over it
    kv_from: KvFrom = "own"
    d_in: int | None = None  # width of the input; None is d_model (Zamba2: hidden and embedding, twice that)
    q_lora_rank: int | None = None  # queries through a normed factor of this width (Step-3, DeepSeek-V4)
    o_groups: int = 0  # grouped low-rank output (DeepSeek-V4): heads in o_groups, each to o_lora_rank
    o_lora_rank: int = 0
    compress_ratio: int = 0  # beside the window, one compressed entry every so many tokens (DeepSeek-V4)
    index_n_heads: int = 0  # sparse-attention indexer, 0 where there is none
    index_head_dim: int = 0
    index_topk: int = 0  # tokens (or compressed entries) that the indexer keeps

    @property
    def v_dim(self) -> int:
        """Width of one value head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): keys and values through one latent of width `kv_lora_rank`.

    A layer with `index_topk` but no `index_n_heads` reuses the choice of the indexer below it (GLM-5.2).
    """

    n_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int
    index_n_heads: int = 0  # sparse-attention indexer, 0 where there is none
    index_head_dim: int = 0
    index_topk: int = 0
    bias: bool = False  # on the down-projections and the output


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Selective state space of Mamba-1: `d_inner` channels, state `d_state` each."""

    d_inner: int
    d_state: int
    d_conv: int
    dt_rank: int
    inner_norms: bool = False  # Jamba and Falcon-Mamba normalise dt, B and C
    inner_norm_weights: bool = True  # Falcon-Mamba's have none


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
    """Gated delta net, lightning attention or KDA: linear in length, state of k_dim x v_dim a head.

    `d_conv` is the width of the short convolution over queries, keys and values, 0 where there is none.
    """

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
    """Mixture of experts: `top_k` of `n_experts` of width `d_ff`, and a shared expert of `shared_d_ff`.

    A dense feed-forward that runs beside the experts on every token (Gemma-4, Granite-4) is a shared expert.
    """

    n_experts: int
    top_k: int
    d_ff: int
    gated: bool = True
    bias: bool = False
    shared_d_ff: int = 0  # summed width of all shared experts
    shared_gate: bool = False
    latent_dim: int = 0  # experts run on this width when positive (latent MoE)
    router_bias: bool = False
    router_scales: bool = False  # learned scales of the router input and of each expert (Gemma-4)
    n_groups: int = 1  # group-limited routing: experts in n_groups, a token reaches topk_groups of them
    topk_groups: int = 1


@dataclass(frozen=True, slots=True)
class Block:
    """One layer kind. Either part may be absent (an attention-only or MLP-only layer of a hybrid).

    `parallel` blocks feed mixer and feed-forward from the same residual and add both at once, so tensor
    parallelism reduces once a layer.
    """

    mixer: Mixer | None
    ffn: Mlp | Moe | None
    n_norms: int = 2
    extra_params: int = 0  # parameters no other field explains (adapters, learned scales), replicated over tp
    parallel: bool = False


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
    norm_bias: bool = True  # whether a layernorm adds a bias; an rmsnorm never does
    embedding_norm: bool = False  # a norm right after the embedding (BLOOM)
    final_norm: bool = True
    head_bias: bool = False
    n_positions: int = 0  # rows of a learned position table
    mtp_layers: int = 0  # multi-token-prediction layers, trained with the model, not counted in its size
    extra_params: int = 0  # outside the layers (embedding norms and the like)
    residual_streams: int = 1  # hyper-connections mix this many copies of the residual (DeepSeek-V4: 4)
    shared_block: Block | None = None  # one set of weights used at several layers (Zamba2); see shared_at
    shared_at: tuple[int, ...] = ()  # layers before which the shared block runs
    shared_sets: int = 1  # sets of weights of the shared block, taken in turn
    shared_adapter_rank: int = 0  # rank of the adapter on its MLP input, one for each use
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
        pattern = tuple(self.pattern[i % len(self.pattern)] for i in range(n_layers))
        return replace(self, pattern=pattern, shared_at=tuple(i for i in self.shared_at if i < n_layers))


def distinct(layers: Iterable[Block]) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """The distinct kinds among `layers` in order of appearance, and which one each layer is.

    >>> distinct([Block(None, Mlp(4)), Block(None, Mlp(8)), Block(None, Mlp(4))])[1]
    (0, 1, 0)
    """
    kinds: dict[Block, int] = {}
    pattern = tuple(kinds.setdefault(block, len(kinds)) for block in layers)
    return tuple(kinds), pattern
