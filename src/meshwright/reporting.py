"""A report from request to record, put together from the verbs: plan, estimate, explain, ranks and sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import api, estimating, sweeping
from meshwright.errors import Diagnostic, InputError
from meshwright.files import request as requests
from meshwright.files.fields import settled
from meshwright.files.text import check_outputs, write_text
from meshwright.files.typed import Positive, typed
from meshwright.hardware.overrides import FIELDS as FIGURES
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.planning import SLACK
from meshwright.report import explanation
from meshwright.report.document import Report, WhatIf
from meshwright.report.records import Estimate, Plan
from meshwright.search import why
from meshwright.search.why import Sentence
from meshwright.strategy.records import Strategy

Progress = Callable[[float, float], None]

BANDWIDTHS = range(-3, 5)  # powers of two of the bandwidth that is there
DOMAINS = range(-3, 7)
LENGTHS = range(-2, 4)
_STEPS = 6  # of a report, for its progress: a search, its reasons, three sweeps, the rest


@typed
def report(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None = None,
    *,
    path: str | Path | None = None,
    found: Plan | None = None,
    quick: bool = False,
    pareto: bool = False,
    processes: Positive = 1,
    progress: Progress | None = None,
    **asked: Any,
) -> Report:
    """All there is to say of a plan, as one offline HTML file (`Report.html()`, written to `path` if given).

    Takes the arguments of `plan`; the best plan is reported, or the nearest miss. A plan file's own strategy
    is reported, beside the best one of a search in which only strategy fields that are `asked` are fixed.
    `found` is what `plan` said to the same arguments, if it was asked already. `quick` leaves out the
    what-ifs, which need further searches; `pareto` adds the fastest plans in less memory, a dozen searches
    more. With several `processes`, call it under
    `if __name__ == "__main__":`. Raises InputError where no strategy is legal, or where no file can be
    written at `path`.
    """
    told = progress or (lambda *_: None)
    check_outputs(path, read=str(model) if isinstance(model, str | Path) else None)
    told(0, _STEPS)
    subject, plan, arguments = _subject(model, cluster, found, pareto, asked)
    told(1, _STEPS)
    beside = _beside(subject, plan)
    explained = explanation.explained(subject, () if beside is None else (beside,))
    simulated, unsimulated = _simulated(subject)
    told(2, _STEPS)
    what_ifs = [] if quick else list(_what_ifs(subject, arguments, processes, told))
    placed = api.ranks(**_fixed(arguments, subject.strategy))
    done = Report(explained, plan, placed, simulated, unsimulated, tuple(what_ifs))
    if path is not None:
        write_text(Path(path), done.html())
    told(_STEPS, _STEPS)
    return done


def _subject(
    model: Any, cluster: Any, found: Plan | None, pareto: bool, asked: Mapping[str, Any]
) -> tuple[Estimate, Plan, dict[str, Any]]:
    """The plan that is reported, the search beside it, and the arguments that ask for that search."""
    request = requests.read_arguments(
        model=model, cluster=cluster, several=True,
        **{name: value for name, value in asked.items() if name not in _OF_PLAN},
    )  # fmt: skip
    own = [name for name in request.strategy if asked.get(name) is None]
    if not own:
        plan = found or api.plan(model, cluster, nearest=3, pareto=pareto, **asked)
        subject = plan.best or plan.nearest
        if subject is None:
            raise InputError(
                Diagnostic("MW913", plan.needs, where="report", hint="free a field that is fixed")
            )
        return subject, plan, _arguments(subject, asked)
    subject = api.estimate(model, cluster, **{k: v for k, v in asked.items() if k not in _CHOICES})
    arguments = _arguments(subject, asked)
    price = subject.price_per_chip_hour
    return subject, api.plan(**arguments, pareto=pareto, price_per_chip_hour=price), arguments


_CHOICES = ("objective", "slack", "deadline", "chips_up_to", "target", "top")
_OF_PLAN = (*_CHOICES, "price_per_chip_hour")


def _arguments(subject: Estimate, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What `plan` is asked for at the work and on the cluster of `subject`: of the strategy only what is
    `asked`."""
    framework = subject.profile.framework
    strategy = {k: v for k, v in asked.items() if k not in (*requests.WORK, *_OF_PLAN) and v is not None}
    return {
        "model": subject.model,
        **_where(subject),
        "work": subject.work,
        "tokens_per_step": subject.work.tokens_per_step,
        "framework": f"{framework.name}@{framework.generation}",
        "profile": asked.get("profile"),
        **strategy,
    }


def _where(subject: Estimate) -> dict[str, Any]:
    """The cluster as it was spelled, so that its figures can be changed; the record itself where its chip is
    not the one of the sheet."""
    said = subject.given.cluster
    if isinstance(said, str):
        return {"cluster": said}
    if "chip" in said:
        return {"cluster": subject.cluster}
    return {"cluster": said["on"], "overrides": {k: v for k, v in said.items() if k in FIGURES}}


def _beside(subject: Estimate, plan: Plan) -> Sentence | None:
    """The best plan of the search, where another one is reported; else the runner-up."""
    others = [p for p in plan.plans if p.strategy != subject.strategy]
    if not others:
        return None
    other = others[0]
    called = "best plan that fits" if other is plan.best else "runner-up"
    return why.runner_up(subject.strategy, subject.evaluation, other.strategy, other.evaluation, called)


def _simulated(subject: Estimate) -> tuple[Any, tuple[Diagnostic, ...]]:
    """The step simulated pass by pass, or why there is none."""
    from meshwright.simulate.exact import exact

    s = subject
    try:
        return exact(s.model, s.cluster, s.work, s.strategy, s.profile), ()
    except InputError as error:
        return None, error.diagnostics


def _fixed(arguments: Mapping[str, Any], strategy: Strategy) -> dict[str, Any]:
    """`arguments` with the whole strategy given."""
    return {**arguments, **{name: getattr(strategy, name) for name in Strategy.__dataclass_fields__}}


@dataclass(frozen=True, slots=True)
class _Field:
    """What is swept: its values, and which of them is the one that is there."""

    name: str
    now: Any
    values: tuple[Any, ...]


def _fields(subject: Estimate, on: Any) -> Iterator[_Field]:
    """Bandwidth, domain size and length, each where there is such a thing to change."""
    machine, seq_len = subject.cluster, int(subject.work.seq_len)
    if machine.n_chips > 1 and isinstance(on, str):
        out, size = machine.scale_out_bytes_s, machine.scale_up_size
        if out is not None and size < machine.n_chips:
            now, name = out * 8 / 1e9, "cluster.scale_out_gbits_s"
        else:
            now, name = machine.scale_up_bytes_s / 1e9, "cluster.scale_up_gbytes_s"
        yield _Field(name, now, tuple(now * 2.0**k for k in BANDWIDTHS))
        if not machine.torus and out is not None:
            sizes = {size, *(int(size * 2.0**k) for k in DOMAINS if size * 2.0**k >= 1)}
            fitting = sorted(d for d in sizes if d <= machine.n_chips and machine.n_chips % d == 0)
            yield _Field("cluster.scale_up_size", size, tuple(fitting))
    tokens = int(subject.work.tokens_per_step)
    lengths = [seq_len << k if k >= 0 else seq_len >> -k for k in LENGTHS if seq_len * 2.0**k >= 1]
    whole = [length for length in lengths if tokens % length == 0 or length == seq_len]
    yield _Field("seq_len", seq_len, tuple(dict.fromkeys(whole)))


def _what_ifs(
    subject: Estimate, arguments: dict[str, Any], processes: int, told: Progress
) -> Iterator[WhatIf]:
    """A sweep along each field, all of them solved side by side, and the plan itself at each value."""
    fields = [one for one in _fields(subject, arguments["cluster"]) if len(one.values) > 1]

    def update(done: int, total: int) -> None:
        told(2 + 3 * done / max(total, 1), _STEPS)

    overs = [{one.name: one.values} for one in fields]
    given = {name: value for name, value in arguments.items() if name != "model"}
    swept = sweeping.sweeps(
        [arguments["model"]], overs, given, slack=SLACK, processes=processes, progress=update
    )
    for one, found in zip(fields, swept):
        values = (point.at[one.name] for point in found.points)
        kept = tuple(_kept(arguments, one.name, value, subject.strategy) for value in values)
        yield WhatIf(one.now, found, kept)


def _kept(arguments: Mapping[str, Any], field: str, value: Any, strategy: Strategy) -> Estimate | None:
    """The same strategy at another value; None where it is not legal there."""
    try:
        there = requests.read_arguments(**_fixed(settled(arguments, {field: value}), strategy))
        return estimating.in_brief(there)
    except InputError:
        return None
