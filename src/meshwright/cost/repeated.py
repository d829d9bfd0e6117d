"""What the backward pass computes again under a recompute word, and what stays for it instead."""

from __future__ import annotations

from typing import Any

from meshwright.cost.ops import Core, Matmul, Message, Operation, Stream
from meshwright.strategy.recompute import Recompute

# Results of these messages stay under `products:N`; gathered tensors are gathered again.
# Source: pytorch/torchtitan, the list of saved operations of its selective checkpointing.
_RESULTS = frozenset({"reduce_scatter", "all_to_all", "experts"})

# What a dense layer runs again under `minimal`, which keeps results of products: the non-linearity between
# two of them. Source: MaxText's policy, the names that it saves.
_BETWEEN_PRODUCTS = frozenset({"act", "shared_act"})


def is_recomputed(module: str, recompute: Recompute) -> bool:
    """Whether `recompute` runs operations of `module` a second time (whole-layer recomputation apart)."""
    return module in recompute.modules or (module == "moe_act" and "moe" in recompute.modules)


def repeated(op: Operation, recompute: Recompute) -> Any:
    """Share of `op` that backward runs again, 0 to 1 (whole-layer recomputation apart).

    Under `products:N` every N-th matrix product, counted from the layer's first, keeps its result, and so do
    attention and the messages of `_RESULTS`; all else runs again. **Source**: torchtitan's selective
    checkpointing by operation (N = 2; arXiv 2410.06511, section 2.1.3).
    """
    if not recompute.products:
        between = recompute.word == "minimal" and op.name in _BETWEEN_PRODUCTS
        return 1.0 if between or is_recomputed(op.module, recompute) else 0.0
    if isinstance(op, Message):
        return 0.0 if op.collective in _RESULTS else 1.0
    if isinstance(op, Matmul):
        if op.place is None:
            return 1.0
        widths = op.parts or (op.n,)
        again = [w for i, w in enumerate(widths) if (op.place + i) % recompute.products]
        return sum(again) / sum(widths) if again else 0.0
    if isinstance(op, Core):
        return 0.0 if op.module == "core_attn" else 1.0
    return 0.0 if op.module in ("kept", "boundary") else 1.0


def stays(
    op: Matmul | Core | Stream, kept: Any, again: Any, recompute: Recompute, *, named: bool, compiled: bool
) -> Any:
    """Bytes of `op` that stay for the backward pass, of which the layer's first boundary always does.

    `kept` is what stays where nothing runs `again`; a program that keeps what it names (`named`) drops the
    boundaries inside a layer with the norms behind them. Under `products:N` results stay instead. Nothing
    but the next layer reads the last product's, and that keeps its own boundary: a program that is compiled
    drops it, one that is not keeps what its list says.
    """
    if op.module == "boundary":
        return 0.0 if recompute.products or (named and "norm" in recompute.modules) else kept
    if not recompute.products:
        return 0.0 if again else kept
    if isinstance(op, Matmul):
        unread = compiled and op.name == "down"
        return 0.0 if op.place is None or unread else 2.0 * op.m * op.n * (1.0 - again)
    return 0.0 if again else kept
