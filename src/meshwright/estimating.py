"""From strategies to records of the report: one estimate with its checks, and the largest value that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.files.request import Request
from meshwright.report.records import Because, Estimate, Given
from meshwright.strategy.records import Strategy

if TYPE_CHECKING:
    from meshwright.report.largest import Maximum
    from meshwright.search.largest import Largest, Tried


def estimated(
    request: Request, *, price_per_chip_hour: float | None, nearest: int, exact: bool = False
) -> Estimate:
    """The estimate of a request: what it leaves out derived, `exact` simulated pass by pass."""
    from meshwright.search import derive
    from meshwright.simulate.told import told

    cluster = request.cluster.cluster
    done = derive.complete(request.model, cluster, request.work, request.strategy, request.profile)
    because = {name: Because(d.value, d.because) for name, d in done.derived.items()}
    one = (request.model, cluster, request.work, done.strategy, request.profile)
    simulated = None
    if exact:
        from meshwright.simulate import exact as simulation

        simulated = simulation.exact(*one)
    found = finished(
        request, done.strategy, told(*one, operations=True) if simulated is None else simulated.evaluation,
        request.derived | because, price_per_chip_hour=price_per_chip_hour, nearest=nearest, balance=True,
    )  # fmt: skip
    return replace(found, simulated=simulated)


def complete(request: Request, strategy: Strategy, price_per_chip_hour: float | None) -> Estimate:
    """The estimate of a strategy that leaves nothing out."""
    fields = {name: getattr(strategy, name) for name in Strategy.__dataclass_fields__}
    return estimated(replace(request, strategy=fields), price_per_chip_hour=price_per_chip_hour, nearest=0)


def finished(
    request: Request,
    strategy: Strategy,
    evaluation: Any,
    derived: dict[str, Because],
    *,
    price_per_chip_hour: float | None,
    nearest: int,
    balance: bool = False,
) -> Estimate:
    """The record of an evaluated strategy, with its checks and the measured runs nearest to it; `balance`:
    and with what each way of balancing experts would cost."""
    from meshwright import checks
    from meshwright.calibrate import bands, coverage
    from meshwright.search.balance import balanced

    machine, work, habits = request.cluster.cluster, request.work, request.profile.framework
    near: tuple[Any, ...] = ()
    if nearest:
        from meshwright.calibrate import nearest as nearest_runs

        near = tuple(nearest_runs.nearest(request.model, machine, work, strategy, n=nearest))
    kind = coverage.kind_of(machine.chip, habits.name, request.model, work.seq_len, strategy.finetune)
    interval = bands.interval(machine.chip, kind, float(evaluation.step_time_s))
    peak = bands.peak_interval(kind, float(evaluation.peak_bytes))
    found = checks.run(request.model, machine, work, strategy, evaluation, request.profile, peak[1])
    ways = balanced(request.model, machine, work, strategy, request.profile) if balance else {}
    return replace(
        brief(request, strategy, evaluation),
        derived=derived,
        diagnostics=tuple(found),
        nearest=near,
        interval_s=interval.ends,
        interval_because=interval.because,
        interval_bytes=peak,
        price_per_chip_hour=price_per_chip_hour,
        moe_balance=ways,
    )


def in_brief(request: Request) -> Estimate:
    """The `brief` estimate of a request."""
    from meshwright.search import derive
    from meshwright.simulate.told import told

    r, cluster = request, request.cluster.cluster
    strategy = derive.complete(r.model, cluster, r.work, r.strategy, r.profile).strategy
    return brief(r, strategy, told(r.model, cluster, r.work, strategy, r.profile))


def brief(request: Request, strategy: Strategy, evaluation: Any) -> Estimate:
    """The record of an evaluated strategy without checks, measured runs and what else others would cost."""
    return Estimate(
        model=request.model,
        cluster=request.cluster.cluster,
        work=request.work,
        strategy=strategy,
        profile=request.profile,
        evaluation=evaluation,
        derived=request.derived,
        given=Given(request.model_as_given, request.cluster.mapping()),
    )


def maximum(
    request: Request, found: Largest, price_per_chip_hour: float | None, up_to: int | None
) -> Maximum:
    """The record of a largest value: the plan there, the next value above, and every value searched whole."""
    from meshwright.files.inverse import at_value
    from meshwright.report.largest import Maximum, Point

    def point(tried: Tried) -> Point:
        if tried.ranked is None:
            return Point(tried.value, tried.fits, None)
        asked = at_value(request, tried.request)
        plan = complete(asked, tried.ranked.strategy, price_per_chip_hour)
        return Point(tried.value, tried.fits, plan)

    points = {t.value: point(t) for t in found.tried}
    return Maximum(
        quantity=found.quantity,
        value=found.value,
        plan=None if found.value is None else points[found.value].plan,
        bound=found.bound,
        above=None if found.above is None else points[found.above.value],
        needs=found.needs,
        tried=tuple(points.values()),
        searched=found.searched,
        search_seconds=found.seconds,
        model=request.model,
        cluster=request.cluster.cluster,
        work=request.work,
        up_to=up_to,
        fixed=request.strategy,
        of_file=tuple(name for name in request.of_file if name in request.strategy),
    )
