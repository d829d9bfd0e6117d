"""The fastest plans put in order by their simulated pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from meshwright.search.bounds import Request
from meshwright.search.found import Scan
from meshwright.search.necessity import TECHNIQUES, does_without
from meshwright.search.ranking import Candidate, Shortlist, leading, ranked
from meshwright.search.scan import scans
from meshwright.search.space import Space
from meshwright.simulate.many import passes, step_times
from meshwright.strategy.records import Strategy

# Share by which a closed form exceeds the simulated step at most in nearly every plan: of 1,468 random ones
# of five models within 15 % of the best of theirs, under every schedule, none had more. Two microbatches over
# two uneven stages can exceed it by 22 % (tests/test_search_brute.py has one); a plan behind the band is
# found only where it is the best without some technique (docs/decisions.md).
BAND = 0.05
TOP = 10  # plans that are kept whatever is asked
MOST_PASSES = 300_000  # of the pipelines of one list of plans: a second or two
BEST = ""  # the list of plans that may use every technique
Steps = dict[Strategy, float | None]  # simulated seconds; None where no simulation was possible


def searches(
    asked: Sequence[tuple[Request, int]],
    space: Space,
    *,
    slack: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> list[Scan]:
    """Several (request, top) searched as `scans` does, plans near the best in order of their simulated steps.

    Whatever is asked, as many plans are looked at, so that the first is the same for every `top`.
    """
    wanted = [(request, max(top, TOP), TECHNIQUES) for request, top in asked]
    found = scans(wanted, space, slack=slack, band=BAND, apart=True, progress=progress)
    for (request, _), one in zip(asked, found):
        rerank(request, space, one)
    return found


def rerank(request: Request, space: Space, found: Scan) -> None:
    """Put what `found` keeps in order by simulated steps.

    A plan without a pipeline is what its closed form says. Simulated are the plans near the best and, for
    each technique that the fastest of them uses, those near the best without it, as a search that has it
    pinned off would. Where the best of such a list takes longer, simulated, than the closed forms of all that
    were kept, what has a shorter closed form is looked for and simulated too.
    """
    near = {BEST: found.shortlist.near(TOP)} | {name: some.near(1) for name, some in found.without.items()}
    steps: Steps = {}
    wider = dict.fromkeys(near, BAND)
    while wider:
        _ordered(request, found, near, steps)
        wider = _short(found, near)
        for name, band in wider.items():
            (more,) = scans([(request, 1, ())], space.without(name), band=band, apart=True)
            near[name] = more.shortlist
    found.reranked = sum(int(plan.pp) > 1 for plan, step in steps.items() if step is not None)


def _ordered(request: Request, found: Scan, near: Mapping[str, Shortlist], steps: Steps) -> None:
    """Simulate what is `near`: of each list the fastest first, until its pipelines have more passes than
    MOST_PASSES; then those that are told (the `top`, and the first without each technique) until all of these
    are. Into `steps` goes what is simulated, and all that is kept is put in order by it."""
    lists = [found.shortlist, *found.without.values()]
    kept = [plan for some in (*lists, *near.values()) for plan in some.plans] + list(found.of_kind.values())
    distinct = {plan.strategy: plan for plan in sorted(kept, key=lambda plan: plan.step_time_s)}
    # What is kept for one reason may come first for another, before what its closed form puts first.
    whole = [list(distinct.values())]
    whole += [[p for p in whole[0] if does_without(technique, p.strategy)] for technique in found.without]
    wanted = _affordable(request, near[BEST].plans)
    while True:
        steps |= _simulated(request, [plan for plan in wanted if plan.strategy not in steps])
        for some, plans in zip(lists, whole):
            some.plans = ranked(_timed(plans, steps), len(plans))
        found.of_kind = dict(zip(found.of_kind, _timed(found.of_kind.values(), steps)))
        told = [
            *leading(found.best, found.shortlist.top, request.cluster.usable_bytes),
            *(one for some in lists for one in some.plans[:1]),
            *(plan for name in _used(found) for plan in _affordable(request, near[name].plans)),
        ]
        wanted = list({plan.strategy: plan for plan in told}.values())
        if all(plan.strategy in steps for plan in wanted):
            break


def _used(found: Scan) -> list[str]:
    """The techniques that the best plan uses."""
    if not found.best:
        return []
    return [name for name in found.without if not does_without(name, found.best[0].strategy)]


def _short(found: Scan, near: Mapping[str, Shortlist]) -> dict[str, float]:
    """The lists whose best simulated step is longer than all closed forms that it has, with the band that
    reaches it; those that are full already have none."""
    firsts = {BEST: found.shortlist} | {name: found.without[name] for name in _used(found)}
    needed = {
        name: some.plans[0].seconds / near[name].plans[0].step_time_s - 1.0
        for name, some in firsts.items() if near[name].plans
    }  # fmt: skip
    return {name: band for name, band in needed.items()
            if band > near[name].band and len(near[name].plans) < near[name].most}  # fmt: skip


def _timed(plans: Iterable[Candidate], steps: Steps) -> list[Candidate]:
    return [replace(plan, simulated_s=steps.get(plan.strategy)) for plan in plans]


def _affordable(request: Request, plans: Iterable[Candidate]) -> list[Candidate]:
    """The first of the plans, until they have too many passes; those that share a pipeline have them once."""
    left, graphs = MOST_PASSES, set()
    found: list[Candidate] = []
    for plan in plans:
        if int(plan.strategy.pp) > 1:
            graph, count = passes(request.work, plan.strategy)
            if graph not in graphs:
                left -= count
                graphs.add(graph)
            if left < 0:
                break
        found.append(plan)
    return found


def _simulated(request: Request, plans: list[Candidate]) -> Steps:
    """Simulated seconds of each; a plan without a pipeline has its closed form's."""
    r, piped = request, [plan.strategy for plan in plans if int(plan.strategy.pp) > 1]
    known: Steps = {plan.strategy: plan.step_time_s for plan in plans}
    times = step_times(r.model, r.cluster, r.work, piped, r.profile).tolist()
    return known | {s: t if isfinite(t) else None for s, t in zip(piped, times)}
