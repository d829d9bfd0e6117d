"""Peak memory of every stage class, by category, at its fullest moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.cost.activations import Activations
from meshwright.cost.adapters import adapted, state_widths
from meshwright.cost.columns import loss_word
from meshwright.cost.gathered import gathered_bytes
from meshwright.cost.layer import shape_of
from meshwright.cost.layers.ends import logit_bytes
from meshwright.cost.numbers import numbers
from meshwright.cost.rows import added
from meshwright.cost.stages import Stages, over_classes
from meshwright.cost.states import Widths, grads_leave, state_copies
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
class Contents:
    """Bytes of a rank as backward begins, `step`: more of the optimizer's step; each a number or an array,
    [n, C] over stage classes or over what was picked of them.

    `anew`: gradients that each backward makes anew, of which `absent` are not there yet. `lost`: the share of
    what is allocated that is lost beside it, added to 1; `fragments` and `spare`: the shares of what came and
    went that fragmentation costs, and that an allocator keeps besides while there is room. `context`: the
    process's own.
    """

    weights: Any
    grads: Any
    optimizer: Any
    step: Any
    activations: Any
    logits: Any
    gathered: Any
    anew: Any
    absent: Any
    lost: float
    fragments: float
    spare: Any
    context: float

    def of(self, pick: Callable[[Any], Any]) -> Contents:
        """The same with what is picked of each number."""
        return Contents(*(pick(getattr(self, f.name)) for f in fields(self)))

    def allocated(self, nbytes: list[Any]) -> Any:
        """What so many bytes take, with what is lost beside them."""
        return self.lost * added(nbytes) if self.lost != 1.0 else added(nbytes)

    @property
    def moving(self) -> Any:
        """What passes hold besides state."""
        return added([self.activations, self.logits, self.gathered])

    @property
    def passing(self) -> Any:
        """As backward begins, with everything in flight, beyond what stays."""
        moving = self.moving
        held = self.allocated([moving, self.anew, -self.absent])
        return held + self.fragments * added([moving, self.anew])

    @property
    def updating(self) -> Any:
        """As the optimizer steps, beyond what stays."""
        return self.allocated([self.anew, self.step])

    @property
    def between(self) -> Any:
        """What stays from step to step."""
        return self.allocated([self.weights, self.grads, -self.anew, self.optimizer]) + self.context

    @property
    def backward(self) -> Any:
        """As backward begins."""
        return self.between + self.passing

    @property
    def update(self) -> Any:
        """As the optimizer steps."""
        return self.between + self.updating

    @property
    def steps(self) -> Any:
        """Whether the optimizer's step is the fuller of the two."""
        return self.updating > self.passing

    @property
    def peak(self) -> Any:
        """The fuller of the two."""
        return self.between + np.maximum(self.updating, self.passing)

    def at_step(self, steps: Any) -> Contents:
        """The same where the optimizer steps (`steps` 1): nothing of passes, and what its step takes."""
        if not np.any(steps):
            return self
        begins = 1.0 - steps  # products are quicker than a choice
        passing = {
            name: value * begins
            for name in ("activations", "logits", "gathered", "anew", "absent")
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
class Peaks:
    """The fullest moment of a rank, every number of the shape that its contents have.

    `by_category`: bytes, a number where all hold the same; `whole`: their sum, the peak. `kept`: bytes that
    the allocator holds beside them while it can. `steps`: whether that moment is the optimizer's step (else
    it is the beginning of backward).
    """

    by_category: dict[str, Any]
    whole: Any
    kept: Any
    steps: Any


def peaks(held: Contents, cluster: Cluster) -> Peaks:
    """Bytes by category at the fullest of two moments.

    Backward begins (activations whole; where gradients are made anew each step, none yet of a first
    microbatch), or the optimizer steps (no activations, gradients whole, the step's temporaries). The larger
    is the peak.
    """
    steps = held.steps
    fullest = held.at_step(steps)
    by_category = fullest.by_category()
    stranded = (held.lost - 1.0) * added(by_category.values()) if held.lost > 1.0 else 0.0
    moving = fullest.moving
    by_category |= {
        "allocator": added([held.fragments * added([moving, fullest.anew]), stranded]),
        "framework": held.context,
    }
    # While there is room the allocator keeps what was freed, and gives it back down to what fragmentation
    # needs when there is not; that part says nothing of whether a plan fits.
    whole = added(by_category.values())
    kept = np.minimum(np.maximum(cluster.usable_bytes - whole, 0.0), held.spare * moving)
    return Peaks(by_category, whole, kept, steps)


def contents(
    model: Model,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    stages: Stages,
    spans: dict[str, Span],
    saved: Activations,
    microbatches: Any,
    cluster: Cluster,
) -> Contents:
    """What a rank of each stage class holds, [n, C].

    Weights, gradients and optimizer state in the program's own widths over the groups that shard them
    (ZeRO, arXiv 1910.02054); activations of the microbatches in flight plus the working set of the largest
    layer; logits on the last stage; weights gathered by ZeRO-3; what fragmentation costs (a share of what
    comes and goes) and the process's own context.
    """
    habits = profile.framework
    if habits.unties and model.tied_embeddings:
        together = over_classes(np.asarray(strategy.pp) == 1)  # on other stages they are two already
        matrix = model.vocab * model.d_model / over_classes(np.asarray(strategy.tp))
        stages = replace(stages, dense=stages.dense + together * matrix)
    width = state_widths(model, profile, strategy, work.options)
    unscattered = over_classes(np.asarray(microbatches) > 1.0) * 1.0 if "no-sync" in work.options else 0.0
    held = _held(strategy, stages, spans, work.options, unscattered)
    grads = width.grad * held.grads * _grads_stay(strategy, habits, microbatches, unscattered)
    activations, live = _activations(model, work, strategy, profile, stages, saved)
    logits = _logits(model, work, strategy, profile, stages, live)
    gathered = gathered_bytes(model, strategy, profile, stages, spans, held.weights, unscattered)
    # Gradients that each backward makes anew come and go as activations do: none are there yet when the first
    # microbatch's backward begins, and they leave holes behind.
    anew: Any = 0.0 if habits.keeps_grads else grads
    absent = anew * over_classes(np.asarray(microbatches) <= 1.0) if np.ndim(anew) else 0.0
    return Contents(
        width.weight * held.weights, grads,
        width.optimizer * held.states + _of_vocabulary(model, strategy, width, stages, spans, work.options),
        width.step * held.states,
        activations, logits, gathered, anew, absent,
        lost=1.0 + numbers()["stranded_share"] * ("fixed-segments" in work.options),
        fragments=habits.fragments,
        spare=np.maximum(profile["allocator"] - habits.fragments, 0.0),
        context=context_bytes(habits, cluster),
    )  # fmt: skip


def _grads_stay(strategy: Strategy, habits: Framework, microbatches: Any, unscattered: Any) -> Any:
    """1 where gradients stay on the chip though they may leave it (`grads_leave`), [n, C] or a number: where
    they add up whole over microbatches, which the host would have to be sent each by each."""
    if not grads_leave(habits, strategy):
        return 1.0
    if strategy.zero == 3:
        return unscattered
    several = over_classes(np.asarray(microbatches) > 1.0) * 1.0
    whole = 1.0 if strategy.zero < 2 else over_classes(np.asarray(strategy.pp) > 1) + unscattered
    return several * np.minimum(whole, 1.0)


def _of_vocabulary(
    model: Model, strategy: Strategy, width: Widths, stages: Stages, spans: dict[str, Span],
    options: frozenset[str],
) -> Any:  # fmt: skip
    """Bytes of optimizer state that embedding and head have beyond other parameters, [n, C]."""
    if not (width.embedding or width.head):
        return 0.0
    both = np.minimum(stages.embeddings, stages.heads) * model.tied_embeddings  # one matrix serves both
    matrices = width.embedding * stages.embeddings + width.head * (stages.heads - both)
    ranks = over_classes(np.asarray(strategy.tp) * state_copies(strategy, spans, options)[0])
    return matrices * (model.vocab * model.d_model) / ranks


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
    nbytes = np.transpose(stages.head) * logit_bytes(model.vocab, shape, loss, whole, first=first)
    return np.maximum(np.transpose(nbytes) - live, 0.0)


def context_bytes(framework: Framework, cluster: Cluster) -> float:
    """What a process holds besides tensors: the runtime's context, and network buffers if it has peers."""
    alone = min(framework.alone_gib, framework.context_gib)
    if cluster.n_chips == 1:
        return GIB * alone
    share = numbers()["bus_share"] if cluster.chip.fabric == "none" else 1.0
    return GIB * (alone + share * (framework.context_gib - alone))


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
    model: Model, work: Work, strategy: Strategy, profile: Profile, stages: Stages, saved: Activations
) -> tuple[Any, Any]:
    """Bytes kept for backward by the microbatches in flight with the largest layer's working set, and that
    working set alone."""
    held, live = saved.nbytes, stages.live
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
        of_one = over_classes(stays / np.asarray(strategy.pp)) * change.saved * tokens
        held = held + of_one * saved.in_flight
        live = np.maximum(live + change.live * tokens, 0.0)
    return added([held, live, np.minimum(stages.staged, stages.offloaded)]), live


def _adapter_bytes(work: Work, strategy: Strategy, profile: Profile) -> float:
    """What an adapter keeps of each element of its input; fused kernels recompute it, on whole weights."""
    if "unsloth" in work.options:
        return 0.0
    if "fused-kernels" in work.options and strategy.zero < 3:
        return min(numbers()["fused_adapter_bytes"], profile.framework.adapter_bytes)
    return profile.framework.adapter_bytes
