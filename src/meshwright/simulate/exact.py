"""A strategy's step as its simulated pipeline runs it: time of the slowest rank, memory of the fullest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright import units
from meshwright.cost import memory
from meshwright.cost.activations import Activations
from meshwright.cost.balance import HOLDS_ALL
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.memory_by_stage import told
from meshwright.cost.step import evaluate
from meshwright.cost.times import slow_rank_seconds, straggler_share
from meshwright.cost.tree import tree
from meshwright.errors import Diagnostic, InputError
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.simulate.costs import Costs, costs
from meshwright.simulate.network import KINDS, Network
from meshwright.simulate.pipeline import Durations, network, ran, steady
from meshwright.simulate.timeline import Idle, Timeline
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of, virtual_stages
from meshwright.work import Work

Array = npt.NDArray[np.float64]

_FORMULAS = {
    "pp": "idle seconds of the rank in the simulated step while what its next pass needs is on its way",
    "bubble": "all its other idle seconds in the simulated step: warm-up, drain, slower stages",
    "activations": "saved bytes of what the simulated step holds at its fullest moment + working set",
}
MOST_PASSES = 600_000  # of all ranks, a few seconds; above it a step is not simulated pass by pass
_SAME = 1e-9  # steps closer than this are the same


@dataclass(frozen=True, slots=True)
class Exact:
    """A simulated step and what follows from it.

    `evaluation` has time of `slowest_rank` and memory of `fullest_rank`; `timeline` is the step in time:
    rank r begins at `timeline.begin_s[r]` and ends `step_time_s / (1 + straggler)` later, the last
    `after_s[r]` of it for gradients, weights, the update and counts of experts. `idle` [ranks] by cause.
    `peak_bytes` [ranks]: all memory at the fullest moment; `held_bytes`, `in_flight` [ranks]: the most
    activations in flight, in bytes and in microbatches. `between_bytes`, `working_bytes`, `update_bytes`
    [ranks]: what stays from step to step, what passes hold beside that and the activations in flight, and
    all memory as the optimizer steps.
    """

    evaluation: Evaluation
    timeline: Timeline
    costs: Costs
    idle: Idle
    slowest_rank: int
    fullest_rank: int
    peak_bytes: Array
    held_bytes: Array
    in_flight: Array
    between_bytes: Array
    working_bytes: Array
    update_bytes: Array

    @property
    def exchange_s(self) -> Array:
        """Seconds of each rank for gradients and weights after its last pass, [ranks]."""
        return np.asarray(self.costs.exchange[0])

    @property
    def optimizer_s(self) -> Array:
        """Seconds of each rank's update, [ranks]."""
        return np.asarray(self.costs.optimizer[0])

    @property
    def after_s(self) -> Array:
        """Seconds of each rank once a step besides its passes, shown after the last, [ranks]."""
        return self.costs.after[:, 0]

    def memory_over_time(self, rank: int) -> tuple[Array, Array]:
        """(seconds, bytes) of a rank: what it holds from each moment until the next.

        Weights and state stay; from the first pass to the last also the working set of a layer, while the
        activations of microbatches come and go; then the optimizer steps, with its temporaries.
        """
        seconds, held = self.timeline.in_flight(rank)
        stays, ends = self.between_bytes[rank], self.timeline.last_s[rank]
        passes = stays + self.working_bytes[rank] + held
        update = ends + self.exchange_s[rank]
        return (
            np.concatenate([seconds, [ends, update, update + self.optimizer_s[rank]]]),
            np.concatenate([passes, [stays, self.update_bytes[rank], stays]]),
        )


def exact(model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile) -> Exact:
    """The step of one legal strategy (plain numbers), simulated with the passes of every stage.

    Ranks go from step to step without waiting for each other, each after its own exchange and update; where a
    step from a common start is as short, it is the one shown. Raises InputError where the schedule does not
    exist for these numbers or has more passes than MOST_PASSES.
    """
    found = costs(model, cluster, work, strategy, profile)
    graph = _network(strategy, found)
    spent = Durations(
        forward=found.took[0, :, 0],
        backward=found.took[1, :, 0],
        backward_input=found.took[2, :, 0],
        backward_weight=found.took[3, :, 0],
        send=found.sends[:-1, 0],
        held=found.held[:, 0],
        blocking=found.blocking,
    )
    after = found.after[:, 0]
    timeline = ran(graph, spent)
    pipeline_s = float((timeline.last_s + after).max())
    period, begin = steady(graph, spent, after)
    if period < pipeline_s * (1 - _SAME):
        timeline, pipeline_s = ran(graph, spent, begin_s=begin - begin.min()), period
    idle = timeline.idle_within(timeline.begin_s, timeline.begin_s + pipeline_s - after)
    last = timeline.busy_s + after
    slowest = int(np.flatnonzero(last >= last.max() * (1 - _SAME))[0])
    times, recompute, host, waits = _times(found, timeline, idle, slowest)
    straggler = float(straggler_share(cluster, profile))
    slow = float(slow_rank_seconds(work, times["compute"], host, times["optimizer"]))
    pipeline_s += slow
    times["other"] = host + waits + slow + straggler * pipeline_s
    step = (1.0 + straggler) * pipeline_s
    held = timeline.peak_in_flight
    chunks = np.array(virtual_stages(found.pp, found.vpp, layout_of(strategy.schedule)))
    ways = chunks.shape[1] / found.vpp  # each for its share of the microbatches
    in_flight = held / np.maximum(found.held[chunks, 0].sum(1) / ways, 1.0)
    contents = memory.contents(
        model, work, strategy, profile, found.ranks, found.groups.spans(),
        Activations(held[None], in_flight[None]), found.microbatches.astype(float), cluster,
    )  # fmt: skip
    by_stage = told(memory.peaks(contents, cluster), found.pp)
    between, backward, update = (
        np.broadcast_to(moment, (1, found.pp))[0]
        for moment in (contents.between, contents.backward, contents.update)
    )
    peaks = np.array([rank.peak_bytes for rank in by_stage])
    fullest = int(peaks.argmax())
    whole = evaluate(model, cluster, work, strategy, profile)
    evaluation = replace(
        whole,
        step_time_s=step,
        time_s=times,
        recompute_s=recompute,
        memory_bytes=by_stage[fullest].memory_bytes,
        peak_bytes=float(peaks[fullest]),
        peak_stage=fullest,
        kept_bytes=by_stage[fullest].kept_bytes,
        by_stage=by_stage,
        closed_form=whole,
    )
    m = int(found.microbatches[0])
    terms = tree(evaluation, found.ranks, m, strategy, work, host, waits, slow, formulas=_FORMULAS)
    evaluation = replace(evaluation, terms=terms)
    return Exact(
        evaluation, timeline, found, idle, slowest, fullest, peaks, held, in_flight,
        between_bytes=between, working_bytes=backward - held - between, update_bytes=update,
    )  # fmt: skip


def _network(strategy: Strategy, found: Costs) -> Network:
    """The passes of the strategy's schedule; InputError where there are too many."""
    m = int(found.microbatches[0])
    passes = 2 * found.pp * found.vpp * m
    if passes > MOST_PASSES:
        count = units.count_text
        raise InputError(
            Diagnostic(
                "MW157",
                f"2 x pp {found.pp} x vpp {found.vpp} x {count(m)} {units.plural(m, 'microbatch')} = "
                f"{count(passes)} passes, more than the {count(MOST_PASSES)} that a step is simulated with",
                where="--exact",
                hint="leave --exact out, or give a larger microbatch or a smaller global batch",
            )
        )
    return network(
        strategy.schedule, found.pp, found.vpp, m, forwards_first=strategy.moe_balance == HOLDS_ALL
    )


def _times(
    found: Costs, timeline: Timeline, idle: Idle, rank: int
) -> tuple[dict[str, float], float, float, float]:
    """Exposed seconds of one rank by part, what of them is recompute, and what launches and waits for
    the host link add."""
    n = timeline.network
    mine = (n.rank == rank) & (n.kind == KINDS.index("F"))
    often = np.bincount(n.stage[mine], minlength=n.depth).astype(float)  # microbatches of each virtual stage

    def total(name: str) -> float:
        return float(often @ found.chunks[name][:, 0])

    host = total("host")
    passes = n.rank == rank
    waits = float(found.waits[n.kind[passes], n.stage[passes], 0].sum())
    messages = {name: total(name) for name in ("tp", "cp", "ep")}
    # What passes and waits do not fill of the rank's step is its bubble, sends apart.
    bubble = idle.warm_up_s + idle.imbalance_s + idle.drain_s
    times = {
        "compute": float(timeline.busy_s[rank])
        - sum(messages.values())
        - host
        - waits
        + float(found.counting[0, rank]),
        **messages,
        "ep": messages["ep"] + float(found.counts[0, rank]),
        "dp": float(found.exchange[0, rank]),
        "pp": float(idle.send_s[rank]),
        "bubble": float(bubble[rank]),
        "optimizer": float(found.optimizer[0, rank]),
    }
    return times, total("recompute"), host, waits
