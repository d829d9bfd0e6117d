"""Mixture of experts: router, dispatch, grouped products, combine, shared expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.cost.layers.mlp import apart
from meshwright.cost.layers.parts import left_by, linear_in, linear_out, narrow, norm
from meshwright.cost.numbers import numbers
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words, element_bytes
from meshwright.model.records import Moe
from meshwright.strategy.records import Num


@dataclass(frozen=True, slots=True)
class _Routed:
    """What routing makes of a rank's tokens: `own` tokens that it routes, each `d_in` wide in 16 bits and
    `size` bytes an element where products are quantised; `routed` rows of its grouped products, with
    `imbalance` times the mean, over `experts` of its own; `width` of its slice of an expert."""

    own: Num
    d_in: int
    size: float
    routed: Num
    experts: Num
    width: Num

    @property
    def rows(self) -> Num:
        """Rows of one expert."""
        return self.routed / self.experts

    @property
    def copies(self) -> Num:
        """Bytes of the tokens that its experts get, in 16 bits."""
        return 2.0 * self.routed * self.d_in


def operations(
    block: Moe, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Norm, router, dispatch, experts, combine, shared expert, residual.

    Each rank routes its own tokens (tokens / tp). The busiest expert rank sees `imbalance` times the mean;
    with a capacity every expert computes so many rows, and plain dispatch sends them, filled or not (GShard,
    arXiv 2006.16668, section 2.2; Megatron-Core's padding to capacity, MaxText's `capacity_factor`).
    With etp, a group of etp ranks gathers its tokens and every rank computes its slice of each expert.
    """
    own = shape.tokens / shape.tp
    d_in = block.latent_dim or d_model
    size = min(2.0, element_bytes(words.precision))
    routed = own * block.top_k * shape.etp * words.imbalance
    there = _Routed(own, d_in, size, routed, block.n_experts / shape.ep, block.d_ff / shape.etp)
    ops = [*norm("norm", d_model, shape, words, norm_kernels), *_router(block, d_model, shape, there, words)]
    if block.latent_dim:
        ops.append(Matmul("latent_down", "moe", own, d_model, d_in, saved=2.0 * own * d_in))
    ops += _experts(block, shape, there, words)
    if block.latent_dim:
        ops.append(Matmul("latent_up", "moe", own, d_in, d_model, saved=2.0 * own * d_in))
    if block.shared_d_ff:
        return (*ops, *_shared_expert(block, d_model, shape, words))
    stream = 2.0 * narrow(shape, words) * d_model
    return (*ops, Stream("add", "kept", 3.0 * stream, 2.0 * stream))


def _kernels(way: str, shape: Shape, words: Words) -> Num:
    """Kernels of routing. On one rank nothing is dispatched, and no fused dispatcher runs.

    **Source**: Megatron-Core's MoEFlexTokenDispatcher, which asks for TP x EP above 1.
    """
    known = numbers()
    alone, own = known[f"routing_{way}_all-to-all"], known[f"routing_{way}_{words.dispatcher}"]
    return np.where(np.asarray(shape.ep) * shape.etp > 1, own, alone)[()]


def _router(block: Moe, d_model: int, shape: Shape, there: _Routed, words: Words) -> Iterator[Operation]:
    """Which expert each token goes to."""
    own, logits = there.own, 16.0 * there.own * block.n_experts
    kernels = (_kernels("forward", shape, words), _kernels("backward", shape, words))
    yield Stream("route_in", "norm", 0.0, 0.0, (0, 0), saved=2.0 * own * d_model)
    yield Matmul("router", "moe", own, d_model, block.n_experts, quantised=False)
    yield Stream(
        "routing", "moe", logits, logits, kernels, saved=8.0 * own * block.n_experts,
        fusible=False,
    )  # fmt: skip


def _experts(block: Moe, shape: Shape, there: _Routed, words: Words) -> Iterator[Operation]:
    """Tokens to their experts, the grouped products, and back."""
    routed, d_in, experts, width = there.routed, there.d_in, there.experts, there.width
    inputs = 2.0 if block.gated else 1.0
    fused = words.fused_experts
    moved = 0.0 if fused else 2.0 * there.copies
    read, act = apart("act", "moe_act", routed, width, gated=block.gated, precision=words.precision)
    if fused:
        act = replace(act, forward=0.0, backward=0.0, kernels=(0, 0))
    if words.dispatcher == "hybrid-ep":  # each rank hears where every token of the group goes
        nbytes = there.own * block.n_experts * shape.ep
        yield Message("routing_map", "moe", "ep", "all_gather", nbytes, 1.0, 0.0)
    yield Stream("permute", "moe", moved, moved, (2, 2), saved=there.size * routed * d_in, fusible=False)
    element = there.size if words.dispatcher != "all-to-all" else 2.0
    yield _sent("dispatch", element, block, shape, there, words)
    yield Message("expert_gather", "moe", "etp", "all_gather", there.copies, 1.0, 1.0)
    yield Matmul(
        "experts_up", "moe", there.rows, d_in, width * inputs, experts, saved=read, fused=fused, calls=experts
    )
    yield act
    yield Matmul("experts_down", "moe", there.rows, width, d_in, experts, fused=fused, calls=experts)
    yield from _output_bias(block, routed * d_in, experts, words)
    yield Message("expert_scatter", "moe", "etp", "reduce_scatter", there.copies, 1.0, 1.0)
    yield _sent("combine", 2.0, block, shape, there, words)
    yield Stream("unpermute", "moe", moved, moved, (3, 3), fusible=False)


def _sent(name: str, element: float, block: Moe, shape: Shape, there: _Routed, words: Words) -> Message:
    """The message `dispatch` or `combine` of a dispatcher, `element` bytes each number."""
    own, d_in, top_k = there.own, there.d_in, block.top_k
    counted = words.dropless and not words.fused_experts
    if words.dispatcher == "all-gather":  # every rank gets every token of the group and keeps its own
        collective: Literal["all_gather", "reduce_scatter"] = (
            "all_gather" if name == "dispatch" else "reduce_scatter"
        )
        return Message(name, "moe", "ep", collective, element * own * shape.ep * d_in, waits=counted)
    if words.dispatcher == "all-to-all":  # one copy an expert, whatever ranks they share
        sent = own * top_k * d_in * (words.imbalance if words.padded else 1.0)
        left = left_by(shape.ep, there.copies if name == "dispatch" else 2.0 * sent)
        return Message(name, "moe", "ep", "all_to_all", element * sent, result=left, waits=counted)
    limit = block.topk_groups if block.n_groups > 1 else 0
    return Message(
        name, "moe", "ep", "experts", element * d_in, tokens=own, top_k=top_k, n_experts=block.n_experts,
        domains=limit, waits=counted,
    )  # fmt: skip


def _shared_expert(block: Moe, d_model: int, shape: Shape, words: Words) -> tuple[Operation, ...]:
    """The expert that sees every token, cut over the tensor-parallel ranks."""
    shared = block.shared_d_ff / shape.tp
    inputs = 2.0 if block.gated else 1.0
    read, act = apart(
        "shared_act", "shared_expert", shape.tokens, shared, gated=block.gated, precision=words.precision
    )
    halves = (shared,) * int(inputs)
    return (
        *linear_in("shared_up", "shared_expert", d_model, shared * inputs, shape, words, halves, read),
        act,
        *linear_out("shared_down", "shared_expert", shared, d_model, shape, words),
    )


def _output_bias(block: Moe, elements: Num, experts: Num, words: Words) -> tuple[Stream, ...]:
    """Adding the biases of the experts' outputs, weighted by what the router gives each row.

    Outside a compiler these are plain operations, expert after expert: bias times fp32 probability, the sum
    in fp32, the experts joined, cast back (28 bytes an element); backward casts, and multiplies and sums once
    for the bias and once for the probability (40). **Source**: TEGroupedMLP in Megatron-Core, and AutoModel's
    experts, both `t + b * p` over a split.
    """
    if not block.bias or words.compiled:
        return ()
    call = numbers()["call_share"]
    kernels = (2.0 + call * 3.0 * experts, 2.0 + call * 8.0 * experts)
    return (Stream("expert_bias", "moe", 28.0 * elements, 40.0 * elements, kernels, fusible=False),)
