"""Peak memory of every stage class, by category, at its fullest moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.layer import shape_of
from meshwright.cost.layers.ends import logit_bytes
from meshwright.cost.schedule import Schedule
from meshwright.cost.stages import Stages, loss_word, over_classes
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy
from meshwright.work import Work

GIB = 2.0**30
_TIGHT = 0.02  # fragmentation that no allocator avoids, a share of what comes and goes; assumed


def categories(
    model: Model,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    stages: Stages,
    spans: dict[str, Span],
    schedule: Schedule,
    microbatches: Any,
    capacity: float,
) -> dict[str, Any]:
    """Bytes by category for each stage class, [n, C].

    Weights, gradients and optimizer state in the framework's own widths over the groups that shard them
    (ZeRO, arXiv 1910.02054); activations of the microbatches in flight plus the working set of the largest
    layer; logits on the last stage; weights gathered by ZeRO-3; dispatch and network buffers; the
    allocator's slack (a share of what comes and goes) and the process's own context. The optimizer step's
    temporaries exist when activations do not: only their excess over activations is counted.
    """
    habits = profile.framework
    dense, expert = stages.dense, stages.expert
    group, expert_group = over_classes(spans["shard"].degree), over_classes(spans["expert_shard"].degree)
    one = 1.0
    states = group if strategy.zero >= 1 else one
    states_expert = expert_group if strategy.zero >= 1 else one
    kept = group if strategy.zero >= 3 else one
    kept_expert = expert_group if strategy.zero >= 3 else one
    # Under a pipeline gradients add up over microbatches in whole buffers, whatever is scattered at the end.
    summed, summed_expert = kept, kept_expert
    if strategy.zero == 2:
        alone = over_classes(np.asarray(strategy.pp)) == 1
        summed, summed_expert = np.where(alone, group, one), np.where(alone, expert_group, one)
    moments = habits.optimizer_bytes - (4.0 if strategy.optimizer == "adamw-bf16" else 0.0)
    shards = dense / states + expert / states_expert
    weights = habits.weight_bytes * (dense / kept + expert / kept_expert)
    grads = habits.grad_bytes * (dense / summed + expert / summed_expert)
    optimizer = moments * shards
    gathered: Any = 0.0
    if strategy.zero >= 3:
        # This layer's and the next one's whole weights in 16 bits, and one layer's whole gradients. Under a
        # pipeline a stage's weights and gradients stay whole from microbatch to microbatch.
        pipelined = over_classes(np.asarray(strategy.pp) > 1)
        largest = stages.largest_dense + stages.largest_expert
        whole = dense + expert
        stays = (2.0 + habits.grad_sent_bytes) * whole
        gathered = np.where(pipelined, stays, np.minimum(6.0 * largest, 2.0 * whole))

    in_flight = schedule.in_flight(
        stages.first_rank, over_classes(strategy.pp), over_classes(strategy.vpp), over_classes(microbatches)
    )
    shape = shape_of(
        work.seq_len, strategy.microbatch_size, strategy.tp, strategy.cp, strategy.ep, strategy.etp
    )
    held = np.maximum(in_flight, 1.0)
    activations = (stages.cost["saved"] - stages.offloaded) * held + stages.live
    activations = activations + np.minimum(stages.staged, stages.offloaded)
    logits = stages.head * over_classes(logit_bytes(model.vocab, shape, loss_word(work, profile)))
    # The loss is over before the layers' working set is at its largest; the larger of the two counts.
    logits = np.maximum(logits - stages.live, 0.0)
    # Two moments: backward begins (activations whole; where gradients are made anew each step, none yet of a
    # first microbatch), and the optimizer steps (no activations; gradients whole, the step's temporaries).
    fresh = 0.0 if habits.keeps_grads else over_classes(np.asarray(microbatches) <= 1.0) * 1.0
    begins = activations + logits - fresh * grads
    steps = habits.step_bytes * shards
    optimizer = optimizer + np.where(steps > begins, steps, 0.0)
    grads = np.where(steps > begins, grads, (1.0 - fresh) * grads)
    activations, logits = (np.where(steps > begins, 0.0, x) for x in (activations, logits))
    moving = activations + logits + gathered
    network = (habits.context_gib * GIB) * np.ones_like(dense)
    used = weights + grads + optimizer + moving + network
    # The allocator keeps what was freed while there is room (`allocator` of what moves), and gives it back
    # down to what fragmentation needs when there is not.
    slack = np.clip(capacity - used, _TIGHT * moving, profile["allocator"] * moving)
    return {
        "params": weights,
        "grads": grads,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "communication": gathered + np.zeros_like(dense),
        "kv_cache": np.zeros_like(dense),
        "state": np.zeros_like(dense),
        "allocator": slack,
        "framework": network,
    }
