"""Degrees against the chips, the stages and the state that is sharded."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.checks.rule import Mask, Rule, divisors, indivisible, listed, mask, nearest_divisors
from meshwright.checks.shapes import moe
from meshwright.cost.schedule import load
from meshwright.cost.schedule.actions import ranks_fault
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.placement import ranks_inside_pipeline
from meshwright.strategy.records import AXES, Strategy
from meshwright.strategy.stages import V_SHAPED, layout_fault, most_virtual_stages
from meshwright.units import counted
from meshwright.work import Work

SINGLE_CHUNK = frozenset({"gpipe", "1f1b", "zb-1p", "zb-2p", "dualpipe"})
TWO_CHUNKS = V_SHAPED


class Product(Rule):
    """dp * tp * pp * cp = chips."""

    code, reason, where = "MW101", "degrees do not multiply to the chips", "dp, tp, pp, cp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        s = strategy
        return mask(np.asarray(s.dp) * s.tp * s.pp * s.cp != cluster.n_chips)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        s, n = strategy, cluster.n_chips
        rest = int(s.tp) * int(s.pp) * int(s.cp)
        message = (
            f"dp {s.dp} x tp {s.tp} x pp {s.pp} x cp {s.cp} = {int(s.dp) * rest}, "
            f"but the cluster has {counted(n, 'chip')}"
        )
        if n % rest == 0:
            return message, f"use dp {n // rest}, or leave dp out and it is derived"
        tries = []
        for name in ("pp", "tp", "cp"):
            own = int(getattr(s, name))
            if own > 1 and n % (rest // own) == 0:
                tries.append(listed(nearest_divisors(n // (rest // own), own), name))
        quotient = f"; dp must be {n} / {rest} = {n / rest:.4g}, not whole"
        return message + quotient, f"try {' or '.join(tries) or f'degrees whose product divides {n}'}"


class Stages(Rule):
    """Every virtual stage has something to do, and listed layers fit."""

    code, reason, where = "MW130", "more virtual stages than layers", "pp, vpp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        stages = np.asarray(strategy.pp) * strategy.vpp
        # One stage holds everything; several may leave the two ends with embedding or head alone.
        return mask(stages > np.where(stages > 1, most_virtual_stages(model), model.n_layers))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        fault = layout_fault(model, int(strategy.pp), int(strategy.vpp), None)
        return (fault.message, fault.hint) if fault else ("", "")


class ListedLayers(Rule):
    """layers_per_stage has one number a virtual stage and sums to the layers."""

    code, reason, where = "MW131", "layers_per_stage does not fit pp, vpp or the layers", "layers_per_stage"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        sizes = strategy.layers_per_stage
        if sizes is None:
            return mask(False)
        inner = sizes[1:-1]
        bad = sum(sizes) != model.n_layers or min(sizes, default=0) < 0 or (bool(inner) and min(inner) < 1)
        return mask((np.asarray(strategy.pp) * strategy.vpp != len(sizes)) | bad)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        fault = layout_fault(model, int(strategy.pp), int(strategy.vpp), strategy.layers_per_stage)
        return (fault.message, fault.hint) if fault else ("", "")


class ChunksOfSchedule(Rule):
    """Each schedule has its own number of chunks a rank."""

    code, reason, where = "MW132", "vpp does not suit the schedule", "vpp, schedule"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        vpp, word = np.asarray(strategy.vpp), strategy.schedule
        if word in SINGLE_CHUNK:
            return mask(vpp > 1)
        if word in TWO_CHUNKS:
            return mask(vpp != 2)
        return mask(vpp < 2)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        vpp, word = strategy.vpp, strategy.schedule
        if word in SINGLE_CHUNK:
            return f"{word} runs 1 chunk a rank, but vpp is {vpp}", "use interleaved-1f1b, or vpp 1"
        if word in TWO_CHUNKS:
            return f"{word} runs 2 chunks a rank, but vpp is {vpp}", "use vpp 2"
        return f"{word} needs 2 chunks a rank or more, but vpp is {vpp}", "use 1f1b, or vpp 2"


class PairedRanks(Rule):
    """Streams from both ends meet in the middle of an even number of ranks."""

    code, reason, where = "MW134", "pp does not suit the schedule", "pp, schedule"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask(~load(strategy.schedule).NEEDS.by_pp(strategy.pp))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        needs, pp = load(strategy.schedule).NEEDS, int(strategy.pp)
        said, _ = ranks_fault(needs, pp)
        legal = [d for d in divisors(cluster.n_chips) if d % needs.ranks == 0]
        near = [d for d in legal if d < pp][-1:] + [d for d in legal if d > pp][:1]
        return f"{strategy.schedule} {said}", f"try {listed(near, 'pp')}" if near else "use 1f1b"


class ChunksWithoutPipeline(Rule):
    """Virtual stages need a pipeline."""

    code, reason, where = "MW133", "vpp without a pipeline", "vpp, pp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask((np.asarray(strategy.vpp) > 1) & (np.asarray(strategy.pp) == 1))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        return (
            f"vpp is {strategy.vpp}, but pp is {strategy.pp}: there is no pipeline to interleave",
            "use vpp 1, or pp 2 and more",
        )


class ShardGroup(Rule):
    """The group that shards the optimizer state is part of the ranks that hold the same weights."""

    code, reason, where = "MW160", "zero_group does not divide dp x cp", "zero_group, dp, cp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if strategy.zero == 0:
            return mask(False)
        return indivisible(np.asarray(strategy.dp) * strategy.cp, strategy.zero_group)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        ranks, group = int(strategy.dp) * int(strategy.cp), int(strategy.zero_group)
        return (
            f"dp {strategy.dp} x cp {strategy.cp} = {counted(ranks, 'rank')} hold the same weights, "
            f"and zero_group {group} does not divide them: {ranks} / {group} = {ranks / group:.4g}",
            f"try {listed(nearest_divisors(ranks, group), 'zero_group')}",
        )


class ExpertRanks(Rule):
    """Experts are laid over the ranks of one stage: ep * etp divides dp * cp * tp."""

    code, reason, where = "MW114", "ep x etp does not divide a stage's ranks", "ep, etp, dp, cp, tp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        s = strategy
        return indivisible(np.asarray(s.dp) * s.cp * s.tp, np.asarray(s.ep) * s.etp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        s = strategy
        ranks = int(s.dp) * int(s.cp) * int(s.tp)
        expert = int(s.ep) * int(s.etp)
        etp = int(s.etp) if ranks % int(s.etp) == 0 else 1
        legal = nearest_divisors(ranks // etp, int(s.ep))
        if moe(model):
            legal = [e for e in legal if all(m.n_experts % e == 0 for m in moe(model))] or [1]
        return (
            f"ep {s.ep} x etp {s.etp} = {expert} does not divide the ranks of a stage, "
            f"dp {s.dp} x cp {s.cp} x tp {s.tp} = {ranks}: {ranks} / {expert} = {ranks / expert:.4g}",
            f"with etp {etp} try {listed(legal, 'ep')}",
        )


class ExpertBorders(Rule):
    """Where pp is placed inside other axes, an expert axis ends where they do or does not reach them."""

    code, reason, where = "MW116", "experts straddle the pipeline axis", "ep, etp, placement"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        s = strategy
        if s.placement[-1] == "pp" or set(s.placement) != set(AXES):
            return mask(False)
        inside = self._inside(s)
        borders = (np.asarray(s.etp), np.asarray(s.etp) * s.ep)
        return mask(np.any([(inside % np.maximum(b, 1) != 0) & (b % inside != 0) for b in borders], axis=0))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        s = strategy
        inside = int(self._inside(s))
        within = " x ".join(f"{axis} {getattr(s, axis)}" for axis in s.placement[: s.placement.index("pp")])
        return (
            f"etp {s.etp} x ep {s.ep} = {int(s.etp) * int(s.ep)} ranks neither divide nor are a multiple of "
            f"the {inside} that lie together inside pp ({within})",
            f"place pp outside: placement {','.join([*(a for a in s.placement if a != 'pp'), 'pp'])}",
        )

    def _inside(self, strategy: Strategy) -> Any:
        degrees = {axis: np.asarray(getattr(strategy, axis)) for axis in AXES}
        return np.asarray(ranks_inside_pipeline(strategy.placement, degrees))


class NoExperts(Rule):
    """Expert parallelism needs experts."""

    code, reason, where = "MW115", "expert parallelism without experts", "ep, etp"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        if moe(model):
            return mask(False)
        return mask((np.asarray(strategy.ep) > 1) | (np.asarray(strategy.etp) > 1))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        return (
            f"ep {strategy.ep}, etp {strategy.etp}, but {model.name} has no experts",
            "use ep 1 and etp 1",
        )


class ExpertCount(Rule):
    """ep divides the experts."""

    code, reason, where = "MW113", "experts not divisible by ep", "ep"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        bad = mask(np.zeros(np.shape(strategy.ep), bool))
        for part in moe(model):
            bad = bad | indivisible(part.n_experts, strategy.ep)
        return bad

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        ep = int(strategy.ep)
        count = next(m.n_experts for m in moe(model) if m.n_experts % ep)
        ranks = int(strategy.dp) * int(strategy.cp) * int(strategy.tp) // max(int(strategy.etp), 1)
        legal = [d for d in divisors(count) if ranks % d == 0]
        below = [d for d in legal if d <= ep][-1:] + [d for d in legal if d > ep][:1]
        return (
            f"{model.name} has {counted(count, 'expert')}, and {count} / ep {ep} = {count / ep:.4g} is "
            "not whole",
            f"try {listed(below, 'ep')}",
        )
