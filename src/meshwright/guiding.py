"""The rule of thumb for one job: facts, the way through the tree, degrees; on request beside a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log2
from typing import Any

from meshwright import estimating
from meshwright.errors import Diagnostic, InputError
from meshwright.files import request as requests
from meshwright.files.request import Request
from meshwright.files.work_given import price
from meshwright.report.guide import Answer, Compared, Guide
from meshwright.report.records import Because, Estimate
from meshwright.search.bounds import Request as Asked
from meshwright.search.guide import near, practice, rule
from meshwright.search.guide.facts import facts
from meshwright.search.mixes import Mix
from meshwright.search.plan import raise_faults
from meshwright.search.rerank import searches
from meshwright.search.space import build
from meshwright.units import counted

Progress = Callable[[float, float], None] | None


def guide(
    model: Any,
    cluster: Any,
    *,
    compare: bool,
    price_per_chip_hour: float | str | None = None,
    progress: Progress = None,
    **arguments: Any,
) -> Guide:
    """The whole rule, and what it says of a job where a model is named."""
    shipped = rule.shipped()
    given = [
        name for name, value in {"cluster": cluster, **arguments}.items() if value not in (None, (), {}, [])
    ]
    if model is None:
        if not given:
            return Guide(shipped)
        said = f"{' and '.join(given)} given, and no model to advise on"
        hint = "meshwright guide MODEL --on CLUSTER --seq-len 8k; without anything it prints the whole rule"
        raise InputError(Diagnostic("MW910", said, where="guide", hint=hint))
    request = _read(model, cluster, arguments)
    paid = request.price(price(price_per_chip_hour))
    job = facts(request.model, request.cluster.cluster, request.work)
    asked, advice = shipped.path(job)
    mix = advice.recipe.mix(job)
    beside = _compared(request, mix, paid, progress) if compare else None
    answer = Answer(
        request.model, request.cluster.cluster, request.work, request.derived, job, asked, advice, mix,
        tuple(shipped.outside(job)), beside, near.near(job),
    )  # fmt: skip
    return Guide(shipped, answer)


def _read(model: Any, cluster: Any, arguments: dict[str, Any]) -> Request:
    """The request without what a plan file says of the strategy; a step as usual where no batch is named."""
    try:
        return replace(requests.read(model, cluster, **arguments), strategy={})
    except InputError as error:
        if all(d.where != "--global-batch" for d in error.diagnostics):
            raise
    if arguments.get("global_batch_size") is not None or arguments.get("tokens_per_step") is not None:
        return requests.read(model, cluster, **arguments)  # it was named, and something is wrong with it
    first = requests.read(model, cluster, **arguments | {"global_batch_size": 1})
    because = f"a step as usual: {practice.practice()['tokens_per_step']['rule']}"
    chips = first.cluster.cluster.n_chips
    odd = chips // (chips & -chips)  # replicas divide the batch, so what divides the chips should too
    usual = practice.tokens_per_step(first.model) / int(first.work.seq_len)
    batch = odd * 2 ** max(round(log2(usual / odd)), 0)
    if odd > 1:
        because += f"; {odd} times a power of two, as {counted(chips, 'chip')} are"
    derived = first.derived | {"global_batch_size": Because(batch, because)}
    return replace(first, work=replace(first.work, global_batch_size=batch), strategy={}, derived=derived)


def _compared(request: Request, mix: Mix, price: float | None, progress: Progress) -> Compared:
    """The best plan of a whole search, and the best with the degrees of the rule."""
    best = _best(request, {}, price, progress)
    try:
        return Compared(best, _best(request, mix.fields(), price, None))
    except InputError as error:
        return Compared(best, None, error.diagnostics)


def _best(
    request: Request, fixed: dict[str, Any], price: float | None, progress: Progress
) -> Estimate | None:
    """The best plan with what is fixed; None where nothing fits, InputError where nothing is legal."""
    r = Asked(request.model, request.cluster.cluster, request.work, request.profile)
    space = build(r.model, r.cluster, r.work, fixed, r.profile)
    (found,) = searches([(r, 1)], space, progress=progress)
    if found.searched == 0:
        raise_faults(r, fixed)
    return estimating.complete(request, found.best[0].strategy, price) if found.best else None
