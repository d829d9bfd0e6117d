"""Mixture of experts: router, dispatch, grouped products, combine, shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from meshwright.cost.layers.mlp import apart
from meshwright.cost.layers.parts import left_by, linear_in, linear_out, narrow, norm
from meshwright.cost.ops import Matmul, Message, Operation, Shape, Stream, Words, element_bytes
from meshwright.model.records import Moe

# Kernels of one pass: routing (logits, top-k, softmax, auxiliary loss, counts, host reads of the counts) and
# permuting, by dispatcher. Source: counted in the Megatron-Core router and token dispatchers, so +-30 %.
_KERNELS = {"all-to-all": (60, 50), "all-gather": (60, 50), "deep-ep": (45, 40), "hybrid-ep": (30, 26)}


def operations(
    block: Moe, d_model: int, norm_kernels: float, shape: Shape, words: Words
) -> tuple[Operation, ...]:
    """Norm, router, dispatch, experts, combine, shared expert, residual.

    Each rank routes its own tokens (tokens / tp). The busiest expert rank sees `imbalance` times the mean.
    With etp, a group of etp ranks gathers its tokens and every rank computes its slice of each expert.
    """
    own = shape.tokens / shape.tp
    d_in = block.latent_dim or d_model
    size = min(2.0, element_bytes(words.precision))
    routed = own * block.top_k * shape.etp * words.imbalance  # rows of this rank's grouped products
    experts = block.n_experts / shape.ep
    rows = routed / experts
    width = block.d_ff / shape.etp
    inputs = 2.0 if block.gated else 1.0
    copies = 2.0 * routed * d_in
    kernels = _KERNELS[words.dispatcher]
    moved = 0.0 if words.fused_experts else 2.0 * copies
    read, act = apart("act", "moe_act", routed, width, gated=block.gated, precision=words.precision)
    if words.fused_experts:
        act = replace(act, forward=0.0, backward=0.0, kernels=(0, 0))
    limit = block.topk_groups if block.n_groups > 1 else 0
    fused, counted = words.fused_experts, words.dropless and not words.fused_experts

    def dispatch(name: str, element: float) -> Message:
        if words.dispatcher == "all-gather":  # every rank gets every token of the group and keeps its own
            collective: Literal["all_gather", "reduce_scatter"] = (
                "all_gather" if name == "dispatch" else "reduce_scatter"
            )
            return Message(name, "moe", "ep", collective, element * own * shape.ep * d_in, waits=counted)
        if words.dispatcher == "all-to-all":  # one copy an expert, whatever ranks they share
            left = left_by(shape.ep, copies if name == "dispatch" else 2.0 * own * block.top_k * d_in)
            return Message(name, "moe", "ep", "all_to_all", element * own * block.top_k * d_in, result=left,
                           waits=counted)  # fmt: skip
        return Message(name, "moe", "ep", "experts", element * d_in, tokens=own, top_k=block.top_k,
                       n_experts=block.n_experts, domains=limit, waits=counted)  # fmt: skip

    ops: list[Operation] = [
        *norm("norm", d_model, shape, words, norm_kernels),
        Stream("route_in", "norm", 0.0, 0.0, (0, 0), saved=2.0 * own * d_model),
        Matmul("router", "moe", own, d_model, block.n_experts, quantised=False),
        Stream("routing", "moe", 16.0 * own * block.n_experts, 16.0 * own * block.n_experts, kernels,
               saved=8.0 * own * block.n_experts, fusible=False),
    ]  # fmt: skip
    if block.latent_dim:
        ops.append(Matmul("latent_down", "moe", own, d_model, d_in, saved=2.0 * own * d_in))
    if words.dispatcher == "hybrid-ep":  # each rank hears where every token of the group goes
        ops.append(
            Message("routing_map", "moe", "ep", "all_gather", own * block.n_experts * shape.ep, 1.0, 0.0)
        )
    ops += [
        Stream("permute", "moe", moved, moved, (2, 2), saved=size * routed * d_in, fusible=False),
        dispatch("dispatch", size if words.dispatcher != "all-to-all" else 2.0),
        Message("expert_gather", "moe", "etp", "all_gather", copies, 1.0, 1.0),
        Matmul(
            "experts_up", "moe", rows, d_in, width * inputs, experts, saved=read, fused=fused, calls=experts
        ),
        act,
        Matmul("experts_down", "moe", rows, width, d_in, experts, fused=fused, calls=experts),
        Message("expert_scatter", "moe", "etp", "reduce_scatter", copies, 1.0, 1.0),
        dispatch("combine", 2.0),
        Stream("unpermute", "moe", moved, moved, (3, 3), fusible=False),
    ]
    if block.latent_dim:
        ops.append(Matmul("latent_up", "moe", own, d_in, d_model, saved=2.0 * own * d_in))
    if block.shared_d_ff:
        shared = block.shared_d_ff / shape.tp
        read, act = apart(
            "shared_act", "shared_expert", shape.tokens, shared, gated=block.gated, precision=words.precision
        )
        halves = (shared,) * int(inputs)
        ops += [
            *linear_in("shared_up", "shared_expert", d_model, shared * inputs, shape, words, halves, read),
            act,
            *linear_out("shared_down", "shared_expert", shared, d_model, shape, words),
        ]
    else:
        stream = 2.0 * narrow(shape, words) * d_model
        ops.append(Stream("add", "kept", 3.0 * stream, 2.0 * stream))
    return tuple(ops)
