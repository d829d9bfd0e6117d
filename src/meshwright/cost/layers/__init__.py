"""One file a block kind; each yields the list of operations that everything else is summed from."""

from __future__ import annotations

from meshwright.cost.layers import attention, latent, linear, mamba, mlp, moe
from meshwright.cost.ops import Operation, Shape, Words
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
    ShortConv,
)

_MIXERS = {
    Attention: attention.operations,
    LatentAttention: latent.operations,
    Mamba1: mamba.mamba1_operations,
    Mamba2: mamba.mamba2_operations,
    LinearAttention: linear.operations,
    ShortConv: linear.short_conv_operations,
}
_FEED_FORWARD = {Mlp: mlp.operations, Moe: moe.operations}


def operations(block: Block, model: Model, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """The operations of one layer of kind `block` on one rank for one microbatch."""
    kernels = block.n_norms / max(1, (block.mixer is not None) + (block.ffn is not None))
    ops: tuple[Operation, ...] = ()
    if block.mixer is not None:
        ops += _MIXERS[type(block.mixer)](block.mixer, model.d_model, kernels, shape, words)  # type: ignore[operator]
    if block.ffn is not None:
        ops += _FEED_FORWARD[type(block.ffn)](block.ffn, model.d_model, kernels, shape, words)  # type: ignore[operator]
    return ops
