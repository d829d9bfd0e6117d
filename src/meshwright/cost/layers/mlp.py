"""Dense feed-forward."""

from __future__ import annotations

from dataclasses import replace

from meshwright.cost.layers.parts import linear_in, linear_out, norm
from meshwright.cost.ops import Operation, Shape, Stream, Words, element_bytes
from meshwright.model.records import Mlp
from meshwright.strategy.records import Num


def activation(name: str, module: str, tokens: Num, width: Num, *, gated: bool, precision: str) -> Stream:
    """The non-linearity between the matrices: reads one or two of width, writes one; both sides stay.

    Its input stays for its own backward, its output for the next weight gradient (narrow in low precision).
    """
    inputs = 2.0 if gated else 1.0
    size = min(2.0, element_bytes(precision))
    one = 2.0 * tokens * width
    saved = one * inputs + size * tokens * width
    eager = one if gated else 0.0  # the activated half, which the product of both halves needs
    return Stream(
        name, module, one * (inputs + 1.0), one * (2.0 * inputs + 1.0), (1, 1), saved=saved, eager=eager,
        plain=(2.0 * eager, 4.0 * eager),  # it is written and read again; backward so are both gradients
    )  # fmt: skip


def apart(
    name: str, module: str, tokens: Num, width: Num, *, gated: bool, precision: str
) -> tuple[Num, Stream]:
    """Bytes of the input, kept by the product before since that is what running it again needs, and the
    non-linearity with its output alone."""
    act = activation(name, module, tokens, width, gated=gated, precision=precision)
    output = min(2.0, element_bytes(precision)) * tokens * width
    return act.saved - output, replace(act, saved=output)


def operations(
    block: Mlp, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Norm, up (and gate), non-linearity, down, residual."""
    width = block.d_ff / shape.tp
    halves = (width, width) if block.gated else (width,)
    read, act = apart("act", "mlp", shape.tokens, width, gated=block.gated, precision=words.precision)
    return (
        *norm("norm", d_model, shape, words, norm_kernels),
        *linear_in("up", "mlp", d_model, width * len(halves), shape, words, halves, read),
        act,
        *linear_out("down", "mlp", width, d_model, shape, words),
    )
