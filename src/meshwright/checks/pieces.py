"""Batch and sequence cut into pieces: microbatches, context and sequence parallelism."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from meshwright.checks.rule import Mask, Rule, indivisible, listed, mask, nearest_divisors
from meshwright.checks.shapes import attention_heads
from meshwright.checks.widths import neither_divides
from meshwright.cost.schedule import load
from meshwright.cost.schedule.actions import microbatches_fault
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.placement import spans
from meshwright.strategy.records import Strategy
from meshwright.units import counted
from meshwright.work import Work


def microbatches(work: Work, strategy: Strategy) -> Any:
    """Microbatches a data-parallel rank handles in a step, rounded down; broadcasts."""
    return np.asarray(work.global_batch_size) // (np.asarray(strategy.dp) * strategy.microbatch_size)


class Batch(Rule):
    """The global batch is a whole number of microbatches on every rank."""

    code, reason, where = "MW120", "global batch not divisible by dp x microbatch_size", "global_batch_size"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return indivisible(work.global_batch_size, np.asarray(strategy.dp) * strategy.microbatch_size)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        batch, dp, size = int(work.global_batch_size), int(strategy.dp), int(strategy.microbatch_size)
        message = (
            f"global batch {batch} / (dp {dp} x microbatch_size {size}) = {batch} / {dp * size} = "
            f"{batch / (dp * size):.4g} is not a whole number of microbatches"
        )
        if batch % dp == 0:
            return message, f"try {listed(nearest_divisors(batch // dp, size), 'microbatch_size')}"
        above = -(-batch // (dp * size)) * dp * size
        return message, f"try global batch {above}, or a dp that divides {batch}"


class InterleavedMicrobatches(Rule):
    """Interleaving deals microbatches to the pipeline in rounds of pp."""

    code, reason, where = "MW121", "interleaving needs microbatches in multiples of pp", "microbatch_size, pp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if not load(strategy.schedule).NEEDS.rounds:
            return mask(False)
        return indivisible(microbatches(work, strategy), strategy.pp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        m, pp = int(microbatches(work, strategy)), int(strategy.pp)
        per_rank = int(strategy.dp) * int(strategy.microbatch_size)
        above = max(-(-m // pp), 1) * pp
        return (
            f"global batch {work.global_batch_size} / (dp {strategy.dp} x microbatch_size "
            f"{strategy.microbatch_size}) = {counted(m, 'microbatch')}, not a multiple of pp {pp}: "
            f"{m} / {pp} = {m / pp:.4g}",
            f"try 1f1b with vpp 1, or global batch {above * per_rank} ({counted(above, 'microbatch')})",
        )


class FilledPipeline(Rule):
    """Two streams that meet need enough microbatches to fill the pipeline from both ends, shared evenly."""

    code, reason, where = (
        "MW122",
        "too few or uneven microbatches for the schedule",
        "microbatch_size, schedule",
    )

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        needs = load(strategy.schedule).NEEDS
        if needs.rounds:  # MW121 speaks of it
            return mask(False)
        return mask(~needs.by_microbatches(strategy.pp, microbatches(work, strategy)))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        needs, pp = load(strategy.schedule).NEEDS, int(strategy.pp)
        m, per_rank = int(microbatches(work, strategy)), int(strategy.dp) * int(strategy.microbatch_size)
        said, _ = microbatches_fault(needs, pp, m)
        wanted = needs.enough(pp, m)
        return (
            f"{strategy.schedule} {said} (global batch {work.global_batch_size} / (dp {strategy.dp} x "
            f"microbatch_size {strategy.microbatch_size}) = {m})",
            f"try global batch {wanted * per_rank} ({counted(wanted, 'microbatch')}), or schedule 1f1b "
            "with vpp 1",
        )


class Context(Rule):
    """The sequence splits evenly over cp; a causal ring gives each rank one early and one late piece."""

    code, reason, where = "MW150", "sequence not divisible by cp", "cp, seq_len"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        cp = np.asarray(strategy.cp)
        pieces = cp if strategy.cp_method == "all-to-all" else np.where(cp > 1, 2 * cp, 1)
        return indivisible(work.seq_len, pieces)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        cp, s = int(strategy.cp), int(work.seq_len)
        ring = strategy.cp_method != "all-to-all"
        pieces = 2 * cp if ring else cp
        what = f"2 x cp {cp} pieces, one early and one late a rank," if ring else f"cp {cp}"
        whole = s // 2 if ring and s % 2 == 0 else s
        legal = nearest_divisors(gcd(whole, cluster.n_chips), cp)
        return (
            f"sequence {s} / {what} = {s} / {pieces} = {s / pieces:.6g} is not whole",
            f"try {listed(legal, 'cp')}, or a sequence of {-(-s // pieces) * pieces}",
        )


class SequenceParallel(Rule):
    """Sequence parallelism splits a rank's tokens over tp."""

    code, reason, where = "MW151", "tokens of a rank not divisible by tp with sp", "tp, cp, seq_len"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if not strategy.sp:
            return mask(False)
        return indivisible(work.seq_len, np.asarray(strategy.cp) * strategy.tp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        cp, tp, s = int(strategy.cp), int(strategy.tp), int(work.seq_len)
        return (
            f"sequence {s} / (cp {cp} x tp {tp}) = {s} / {cp * tp} = {s / (cp * tp):.6g} is not whole, "
            f"and sp splits the tokens of a rank over tp",
            f"use --no-sp, or a sequence of {-(-s // (cp * tp)) * cp * tp}",
        )


class ContextHeads(Rule):
    """All-to-all context parallelism trades sequence for heads: each rank of cp needs its share of them.

    The hierarchical method does so inside the fast domain alone.
    """

    code, reason, where = "MW152", "too few heads for all-to-all context parallelism", "cp, tp, cp_method"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if strategy.cp_method not in ("all-to-all", "hierarchical"):
            return mask(np.zeros(np.broadcast_shapes(np.shape(strategy.cp), np.shape(strategy.tp)), bool))
        by = self._exchanging(cluster, strategy) * np.asarray(strategy.tp)
        bad = mask(np.zeros(by.shape, bool))
        for heads, kv in attention_heads(model):
            bad = bad | indivisible(heads, by) | neither_divides(kv, by)
        return bad & (np.asarray(strategy.cp) > 1)

    @staticmethod
    def _exchanging(cluster: Cluster, strategy: Strategy) -> Any:
        """Ranks of cp that trade sequence for heads: all, or those of one domain."""
        if strategy.cp_method == "all-to-all":
            return np.asarray(strategy.cp)
        return np.asarray(spans(cluster, strategy)["cp"].local)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        cp, tp = int(self._exchanging(cluster, strategy)), int(strategy.tp)
        n, what = next(
            (n, what)
            for heads, kv in attention_heads(model)
            for n, what, bad in (
                (heads, "heads", heads % (cp * tp) != 0),
                (kv, "key/value heads", kv % (cp * tp) != 0 and (cp * tp) % kv != 0),
            )
            if bad
        )
        legal = nearest_divisors(gcd(n // tp, cluster.n_chips), cp) if n % tp == 0 else []
        return (
            f"{strategy.cp_method} gives each of cp {cp} x tp {tp} = {counted(cp * tp, 'rank')} its own "
            "heads, but "
            f"{model.name} has {n} {what}: {n} / {cp * tp} = {n / (cp * tp):.4g}",
            "use --cp-method ring" + (f", or {listed(legal, 'cp')}" if legal else ""),
        )


class CopiedKeyValues(ContextHeads):
    """All-to-all context parallelism over more ranks than key/value heads: each head is copied to several.

    **Source**: TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py, which asks
    that cp divide the key/value heads of a rank; DeepSpeed's sequence parallelism copies them.
    """

    code, reason, where = "MW413", "key/value heads copied for context parallelism", "cp, tp, cp_method"
    severity = "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if strategy.cp_method not in ("all-to-all", "hierarchical"):
            return mask(np.zeros(np.broadcast_shapes(np.shape(strategy.cp), np.shape(strategy.tp)), bool))
        by = self._exchanging(cluster, strategy) * np.asarray(strategy.tp)
        bad = mask(np.zeros(by.shape, bool))
        for _, kv in attention_heads(model):
            bad = bad | indivisible(kv, by)
        return bad & (np.asarray(strategy.cp) > 1) & ~super().violated(model, cluster, work, strategy)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        cp, tp = int(self._exchanging(cluster, strategy)), int(strategy.tp)
        kv = min(kv for _, kv in attention_heads(model) if kv % (cp * tp) != 0)
        legal = f", or cp {kv // tp} and below" if kv > tp else ""
        return (
            f"{strategy.cp_method} over cp {cp} x tp {tp} = {counted(cp * tp, 'rank')} copies each of "
            f"{counted(kv, 'key/value head')} to {cp * tp / kv:.4g} of them; DeepSpeed does so, programs on "
            "TransformerEngine (Megatron-Core) refuse it",
            f"for those use --cp-method ring{legal}",
        )
