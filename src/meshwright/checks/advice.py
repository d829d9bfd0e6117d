"""What works but costs: warnings about a plan that can run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.checks.rule import Mask, Rule, mask
from meshwright.checks.shapes import blocks, moe
from meshwright.cost.step import evaluate
from meshwright.errors import Diagnostic, InputError
from meshwright.hardware.records import Cluster
from meshwright.model.records import Attention, LatentAttention, Mlp, Model
from meshwright.profiles.records import Profile
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy
from meshwright.units import GIB, counted
from meshwright.work import Work


class UselessSequenceParallel(Rule):
    """Sequence parallelism splits over the tensor-parallel group."""

    code, reason, where, severity = "MW412", "sp without tp", "sp, tp", "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask((np.asarray(strategy.tp) == 1) & strategy.sp)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        return (
            f"sp is on, but tp is {strategy.tp}: there is no tensor-parallel group to split over",
            "use --no-sp, or tp 2 and more",
        )


class WholeUnderPipeline(Rule):
    """ZeRO-2 and 3 under a pipeline keep what they should shard: several microbatches are under way."""

    code, reason, where, severity = "MW420", "ZeRO-2 or 3 under a pipeline", "zero, pp", "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask((np.asarray(strategy.pp) > 1) & (strategy.zero >= 2))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        what = "weights and gradients" if strategy.zero == 3 else "gradients"
        return (
            f"zero {strategy.zero} with pp {strategy.pp} keeps a stage's {what} whole from microbatch to "
            "microbatch, as wide as they are sent: where zero 1 keeps them no wider, it saves no more than "
            "zero 1",
            "zero 1 is simpler where it fits; it holds more where a program keeps fp32 but sends 16 bits",
        )


def tried(
    found: Diagnostic, model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
) -> Diagnostic:
    """A finding of `WholeUnderPipeline` with what ZeRO-1 needs in place of the advice to look."""
    try:
        whole, own = (
            float(evaluate(model, cluster, work, replace(strategy, zero=zero), profile).peak_bytes)
            for zero in (1, strategy.zero)
        )
    except InputError:
        return found
    room, zero = cluster.usable_bytes, strategy.zero
    said = f"zero 1 needs {whole / GIB:.2f} of {room / GIB:.2f} GiB and zero {zero} {own / GIB:.2f}"
    if whole <= room:
        hint = f"try zero 1: it is simpler and fits ({said})"
    elif own <= room:
        hint = f"keep zero {zero}, which fits: {said}"
    else:
        hint = f"no ZeRO stage alone makes it fit: {said}"
    # What the rule says of plans in general gives way to these two figures.
    return replace(found, message=found.message.partition(": where zero 1")[0], hint=hint)


class TensorAcrossDomain(Rule):
    """Tensor parallelism sends activations in every layer; beyond the fast domain that is slow."""

    code, reason, where, severity = "MW421", "tp beyond the fast domain", "tp", "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask(np.asarray(strategy.tp) > cluster.scale_up_size)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        size = cluster.scale_up_size
        fast = f"{cluster.scale_up_bytes_s / 1e9:.4g} GB/s a chip"
        slow = cluster.scale_out_bytes_s
        beyond = f" at {slow / 1e9:.4g} GB/s" if slow else ""
        return (
            f"tp {strategy.tp} is above the {counted(size, 'chip')} of the fast domain ({fast}): "
            f"every layer's tensor-parallel traffic crosses the network{beyond}",
            f"tp {size} or less stays inside",
        )


class NothingToRecompute(Rule):
    """A recompute module that no block has."""

    code, reason, where, severity = "MW430", "recompute of absent modules", "recompute", "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask(bool(self._absent(model, strategy)))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        absent = self._absent(model, strategy)
        return (
            f"recompute {strategy.recompute} names {', '.join(absent)}, which {model.name} does not have",
            "leave them out; they change nothing",
        )

    @staticmethod
    def _absent(model: Model, strategy: Strategy) -> list[str]:
        if not strategy.recompute.startswith("selective:"):
            return []
        return sorted(parse(strategy.recompute).modules - present_modules(model))


def present_modules(model: Model) -> frozenset[str]:
    """The recompute modules that some block of `model` has."""
    found = {"norm"}
    for block in blocks(model):
        mixer = block.mixer
        if isinstance(mixer, Attention | LatentAttention):
            found |= {"core_attn", "qkv"}
            if isinstance(mixer, LatentAttention):
                found.add("mla_up")
        elif mixer is not None:
            found.add("ssm")
        if isinstance(block.ffn, Mlp):
            found.add("mlp")
    for part in moe(model):
        found |= {"moe", "moe_act"} | ({"shared_expert"} if part.shared_d_ff else set())
    return frozenset(found)
