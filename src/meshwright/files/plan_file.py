"""Plan files: model, cluster, work and strategy in one YAML that travels, and its estimate once made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from meshwright.errors import Diagnostic, InputError
from meshwright.files import cluster_file, model_file
from meshwright.files.given import ClusterGiven, PlanGiven, named
from meshwright.files.schema import Budget, Length, Strict, validate, version_fault
from meshwright.files.text import fault, write_text
from meshwright.files.work_given import LIMITS, MOST_USD
from meshwright.files.yaml import Document, dump
from meshwright.model.records import Model
from meshwright.search.given import read as read_given
from meshwright.work import PRECISIONS


class WorkPart(Strict):
    """What is asked of the machine; lengths take k = 1024, budgets k = 1000."""

    seq_len: Length = Field(ge=1, le=LIMITS["--seq-len"][1])
    global_batch_size: Length = Field(ge=1, le=LIMITS["--global-batch"][1])
    precision: str = "bf16"
    total_tokens: Budget | None = Field(None, ge=1, le=LIMITS["--total-tokens"][1])
    options: list[str] = Field(default_factory=list)
    framework: str | None = None


class StrategyPart(Strict):
    """The strategy; what is left out is derived when the plan is read."""

    dp: int | None = Field(None, ge=1)
    tp: int | None = Field(None, ge=1)
    sp: bool | None = None
    pp: int | None = Field(None, ge=1)
    vpp: int | None = Field(None, ge=1)
    cp: int | None = Field(None, ge=1)
    cp_method: str | None = None
    ep: int | None = Field(None, ge=1)
    etp: int | None = Field(None, ge=1)
    zero: int | None = Field(None, ge=0, le=3)
    zero_group: int | None = Field(None, ge=1)
    schedule: str | None = None
    microbatch_size: int | None = Field(None, ge=1)
    recompute: str | None = None
    layers_per_stage: list[int] | None = None
    optimizer: str | None = None
    offload: str | None = None
    dispatcher: str | None = None
    moe_balance: str | None = None
    placement: list[str] | None = None
    finetune: str | None = None


class EstimatePart(Strict):
    """What the tool said when the plan was written; informative, never read back into an estimate."""

    version: str
    profile: str
    fits: bool
    step_time_s: float
    tokens_per_s_per_chip: float
    mfu: float
    peak_gib: float
    capacity_gib: float


class PlanPart(Strict):
    """The top of a plan file."""

    version: Literal[1]
    model: str | dict[str, Any]
    cluster: str | dict[str, Any]
    work: WorkPart
    strategy: StrategyPart
    price_per_chip_hour: float | None = Field(None, ge=0, le=MOST_USD)
    estimate: EstimatePart | None = None


def is_plan(document: Document) -> bool:
    """Whether a YAML mapping means to be a plan (and not a model or a cluster)."""
    return "strategy" in document.data or "work" in document.data


def plan_of(
    document: Document, overrides: dict[str, float] | None = None, *, cluster: str | None = None
) -> PlanGiven:
    """The plan that `document` holds; InputError with every fault of every part.

    `overrides` are figures of the cluster that flags replace; `cluster` replaces the cluster itself (`--on`).
    """
    stale = version_fault(document, "plan")
    if stale is not None:
        raise InputError(stale)
    faults: list[Diagnostic] = []

    def part(read: Any) -> Any:
        try:
            return read()
        except InputError as error:
            faults.extend(error.diagnostics)
            return None

    top = part(lambda: validate(document, PlanPart))
    data = document.data
    model = part(lambda: _model(document)) if isinstance(data.get("model"), str | dict) else None
    found = (
        part(lambda: _cluster(document, overrides or {}, cluster))
        if cluster is not None or isinstance(data.get("cluster"), str | dict)
        else None
    )
    if top is not None and top.work.precision not in PRECISIONS:
        faults.append(
            fault(
                document.path, "MW813", f"work.precision is {top.work.precision!r}",
                line=document.line(("work", "precision")), hint=f"one of {', '.join(PRECISIONS)}",
            )
        )  # fmt: skip
    faults += _words(document)
    if faults:
        raise InputError(*dict.fromkeys(faults))
    assert top is not None
    assert model is not None
    assert found is not None
    strategy = top.strategy.model_dump(exclude_none=True)
    for name in ("layers_per_stage", "placement"):
        if name in strategy:
            strategy[name] = tuple(strategy[name])
    estimate = {} if top.estimate is None else top.estimate.model_dump()
    return PlanGiven(
        model, data["model"], found, top.work.model_dump(exclude_none=True), strategy, estimate,
        top.price_per_chip_hour,
    )  # fmt: skip


def _words(document: Document) -> list[Diagnostic]:
    """Faults of the strategy's words, with their lines; what is no text or list is judged by the schema."""
    strategy = document.data.get("strategy")
    found: list[Diagnostic] = []
    for name, value in strategy.items() if isinstance(strategy, dict) else ():
        field = StrategyPart.model_fields.get(name)
        wanted = list if name in ("layers_per_stage", "placement") else str
        if field is None or field.annotation in (int | None, bool | None) or not isinstance(value, wanted):
            continue
        try:
            read_given({name: value})
        except InputError as error:
            found += [_placed(document, ("strategy", name), d) for d in error.diagnostics]
    return found


def _model(document: Document) -> Model:
    from meshwright.model import presets

    named = document.data["model"]
    if not isinstance(named, str):
        return model_file.model_of(document, ("model",))
    try:
        return presets.load(named)
    except InputError as error:
        raise InputError(*(_placed(document, ("model",), d) for d in error.diagnostics)) from None


def _cluster(document: Document, overrides: dict[str, float], instead: str | None) -> ClusterGiven:
    if instead is not None:
        return named(instead, overrides)
    on = document.data["cluster"]
    if not isinstance(on, str):
        return cluster_file.cluster_of(document, ("cluster",), overrides)
    try:
        return named(on, overrides)
    except InputError as error:
        raise InputError(*(_placed(document, ("cluster",), d) for d in error.diagnostics)) from None


def _placed(document: Document, key: tuple[str, ...], found: Diagnostic) -> Diagnostic:
    """`found` with the line of the file that caused it."""
    placed = fault(document.path, found.code, found.message, line=document.line(key), hint=found.hint)
    return Diagnostic(found.code, found.message, found.severity, placed.where, found.hint)


def write_plan(
    path: Path,
    *,
    model: str | dict[str, Any],
    cluster: str | dict[str, Any],
    work: dict[str, Any],
    strategy: dict[str, Any],
    estimate: dict[str, Any],
    price_per_chip_hour: float | None = None,
) -> None:
    """Write a plan file that `plan_of` reads back to the same plan; whole or not at all."""
    data: dict[str, Any] = {
        "version": 1,
        "model": model,
        "cluster": cluster,
        "work": work,
        "strategy": strategy,
    }
    if price_per_chip_hour is not None:
        data["price_per_chip_hour"] = price_per_chip_hour
    if estimate:
        data["estimate"] = estimate
    write_text(path, dump(data))
