"""Plans of many points with their evaluations, those with the same words evaluated together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.cost.times import straggler_share
from meshwright.hardware.records import as_one
from meshwright.search.bounds import Request
from meshwright.search.plan import Ranked, closed_plan, ranked_plan
from meshwright.search.ranking import Candidate
from meshwright.simulate.many import alike, stacked
from meshwright.simulate.told import lasting
from meshwright.strategy.records import Strategy

Shown = tuple[Request, Candidate]


def shown(plans: Sequence[Shown], *, simulated: bool) -> list[Ranked]:
    """Each plan with its evaluation, as `plan` tells it or (not `simulated`) by closed forms. Requests differ
    in figures of the cluster alone."""
    found: dict[int, Ranked] = {}
    for places in alike(_words(candidate.strategy) for _, candidate in plans):
        some = [plans[i] for i in places]
        for i, (request, candidate), closed in zip(places.tolist(), some, _evaluated(some)):
            evaluation = closed
            if simulated and int(candidate.strategy.pp) > 1:
                if candidate.simulated_s is None:
                    found[i] = ranked_plan(request, candidate)
                    continue
                straggler = float(straggler_share(request.cluster, request.profile))
                evaluation = lasting(closed, candidate.simulated_s, straggler)
            found[i] = Ranked(candidate.strategy, evaluation, candidate.tied)
    return [found[i] for i in range(len(plans))]


def _words(strategy: Strategy) -> tuple[Any, ...]:
    """All of a strategy that is no number."""
    values = (getattr(strategy, f.name) for f in fields(strategy))
    words = tuple(v for v in values if isinstance(v, str | bool | tuple) or v is None)
    listed = strategy.layers_per_stage is not None
    return (*words, strategy.zero, *((strategy.pp, strategy.vpp) if listed else ()))


def _evaluated(some: Sequence[Shown]) -> Iterable[Evaluation]:
    """The evaluations by closed forms of plans with the same words."""
    cluster = as_one([request.cluster for request, _ in some])
    if cluster is None or len(some) == 1:
        return [closed_plan(*one).evaluation for one in some]
    r = some[0][0]
    strategy = stacked([candidate.strategy for _, candidate in some])
    found = evaluate(r.model, cluster, r.work, strategy, r.profile)
    return [_at(found, i) for i in range(len(some))]


def _at(found: Evaluation, i: int) -> Evaluation:
    """The evaluation of the candidate at index `i`, as plain numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return value[i].item() if isinstance(value, np.ndarray) else value

    numbers: dict[str, Any] = {f.name: plain(getattr(found, f.name)) for f in fields(found)}
    return replace(found, **numbers)
