"""The fastest plans put in order by their simulated pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite

from meshwright.search.bounds import Request
from meshwright.search.ranking import Candidate, ranked
from meshwright.search.scan import Scan
from meshwright.simulate.many import passes, step_times
from meshwright.strategy.records import Strategy

# Share by which a closed form exceeds the simulated step at most in nearly every plan: of 1,468 random ones
# of five models within 15 % of the best of theirs, under every schedule, none had more. Two microbatches over
# two uneven stages can exceed it by 22 % (tests/test_search_brute.py has one); a plan behind the band is
# found only where it is the best without some technique (docs/decisions.md).
BAND = 0.05
MOST_PASSES = 300_000  # of all pipelines of a search together: a second or two


def rerank(request: Request, found: Scan) -> int:
    """Put what `found` keeps in order by simulated steps; how many plans were simulated.

    A plan without a pipeline is what its closed form says. Others are simulated, the fastest first, until
    together they have more passes than MOST_PASSES; what is left keeps its closed form.
    """
    lists = [found.shortlist, *found.without.values()]
    kept = [plan for some in lists for plan in some.plans] + list(found.of_kind.values())
    distinct = {plan.strategy: plan for plan in sorted(kept, key=lambda plan: plan.step_time_s)}
    seconds = _seconds(request, distinct.values())

    def timed(plan: Candidate) -> Candidate:
        return replace(plan, simulated_s=seconds.get(plan.strategy))

    for some in lists:
        some.plans = [timed(plan) for plan in some.plans]
    found.of_kind = {axes: timed(plan) for axes, plan in found.of_kind.items()}
    # What is kept for want of a technique may come before plans that were nearer by their closed forms.
    found.shortlist.plans = ranked((timed(plan) for plan in distinct.values()), len(distinct))
    for some in found.without.values():
        some.plans = ranked(some.plans, len(some.plans))
    return sum(int(plan.pp) > 1 for plan in seconds)


def _seconds(request: Request, plans: Iterable[Candidate]) -> dict[Strategy, float]:
    """Seconds of a step of each strategy that is simulated or has no pipeline."""
    r, left = request, MOST_PASSES
    known = {plan.strategy: plan.step_time_s for plan in plans if plan.strategy.pp == 1}
    asked: list[Strategy] = []
    graphs = set()
    for plan in plans:
        if plan.strategy.pp == 1:
            continue
        graph, count = passes(r.work, plan.strategy)
        if graph not in graphs:
            left -= count
            if left < 0:
                break
            graphs.add(graph)
        asked.append(plan.strategy)
    times = step_times(r.model, r.cluster, r.work, asked, r.profile).tolist()
    return known | {s: float(t) for s, t in zip(asked, times) if isfinite(t)}
