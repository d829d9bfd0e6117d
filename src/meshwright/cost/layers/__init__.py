"""One file a block kind; each yields the list of operations that everything else is summed from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.cost.layers import attention, latent, linear, mamba, mlp, moe
from meshwright.cost.layers.parts import narrow
from meshwright.cost.numbers import numbers
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words
from meshwright.model.mixers import beside_params
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
from meshwright.strategy.records import Num

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
    beside = block.parallel and block.mixer is not None and block.ffn is not None
    if block.mixer is not None:
        mixer = _MIXERS[type(block.mixer)](block.mixer, model.d_model, kernels, shape, words)  # type: ignore[operator]
        whole = 2.0 * shape.tokens * model.d_model
        ops += tuple(_summed_later(mixer, whole, one_norm=block.n_norms == 1)) if beside else mixer
        ops += _beside(block.mixer, model.d_model, shape)
    if model.n_positions and words.flash:
        # Decoders with learned positions (GPT-2's kind) train with dropout after each sublayer: its mask.
        masks = narrow(shape, words) * model.d_model * ((block.mixer is not None) + (block.ffn is not None))
        ops += (Stream("dropout", "kept", 0.0, 0.0, (0, 0), saved=masks),)
    if block.ffn is not None:
        ffn = _FEED_FORWARD[type(block.ffn)](block.ffn, model.d_model, kernels, shape, words)  # type: ignore[operator]
        ops += tuple(_same_input(ffn, one_norm=block.n_norms == 1)) if beside else ffn
    if model.norm != "rmsnorm":  # layer norm is one kernel in every program
        ops = tuple(
            replace(op, eager=0.0) if op.module == "norm" and isinstance(op, Stream) else op for op in ops
        )
    if words.precision == "nvfp4" and is_hybrid(model):
        ops = _under_fp4(ops)
    return tuple(_placed(ops))


def _summed_later(mixer: tuple[Operation, ...], whole: Num, *, one_norm: bool) -> Iterator[Operation]:
    """A mixer whose output is added to the feed-forward's before tensor ranks reduce it and the residual
    joins: all of its tokens are read once more there (`whole` bytes), also under sequence parallelism.

    Backward the gradients of the two branches are added: where one norm feeds both, before tensor ranks
    reduce them, else as in layers one after another. **Source**: PaLM (arXiv 2204.02311), section 2, parallel
    layers; GPT-NeoX's transformer.py (`gpt_j_residual`) reduces the sum of both outputs once.
    """
    last = max(i for i, op in enumerate(mixer) if isinstance(op, Matmul))
    for i, op in enumerate(mixer):
        if i > last and isinstance(op, Message):
            continue
        if isinstance(op, Stream) and op.name.endswith("_add"):
            yield replace(op, forward=whole, backward=whole if one_norm else op.backward)
        else:
            yield op


def _same_input(ffn: tuple[Operation, ...], *, one_norm: bool) -> Iterator[Operation]:
    """A feed-forward that reads what the mixer beside it reads: the layer's input stays once, and where one
    norm feeds both so does its output, which tensor ranks gather (or whose gradient they reduce) once.
    """
    first = min(i for i, op in enumerate(ffn) if isinstance(op, Matmul))
    for i, op in enumerate(ffn):
        if isinstance(op, Stream) and op.module == "boundary":
            continue
        normed = isinstance(op, Stream) and op.module == "norm" and op.kernels == (0, 0)
        if not (one_norm and i < first and (normed or isinstance(op, Message))):
            yield op


def _placed(ops: tuple[Operation, ...]) -> Iterator[Operation]:
    """`ops`, each plain product with the place of its first matrix (several at once are another kernel)."""
    place = 0
    for op in ops:
        if isinstance(op, Matmul) and isinstance(op.groups, int):
            yield replace(op, place=place)
            place += max(1, len(op.parts))
        else:
            yield op


# What a hybrid's recipe for nvfp4 leaves wider. Source: report of Nemotron 3 Super (arXiv 2604.12374), its
# table of precisions: attention and latent projections and multi-token prediction in bf16, state-space
# outputs in mxfp8.
_WIDER = {"qkv": "bf16", "proj": "bf16", "latent_down": "bf16", "latent_up": "bf16", "out_proj": "mxfp8"}


def is_hybrid(model: Model) -> bool:
    """Whether some layers are state-space layers."""
    return any(isinstance(block.mixer, Mamba1 | Mamba2) for block in model.blocks)


def _under_fp4(ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The operations of a hybrid's layer as its recipe for nvfp4 runs them."""
    return tuple(
        replace(op, under_fp4=_WIDER.get(op.name, op.under_fp4), kept_wide=numbers()["nvfp4_kept_wide"])
        if isinstance(op, Matmul)
        else op
        for op in ops
    )


def shared_operations(model: Model, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """A layer's share of the block that is used at several layers (Zamba2), as if it ran on so few tokens."""
    if model.shared_block is None:
        return ()
    share = len(model.shared_at) / model.n_layers
    part = replace(shape, tokens=shape.tokens * share, microbatch_size=shape.microbatch_size * share)
    return operations(model.shared_block, model, part, words) + tuple(_of_each_use(model, part, words))


def _of_each_use(model: Model, part: Shape, words: Words) -> Iterator[Operation]:
    """What a use of the shared block adds: an adapter on the gated matrices, and a matrix behind the block,
    both on the tokens that a tensor rank holds (Zamba2's modeling code)."""
    block, d, own = model.shared_block, model.d_model, narrow(part, words)
    if block is not None and isinstance(block.ffn, Mlp) and model.shared_adapter_rank:
        wide = block.ffn.d_ff * (2.0 if block.ffn.gated else 1.0) / part.tp
        yield Matmul("use_down", "mlp", own, d, model.shared_adapter_rank)
        yield Matmul("use_up", "mlp", part.tokens, model.shared_adapter_rank, wide)
    yield Matmul("use_out", "kept", own, d, d, saved=2.0 * own * d)


def _beside(mixer: Mixer, d_model: int, shape: Shape) -> tuple[Operation, ...]:
    """Sparse-attention indexer and compressor as one product of their parameters, on every tensor rank."""
    if not isinstance(mixer, Attention | LatentAttention):
        return ()
    parameters = beside_params(mixer, d_model)
    if not parameters:
        return ()
    return (
        Matmul("indexer", "qkv", shape.tokens / shape.tp, d_model, parameters / d_model, quantised=False),
    )
