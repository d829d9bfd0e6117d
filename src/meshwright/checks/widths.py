"""Widths that tensor parallelism divides: heads, feed-forward, vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

import numpy as np

from meshwright.checks.rule import Mask, Rule, indivisible, listed, mask, nearest_divisors
from meshwright.checks.shapes import attention_heads, dense_widths, groups, moe, query_heads
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.units import counted
from meshwright.work import Work


def any_indivisible(numbers: Iterable[int], by: Any) -> Mask:
    """Where `by` fails to divide any of `numbers`."""
    bad = mask(np.zeros(np.shape(by), bool))
    for n in numbers:
        bad = bad | indivisible(n, by)
    return bad


def neither_divides(n: int, by: Any) -> Mask:
    """Where `by` heads can neither be split evenly nor replicated evenly: neither divides the other."""
    return indivisible(n, by) & indivisible(by, n)


class Heads(Rule):
    """tp divides the heads of every mixer."""

    code, reason, where = "MW110", "heads not divisible by tp", "tp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return any_indivisible(query_heads(model), strategy.tp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        tp = int(strategy.tp)
        heads = next(n for n in query_heads(model) if n % tp)
        return (
            f"{model.name} has {counted(heads, 'head')}, and {heads} / tp {tp} = {heads / tp:.4g} is not "
            "whole",
            f"try {listed(nearest_divisors(gcd(cluster.n_chips, *query_heads(model)), tp), 'tp')}",
        )


class KeyValueHeads(Rule):
    """Key/value heads are split over tp, or each is held by a whole number of ranks."""

    code, reason, where = "MW111", "key/value heads neither split nor replicated by tp", "tp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        bad = mask(np.zeros(np.shape(strategy.tp), bool))
        for _, kv in attention_heads(model):
            bad = bad | neither_divides(kv, strategy.tp)
        for n in groups(model):
            bad = bad | neither_divides(n, strategy.tp)
        return bad

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        tp = int(strategy.tp)
        parts = [("key/value heads", kv) for _, kv in attention_heads(model)]
        parts += [("state groups", n) for n in groups(model)]
        what, n = next((w, n) for w, n in parts if n % tp and tp % n)
        return (
            f"{model.name} has {n} {what} and tp is {tp}: {n} / {tp} = {n / tp:.4g} and "
            f"{tp} / {n} = {tp / n:.4g}, neither whole",
            f"try {listed(nearest_divisors(gcd(cluster.n_chips, n), tp), 'tp')}",
        )


class ReplicatedKeyValues(Rule):
    """More tensor ranks than key/value heads: heads are replicated."""

    code, reason, where = "MW410", "key/value heads replicated", "tp"
    severity = "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        tp = np.asarray(strategy.tp)
        few = [kv for heads, kv in attention_heads(model) if kv < heads]
        return mask(tp > min(few)) if few else mask(np.zeros(tp.shape, bool))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        kv = min(kv for heads, kv in attention_heads(model) if kv < heads)
        tp = int(strategy.tp)
        return (
            f"tp {tp} is above the {counted(kv, 'key/value head')}: each is held by {tp / kv:.4g} ranks, "
            f"which repeat its projection and its memory",
            f"tp {kv} and below replicates nothing",
        )


class FeedForward(Rule):
    """tp divides dense feed-forward widths, etp those of experts."""

    code, reason, where = "MW112", "feed-forward width not divisible by tp or etp", "tp, etp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        expert = any_indivisible((m.d_ff for m in moe(model)), strategy.etp)
        return mask(any_indivisible(dense_widths(model), strategy.tp) | expert)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        said, hints = [], []
        for field, widths in (("tp", dense_widths(model)), ("etp", tuple(m.d_ff for m in moe(model)))):
            by = int(getattr(strategy, field))
            for width in widths:
                if width % by:
                    kind = "feed-forward" if field == "tp" else "expert"
                    said.append(f"{kind} width {width} / {field} {by} = {width / by:.6g} is not whole")
                    hints.append(listed(nearest_divisors(gcd(cluster.n_chips, *widths), by), field))
        return "; ".join(said), f"try {', '.join(hints)}"


class Vocabulary(Rule):
    """A vocabulary that tp does not divide is padded."""

    code, reason, where = "MW411", "vocabulary padded", "tp"
    severity = "note"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return indivisible(model.vocab, strategy.tp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        tp = int(strategy.tp)
        padded = -(-model.vocab // tp) * tp
        return (
            f"vocabulary {model.vocab} / tp {tp} = {model.vocab / tp:.6g} is not whole: "
            f"frameworks pad it to {padded} ({counted(padded - model.vocab, 'row')} more)",
            "nothing to do; the padding is not in the estimate",
        )
