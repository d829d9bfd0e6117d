"""Widths of a model that parallelism divides, gathered over its distinct blocks."""

from __future__ import annotations

from functools import lru_cache

from meshwright.model.records import (
    Attention,
    Block,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Model,
    Moe,
)


def blocks(model: Model) -> tuple[Block, ...]:
    """Every distinct block that some layer uses, and the shared one."""
    used = tuple(b for i, b in enumerate(model.blocks) if i in model.pattern)
    return (*used, model.shared_block) if model.shared_block and model.shared_at else used


@lru_cache(maxsize=256)
def query_heads(model: Model) -> tuple[int, ...]:
    """Distinct head counts that tensor parallelism divides: attention, Mamba-2 and linear attention heads."""
    found: set[int] = set()
    for block in blocks(model):
        mixer = block.mixer
        if isinstance(mixer, Attention | LatentAttention | Mamba2):
            found.add(mixer.n_heads)
        elif isinstance(mixer, LinearAttention):
            found |= {mixer.n_k_heads, mixer.n_v_heads}
        elif isinstance(mixer, Mamba1):
            found.add(mixer.d_inner)
    return tuple(sorted(found))


@lru_cache(maxsize=256)
def attention_heads(model: Model) -> tuple[tuple[int, int], ...]:
    """Distinct (query heads, key/value heads) of softmax attention; latent attention has one key a head."""
    found: set[tuple[int, int]] = set()
    for block in blocks(model):
        if isinstance(block.mixer, Attention):
            found.add((block.mixer.n_heads, block.mixer.n_kv_heads))
        elif isinstance(block.mixer, LatentAttention):
            found.add((block.mixer.n_heads, block.mixer.n_heads))
    return tuple(sorted(found))


@lru_cache(maxsize=256)
def groups(model: Model) -> tuple[int, ...]:
    """Distinct Mamba-2 group counts."""
    return tuple(sorted({b.mixer.n_groups for b in blocks(model) if isinstance(b.mixer, Mamba2)}))


@lru_cache(maxsize=256)
def dense_widths(model: Model) -> tuple[int, ...]:
    """Distinct feed-forward widths divided by tp: dense MLPs and shared experts."""
    found: set[int] = set()
    for block in blocks(model):
        if isinstance(block.ffn, Mlp):
            found.add(block.ffn.d_ff)
        elif isinstance(block.ffn, Moe) and block.ffn.shared_d_ff:
            found.add(block.ffn.shared_d_ff)
    return tuple(sorted(found))


@lru_cache(maxsize=256)
def moe(model: Model) -> tuple[Moe, ...]:
    """Distinct mixtures of experts."""
    return tuple(dict.fromkeys(b.ffn for b in blocks(model) if isinstance(b.ffn, Moe)))
