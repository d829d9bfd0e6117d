"""The public face: `plan`, `estimate`, `check`, `compare`, `validate`, for the command line and for callers.

Arguments are what a person would say (names, files, degrees); everything left out is derived and the result
says what was derived and why. Every fault of a request is raised at once as `InputError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright import estimating, planning, units
from meshwright.errors import Diagnostic, InputError
from meshwright.files import given
from meshwright.files import request as requests
from meshwright.files.text import check_outputs
from meshwright.files.typed import Count, Positive, typed
from meshwright.files.work_given import price
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.report import catalogue
from meshwright.report.records import Because, Checked, Estimate, Plan
from meshwright.saving import save, save_actions, save_trace, summary
from meshwright.strategy.records import Strategy
from meshwright.validating import calibrate, exceeds, validate, validated
from meshwright.work import Work

if TYPE_CHECKING:
    from meshwright.report.comparison import Comparison
    from meshwright.report.explanation import Explanation
    from meshwright.report.guide import Guide
    from meshwright.report.improvement import Improved
    from meshwright.report.largest import Maximum
    from meshwright.report.ranks import RankMap
    from meshwright.report.sweep import Sweep
    from meshwright.search.why import Sentence

__all__ = [
    "Cluster", "Estimate", "Model", "Plan", "Strategy", "Work",
    "calibrate", "check", "check_outputs", "compare", "estimate", "exceeds", "explain", "guide", "improve",
    "largest", "plan", "price", "ranks", "save", "save_actions", "save_trace", "summary", "sweep", "validate",
    "validated",
]  # fmt: skip


@typed
def estimate(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    work: Work | None = None,
    seq_len: float | str | None = None,
    global_batch_size: float | str | None = None,
    tokens_per_step: float | str | None = None,
    total_tokens: float | str | None = None,
    precision: str | None = None,
    options: Iterable[str] = (),
    framework: str | None = None,
    overrides: Mapping[str, float] | None = None,
    profile: str | Path | None = None,
    price_per_chip_hour: float | str | None = None,
    nearest: Count = 3,
    exact: bool = False,
    **strategy: Any,
) -> Estimate:
    """Step time and memory of one strategy; what is left out of it is derived.

    `model` is a preset, a config.json, a model YAML or a plan file (which brings everything else along);
    `strategy` takes the fields of `Strategy`; `overrides` are figures of the cluster in the units of their
    names (`scale_out_gbits_s=400`), `profile` a file that `calibrate` wrote. `nearest` measured runs
    are shown beside the estimate. `exact` simulates the pipeline pass by pass: time is the slowest rank's,
    memory the fullest rank's (see `Estimate.simulated`).
    """
    request = requests.read(
        model, cluster, work=work, seq_len=seq_len, global_batch_size=global_batch_size,
        tokens_per_step=tokens_per_step, total_tokens=total_tokens, precision=precision, options=options,
        framework=framework, overrides=overrides, profile=profile, strategy=strategy,
    )  # fmt: skip
    return estimating.estimated(
        request, price_per_chip_hour=request.price(price(price_per_chip_hour)), nearest=nearest, exact=exact
    )


@typed
def plan(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    work: Work | None = None,
    seq_len: float | str | None = None,
    global_batch_size: float | str | None = None,
    tokens_per_step: float | str | None = None,
    total_tokens: float | str | None = None,
    precision: str | None = None,
    options: Iterable[str] = (),
    framework: str | None = None,
    overrides: Mapping[str, float] | None = None,
    profile: str | Path | None = None,
    price_per_chip_hour: float | str | None = None,
    objective: str | None = None,
    slack: float | str | None = None,
    deadline: float | str | None = None,
    chips_up_to: float | str | None = None,
    pareto: bool = False,
    target: str | None = None,
    top: Positive = 10,
    nearest: Count = 0,
    show_space: bool = False,
    progress: Callable[..., None] | None = None,
    **strategy: Any,
) -> Plan:
    """The best strategies that fit, best first; fields given in `strategy` are fixed, others searched.

    A list of values in `strategy` searches those, a range "4:16" what lies in it, "any" every word there is;
    `target` keeps what that framework can express. `global_batch_size` may be a range `512:4096`: its first
    number times powers of two are tried, `chips_up_to` tries other numbers of chips. `objective` is time,
    cost, energy (per token) or simplicity (the fewest axes within `slack`, 3 %, of the fastest); a `deadline`
    ("60d", for `total_tokens`) takes the fewest chips that meet it, or the cheapest. `pareto` adds plans
    under smaller memory budgets. Nothing that fits is a result (`plans` empty, `nearest` the closest miss).
    """
    request = requests.read(
        model, cluster, work=work, seq_len=seq_len, global_batch_size=global_batch_size,
        tokens_per_step=tokens_per_step, total_tokens=total_tokens, precision=precision, options=options,
        framework=framework, overrides=overrides, profile=profile, strategy=strategy, several=True,
    )  # fmt: skip
    asked = planning.wish(
        request, objective=objective, slack=slack, deadline=deadline, chips_up_to=chips_up_to, pareto=pareto,
        target=target,
    )  # fmt: skip
    found = planning.plan(
        request, asked, planning.Ask(top, nearest, request.price(price(price_per_chip_hour)), progress)
    )
    return found if show_space else replace(found, space=None)


@typed
def guide(
    model: str | Path | Model | None = None,
    cluster: str | Path | Cluster | None = None,
    *,
    compare: bool = False,
    progress: Callable[[float, float], None] | None = None,
    **request: Any,
) -> Guide:
    """Which mix of parallelism to take, by the shipped rule and at once; without a model the whole rule.

    Takes the arguments of `estimate` that say what is asked; a batch that is left out is usual for the size
    of the model. `compare` searches too: the best plan, and the best that follows the rule.
    """
    from meshwright import guiding

    return guiding.guide(model, cluster, compare=compare, progress=progress, **request)


@typed
def explain(
    model: str | Path | Model | Estimate,
    cluster: str | Path | Cluster | None = None,
    *,
    runner_up: bool = False,
    progress: Callable[..., None] | None = None,
    **asked: Any,
) -> Explanation:
    """Why an estimate is what it is: sentences, what the step scales with, where communication stops hiding.

    Takes an estimate, or what `estimate` takes. With `runner_up` the fields that are not given (of a plan
    file: all) are searched for the plan that comes next, or for a better one.
    """
    from meshwright.report import explanation

    if isinstance(model, Estimate):
        found, given = model, {}
    else:
        found = estimate(model, cluster, nearest=0, **asked)
        given = {k: v for k, v in asked.items() if k not in requests.WORK}
    others = (_runner_up(found, given, progress),) if runner_up else ()
    return explanation.explained(found, others)


def _runner_up(found: Estimate, given: Mapping[str, Any], progress: Callable[..., None] | None) -> Sentence:
    """What a search of the fields that are not `given` finds beside this plan."""
    from meshwright.search import plan as search
    from meshwright.search import why

    fixed = {k: v for k, v in given.items() if v is not None and k != "price_per_chip_hour"}
    best = search.search(
        found.model, found.cluster, found.work, fixed, found.profile, top=2, progress=progress
    ).plans
    others = [p for p in best if p.strategy != found.strategy]
    if not others:
        return why.Sentence("No other plan fits.", ("step.time",), {"step.time": found.step_time_s})
    other = others[0]
    called = "best plan that fits" if other is best[0] else "runner-up"
    return why.runner_up(found.strategy, found.evaluation, other.strategy, other.evaluation, called)


@typed
def sweep(
    model: str | Path | Model | Sequence[str | Path | Model],
    cluster: str | Path | Cluster | None = None,
    *,
    over: Mapping[str, str | Iterable[Any]],
    slack: float | str = planning.SLACK,
    processes: Positive = 1,
    progress: Callable[[int, int], None] | None = None,
    **asked: Any,
) -> Sweep:
    """The best plan of one or several models at each value of one field or two, planned anew at every point.

    `over` maps a field (of the strategy, the work, `n_chips`, `on`, `cluster.FIELD`) to its values: a list,
    or text such as "8,16,32" or "100:3200" (geometric, 16 points; "100:3200:50" has 50). The rest is as for
    `plan`. `slack` is how much slower than the best the simplest plan may be. With several `processes`, call
    it under `if __name__ == "__main__":`.
    """
    from meshwright import sweeping

    models = [model] if isinstance(model, str | Path | Model) else list(model)
    if not models:
        hint = "name one or several"
        raise InputError(Diagnostic("MW911", "no model was named", where="sweep", hint=hint))
    lost = percent("slack", slack) if isinstance(slack, str) else slack
    if not (isinstance(lost, int | float) and 0 <= lost < float("inf")):
        said = f"slack is {slack!r}, not a share of the step time"
        raise InputError(Diagnostic("MW911", said, where="slack", hint="write slack='3%' or slack=0.03"))
    arguments = {k: v for k, v in asked.items() if k != "price_per_chip_hour"} | {"cluster": cluster}
    return sweeping.sweep(models, over, arguments, slack=lost, processes=processes, progress=progress)


@typed
def check(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    work: Work | None = None,
    seq_len: float | str | None = None,
    global_batch_size: float | str | None = None,
    tokens_per_step: float | str | None = None,
    total_tokens: float | str | None = None,
    precision: str | None = None,
    options: Iterable[str] = (),
    framework: str | None = None,
    overrides: Mapping[str, float] | None = None,
    profile: str | Path | None = None,
    **strategy: Any,
) -> Checked:
    """Everything that is wrong or unwise in a strategy, all at once; not fitting in memory is an error."""
    from meshwright import checks
    from meshwright.calibrate import bands, coverage
    from meshwright.cost.stages import layers_per_stage
    from meshwright.search import derive
    from meshwright.simulate.told import told

    request = requests.read(
        model, cluster, work=work, seq_len=seq_len, global_batch_size=global_batch_size,
        tokens_per_step=tokens_per_step, total_tokens=total_tokens, precision=precision, options=options,
        framework=framework, overrides=overrides, profile=profile, strategy=strategy,
    )  # fmt: skip
    machine = request.cluster.cluster
    try:
        done = derive.complete(request.model, machine, request.work, request.strategy, request.profile)
    except InputError as error:
        # The request could be read, so these are rules that the strategy breaks: an answer, not a misuse.
        return Checked(request.model, machine, request.work, None, request.strategy, error.diagnostics)
    complete = done.strategy
    found = told(request.model, machine, request.work, complete, request.profile, detail=True)
    kind = coverage.kind_of(
        machine.chip, request.profile.framework.name, request.model, request.work.seq_len, complete.finetune
    )
    reach = bands.peak_interval(kind, float(found.peak_bytes))[1]
    findings = checks.run(request.model, machine, request.work, complete, found, request.profile, reach)
    stages = layers_per_stage(request.model, machine, request.work, complete, request.profile)
    return Checked(request.model, machine, request.work, complete, request.strategy, tuple(findings), stages)


@typed
def compare(
    *sides: str | Path | Model | Estimate | Mapping[str, Any],
    search: bool = False,
    depth: Positive = 1,
    progress: Callable[..., None] | None = None,
    **shared: Any,
) -> Comparison:
    """Estimates side by side, term by term; the first is what the others are compared with.

    A side is an estimate, a model or plan file, or a mapping of fields (arguments of `estimate`,
    `cluster.FIELD`, `on`, `n_chips`) over `shared`, which takes the arguments of `estimate`. With `search`,
    what a side leaves out is searched. `depth` levels of terms below time and memory are listed.
    """
    from meshwright.files import fields
    from meshwright.report import comparison

    faults: list[Diagnostic] = []
    found: list[Estimate] = []
    if not 2 <= len(sides) <= len(comparison.LETTERS):
        said = f"{units.counted(len(sides), 'side')} to compare"
        hint = "name two models or plan files, or add --vary FIELD=A,B or two --case 'FIELD=VALUE'"
        if len(sides) > 2:
            said += f", and {len(comparison.LETTERS)} is the most"
            hint = "vary fewer fields at once, or sweep one"
        raise InputError(Diagnostic("MW910", said, where="compare", hint=hint))
    for i, side in enumerate(sides):
        try:
            if isinstance(side, Estimate):
                found.append(side)
            else:
                own = side if isinstance(side, Mapping) else {"model": side}
                asked = fields.settled(shared, own)
                found.append(_best(asked) if search else estimate(**asked, nearest=0))
        except InputError as error:
            faults += [d for d in error.diagnostics if d not in faults]
        if progress is not None:
            progress(i + 1, len(sides))
    if faults:
        raise InputError(*faults)
    return comparison.compared(found, depth)


def _best(asked: Mapping[str, Any]) -> Estimate:
    """The best plan of a request, or its nearest miss."""
    found = plan(**asked, top=1)
    best = found.best or found.nearest
    if best is None:
        raise InputError(Diagnostic("MW910", found.needs, where="compare", hint="free a field that is fixed"))
    return best


@typed
def ranks(model: str | Path | Model, cluster: str | Path | Cluster | None = None, **request: Any) -> RankMap:
    """Which rank of a strategy sits where, and which groups of ranks cross which link.

    Takes the arguments of `estimate` that say what is asked.
    """
    from meshwright.cost.stages import layers_per_stage
    from meshwright.report.ranks import rank_map
    from meshwright.search import derive

    asked = requests.read_arguments(model=model, cluster=cluster, **request)
    machine = asked.cluster.cluster
    done = derive.complete(asked.model, machine, asked.work, asked.strategy, asked.profile)
    because = {name: Because(d.value, d.because) for name, d in done.derived.items()}
    layers = layers_per_stage(asked.model, machine, asked.work, done.strategy, asked.profile)
    return rank_map(asked.model, machine, asked.work, done.strategy, layers, asked.derived | because)


@typed
def largest(
    quantity: str,
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    up_to: float | str | None = None,
    price_per_chip_hour: float | str | None = None,
    progress: Callable[[float], None] | None = None,
    **request: Any,
) -> Maximum:
    """The largest seq_len, microbatch_size, n_layers or global_batch that fits, and the fastest plan there.

    Takes the arguments of `plan`; what is left out of the strategy is searched. The quantity itself is not
    given; `up_to` ends its range.
    """
    from meshwright.files.inverse import read_inverse
    from meshwright.search import largest as inverse
    from meshwright.search.bounds import Request as Asked

    asked = read_inverse(quantity, up_to, model=model, cluster=cluster, **request)
    r = asked.request
    found = inverse.largest(
        asked.quantity, Asked(r.model, r.cluster.cluster, r.work, r.profile), r.strategy,
        up_to=asked.up_to, tokens_per_step=asked.tokens_per_step, progress=progress,
    )  # fmt: skip
    return estimating.maximum(r, found, r.price(price(price_per_chip_hour)), asked.up_to)


@typed
def improve(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    target: str | None = None,
    price_per_chip_hour: float | str | None = None,
    progress: Callable[[float, float], None] | None = None,
    **request: Any,
) -> Improved:
    """The one-step neighbours of a strategy, the most helpful first, and the best plan of a whole search.

    Takes the arguments of `estimate`; what is left out of the strategy is derived. Neighbours that the
    profile's framework cannot be told stand apart; `target` names another, and restricts the search too.
    """
    from meshwright.report.improvement import Improved
    from meshwright.search import improve as neighbourhood
    from meshwright.search.bounds import Request as Asked
    from meshwright.strategy import targets

    asked = requests.read_arguments(model=model, cluster=cluster, **request)
    told = None if target is None else targets.load(target)
    price_per_chip_hour = asked.price(price(price_per_chip_hour))
    base = estimating.estimated(asked, price_per_chip_hour=price_per_chip_hour, nearest=0)
    if told is not None:
        lacking = {said.partition(" ")[0] for said in told.lacks(base.strategy)} & set(asked.strategy)
        faults = told.faults({f: [getattr(base.strategy, f)] for f in lacking}, asked.work.precision)
        if faults:
            raise InputError(*faults)
    r = Asked(asked.model, asked.cluster.cluster, asked.work, asked.profile)
    near = neighbourhood.improve(r, base.strategy, base.evaluation, target=told, progress=progress)
    best = neighbourhood.best(r, base.strategy, base.evaluation, near, target=told)
    return Improved(
        base=base,
        neighbours=near.neighbours,
        rejected=near.rejected,
        best=None
        if best.plan is None
        else estimating.complete(asked, best.plan.strategy, price_per_chip_hour),
        searched=best.searched,
        found_by=best.found_by,
        search_s=best.search_s,
        framework=near.framework,
        beyond=near.beyond,
    )


def percent(flag: str, text: str) -> float:
    """A fraction from text of percent; InputError names the flag."""
    try:
        value = units.parse_percent(text)
    except units.UnitError as error:
        raise InputError(Diagnostic("MW903", str(error), where=flag, hint=f"write {flag} 15")) from None
    if value < 0:
        raise InputError(
            Diagnostic("MW903", f"{flag} {text} is negative", where=flag, hint=f"write {flag} 15")
        )
    return value


def faults(*, several: bool = False, **request: Any) -> tuple[Diagnostic, ...]:
    """What reading a request (the arguments of `estimate`) would raise, without estimating it."""
    try:
        requests.read_arguments(**request, several=several)
    except InputError as error:
        return error.diagnostics
    return ()


@typed
def models(words: Iterable[str] = ()) -> dict[str, Any]:
    """Presets whose name, family or alias holds every word."""
    return catalogue.models(tuple(words))


@typed
def chips(words: Iterable[str] = ()) -> dict[str, Any]:
    """Chips whose name, maker, family or alias holds every word."""
    return catalogue.chips(tuple(words))


def machines() -> dict[str, Any]:
    """Named machines and the ways to spell a cluster."""
    return catalogue.machines()


@typed
def cluster(on: str, overrides: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What the spelling `on` (or a cluster file) means: every figure an estimate would use."""
    return catalogue.cluster(requests.read_cluster(on, dict(overrides or {})).cluster)


def cluster_figure(name: str, text: str) -> float:
    """A figure of `--set cluster.NAME=TEXT`, in the unit of its name."""
    return given.override(name, text)


def words(flag: str) -> tuple[str, ...]:
    """Words that `flag` takes, for shell completion; empty where it takes numbers."""
    return catalogue.words(flag)


def model_names() -> tuple[str, ...]:
    """Presets, for shell completion."""
    return catalogue.model_names()


def chip_spellings() -> tuple[str, ...]:
    """Chip names and aliases in lower case, for shell completion."""
    return catalogue.chip_spellings()
