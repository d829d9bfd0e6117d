"""Pieces that several block kinds share: norm, column- and row-parallel linear layers."""

from __future__ import annotations

import numpy as np

from meshwright.cost.ops import Core, Matmul, Message, Operation, Shape, Stream, Words, element_bytes
from meshwright.strategy.records import Num


def norm_plain(elements: Num) -> tuple[Num, Num]:
    """Bytes that a norm in plain tensor operations moves beyond a fused kernel's 4 and 6 an element.

    36 and 76: each operation reads its operands and writes its result; cast to fp32, square, mean, scale,
    cast back, weight. **Source**: counted in transformers' LlamaRMSNorm and what autograd makes of it.
    """
    return 32.0 * elements, 70.0 * elements


def narrow(shape: Shape, words: Words) -> Num:
    """Tokens a rank holds in the norm and residual regions: divided by tp under sequence parallelism."""
    return shape.tokens / shape.tp if words.sp else shape.tokens


def left_by(degree: Num, nbytes: Num) -> Num:
    """Bytes that a message leaves: none on a single rank, which sends nothing."""
    return np.where(np.asarray(degree) > 1, nbytes, 0.0)[()]


def norm(name: str, d_model: int, shape: Shape, words: Words, kernels: float = 1.0) -> tuple[Operation, ...]:
    """Layer or RMS norm: reads and writes the residual stream; its input stays for the backward pass.

    That input (the boundary of the sublayer) is what stays however much is recomputed. Written in plain
    tensor operations a norm also keeps its input in fp32 and the normed value before its scale, and moves 36
    bytes of an element instead of 4, backward 76 instead of 6 (`plain`).
    """
    stream = 2.0 * narrow(shape, words) * d_model
    return (
        Stream(name + "_in", "boundary", 0.0, 0.0, (0, 0), saved=stream),
        Stream(
            name,
            "norm",
            2.0 * stream * kernels,
            3.0 * stream * kernels,
            (round(kernels), round(2 * kernels)),
            eager=3.0 * stream * kernels,
            plain=norm_plain(stream / 2.0 * kernels),
        ),
    )


def linear_in(
    name: str, module: str, d_in: int, width: Num, shape: Shape, words: Words, parts: tuple[Num, ...] = (),
    saved: Num = 0.0,
) -> tuple[Operation, ...]:  # fmt: skip
    """Column-parallel linear: [tokens, d_in] x [d_in, width] (`width` is already the rank's share).

    Sequence parallelism gathers the input first and scatters its gradient; without it the gradient is
    all-reduced backward. The input stays for the weight gradient (low precision keeps it narrow): the shard
    where the framework gathers again, the whole where it keeps the gathered one. **Source**: Korthikanti et
    al. 2022, section 4.2.
    """
    size = min(2.0, element_bytes(words.precision))
    whole = 2.0 * shape.tokens * d_in
    kept_tokens = narrow(shape, words) if words.regathers_input or not words.sp else shape.tokens
    messages: tuple[Operation, ...]
    if words.sp:
        again = 2.0 if words.regathers_input else 1.0
        messages = (
            Message(name + "_gather", module, "tp", "all_gather", whole, 1.0, again - 1.0),
            Message(name + "_scatter", module, "tp", "reduce_scatter", whole, 0.0, 1.0),
        )
    else:
        messages = (Message(name + "_reduce", module, "tp", "all_reduce", whole, 0.0, 1.0),)
    # The norm's output, kept by the linear layer that reads it, comes back if norms are recomputed.
    kept = Stream(name + "_in", "norm", 0.0, 0.0, (0, 0), saved=size * kept_tokens * d_in)
    return (*messages, kept, Matmul(name, module, shape.tokens, d_in, width, parts=parts, saved=saved))


def linear_out(
    name: str, module: str, width: Num, d_out: int, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Row-parallel linear back to the residual stream, its reduction, and the residual addition."""
    whole = 2.0 * shape.tokens * d_out
    stream = 2.0 * narrow(shape, words) * d_out
    messages: tuple[Operation, ...]
    if words.sp:
        messages = (
            Message(name + "_scatter", module, "tp", "reduce_scatter", whole, 1.0, 0.0,
                    result=left_by(shape.tp, stream)),
            Message(name + "_gather", module, "tp", "all_gather", whole, 0.0, 1.0),
        )  # fmt: skip
    else:
        messages = (Message(name + "_reduce", module, "tp", "all_reduce", whole, 1.0, 0.0),)
    mask = 0.0 if words.flash else stream / 2.0  # dropout of the unfused generation keeps its mask
    add = Stream(name + "_add", "kept", 3.0 * stream, 2.0 * stream, (1, 1), saved=mask)
    return (Matmul(name, module, shape.tokens, width, d_out), *messages, add)


def convolution(mixed: Num, shape: Shape) -> Stream:
    """Short causal convolution of `mixed` channels: read and written forward, twice that backward."""
    nbytes = 2.0 * shape.tokens * mixed
    return Stream("conv", "ssm", 2.0 * nbytes, 4.0 * nbytes, (1, 2), saved=nbytes)


def chunked_scan(
    name: str, flops: Num, inner: Num, state: Num, boundary: Num, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """A recurrence over chunks of tokens and its gated norm; `inner` channels leave it, which the linear
    layer behind keeps (narrow in low precision).

    `state` are the bytes of the states between chunks, kept in fp32: the kernel is bound by their traffic as
    much as by its FLOPs. `boundary` is what one rank sends to the next pieces of the sequence.
    """
    out = 2.0 * shape.tokens * inner
    return (
        Message("state", "ssm", "cp", "all_gather", boundary * shape.cp, 1.0, 1.0),
        Stream("states", "ssm", 2.0 * state, 4.0 * state, (4, 6), saved=state, fusible=False),
        Core(name, "ssm", flops, 2.5, (64,), saved=out),
        Stream(
            "gated_norm",
            "ssm",
            3.0 * out,
            5.0 * out,
            (2, 3),
            saved=min(1.0, element_bytes(words.precision) / 2.0) * out,
        ),
    )
