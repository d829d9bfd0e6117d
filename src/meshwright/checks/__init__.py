"""Rules of a legal and a sensible plan: each a mask for the search, a message for a person.

Codes: MW10x degrees, MW11x widths and experts, MW12x batch, MW13x stages, MW15x sequence, MW16x sharded
state, MW17x chip are errors; MW3xx is memory; MW4xx are warnings and notes about plans that can run.
"""

from __future__ import annotations

import numpy as np

from meshwright.checks.advice import (
    NothingToRecompute,
    TensorAcrossDomain,
    UselessSequenceParallel,
    WholeUnderPipeline,
    tried,
)
from meshwright.checks.balance import BalanceWithoutExperts, ForwardsFirst
from meshwright.checks.capacity import Precision, PrecisionWithoutGain, memory_findings
from meshwright.checks.layout import (
    ChunksOfSchedule,
    ChunksWithoutPipeline,
    ExpertBorders,
    ExpertCount,
    ExpertRanks,
    ListedLayers,
    NoExperts,
    PairedRanks,
    Product,
    ShardGroup,
    Stages,
)
from meshwright.checks.pieces import (
    Batch,
    Context,
    ContextHeads,
    CopiedKeyValues,
    FilledPipeline,
    InterleavedMicrobatches,
    SequenceParallel,
)
from meshwright.checks.rule import Mask, Rule
from meshwright.checks.widths import FeedForward, Heads, KeyValueHeads, ReplicatedKeyValues, Vocabulary
from meshwright.cost.evaluation import Evaluation
from meshwright.errors import Diagnostic
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.records import DEGREES, Strategy
from meshwright.work import Work

__all__ = ["RULES", "Mask", "Rule", "illegal", "run"]

RULES: tuple[Rule, ...] = (
    Product(), Heads(), KeyValueHeads(), FeedForward(), NoExperts(), ExpertCount(), ExpertRanks(),
    ExpertBorders(), Batch(), InterleavedMicrobatches(), FilledPipeline(), Stages(), ListedLayers(),
    ChunksOfSchedule(), PairedRanks(), ChunksWithoutPipeline(), BalanceWithoutExperts(), ForwardsFirst(),
    Context(), SequenceParallel(), ContextHeads(), ShardGroup(), Precision(),
    ReplicatedKeyValues(), CopiedKeyValues(), Vocabulary(), UselessSequenceParallel(), WholeUnderPipeline(),
    TensorAcrossDomain(), NothingToRecompute(), PrecisionWithoutGain(),
)  # fmt: skip


def run(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    evaluation: Evaluation | None = None,
    profile: Profile | None = None,
    reach_bytes: float | None = None,
) -> list[Diagnostic]:
    """Every finding about one plan of plain numbers: errors, then warnings, then notes.

    Memory is judged where an `evaluation` is given, against `reach_bytes` too, up to which peaks of such runs
    were measured. With a `profile` a hint at other ZeRO stages is tried.
    """
    found = _unusable_numbers(work, strategy)
    if not found:  # the rules divide by the degrees
        found = [d for rule in RULES if (d := rule.diagnostic(model, cluster, work, strategy))]
    if evaluation is not None:
        found += memory_findings(cluster, evaluation, reach_bytes)
    if evaluation is not None and profile is not None:
        found = [
            tried(d, model, cluster, work, strategy, profile) if d.code == WholeUnderPipeline.code else d
            for d in found
        ]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda d: order[d.severity])


def illegal(model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> dict[str, Mask]:
    """For each error rule, by code, where it is broken; masks broadcast to the shape of the degrees."""
    return {
        rule.code: rule.violated(model, cluster, work, strategy) for rule in RULES if rule.severity == "error"
    }


def _unusable_numbers(work: Work, strategy: Strategy) -> list[Diagnostic]:
    """MW102: degrees and sizes that are not whole numbers of at least 1."""
    fields = [(name, getattr(strategy, name)) for name in (*DEGREES, "microbatch_size", "zero_group")]
    fields += [("seq_len", work.seq_len), ("global_batch_size", work.global_batch_size)]
    return [
        Diagnostic(
            "MW102",
            f"{name} is {value}, but it must be a whole number of at least 1",
            where=name,
            hint=f"leave {name} out to have it derived, or give 1 or more",
        )
        for name, value in fields
        if isinstance(value, bool)
        or not isinstance(value, int | float | np.integer | np.floating)
        or not 1 <= value < float("inf")
        or value != int(value)
    ]
