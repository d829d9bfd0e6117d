"""The search: the whole space, ranked, with what was left out and what each technique buys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from meshwright import units
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search import why as sentences
from meshwright.search.bounds import Request
from meshwright.search.derive import complete
from meshwright.search.found import Scan
from meshwright.search.given import read_choices, stated
from meshwright.search.necessity import LOW_PRECISIONS, TECHNIQUES, Necessity, does_without
from meshwright.search.ranking import (
    SAME,
    TIED,
    Candidate,
    axes_used,
    differences,
    differing,
    leading,
    roomier,
)
from meshwright.search.rerank import TOP, searches
from meshwright.search.shift import TINY
from meshwright.search.space import Space, build
from meshwright.search.why import Sentence
from meshwright.simulate.told import told
from meshwright.strategy.records import Strategy
from meshwright.strategy.targets import Target
from meshwright.work import Work

__all__ = ["Found", "Necessity", "Ranked", "search"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A plan and its evaluation, its step simulated, plain numbers; `tied` are other words for the same."""

    strategy: Strategy
    evaluation: Evaluation
    tied: tuple[Strategy, ...] = ()

    @property
    def seconds(self) -> float:
        """What plans are put in order by."""
        return float(self.evaluation.step_time_s)

    @property
    def peak_bytes(self) -> float:
        """What the fullest rank holds."""
        return float(self.evaluation.peak_bytes)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, best plan first.

    `searched` strategies had time and memory computed, `feasible` of them fit. `rejected` counts strategies
    that a rule forbids, and those that do not fit; `bounded` counts strategies cut by a proof. When nothing
    fits, `nearest` is the strategy with the smallest overshoot and `needs` says what it lacks. `others` are
    plans met on the way that do without some technique: more points of what time and memory can be had.
    `reranked` plans near the best were simulated and put in order by that.
    """

    plans: tuple[Ranked, ...]
    searched: int
    feasible: int
    rejected: dict[str, int]
    bounded: dict[str, int]
    seconds: float
    necessity: tuple[Necessity, ...]
    nearest: Ranked | None
    needs: str
    why: tuple[Sentence, ...]
    space: Space
    others: tuple[Candidate, ...] = ()
    reranked: int = 0


def search(
    model: Model,
    cluster: Cluster,
    work: Work,
    fixed: Mapping[str, Any],
    profile: Profile,
    *,
    target: Target | None = None,
    top: int = 10,
    slack: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Found:
    """The `top` fastest strategies that fit, over every field that `fixed` does not pin.

    Closed forms rank them all; those that a closed form may have wronged are put in order by their simulated
    pipelines (`rerank`).
    A value of `fixed` may be a list of values or a range `A:B` to choose from, or `any`; `target` keeps what
    that framework can express. With `slack` the plan with the fewest axes that is slower by no more than that
    fraction comes first. `progress` is called with (done, total).
    Raises InputError, with every fault, when `fixed` cannot be read or leaves no legal strategy for a reason
    that can be shown on one.
    """
    began = perf_counter()
    request = Request(model, cluster, work, profile)
    space = build(model, cluster, work, fixed, profile, target)
    asked = [(request, max(top, 2))]
    if work.precision in LOW_PRECISIONS:
        asked.append((replace(request, work=replace(work, precision="bf16")), 1))
    found, *plain = searches(asked, space, slack=slack, progress=progress)
    if found.searched == 0:
        raise_faults(request, fixed)
    best = _simplest_first(found, slack) if slack is not None else found.best
    shown = leading(best, max(top, TOP), cluster.usable_bytes)[: max(top, 2)]
    plans = tuple(ranked_plan(request, c) for c in shown)
    necessity = _necessity(found, plain[0] if plain else None)
    nearest = None if plans or found.nearest is None else ranked_plan(request, found.nearest)
    needs = sentences.needs(nearest.evaluation, cluster.n_chips) if nearest else ""
    if not plans and nearest is None:
        needs = "no legal strategy is left: every candidate breaks a rule (see rejected)"
    return Found(
        plans=plans[:top],
        searched=found.searched,
        feasible=found.feasible,
        rejected=dict(found.rejected.most_common()),
        bounded=dict(found.bounded),
        seconds=perf_counter() - began,
        necessity=necessity,
        nearest=nearest,
        needs=needs,
        why=_why(request, plans, necessity, found.best),
        space=space,
        others=tuple(kept.plans[0] for kept in found.without.values() if kept.plans),
        reranked=sum(one.reranked for one in (found, *plain)),
    )


def _simplest_first(found: Scan, slack: float) -> list[Candidate]:
    """The best plans, those within `slack` of the fastest by how few axes they use."""
    if not found.best:
        return []
    bar = found.best[0].seconds * (1.0 + slack)
    near = [c for c in found.best if c.seconds <= bar]
    near.sort(key=lambda c: (int(axes_used(c.strategy)), c.seconds))
    return [*near, *(c for c in found.best if c.seconds > bar)]


def ranked_plan(request: Request, candidate: Candidate) -> Ranked:
    """The candidate with its whole evaluation."""
    r, c = request, candidate
    found = told(r.model, r.cluster, r.work, c.strategy, r.profile, step_s=c.simulated_s)
    return Ranked(c.strategy, found, c.tied)


def closed_plan(request: Request, candidate: Candidate) -> Ranked:
    """The candidate with its evaluation by closed forms, nothing simulated."""
    r, c = request, candidate
    return Ranked(c.strategy, evaluate(r.model, r.cluster, r.work, c.strategy, r.profile), c.tied)


def _same_step(request: Request, best: Ranked) -> Sentence:
    """The words that leave the step of the best plan as it is, and what its fullest rank holds under each."""
    closed = best.evaluation.closed_form or best.evaluation
    values: dict[str, Any] = {"step.time": best.seconds, "step.memory": float(closed.peak_bytes)}
    told = []
    changed = [set(differing(best.strategy, other)) for other in best.tied]
    for other, mine in zip(best.tied, changed):
        if any(names < mine for names in changed):
            continue  # those words are told one by one
        words = differences(best.strategy, other)
        peak = float(closed_plan(request, Candidate(other, best.seconds, 0.0)).evaluation.peak_bytes)
        more = peak - float(closed.peak_bytes)
        held = "as much memory" if more <= TINY * peak else f"{units.bytes_text(more)} more"
        told.append(f"{words} ({held})")
        values[f"step.memory.{words}"] = peak
    said = f"The step takes as long with {' or '.join(told)}; the simpler word is shown."
    return Sentence(said, ("step.time", "step.memory"), values)


def raise_faults(request: Request, fixed: Mapping[str, Any]) -> None:
    """Show on one strategy why what is fixed leaves nothing: raises the faults of the first choice."""
    complete(request.model, request.cluster, request.work, stated(read_choices(fixed)), request.profile)


def _necessity(found: Scan, plain: Scan | None) -> tuple[Necessity, ...]:
    """The best plan without each technique against the best plan; empty when nothing fits. `plain` is the
    same search with matrix products in bf16, where the precision asked for is lower."""
    if not found.best:
        return ()
    best = found.best[0]
    needs = []
    for technique in TECHNIQUES:
        if technique == "low-precision" and plain is not None:
            other = plain.best[0] if plain.best else None
        elif bool(does_without(technique, best.strategy)):
            other = best
        else:
            other = next(iter(found.without[technique].plans), None)
        if other is None:
            needs.append(Necessity(technique, None, None, None))
        else:
            loss = 0.0 if other is best else 100.0 * (other.seconds / best.seconds - 1.0)
            needs.append(Necessity(technique, other.seconds, loss, other.simulated_s))
    return tuple(needs)


def _why(
    request: Request,
    plans: tuple[Ranked, ...],
    necessity: tuple[Necessity, ...],
    best: list[Candidate],
) -> tuple[Sentence, ...]:
    """`best` are all that were kept, in order."""
    if not plans:
        return ()
    said = [sentences.binds(plans[0].evaluation)]
    fastest = min(plans, key=lambda p: p.seconds)
    if fastest is not plans[0]:
        taken, least = plans[0], fastest
        said.append(sentences.simpler(taken.strategy, taken.evaluation, least.strategy, least.evaluation))
    elif len(plans) > 1:
        first, second = plans[0], plans[1]
        said.append(sentences.runner_up(first.strategy, first.evaluation, second.strategy, second.evaluation))
    near = [p for p in plans if p.seconds <= fastest.seconds * (1.0 + TIED)]
    simplest = min(near, key=lambda p: (int(axes_used(p.strategy)), p.seconds))
    if axes_used(simplest.strategy) < axes_used(plans[0].strategy):
        first, other = plans[0], simplest
        said.append(sentences.as_good(first.strategy, first.evaluation, other.strategy, other.evaluation))
    passed = min(best, key=lambda c: c.step_time_s)
    if passed.step_time_s < best[0].step_time_s * (1.0 - SAME):
        said.append(sentences.reordered(best[0], passed))
    if plans[0].tied:
        said.append(_same_step(request, plans[0]))
    roomy = roomier(plans, request.cluster.usable_bytes)
    if roomy is not None:
        other = plans[roomy]
        pair = (plans[0].strategy, plans[0].evaluation, other.strategy, other.evaluation)
        said.append(sentences.roomier(*pair, roomy + 1))
    said.append(sentences.memory(plans[0].evaluation))
    return (*said, *sentences.necessities(necessity))
