"""Model FLOPs: what the mathematics asks for, whatever the machine does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from meshwright.cost.layers.attention import keys_seen
from meshwright.model.params import block_params, head_params, mtp_blocks, shared_params, shared_set_params
from meshwright.model.records import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Model,
    Moe,
)
from meshwright.strategy.finetune import parse as parse_finetune


def mixing_flops(mixer: Mixer | None, seq_len: Any, *, causal: bool = True) -> Any:
    """Forward FLOPs a token of what a mixer does besides its parameters.

    Attention: 2 keys a (d_qk + d_v), keys s/2 when causal is counted half, s in full. State spaces: the
    scan's conventional 7 d_i N (9 for Mamba-1). **Source**: Megatron-LM's count of FLOPs.
    """
    half = 1.0 if causal else 2.0
    if isinstance(mixer, Attention):
        keys = keys_seen(mixer, seq_len)
        return half * 2.0 * keys * mixer.n_heads * (mixer.head_dim + mixer.v_dim)
    if isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim
        return half * 2.0 * keys_seen(mixer, seq_len) * mixer.n_heads * width
    if isinstance(mixer, Mamba2):
        return 7.0 * mixer.d_inner * mixer.d_state
    if isinstance(mixer, Mamba1):
        return 9.0 * mixer.d_inner * mixer.d_state
    if isinstance(mixer, LinearAttention):
        return 4.0 * mixer.n_v_heads * mixer.k_dim * mixer.v_dim
    return 0.0


@lru_cache(maxsize=1024)
def active_block_params(block: Block, model: Model) -> float:
    """Parameters of one layer that one token is multiplied by: top_k of n_experts of the routed ones."""
    count = block_params(block, model)
    share = block.ffn.top_k / block.ffn.n_experts if isinstance(block.ffn, Moe) else 1.0
    return count.sharded + count.replicated + share * count.expert


def forward_flops(model: Model, seq_len: Any, *, causal: bool = True) -> tuple[Any, Any]:
    """Forward FLOPs a token of products with parameters, and of the mixing besides.

    A block that several layers use counts as often as it is used, with what each use adds; a module of
    multi-token prediction is a projection, its layers and the head again.
    """
    head, layers = (
        2.0 * model.vocab * model.d_model,
        [(b, model.count(i)) for i, b in enumerate(model.blocks)],
    )
    if model.shared_block is not None:
        layers.append((model.shared_block, len(model.shared_at)))
    layers += [(block, model.mtp_layers) for block in mtp_blocks(model)]
    products: Any = 2.0 * (head_params(model) or model.vocab * model.d_model)
    products = products + model.mtp_layers * (4.0 * model.d_model**2 + head)
    products = products + 2.0 * (shared_params(model).total - shared_set_params(model).total)
    mixing: Any = 0.0
    for block, times in layers:
        products = products + times * 2.0 * active_block_params(block, model)
        mixing = mixing + times * mixing_flops(block.mixer, seq_len, causal=causal)
    return products, mixing


def model_flops(model: Model, seq_len: Any, finetune: str = "none", *, causal: bool = True) -> Any:
    """Training FLOPs a token: three times the forward pass, recomputation not counted.

    Frozen parameters have no weight gradient: twice. What adapters add (a thousandth or so) is left out. A
    sequence of preference training is a pair, two tokens for one, and the reference model's forward is asked
    for as well.

    Forward: 2 FLOPs a multiplied parameter (input embedding not, output head yes) plus the mixing.
    **Source**: PaLM appendix B, with causal attention counted half unless `causal` is False.
    """
    products, mixing = forward_flops(model, seq_len, causal=causal)
    word = parse_finetune(finetune)
    reference = 1.0 if word.pairs else 0.0
    passes = (2.0 if word.frozen else 3.0) + reference
    return word.rows * (passes * products + (3.0 + reference) * mixing)
