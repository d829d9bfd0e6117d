"""What keeping experts evenly loaded costs: counts that are exchanged, forwards that are held or run twice.

The switch loss is alpha E sum_i f_i P_i: f_i the share of tokens that expert i got, P_i the mean
probability that the router gives it. f is a count and P carries the gradient, so a loss over more tokens
needs only counts from elsewhere, and a loss over the whole batch needs them before the first backward.
**Source**: Switch Transformer (arXiv 2101.03961), section 2.2; the global batch: Qwen (arXiv 2501.11873);
the bias: DeepSeek-V3 report (arXiv 2412.19437), section 2.1.2.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from meshwright.cost import collectives
from meshwright.cost.arrays import with_arrays
from meshwright.cost.numbers import numbers
from meshwright.cost.rows import over_classes
from meshwright.model.params import mtp_blocks
from meshwright.model.records import Block, Model, Moe
from meshwright.profiles.records import Profile
from meshwright.strategy.placement import Span
from meshwright.strategy.records import MoeBalance, Strategy

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

WORDS: tuple[MoeBalance, ...] = get_args(MoeBalance)
HOLDS_ALL = "global"  # every forward of a step comes before its first backward
_EVERY_MICROBATCH = frozenset({"sequence", "running"})  # the others exchange once a step
# Groups whose tokens a loss or a bias counts together; a microbatch's own loss counts what a rank routed.
_GROUPS: dict[str, tuple[str, ...]] = {
    "microbatch": (), "sequence": ("tp", "cp"), "global": ("tp", "data"), "global-counted": ("tp", "data"),
    "running": ("tp", "data"), "bias": ("tp", "data"),
}  # fmt: skip


def in_flight(word: str, held: Any, microbatches: Any) -> Any:
    """Microbatches whose activations a rank holds: all m where every forward comes first, else `held`.

    >>> float(in_flight("global", 16.0, 64)), in_flight("bias", 16.0, 64)
    (64.0, 16.0)
    """
    return np.maximum(held, microbatches) if word == HOLDS_ALL else held


def counting_forwards(word: str, microbatches: Any) -> Any:
    """Forwards that a step runs twice, to count first: all m, none where m = 1 (its own counts do)."""
    if word != "global-counted":
        return 0.0
    return np.where(np.asarray(microbatches) > 1, microbatches, 0.0)


def counters(model: Model, counts: Array) -> tuple[Array, Array]:
    """(layers with experts, counters of all their experts) where `counts` [columns, ...] layers stand, [...].

    Columns as in the split matrix: block kinds, embedding, head, multi-token prediction.
    """
    each = np.zeros((len(counts), 2))
    for k, block in enumerate(model.blocks):
        each[k] = _of(block)
    each[-1] = sum((np.array(_of(block)) for block in mtp_blocks(model)), np.zeros(2))
    layers, experts = np.tensordot(each.T, counts, axes=1)
    return layers, experts


def exchange_bytes(
    word: str, layers: Any, experts: Any, sequences: Any, microbatches: Any, degrees: Any
) -> Any:
    """Bytes of counts that a rank sends a step, 2 (N-1)/N of each over the groups that count together.

    A loss by sequence counts every sequence of a microbatch on its own. `degrees` are the ranks that count
    together. Arguments broadcast.
    """
    often = microbatches if word in _EVERY_MICROBATCH else 1.0
    rows = sequences if word == "sequence" else 1.0
    return 2.0 * (degrees - 1.0) / degrees * numbers()["count_bytes"] * experts * rows * often


def exchange(
    model: Model,
    strategy: Strategy,
    profile: Profile,
    counts: Array,
    pair: IntArray,
    spans: dict[str, Span],
    microbatches: Any,
) -> tuple[Any, Any]:
    """Seconds a step that counts are exchanged for, and bytes that a rank sends, [n, C]; 0 where nothing is.

    `counts` [columns, C, u] layers of each class of distinct pipelines, `pair` [n] which of them each has.
    Nothing hides the exchange: a loss waits for its counts, a bias for the step's. Losses by sequence and
    running ones all-reduce a layer's counts each microbatch, the others all layers' at once.
    **Assumes** fp32 counts.
    """
    groups = _GROUPS[strategy.moe_balance]
    if not groups or not any(isinstance(block.ffn, Moe) for block in model.blocks):
        return 0.0, 0.0
    layers, experts = (x.take(pair, axis=1).T for x in counters(model, counts))
    each = strategy.moe_balance in _EVERY_MICROBATCH
    rows = over_classes(strategy.microbatch_size) if strategy.moe_balance == "sequence" else 1.0
    per_call = np.divide(experts, layers, out=np.zeros_like(experts), where=layers > 0) if each else experts
    calls = layers * microbatches if each else (layers > 0) * 1.0
    seconds: Any = 0.0
    degrees: Any = 1.0
    for name in groups:
        span = with_arrays(spans[name], over_classes)
        several = np.asarray(span.degree) > 1
        time = collectives.all_reduce_time(
            numbers()["count_bytes"] * per_call * rows, span, profile["scale_up"], profile["scale_out"]
        )
        seconds = seconds + np.where(several, calls * time, 0.0)
        degrees = degrees * span.degree
    sent = exchange_bytes(strategy.moe_balance, layers, experts, rows, microbatches, degrees)
    return seconds, sent


def _of(block: Block) -> tuple[float, float]:
    return (1.0, float(block.ffn.n_experts)) if isinstance(block.ffn, Moe) else (0.0, 0.0)
