"""A plan over several searches: numbers of chips, global batches, memory budgets; and which of them wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from meshwright import estimating, units
from meshwright.cost.flops import model_flops
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.files import given as givens
from meshwright.files.given import ClusterGiven
from meshwright.files.request import Request
from meshwright.hardware import cluster as clusters
from meshwright.report.records import Choice, Estimate, Plan, Point
from meshwright.search.ranking import TIED, axes_used
from meshwright.strategy.records import Strategy
from meshwright.strategy.targets import Target, load

OBJECTIVES = ("time", "cost", "energy", "simplicity")
SLACK = TIED  # how much slower a simpler plan may be: what the model cannot tell apart anyway
BUDGETS = 12  # points of a front at most
STEP = 0.03  # of the capacity between two points of a front
TOO_FEW = "the deadline is missed even at the chips' peak"

Progress = Callable[..., None] | None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a plan is chosen by. `days` None: no deadline; `most_chips` None: the cluster as it is."""

    objective: str = "time"
    slack: float = SLACK
    days: float | None = None
    most_chips: int | None = None
    pareto: bool = False
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """How much of each search is told."""

    top: int
    nearest: int
    price_per_chip_hour: float | None
    progress: Progress


def wish(
    request: Request,
    *,
    objective: str | None,
    slack: float | str | None,
    deadline: str | float | None,
    chips_up_to: float | str | None,
    pareto: bool,
    target: str | None,
) -> Wish:
    """The wish that words spell; InputError with every fault. A deadline may be `60d`, `8h` or days."""
    faults: list[Diagnostic] = []

    def read(flag: str, parse: Callable[[], Any], hint: str, *, positive: bool = False) -> Any:
        try:
            value = parse()
        except (units.UnitError, ValueError) as error:
            faults.append(Diagnostic("MW903", f"{flag}: {error}", where=flag, hint=hint))
            return None
        if not 0 <= value < inf or (positive and value == 0):
            said = f"{flag} is {value:g}; it must be {'more than 0' if positive else '0 or more'}, and finite"
            faults.append(Diagnostic("MW903", said, where=flag, hint=hint))
        return value

    word = (objective or "time").strip().lower()
    if word not in OBJECTIVES:
        hint = did_you_mean(word, OBJECTIVES) or f"one of {', '.join(OBJECTIVES)}"
        faults.append(Diagnostic("MW903", f"no objective {objective!r}", where="--objective", hint=hint))
    share = SLACK
    if slack is not None:
        share = read("--slack", lambda: units.parse_percent(slack), "write --slack 3%") or 0.0
    days = None
    if deadline is not None:
        hint = "write --deadline 60d (days) or 36h; a number alone counts days"
        days = read("--deadline", lambda: _days(deadline), hint, positive=True)
        if request.work.total_tokens is None:
            said = "--deadline is for a whole run, and nothing says how long that is"
            faults.append(Diagnostic("MW903", said, where="--deadline", hint="add --total-tokens 15T"))
    most = None
    if chips_up_to is not None:
        hint = "write --chips-up-to 4096"
        most = read("--chips-up-to", lambda: units.parse_length(chips_up_to), hint)
        if most is not None and 0 <= most < inf and not 1 <= most <= clusters.MOST_CHIPS:
            said = f"--chips-up-to is {most:g}, outside 1 to {clusters.MOST_CHIPS} chips"
            faults.append(Diagnostic("MW903", said, where="--chips-up-to", hint=hint))
    elif days is not None:
        most = request.cluster.cluster.n_chips
    found = None
    if target is not None:
        try:
            found = load(target)
        except InputError as error:
            faults.extend(error.diagnostics)
    if faults:
        raise InputError(*faults)
    return Wish(word, share, days, most, pareto, found)


def _days(text: str | float) -> float:
    if isinstance(text, str) and not text.strip().replace(".", "", 1).isdigit():
        return units.parse_time(text, "60d or 36h") / units.SECONDS_PER_DAY
    return float(text)


def plan(request: Request, wish: Wish, ask: Ask) -> Plan:
    """The best plan over every number of chips and every batch that `request` and `wish` allow."""
    asked, cut = _requests(request, wish)
    results = [_search(one, wish, ask) for one in asked]
    choices = tuple(_choice(found, wish) for found in results)
    best = _winner(results, choices, wish)
    if best is None:  # the deadline is missed by all: the fastest is the nearest miss
        best = _missed(results, choices, request, wish)
    points = [p for found in results for p in found.pareto]
    if wish.pareto and best.plans:
        winner = next(one for one, found in zip(asked, results) if found.cluster is best.cluster
                      and found.work is best.work)  # fmt: skip
        points += _budgets(winner, best, wish, ask)
    return replace(
        best,
        ways_out=_ways_out(request, best, wish, ask),
        searched=sum(r.searched for r in results),
        feasible=sum(r.feasible for r in results),
        search_seconds=sum(r.search_seconds for r in results),
        rejected=dict(sum((Counter(r.rejected) for r in results), Counter[str]())),
        bounded=dict(sum((Counter(r.bounded) for r in results), cut)),
        reranked=sum(r.reranked for r in results),
        choices=choices if len(choices) > 1 else (),
        pareto=front(points),
        asked_pareto=wish.pareto,
        objective=wish.objective,
        target=wish.target.name if wish.target else None,
    )


def _requests(request: Request, wish: Wish) -> tuple[list[Request], Counter[str]]:
    """One request for each number of chips and batch; those that cannot meet the deadline are counted."""
    machines = [request.cluster]
    if wish.most_chips is not None:
        machines = _resized(request.cluster, wish.most_chips)
    asked, cut = [], Counter[str]()
    for machine in machines:
        for work in request.works():
            one = replace(request, cluster=machine, work=work)
            if wish.days is not None and _days_at_peak(one) > wish.days:
                cut[TOO_FEW] += 1
            else:
                asked.append(one)
    if not asked:  # shown on the most chips, whose fastest plan is the nearest miss
        asked = [replace(request, cluster=machines[-1], work=work) for work in request.works()]
    return asked, cut


def _days_at_peak(request: Request) -> float:
    """Days that the run's arithmetic takes at the chips' peak, the fastest of its precision and bf16."""
    machine, work = request.cluster.cluster, request.work
    chip = machine.chip
    fastest = max(chip.peak_flops(work.precision), chip.bf16_flops) * machine.n_chips
    finetune = str(request.strategy.get("finetune", "none"))
    if finetune != "none":
        return 0.0
    flops = float(model_flops(request.model, work.seq_len, finetune)) * (work.total_tokens or 0.0)
    return flops / fastest / units.SECONDS_PER_DAY


def _resized(machine: ClusterGiven, most: int) -> list[ClusterGiven]:
    """The cluster with other numbers of chips: 1, 2, 3, 4, 6, 8, 12, ... domains up to `most` chips.

    On a torus, where a domain is the whole slice, multiples of the chips of a host. Numbers that no slice
    has are left out.
    """
    own = machine.cluster
    node = own.chip.chips_per_node or 1
    unit = node if own.torus else min(own.chip.scale_up_size or own.scale_up_size, own.scale_up_size)
    counts = {unit * k << i for k in (1, 3) for i in range(24) if unit * k << i <= most}
    counts |= {most} if most % unit == 0 or most < unit else set()
    if own.n_chips <= most:
        counts.add(own.n_chips)
    found = []
    for n in sorted(counts):
        if n == own.n_chips:
            found.append(machine)
            continue
        try:
            other = givens.named(clusters.resized(machine.on, n), machine.overrides)
        except InputError:
            if n == most and not found:
                raise
            continue
        if machine.chip:
            changed = replace(other.cluster, chip=own.chip, usable_bytes=own.usable_bytes)
            other = replace(other, cluster=changed, chip=machine.chip)
        found.append(other)
    return found


def _search(request: Request, wish: Wish, ask: Ask) -> Plan:
    from meshwright.search import plan as search
    from meshwright.simulate.told import told

    model, machine, work = request.model, request.cluster.cluster, request.work
    slack = wish.slack if wish.objective == "simplicity" else None
    found = search.search(
        model, machine, work, request.strategy, request.profile,
        target=wish.target, top=ask.top, slack=slack, progress=ask.progress,
    )  # fmt: skip

    def done(ranked: Any, n_near: int, *, balance: bool = False) -> Estimate:
        known = None if ranked.evaluation.closed_form is None else ranked.seconds
        detailed = told(model, machine, work, ranked.strategy, request.profile, step_s=known, detail=True)
        return estimating.finished(
            request, ranked.strategy, detailed, request.derived,
            price_per_chip_hour=ask.price_per_chip_hour, nearest=n_near, balance=balance,
        )  # fmt: skip

    plans = tuple(done(r, ask.nearest if i == 0 else 0, balance=i == 0) for i, r in enumerate(found.plans))
    met = [
        (p.strategy, p.step_time_s, float(p.evaluation.peak_bytes), p.simulated_step_time_s) for p in plans
    ]
    met += [(c.strategy, c.seconds, c.peak_bytes, c.simulated_s) for c in found.others]
    return Plan(
        model=model,
        cluster=machine,
        work=work,
        profile=request.profile,
        plans=plans,
        searched=found.searched,
        feasible=found.feasible,
        rejected=dict(found.rejected),
        bounded=dict(found.bounded),
        search_seconds=found.seconds,
        necessity=tuple(found.necessity),
        why=tuple(found.why),
        nearest=None if found.nearest is None else done(found.nearest, 0),
        needs=found.needs,
        space=found.space.axes(),
        left=found.space.left,
        untried=found.space.untried,
        pareto=tuple(_point(request, *one) for one in met),
        reranked=found.reranked,
    )


def _point(
    request: Request, strategy: Strategy, step_s: float, peak: float, simulated_s: float | None
) -> Point:
    machine, work = request.cluster.cluster, request.work
    return Point(machine.n_chips, int(work.global_batch_size), step_s, step_s / work.tokens_per_step, peak,
                 strategy, simulated_s)  # fmt: skip


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points that no other beats in time a token, memory, chips and chip-seconds a token at once, fastest
    first.

    >>> at = lambda chips, s, gib: Point(chips, 1, s, s, gib, Strategy(dp=chips))
    >>> [(p.n_chips, p.step_time_s) for p in front([at(8, 2, 60), at(8, 3, 40), at(8, 4, 50), at(4, 5, 60)])]
    [(8, 2), (8, 3), (4, 5)]
    """
    kept: list[Point] = []
    for point in sorted(set(points), key=lambda p: p.goods()):
        if not any(all(a <= b for a, b in zip(other.goods(), point.goods())) for other in kept):
            kept.append(point)
    return tuple(kept)


def _budgets(request: Request, best: Plan, wish: Wish, ask: Ask) -> list[Point]:
    """The fastest plan under ever smaller memory budgets: each at least 3 % of the capacity below the last
    one's need, until nothing fits."""
    machine = request.cluster.cluster
    assert best.best is not None
    peak, found = float(best.best.evaluation.peak_bytes), []
    for _ in range(BUDGETS):
        budget = peak - STEP * machine.usable_bytes
        if budget <= 0:
            break
        less = replace(request.cluster, cluster=replace(machine, usable_bytes=budget))
        smaller = _search(replace(request, cluster=less), wish, replace(ask, top=1, nearest=0))
        if smaller.best is None:
            break
        peak = float(smaller.best.evaluation.peak_bytes)
        least = smaller.best
        found.append(_point(request, least.strategy, least.step_time_s, peak, least.simulated_step_time_s))
    return found


def _choice(found: Plan, wish: Wish) -> Choice:
    best = found.best
    days = best.run.days if best is not None and best.run is not None else None
    meets = best is not None and (wish.days is None or (days is not None and days <= wish.days))
    return Choice(found.cluster.n_chips, int(found.work.global_batch_size), best, meets)


def _winner(results: Sequence[Plan], choices: Sequence[Choice], wish: Wish) -> Plan | None:
    """The result that the objective prefers; one without a plan that fits only where none has one."""
    if all(c.best is None for c in choices):
        return results[-1]
    able = [found for found, choice in zip(results, choices) if choice.meets]
    if not able:
        return None
    if wish.objective == "simplicity":
        fastest = min(_seconds_per_token(found) for found in able)
        near = [f for f in able if _seconds_per_token(f) <= fastest * (1.0 + wish.slack)]
        return min(near, key=lambda f: (_axes(f), _seconds_per_token(f)))
    if wish.objective in ("cost", "energy"):
        return min(able, key=lambda f: (f.cluster.n_chips * _seconds_per_token(f), f.cluster.n_chips))
    if wish.days is not None:
        return min(able, key=lambda f: (f.cluster.n_chips, _seconds_per_token(f)))
    return min(able, key=_seconds_per_token)


def _ways_out(request: Request, found: Plan, wish: Wish, ask: Ask) -> tuple[str, ...]:
    """What could be done where nothing fits."""
    from meshwright.search.blocked import ways_out
    from meshwright.search.bounds import Request as Asked

    if found.plans or (found.nearest is not None and found.nearest.fits):
        return ()
    asked = Asked(found.model, found.cluster, found.work, found.profile)
    return ways_out(asked, request.strategy, wish.target, ask.progress)


def _seconds_per_token(found: Plan) -> float:
    best = found.best
    return inf if best is None else best.step_time_s / best.tokens_per_step


def _axes(found: Plan) -> int:
    assert found.best is not None
    return int(axes_used(found.best.strategy))


def _missed(results: Sequence[Plan], choices: Sequence[Choice], request: Request, wish: Wish) -> Plan:
    """No plan in time: the fastest as the nearest miss, with what it takes."""
    best = min(results, key=_seconds_per_token)
    assert best.best is not None
    assert best.best.run is not None
    tokens = units.count_text(best.best.run.total_tokens)
    days = wish.days or 0.0
    deadline = (
        units.seconds_text(days * units.SECONDS_PER_DAY)
        if days < 1.0
        else f"{days:g} {units.plural(days, 'day')}"
    )
    needs = (
        f"the fastest plan takes {units.number_text(best.best.run.days)} days for {tokens} tokens on "
        f"{units.counted(best.cluster.n_chips, 'chip')}, and the deadline is {deadline}: allow more chips "
        f"(--chips-up-to), fewer tokens or more time"
    )
    return replace(best, plans=(), necessity=(), why=(), nearest=best.best, needs=needs, pareto=())
