"""Plain sentences about the best plan, each with the numbers that it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.cost.evaluation import Evaluation
from meshwright.search.necessity import Necessity
from meshwright.search.ranking import Candidate, axes_used, spelled
from meshwright.strategy.records import Strategy
from meshwright.units import GIB, counted

TRAFFIC = {
    "tp": "tensor-parallel traffic",
    "cp": "context-parallel traffic",
    "ep": "expert traffic",
    "dp": "data-parallel traffic",
    "pp": "traffic between pipeline stages",
}
PARTS = {
    "compute": "computing",
    **{name: f"waiting for {said}" for name, said in TRAFFIC.items()},
    "bubble": "idle in the pipeline bubble",
    "optimizer": "in the optimizer",
    "other": "in host time and stragglers",
}
FIELDS = (
    "dp", "tp", "sp", "pp", "vpp", "cp", "cp_method", "ep", "etp", "zero", "zero_group", "schedule",
    "microbatch_size", "recompute", "layers_per_stage", "optimizer", "offload", "dispatcher", "moe_balance",
    "placement",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sentence:
    """A statement with the terms of the tree (dotted paths) and the values that it rests on."""

    text: str
    terms: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """`{text, terms, values}`."""
        return {"text": self.text, "terms": list(self.terms), "values": self.values}


def binds(evaluation: Evaluation) -> Sentence:
    """Where the step's seconds go, the largest parts first."""
    step = float(evaluation.step_time_s)
    parts = sorted(((k, float(v)) for k, v in evaluation.time_s.items()), key=lambda p: -p[1])
    shown = [(k, v) for k, v in parts if v >= 0.005 * step][:4]
    listed = ", ".join(f"{v:.3g} s ({v / step:.0%}) {PARTS.get(k, k)}" for k, v in shown)
    floor = float(evaluation.floor_time_s)
    said = (
        f"{capital(PARTS.get(shown[0][0], shown[0][0]))} binds: of {step:.4g} s a step, {listed}; "
        f"the arithmetic of the busiest rank alone, recompute included, would take {floor:.3g} s at the "
        "chip's peak."
    )
    values = {"step.time": step, **{f"step.time.{k}": v for k, v in shown}, "floor_time_s": floor}
    return Sentence(said, tuple(f"step.time.{k}" for k, _ in shown), values)


def memory(evaluation: Evaluation) -> Sentence:
    """Where the fullest rank's memory goes."""
    peak, capacity = float(evaluation.peak_bytes), float(evaluation.capacity_bytes)
    parts = sorted(((k, float(v)) for k, v in evaluation.memory_bytes.items()), key=lambda p: -p[1])
    shown = [(k, v) for k, v in parts if v > 0.01 * peak]
    listed = ", ".join(f"{k} {v / GIB:.1f}" for k, v in shown)
    said = (
        f"The fullest rank (pipeline stage {int(evaluation.peak_stage)}) holds {peak / GIB:.1f} of "
        f"{capacity / GIB:.1f} GiB ({peak / capacity:.0%}): {listed}."
    )
    values = {"step.memory": peak, "capacity_bytes": capacity, **{f"step.memory.{k}": v for k, v in shown}}
    return Sentence(said, tuple(f"step.memory.{k}" for k, _ in shown), values)


def differs(a: Strategy, b: Strategy) -> list[str]:
    """Fields in which `b` differs from `a`, spelled as `b` has them."""
    return [spelled(b, f) for f in FIELDS if getattr(a, f) != getattr(b, f)]


def runner_up(
    best: Strategy, first: Evaluation, other: Strategy, second: Evaluation, called: str = "runner-up"
) -> Sentence:
    """Why another plan (`called` so) takes longer or less: what it pays more, and what it gains."""
    gap = float(second.step_time_s) - float(first.step_time_s)
    change = sorted(
        ((k, float(second.time_s[k]) - float(first.time_s[k])) for k in first.time_s), key=lambda p: -p[1]
    )
    tiny = 0.0005 * float(first.step_time_s)
    costs = [(k, v) for k, v in change if v > tiny][:2]
    gains = [(k, v) for k, v in reversed(change) if v < -tiny][:2]
    sides = (", ".join(f"{v:+.3g} s {PARTS.get(k, k)}" for k, v in some) for some in (costs, gains))
    told = "; ".join(part for part in sides if part) or "no part moves visibly"
    more = f"{abs(gap) / float(first.step_time_s):.2%} {'less' if gap < 0 else 'more'}"
    said = (
        f"The {called} ({', '.join(differs(best, other)) or 'the same layout'}) takes "
        f"{float(second.step_time_s):.4g} s, {more}: {told}."
    )
    values = {"step.time": float(first.step_time_s), "step.time.other": float(second.step_time_s)}
    for name, _ in (*costs, *gains):
        values[f"step.time.{name}"] = float(first.time_s[name])
        values[f"step.time.{name}.other"] = float(second.time_s[name])
    return Sentence(said, tuple(f"step.time.{k}" for k, _ in (*costs, *gains)) or ("step.time",), values)


def reordered(best: Candidate, passed: Candidate) -> Sentence:
    """Which plan the closed form would put first, and what its simulated pipeline takes."""
    said = (
        f"By closed forms alone {', '.join(differs(best.strategy, passed.strategy))} would come first, at "
        f"{passed.step_time_s:.5g} s against {best.step_time_s:.5g} s; with the pipeline simulated pass by "
        f"pass it takes {passed.seconds:.5g} s, this one {best.seconds:.5g} s."
    )
    values = {
        "step.time": best.seconds, "step.time.other": passed.seconds,
        "closed_form_s": best.step_time_s, "closed_form_s.other": passed.step_time_s,
    }  # fmt: skip
    return Sentence(said, ("step.time",), values)


def simpler(best: Strategy, taken: Evaluation, fastest: Strategy, least: Evaluation) -> Sentence:
    """What a simpler plan gives away."""
    mine, quickest = float(taken.step_time_s), float(least.step_time_s)
    said = (
        f"The fastest plan ({', '.join(differs(best, fastest))}) takes {quickest:.4g} s; this one uses "
        f"{counted(axes_used(best), 'axis')} where that uses {int(axes_used(fastest))}, and loses "
        f"{mine / quickest - 1.0:.2%}."
    )
    return Sentence(said, ("step.time",), {"step.time": mine, "step.time.other": quickest})


def as_good(best: Strategy, first: Evaluation, plain: Strategy, second: Evaluation) -> Sentence:
    """The simplest plan that is tied with the best."""
    least, mine = float(first.step_time_s), float(second.step_time_s)
    said = (
        f"The simplest plan that is tied with it ({', '.join(differs(best, plain))}) does with "
        f"{int(axes_used(plain))} of the {counted(axes_used(best), 'axis')} beside dp, and takes "
        f"{mine / least - 1.0:.2%} more, which the model cannot tell from nothing."
    )
    return Sentence(said, ("step.time",), {"step.time": least, "step.time.other": mine})


def roomier(best: Strategy, first: Evaluation, other: Strategy, second: Evaluation, rank: int) -> Sentence:
    """The plan that is tied with a tight one, as simple, and leaves more room; `rank` is its place."""
    mine, more = float(first.step_time_s), float(second.step_time_s) - float(first.step_time_s)
    held, less = (float(e.peak_bytes / e.capacity_bytes) for e in (first, second))
    said = (
        f"It fills {held:.0%} of the memory; plan {rank} ({', '.join(differs(best, other))}) fills "
        f"{less:.0%}, is as simple, and takes {more / mine:.2%} more, which the model cannot tell from "
        f"nothing: --rank {rank} writes it."
    )
    values = {"step.time": mine, "step.time.other": float(second.step_time_s)}
    values |= {"step.memory": float(first.peak_bytes), "step.memory.other": float(second.peak_bytes)}
    return Sentence(said, ("step.time", "step.memory"), values)


def necessities(necessity: Sequence[Necessity]) -> list[Sentence]:
    """What the techniques in use buy."""
    needed = [n.without for n in necessity if n.loss_percent is None]
    bought = sorted((n for n in necessity if n.loss_percent), key=lambda n: -(n.loss_percent or 0.0))
    said = []
    if needed:
        said.append(Sentence(f"Nothing fits without {', '.join(needed)}."))
    if bought:
        listed = ", ".join(f"{n.without} by {n.loss_percent:.1f} % ({n.step_time_s:.4g} s)" for n in bought)
        seconds = {f"step.time.without_{n.without}": n.step_time_s for n in bought}
        said.append(Sentence(f"Doing without makes a step longer: {listed}.", ("step.time",), seconds))
    return said


def needs(evaluation: Evaluation, chips: int) -> str:
    """What the nearest miss lacks."""
    peak, capacity = float(evaluation.peak_bytes), float(evaluation.capacity_bytes)
    parts = sorted(((k, float(v)) for k, v in evaluation.memory_bytes.items()), key=lambda p: -p[1])
    listed = " + ".join(f"{k} {v / GIB:.2f}" for k, v in parts if v > 0.005 * GIB)
    return (
        f"the nearest plan needs {listed} = {peak / GIB:.2f} GiB a chip on {counted(chips, 'chip')}, but "
        "one process "
        f"can allocate {capacity / GIB:.2f} GiB: {(peak - capacity) / GIB:.2f} GiB too much"
    )


def capital(text: str) -> str:
    """With a capital letter."""
    return f"{text[0].upper()}{text[1:]}"
