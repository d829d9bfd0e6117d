"""Proofs that a strategy cannot fit, or cannot be fast enough, without computing its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.hardware.records import Cluster
from meshwright.model.params import block_params, embedding_params, head_params
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.work import Work

FloatArray = npt.NDArray[np.float64]
GIB = 2.0**30

# Schedules in which every microbatch passes all stages in turn, so the pipeline fills and drains once.
FILLS_AND_DRAINS = frozenset({"gpipe", "1f1b", "interleaved-1f1b"})


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters of a model by what divides them: tp, nothing, or ep * etp."""

    sharded: float
    replicated: float
    expert: float


def held(model: Model) -> Held:
    """Parameters of the layers, the embedding and an untied head. Leaves out what is hard to place (shared
    blocks, multi-token prediction, second copies of a tied embedding), as a floor may."""
    counts = [(block_params(block, model), model.count(kind)) for kind, block in enumerate(model.blocks)]
    return Held(
        sharded=sum(c.sharded * n for c, n in counts) + embedding_params(model) + head_params(model),
        replicated=sum(c.replicated * n for c, n in counts),
        expert=sum(c.expert * n for c, n in counts),
    )


def memory_floor(parameters: Held, strategy: Strategy, profile: Profile) -> Any:
    """Bytes that the fullest rank holds at least; broadcasts over degrees.

    Weights, gradients and optimizer state of an average stage (the fullest is no lighter), each divided by
    all that ZeRO may divide it by, and the process's own context. Experts are divided by their whole
    data-parallel group, whatever the sharding group. Activations are left out.
    """
    s, habits = strategy, profile.framework
    stages = np.asarray(s.pp, float)
    dense = (parameters.sharded / np.asarray(s.tp) + parameters.replicated) / stages
    expert = parameters.expert / (np.asarray(s.ep, float) * s.etp * stages)
    spread = np.maximum(np.asarray(s.dp, float) * s.cp * s.tp / (np.asarray(s.ep) * s.etp), 1.0)
    group = np.asarray(s.zero_group, float)
    moments = habits.optimizer_bytes - (4.0 if s.optimizer == "adamw-bf16" else 0.0)

    def part(width: float, from_stage: int) -> Any:
        if s.zero >= from_stage:
            return width * (dense / group + expert / spread)
        return width * (dense + expert)

    states = part(habits.weight_bytes, 3) + part(habits.grad_bytes, 2) + part(moments, 1)
    return states + habits.context_gib * GIB


def time_floor(chip_seconds: float, cluster: Cluster, work: Work, strategy: Strategy) -> Any:
    """Seconds that a step takes at least; broadcasts over degrees.

    floor = chip_seconds / chips * (1 + (pp - 1) / (vpp m)), where `chip_seconds` = model FLOPs / peak of one
    chip: all arithmetic runs at the peak, and a pipeline fills and drains once. With stages of t seconds a
    microbatch, a step is m max(t) + (sum(t) - max(t)) / vpp, which is least when all t are equal.
    """
    even = chip_seconds / cluster.n_chips
    if strategy.schedule not in FILLS_AND_DRAINS:
        return even * np.ones(np.shape(strategy.pp))
    microbatches = work.global_batch_size / (np.asarray(strategy.dp, float) * strategy.microbatch_size)
    return even * (1.0 + (np.asarray(strategy.pp) - 1.0) / (np.asarray(strategy.vpp) * microbatches))


def peak_flops(cluster: Cluster, work: Work) -> float:
    """Dense FLOP/s of the fastest unit that this precision uses."""
    chip = cluster.chip
    peaks = [chip.bf16_flops]
    if work.precision in ("fp8", "mxfp8", "nvfp4"):
        peaks.append(chip.fp8_flops or 0.0)
    if work.precision == "nvfp4":
        peaks.append(chip.fp4_flops or 0.0)
    return max(peaks)
