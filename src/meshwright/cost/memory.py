"""Peak memory of every stage class, by category, at its fullest moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.cost import balance
from meshwright.cost.adapters import adapted, state_widths
from meshwright.cost.gathered import gathered_bytes
from meshwright.cost.layer import shape_of
from meshwright.cost.layers.ends import logit_bytes
from meshwright.cost.numbers import numbers
from meshwright.cost.rows import added
from meshwright.cost.schedule import InFlight
from meshwright.cost.stages import Stages, loss_word, over_classes
from meshwright.cost.states import state_copies
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Framework, Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.placement import Span
from meshwright.strategy.recompute import parse as parse_recompute
from meshwright.strategy.records import Strategy
from meshwright.units import GIB
from meshwright.work import Work


@dataclass(frozen=True, slots=True)
class _Held:
    """Parameters that a rank of each stage class keeps, [n, C]: of the weights, of gradients while they add
    up, and of the sharded optimizer state."""

    weights: Any
    grads: Any
    states: Any


@dataclass(frozen=True, slots=True)
class _Contents:
    """Bytes of a rank of each stage class as backward begins, [n, C], `step`: more of the optimizer's step.

    `moving`: activations, logits and what is `gathered`; `churned`: these and gradients that each backward
    makes `anew`, of which `absent` are not there yet.
    """

    weights: Any
    grads: Any
    optimizer: Any
    step: Any
    activations: Any
    logits: Any
    gathered: Any
    moving: Any
    churned: Any
    anew: Any
    absent: Any

    def at_step(self, steps: Any) -> _Contents:
        """The same where the optimizer steps (`steps` 1): nothing of passes, and what its step takes."""
        if not np.any(steps):
            return self
        begins = 1.0 - steps  # products are quicker than a choice
        passing = {
            name: value * begins
            for name in ("churned", "moving", "activations", "logits", "gathered", "absent")
            if np.ndim(value := getattr(self, name))
        }
        return replace(self, **passing, optimizer=self.optimizer + steps * self.step)

    def by_category(self) -> dict[str, Any]:
        """Bytes by category, but for what the allocator and the runtime hold."""
        return {
            "params": self.weights,
            "grads": self.grads - self.absent if np.ndim(self.absent) else self.grads,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "logits": self.logits,
            "communication": self.gathered,
            "kv_cache": 0.0,
            "state": 0.0,
        }


@dataclass(frozen=True, slots=True)
class Moments:
    """Bytes of a rank of each stage class that two moments are summed from, every array [n, C].

    `moving` is what passes hold besides state; `anew` gradients that each backward makes anew, `absent` those
    of them that are not there yet as it begins; `lost` the share of what is allocated that is lost beside it,
    added to 1; `fragments` the share of what came and went.
    """

    weights: Any
    grads: Any
    optimizer: Any
    moving: Any
    anew: Any
    absent: Any
    step_only: Any
    lost: float
    fragments: float
    context: float

    @property
    def between(self) -> Any:
        """What stays from step to step."""
        return self.lost * (self.weights + self.grads - self.anew + self.optimizer) + self.context

    @property
    def backward(self) -> Any:
        """As backward begins, with everything in flight."""
        passes = self.lost * (self.moving + self.anew - self.absent)
        return self.between + passes + self.fragments * (self.moving + self.anew)

    @property
    def step(self) -> Any:
        """As the optimizer steps."""
        return self.between + self.lost * (self.anew + self.step_only)

    @property
    def steps(self) -> Any:
        """Whether the optimizer's step is the fuller of the two."""
        return self.step > self.backward


@dataclass(frozen=True, slots=True)
class Peaks:
    """The fullest moment of a rank of each stage class, every array [n, C].

    `by_category`: bytes, a number where all hold the same; `whole`: their sum, the peak. `kept`: bytes that
    the allocator holds beside them while it can. `steps`: whether that moment is the optimizer's step (else
    it is the beginning of backward). `moments`: what both are made of; the larger is `whole`.
    """

    by_category: dict[str, Any]
    whole: Any
    kept: Any
    steps: Any
    moments: Moments


def peaks(
    model: Model,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    stages: Stages,
    spans: dict[str, Span],
    schedule: InFlight,
    microbatches: Any,
    cluster: Cluster,
) -> Peaks:
    """Bytes by category for each stage class at its fullest moment.

    Weights, gradients and optimizer state in the program's own widths over the groups that shard them
    (ZeRO, arXiv 1910.02054); activations of the microbatches in flight plus the working set of the largest
    layer; logits on the last stage; weights gathered by ZeRO-3; what fragmentation costs (a share of what
    comes and goes) and the process's own context. Two moments are compared: backward begins (activations
    whole; where gradients are made anew each step, none yet of a first microbatch), and the optimizer steps
    (no activations, gradients whole, the step's temporaries). The larger is the peak.
    """
    held = _contents(model, work, strategy, profile, stages, spans, schedule, microbatches)
    habits = profile.framework
    moments = Moments(
        held.weights, held.grads, held.optimizer, held.moving, held.anew, held.absent, held.step,
        lost=1.0 + numbers()["stranded_share"] * ("fixed-segments" in work.options),
        fragments=habits.fragments,
        context=context_bytes(habits, cluster),
    )  # fmt: skip
    fullest = held.at_step(moments.steps)
    by_category = fullest.by_category()
    stranded = (moments.lost - 1.0) * added(by_category.values()) if moments.lost > 1.0 else 0.0
    by_category |= {
        "allocator": added([habits.fragments * fullest.churned, stranded]),
        "framework": moments.context,
    }
    # While there is room the allocator keeps what was freed (`allocator` of what moves), and gives it back
    # down to what fragmentation needs when there is not; that part says nothing of whether a plan fits.
    whole = added(by_category.values())
    most = np.maximum(profile["allocator"] - habits.fragments, 0.0) * fullest.moving
    kept = np.minimum(np.maximum(cluster.usable_bytes - whole, 0.0), most)
    return Peaks(by_category, whole, kept, moments.steps, moments)


def _contents(
    model: Model,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    stages: Stages,
    spans: dict[str, Span],
    schedule: InFlight,
    microbatches: Any,
) -> _Contents:
    """What a rank of each stage class holds as backward begins."""
    habits = profile.framework
    if habits.unties and model.tied_embeddings:
        together = over_classes(np.asarray(strategy.pp) == 1)  # on other stages they are two already
        matrix = model.vocab * model.d_model / over_classes(np.asarray(strategy.tp))
        stages = replace(stages, dense=stages.dense + together * matrix)
    width = state_widths(model, profile, strategy, work.options)
    unscattered = over_classes(np.asarray(microbatches) > 1.0) * 1.0 if "no-sync" in work.options else 0.0
    held = _held(strategy, stages, spans, work.options, unscattered)
    grads = width.grad * held.grads
    in_flight = microbatches_in_flight(strategy, stages, schedule, microbatches)
    activations, live = _activations(model, work, strategy, profile, stages, np.maximum(in_flight, 1.0))
    logits = _logits(model, work, strategy, profile, stages, live)
    gathered = gathered_bytes(model, strategy, profile, stages, spans, held.weights, unscattered)
    # Gradients that each backward makes anew come and go as activations do: none are there yet when the first
    # microbatch's backward begins, and they leave holes behind.
    anew: Any = 0.0 if habits.keeps_grads else grads
    absent = anew * over_classes(np.asarray(microbatches) <= 1.0) if np.ndim(anew) else 0.0
    moving = activations + logits + gathered
    return _Contents(
        width.weight * held.weights, grads, width.optimizer * held.states, width.step * held.states,
        activations, logits, gathered, moving, added([moving, anew]), anew, absent,
    )  # fmt: skip


def _logits(model: Model, work: Work, strategy: Strategy, profile: Profile, stages: Stages, live: Any) -> Any:
    """Bytes of logits and their copies beyond `live`, [n, C]: the loss is over before the layers' working set
    is at its largest, so the larger of the two counts.

    A preference loss (arXiv 2305.18290) takes log-probabilities of both answers from whole logits.
    """
    finetune = parse_finetune(strategy.finetune)
    shape = shape_of(
        work.seq_len, finetune.rows * strategy.microbatch_size, strategy.tp, strategy.cp, strategy.ep,
        strategy.etp,
    )  # fmt: skip
    habits, loss = profile.framework, loss_word(work, profile)
    whole: Any = habits.logit_bytes
    if habits.split_logit_bytes:
        whole = np.where(np.asarray(strategy.tp) > 1, habits.split_logit_bytes, whole)[()]
    if finetune.pairs:
        loss, whole = "whole", np.maximum(whole, numbers()["pair_logit_bytes"])
    first = habits.chunks_logits
    nbytes = stages.head * over_classes(logit_bytes(model.vocab, shape, loss, whole, first=first))
    return np.maximum(nbytes - live, 0.0)


def context_bytes(framework: Framework, cluster: Cluster) -> float:
    """What a process holds besides tensors: the runtime's context, and network buffers if it has peers."""
    alone = min(framework.alone_gib, framework.context_gib)
    if cluster.n_chips == 1:
        return GIB * alone
    share = numbers()["bus_share"] if cluster.chip.fabric == "none" else 1.0
    return GIB * (alone + share * (framework.context_gib - alone))


def microbatches_in_flight(strategy: Strategy, stages: Stages, schedule: InFlight, microbatches: Any) -> Any:
    """Microbatches whose activations a rank of each stage class holds at once, [n, C]."""
    in_flight = schedule.in_flight(
        stages.fullest_rank, over_classes(strategy.pp), over_classes(strategy.vpp), over_classes(microbatches)
    )
    return balance.in_flight(strategy.moe_balance, in_flight, over_classes(microbatches))


def _held(
    strategy: Strategy, stages: Stages, spans: dict[str, Span], options: frozenset[str], unscattered: Any
) -> _Held:
    """Parameters by what shards them; `unscattered`: 1 where microbatches add up whole gradients."""
    dense, expert = stages.dense, stages.expert
    whole = dense + expert
    if strategy.zero == 0:
        return _Held(whole, whole, whole)

    def over(ranks: Any, expert_ranks: Any) -> Any:
        return dense / over_classes(ranks) + expert / over_classes(expert_ranks)

    states = over(*state_copies(strategy, spans, options))
    if strategy.zero == 1:
        return _Held(whole, whole, states)
    sharded = over(spans["shard"].degree, spans["expert_shard"].degree)
    if strategy.zero == 3:
        return _Held(sharded, sharded, states)
    # Under a pipeline gradients add up over microbatches in whole buffers, whatever is scattered at the end,
    # and so they do where a program scatters once a step.
    alone = (over_classes(np.asarray(strategy.pp)) == 1) & (unscattered == 0)
    return _Held(whole, np.where(alone, sharded, whole), states)


def _activations(
    model: Model, work: Work, strategy: Strategy, profile: Profile, stages: Stages, held: Any
) -> tuple[Any, Any]:
    """Bytes kept for backward by the microbatches in flight with the largest layer's working set, and that
    working set alone."""
    saved, live = stages.cost["saved"], stages.live
    if np.ndim(stages.offloaded):
        saved = saved - stages.offloaded
    finetune = parse_finetune(strategy.finetune)
    if finetune.frozen:
        change = adapted(
            model,
            finetune,
            _adapter_bytes(work, strategy, profile),
            bool(finetune.base) and profile.framework.keeps_quantised_inputs,
        )
        tokens = over_classes(
            finetune.rows
            * work.seq_len
            * np.asarray(strategy.microbatch_size)
            / (np.asarray(strategy.cp) * strategy.tp)
        )
        recompute = parse_recompute(strategy.recompute)
        stays = 1.0 - recompute.full_share(model.n_layers / np.asarray(strategy.pp, float))
        saved = saved + over_classes(stays / np.asarray(strategy.pp)) * change.saved * tokens
        live = np.maximum(live + change.live * tokens, 0.0)
    return added([saved * held, live, np.minimum(stages.staged, stages.offloaded)]), live


def _adapter_bytes(work: Work, strategy: Strategy, profile: Profile) -> float:
    """What an adapter keeps of each element of its input; fused kernels recompute it, on whole weights."""
    if "unsloth" in work.options:
        return 0.0
    if "fused-kernels" in work.options and strategy.zero < 3:
        return min(numbers()["fused_adapter_bytes"], profile.framework.adapter_bytes)
    return profile.framework.adapter_bytes
