"""What the chips can do: precision and memory."""

from __future__ import annotations

from meshwright.checks.rule import Mask, Rule, mask
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.numbers import numbers
from meshwright.errors import Diagnostic
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.units import GIB, flops_text
from meshwright.work import PRECISIONS, Work

# What lowers each memory category, in the order to try.
REMEDIES = {
    "params": "zero 3, or more tp or pp",
    "grads": "zero 2 or 3, or more tp or pp",
    "optimizer": "zero 1 or more, or a larger zero_group",
    "activations": "a smaller microbatch_size, recompute full, more tp with sp, or more cp",
    "logits": "a smaller microbatch_size, or more tp or cp",
    "communication": "a smaller zero_group, or more tp or pp",
}


class Precision(Rule):
    """The chip has units for the precision of the matrix products."""

    code, reason, where = "MW170", "precision that the chip lacks", "precision"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask(work.precision not in cluster.chip.precisions)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        chip, has = cluster.chip, cluster.chip.precisions
        wider = [word for word in PRECISIONS[: PRECISIONS.index(work.precision)] if word in has]
        return (
            f"{chip.name} has no {work.precision} units on its data sheet (it has {', '.join(has)})",
            f"use --precision {wider[-1] if wider else has[0]}",
        )


class PrecisionWithoutGain(Rule):
    """Fewer bits are asked for to multiply faster."""

    code, reason, where, severity = "MW440", "low precision that is no faster", "precision", "warning"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        low = work.precision not in ("fp16", "bf16")
        return mask(low and cluster.chip.peak_flops(work.precision) <= cluster.chip.bf16_flops)

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        chip, word = cluster.chip, work.precision
        rates = (flops_text(chip.peak_flops(word)), flops_text(chip.bf16_flops))
        return (
            f"{chip.name} multiplies {word} at {rates[0]} dense and bf16 at {rates[1]}: {word} gains nothing "
            "and adds the passes that quantise",
            "use --precision bf16",
        )


def narrow_bytes(capacity: float) -> float:
    """Bytes above which a plan that fits does so narrowly: near the limit published runs of one layout both
    fit and fail."""
    return numbers()["tight_share"] * capacity


def room_bytes(cluster: Cluster) -> float:
    """Bytes that a process can allocate: the chip's own where someone plans with less, to leave room."""
    return max(cluster.usable_bytes, cluster.chip.usable_bytes)


def roomy_bytes(capacity: float) -> float:
    """Bytes up to which a plan leaves room for what an estimate of memory may miss."""
    return numbers()["roomy_share"] * capacity


def memory_findings(
    cluster: Cluster, evaluation: Evaluation, reach_bytes: float | None = None
) -> list[Diagnostic]:
    """MW301 where the peak is above what a process can allocate, MW302 where it is close, MW303 where peaks
    measured of such runs reach above it (up to `reach_bytes`); plain numbers."""
    peak, capacity = float(evaluation.peak_bytes), float(evaluation.capacity_bytes)
    parts = sorted(
        ((name, float(v)) for name, v in evaluation.memory_bytes.items() if float(v) > 0.005 * GIB),
        key=lambda item: -item[1],
    )
    total = " + ".join(f"{name} {v / GIB:.2f}" for name, v in parts)
    where = f"rank of pipeline stage {int(evaluation.peak_stage)}"
    if peak > capacity:
        over = (peak - capacity) / GIB
        hints = [f"{REMEDIES[name]} (against {name})" for name, _ in parts if name in REMEDIES][:2]
        return [
            Diagnostic(
                "MW301",
                f"needs {total} = {peak / GIB:.2f} GiB on the {where}, but one process can allocate "
                f"{capacity / GIB:.2f} GiB: {over:.2f} GiB too much",
                where="memory",
                hint=f"try {'; '.join(hints)}" if hints else "use more chips",
            )
        ]
    room = room_bytes(cluster)
    needs = f"needs {peak / GIB:.2f} of {room / GIB:.2f} GiB ({peak / room:.1%}) on the {where}"
    reaches = "" if reach_bytes is None else f"; such runs were measured up to {reach_bytes / GIB:.2f} GiB"
    hint = (
        "to leave room, plan the same model and cluster with --set "
        f"cluster.usable_gib={narrow_bytes(room) / GIB:.0f} and a free layout (a plan file fixes its own)"
    )
    if peak > narrow_bytes(room):
        said = f"{needs}: a run this close to the limit may run out of it as its allocator breaks memory up"
        return [Diagnostic("MW302", said + reaches, "warning", "memory", hint)]
    if reach_bytes is not None and reach_bytes > room:
        return [Diagnostic("MW303", f"{needs} and may not fit{reaches}", "warning", "memory", hint)]
    return []
