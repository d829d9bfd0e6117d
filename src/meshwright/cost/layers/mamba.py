"""State-space mixers: Mamba-1 (selective scan) and Mamba-2 (chunked state-space duality)."""

from __future__ import annotations

import numpy as np

from meshwright.cost.layers.parts import chunked_scan, convolution, linear_in, linear_out, norm
from meshwright.cost.ops import Core, Matmul, Message, Operation, Shape, Stream, Words
from meshwright.model.records import Mamba1, Mamba2

_CHUNK = 128  # tokens a chunk of the Mamba-2 kernel (mamba_ssm default 256, Megatron 128)


def mamba2_operations(
    block: Mamba2, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """In-projection, convolution, chunked scan, gated norm, out-projection.

    FLOPs of the chunked kernel: T Q (g N + d_i) + 4 T d_i N + (T/Q) d_i N. Groups below tp are replicated.
    **Source**: Dao and Gu 2024, section 6; Megatron-LM's count of FLOPs.
    """
    tokens, tp = shape.tokens, shape.tp
    inner, heads = block.d_inner / tp, block.n_heads / tp
    groups = np.maximum(block.n_groups / tp, 1.0)
    mixed = inner + 2.0 * groups * block.d_state
    width = inner + mixed + heads
    scan = tokens * (
        _CHUNK * (groups * block.d_state + inner)
        + 4.0 * inner * block.d_state
        + inner * block.d_state / _CHUNK
    )
    state = 4.0 * tokens / _CHUNK * inner * block.d_state
    boundary = shape.microbatch_size * (inner * block.d_state + (block.d_conv - 1) * mixed) * 2.0
    return (
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("in_proj", "kept", d_model, width, shape, words),
        Stream("projected", "kept", 0.0, 0.0, (0, 0), saved=2.0 * tokens * width),
        convolution(mixed, shape),
        *chunked_scan("scan", scan, inner, state, boundary, shape, words),
        *linear_out("out_proj", "kept", inner, d_model, shape, words),
    )


def mamba1_operations(
    block: Mamba1, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """In-projection, convolution, selection (x and dt projections), selective scan, out-projection.

    The scan runs on vector units: about 9 T d_i N FLOPs forward bound by reading x, dt, B, C, z. Its
    x-projection needs one more reduction under tp. **Source**: Gu and Dao 2023, section 3.3.
    """
    tokens, tp = shape.tokens, shape.tp
    inner = block.d_inner / tp
    select = block.dt_rank + 2 * block.d_state
    boundary = shape.microbatch_size * inner * (block.d_state + block.d_conv - 1) * 2.0
    scan = 9.0 * tokens * inner * block.d_state
    return (
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("in_proj", "kept", d_model, 2.0 * inner, shape, words),
        Stream("projected", "kept", 0.0, 0.0, (0, 0), saved=4.0 * tokens * inner),
        convolution(inner, shape),
        Matmul("x_proj", "ssm", tokens, inner, select, quantised=False),
        Message("x_reduce", "ssm", "tp", "all_reduce", 2.0 * tokens * select, 1.0, 1.0),
        Matmul("dt_proj", "ssm", tokens, block.dt_rank, inner, quantised=False),
        Message("state", "ssm", "cp", "all_gather", boundary * shape.cp, 1.0, 1.0),
        Stream(
            "selection",
            "ssm",
            10.0 * tokens * inner,
            20.0 * tokens * inner,
            (2, 3),
            saved=2.0 * tokens * inner,
        ),
        Core("scan", "ssm", scan, 2.0, (64,), saved=2.0 * tokens * inner, units=0.125),
        *linear_out("out_proj", "kept", inner, d_model, shape, words),
    )
