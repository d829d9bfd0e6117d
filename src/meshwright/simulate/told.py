"""The step of a strategy as its simulated pipeline takes it: the evaluation that every verb tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite, nan
from typing import Any

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.cost.terms import Term
from meshwright.cost.times import straggler_share
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.simulate.many import step_times
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IDLE = "idle seconds of the slowest rank in the pipeline simulated pass by pass, beyond its sends"


def told(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    *,
    step_s: float | None = None,
    **shown: Any,
) -> Evaluation:
    """The evaluation of a legal strategy of plain numbers, its step simulated where it has a pipeline.

    `step_s` is that step where it is known; `shown` as in `evaluate`. Where no step can be simulated (too
    many passes), or where there is none to (no pipeline), it is the closed form's.
    """
    closed = evaluate(model, cluster, work, strategy, profile, **shown)
    if step_s is not None and int(strategy.pp) > 1:
        return lasting(closed, step_s, float(straggler_share(cluster, profile)))
    (found,) = as_run(model, cluster, work, {strategy: closed}, profile)
    return found


def as_run(
    model: Model, cluster: Cluster, work: Work, closed: Mapping[Strategy, Evaluation], profile: Profile
) -> Iterator[Evaluation]:
    """The same of several strategies whose evaluations by closed forms are known, in order."""
    piped = [strategy for strategy in closed if int(strategy.pp) > 1]
    steps = dict(zip(piped, step_times(model, cluster, work, piped, profile).tolist()))
    straggler = float(straggler_share(cluster, profile))
    for strategy, found in closed.items():
        step_s = steps.get(strategy, nan)
        yield lasting(found, step_s, straggler) if isfinite(step_s) else found


def lasting(closed: Evaluation, step_s: float, straggler: float) -> Evaluation:
    """The evaluation with a step of `step_s`, of which stragglers add their share.

    What ranks do in a step is the same, so what changes is how long they wait: the bubble takes what is more,
    and where they wait less, sends and bubble shrink alike. No simulated step is shorter than a rank's work.
    """
    times, more = dict(closed.time_s), (step_s - float(closed.step_time_s)) / (1.0 + straggler)
    idle = max(float(times["pp"]) + float(times["bubble"]) + more, 0.0)
    sends = float(times["pp"]) * min(idle / (float(times["pp"]) + float(times["bubble"]) or 1.0), 1.0)
    others = step_s - idle - sum(float(v) for k, v in times.items() if k not in ("pp", "bubble", "other"))
    changed = {"pp": sends, "bubble": idle - sends, "other": others}
    terms = None if closed.terms is None else _lasting(closed.terms, step_s, changed)
    return replace(closed, step_time_s=step_s, time_s=times | changed, terms=terms, closed_form=closed)


def _lasting(root: Term, step_s: float, changed: dict[str, float]) -> Term:
    """The tree of `step` with its time and some of the time's parts changed."""

    def part(term: Term) -> Term:
        if term.name not in changed:
            return term
        value = changed[term.name]
        if term.name == "other":  # what is left of it goes with the length of the step
            *first, straggler = term.children
            rest = value - sum(float(child.value) for child in first)
            return replace(term, value=value, children=(*first, replace(straggler, value=rest)))
        said = IDLE if term.name == "bubble" else term.formula
        return replace(term, value=value, formula=said, inputs={**term.inputs, "closed_form_s": term.value})

    def time(term: Term) -> Term:
        if term.name != "time":
            return term
        return replace(term, value=step_s, children=tuple(part(child) for child in term.children))

    return replace(root, value=step_s, children=tuple(time(child) for child in root.children))
