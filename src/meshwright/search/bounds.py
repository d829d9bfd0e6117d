"""Proofs that a strategy cannot fit, or cannot be fast enough, without computing its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.activations import activations, moments
from meshwright.cost.adapters import state_widths
from meshwright.cost.gathered import stays_whole
from meshwright.cost.memory import context_bytes
from meshwright.cost.ops import stream_seconds
from meshwright.cost.rows import LayerPrices, LayerTable, Places
from meshwright.cost.schedule import load as load_schedule
from meshwright.cost.stages import Layers
from meshwright.cost.states import grads_leave, host_step_seconds, update_bytes
from meshwright.cost.tables import Shared
from meshwright.hardware.records import Cluster
from meshwright.model.params import block_params, embedding_params, head_params
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy
from meshwright.work import Work

FloatArray = npt.NDArray[np.float64]
ROUNDED = 1.0 - 1e-9  # takes the rounding of sums off a floor

# Schedules in which every microbatch passes all stages in turn, so the pipeline fills and drains once.
FILLS_AND_DRAINS = frozenset({"gpipe", "1f1b", "interleaved-1f1b"})


@dataclass(frozen=True, slots=True)
class Request:
    """What is planned."""

    model: Model
    cluster: Cluster
    work: Work
    profile: Profile


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


def memory_floor(request: Request, parameters: Held, strategy: Strategy) -> Any:
    """Bytes that the fullest rank holds at least; broadcasts over degrees.

    Weights, gradients and optimizer state of an average stage (the fullest is no lighter), each divided by
    all that ZeRO may divide it by, or what ZeRO-3 holds whole under a pipeline, and the process's own
    context. Experts are divided by their whole data-parallel group, whatever the sharding group. Activations
    are left out.
    """
    s = strategy
    stages = np.asarray(s.pp, float)
    dense = (parameters.sharded / np.asarray(s.tp) + parameters.replicated) / stages
    expert = parameters.expert / (np.asarray(s.ep, float) * s.etp * stages)
    states = _states(request, strategy, dense, expert, 1.0, 0)
    if s.zero == 3:
        kept = float(request.profile.framework.keeps_grads)
        within = _states(request, strategy, dense, expert, kept, 0) + _gathered(request, s, dense + expert, 0)
        states = np.maximum(states, within)
    return states + context_bytes(request.profile.framework, request.cluster)


def _states(request: Request, strategy: Strategy, dense: Any, expert: Any, grads: Any, classes: int) -> Any:
    """Bytes of weights, the share `grads` of the gradients, and optimizer state of a rank with such
    parameters at least; the parameters have `classes` axes more than degrees."""
    s = strategy
    width = state_widths(request.model, request.profile, s, request.work.options)

    dp, cp, tp, ep, etp, group, pp = (
        _wide(x, classes) for x in (s.dp, s.cp, s.tp, s.ep, s.etp, s.zero_group, s.pp)
    )
    spread = np.maximum(dp * cp * tp / (ep * etp), 1.0)
    whole = dense + expert
    sharded = whole if s.zero == 0 else dense / group + expert / spread
    weights = sharded if s.zero == 3 else whole
    # Under a pipeline gradients add up over microbatches in whole buffers.
    summed = np.where(pp > 1, whole, sharded) if s.zero == 2 else weights
    if grads_leave(request.profile.framework, s):
        grads = 0.0  # some may stay
    return width.weight * weights + grads * width.grad * summed + width.optimizer * sharded


def _gathered(request: Request, strategy: Strategy, parameters: Any, classes: int) -> Any:
    """Bytes that a rank of a stage with such parameters holds gathered at least."""
    s, habits = strategy, request.profile.framework
    if s.zero < 3:
        return 0.0
    alone = (_wide(s.zero_group, classes) <= 1.0) & (habits.weight_bytes <= 2.0)
    stays = stays_whole(request.model, s, request.profile, parameters)
    return (_wide(s.pp, classes) > 1) * (1.0 - alone) * (1.0 + habits.fragments) * stays


def _wide(value: Any, classes: int) -> Any:
    """A degree with so many axes more."""
    value = np.asarray(value, float)
    return value.reshape(value.shape + (1,) * classes) if value.ndim else value


@dataclass(frozen=True, slots=True)
class StageBytes:
    """Bytes of rows by stage class, [n, C]: what a rank holds of states at least; `fragments` is the share
    of what passes keep that is lost beside it."""

    states: FloatArray
    fragments: float

    def at(self, part: Any) -> StageBytes:
        """Those of some rows."""
        return StageBytes(of_rows(self.states, part), self.fragments)

    def least(self, saved: FloatArray | float) -> FloatArray:
        """Bytes that the fullest rank holds at least, [n]; the microbatches in flight keep `saved` [n, C]."""
        whole = self.states + (1.0 + self.fragments) * saved
        return np.asarray(whole.max(-1) * ROUNDED)


def of_rows(values: FloatArray, part: Any) -> FloatArray:
    """Some rows of [n, C] values whose rows lie side by side in memory, and lie so again."""
    return np.asarray(values.T.take(part, axis=1).T)


def stage_bytes(request: Request, strategy: Strategy, known: Shared) -> StageBytes:
    """The states of `memory_floor` by the stages' own parameters; `known` is of the rows of `strategy`.

    Left out: working sets, logits, what is gathered without a pipeline. Gradients that each backward makes
    anew may not be there yet.
    """
    s, habits = strategy, request.profile.framework
    plan = load_schedule(s.schedule)
    lines, where = known.lines.held(plan.PARAMETERS_HELD), known.where
    dense, expert = lines.dense.take(where.dense, axis=1).T, lines.expert.take(where.expert, axis=1).T
    states = _states(request, s, dense, expert, float(habits.keeps_grads), 1)
    states = states + context_bytes(habits, request.cluster) + _gathered(request, s, dense + expert, 1)
    return StageBytes(states, habits.fragments)


def saved_bytes(request: Request, strategy: Strategy, known: Shared) -> FloatArray | float:
    """Bytes that the microbatches in flight keep on each stage class at least, [n, C]; `known` is of the rows
    of `strategy`. None of what may be offloaded, or is kept by adapters, is counted.
    """
    s, model = strategy, request.model
    if parse_offload(s.offload).any or parse_finetune(s.finetune).frozen:
        return 0.0
    layers = Layers(known.lines, known.where, known.layers, known.layers.grid.places)
    microbatches = request.work.global_batch_size / (np.asarray(s.dp, float) * s.microbatch_size)
    every = moments(model, s, known.lines)
    one = every and every.one()  # there may be fuller ones
    return np.asarray(activations(s, layers, model.n_layers, one, microbatches).nbytes)


def offload_is_slower(request: Request, strategy: Strategy) -> bool:
    """Whether states on the host make a step longer than the same on the chip, for every layout."""
    framework, chip, options = request.profile.framework, request.cluster.chip, request.work.options
    here = stream_seconds(update_bytes(framework, strategy, options), chip, request.profile)
    return bool(np.all(host_step_seconds(framework, strategy, options, chip) >= here))


def time_floor(busy_s: Any, work: Work, strategy: Strategy) -> Any:
    """Seconds that a step takes at least; broadcasts over degrees.

    floor = busy_s / pp * (m + (pp - 1) / vpp), where `busy_s` is what one microbatch takes through the whole
    model at least. With stages of t seconds a microbatch, sum(t) = busy_s, a step is at least
    m max(t) + (sum(t) - max(t)) / vpp: a pipeline fills and drains once. That grows with max(t) (m >= 1), so
    it is least when all t equal busy_s / pp.
    """
    s = strategy
    microbatches = work.global_batch_size / (np.asarray(s.dp, float) * s.microbatch_size)
    filling = (np.asarray(s.pp) - 1.0) / s.vpp if s.schedule in FILLS_AND_DRAINS else 0.0
    return busy_s * (microbatches + filling) / s.pp


def busy_at_peak(flops: float, cluster: Cluster, work: Work, strategy: Strategy) -> Any:
    """Seconds of one microbatch through the whole model if all its arithmetic ran at the chip's peak.

    `flops` are a step's model FLOPs; a microbatch has the share microbatch_size / global batch of them, over
    the tp * cp chips that work on it together (experts are spread over more, but take in as much).
    """
    share = np.asarray(strategy.microbatch_size) / work.global_batch_size
    fastest = max(cluster.chip.peak_flops(work.precision), cluster.chip.bf16_flops)  # some products stay wide
    return flops * share / (fastest * np.asarray(strategy.tp) * strategy.cp)


def busy_seconds(prices: LayerPrices, words: Strategy) -> FloatArray:
    """Seconds that one microbatch takes through the whole model at least, for each shape (tp, cp,
    microbatch_size) of `prices` with each of its pairs (ep, etp), [shapes * pairs].

    The cost model's own seconds of all layers and ends: what a microbatch takes depends on neither dp, pp,
    vpp nor ZeRO, and a recompute word only adds to what it takes without.
    """
    shapes, *_, pairs = prices.grid.size
    cells = np.arange(shapes * pairs)
    everywhere = prices.placed(Places(prices.grid.size, (cells // pairs, None, None, None, cells % pairs)))
    seconds = seconds_of(everywhere.table(replace(words, recompute="none")))
    return np.broadcast_to(np.asarray(seconds, float), cells.shape)


def seconds_of(table: LayerTable) -> Any:
    """Seconds that a microbatch of each candidate of `table` takes through the whole model at least, [n]."""
    places = table.grid.places
    return (places.read(table.whole["forward"]) + places.read(table.whole["backward"])) * ROUNDED
