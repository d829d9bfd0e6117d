"""The published runs closest to a plan: what they measured, and what this model says for them.

An estimate is easier to believe beside a measurement of nearly the same job; how far off the model is there
is the best guess at how far off it is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright.calibrate.cases import Case, case, load_chip
from meshwright.calibrate.coverage import ALL, architecture, trains
from meshwright.calibrate.predict import Predict, predict
from meshwright.calibrate.rows import Run, shipped
from meshwright.calibrate.shapes import NoShape, shape
from meshwright.calibrate.tuning import finetune
from meshwright.calibrate.validate import step_time
from meshwright.errors import InputError
from meshwright.hardware.records import Chip, Cluster
from meshwright.model.params import total_params
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.units import counted
from meshwright.work import Work

# Weights are natural logarithms of step time, roughly: how much a difference of that kind can move an error
# that two runs would otherwise share. A doubling of chips hardly does (weak scaling loses per cents), another
# chip generation or a mixture of experts against a dense model does.
OTHER_FAMILY = 0.8
OTHER_VENDOR = 1.6
OTHER_CHIP = 0.1  # of the same family: 40 against 80 GB
OTHER_ARCHITECTURE = 1.5
OTHER_PRECISION = 0.4
OTHER_TRAINING = 0.8  # adapters instead of all parameters, a quantised base, pairs
PER_LN_PARAMS = 0.5
PER_LN_CHIPS = 0.1
PER_LN_LENGTH = 0.25
PER_LN_DEGREE = 0.1  # each of tp, pp, cp, ep
DEGREES = ("tp", "pp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class Near:
    """A published run close to a plan. Times are of its own step; `predicted` is None where there is none."""

    id: str
    source: str
    measured: float
    predicted: float | None
    unit: str
    why: str
    distance: float

    @property
    def error_percent(self) -> float | None:
        """(predicted / measured - 1) * 100."""
        return None if self.predicted is None else 100.0 * (self.predicted / self.measured - 1.0)


@dataclass(frozen=True, slots=True)
class _Job:
    """What distances are measured between."""

    chip: Chip
    n_chips: float
    seq_len: float
    precision: str
    degrees: tuple[float, ...]
    params: float = 0.0  # 0: not yet known
    architecture: str = ""
    finetune: str = "none"


def nearest(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    n: int = 3,
    predict: Predict = predict,
    runs: Sequence[Run] | None = None,
) -> tuple[Near, ...]:
    """The `n` closest runs of `runs` (the shipped training runs, and for jobs that train something else than
    all parameters those of the memory table too), closest first, each predicted as it was run.

    Plain numbers only. Rows that are suspect, that print no time, or that state too little are passed over.
    """
    plan = _Job(
        chip=cluster.chip,
        n_chips=float(cluster.n_chips),
        seq_len=float(work.seq_len),
        precision=work.precision,
        degrees=tuple(float(getattr(strategy, name)) for name in DEGREES),
        params=float(total_params(model)),
        architecture=architecture(model),
        finetune=strategy.finetune,
    )
    if runs is None:
        runs = shipped("training")
        if trains(strategy.finetune) != ALL:
            runs += shipped("memory")
    found = _closest(plan, runs, n)
    return tuple(_near(c, plan, job, d, predict) for d, c, job in found)


def _closest(plan: _Job, runs: Sequence[Run], n: int) -> list[tuple[float, Case, _Job]]:
    """Exact, yet models are only built for few runs: the distance without the model is a lower bound, and
    runs are tried in its order until it passes the n-th best."""
    bounds = [(_apart(plan, job), run, job) for run, job in _jobs(runs)]
    best: list[tuple[float, Case, _Job]] = []
    for bound, run, job in sorted(bounds, key=lambda b: b[0]):
        if len(best) == n and bound >= best[-1][0]:
            break
        known = _sized(run)
        if known is None:
            continue
        whole = replace(job, params=known[0], architecture=known[1])
        distance = math.hypot(bound, _apart_model(plan, whole))
        if len(best) == n and distance >= best[-1][0]:
            continue
        found = case(run)
        if isinstance(found, Case):
            best.append((distance, found, whole))
            best.sort(key=lambda b: b[0])
            del best[n:]
    return best


def _jobs(runs: Sequence[Run]) -> Iterator[tuple[Run, _Job]]:
    """Runs that measured a time and are not in doubt, with what their cells say without building a model."""
    for run in runs:
        timed = run.step_time_s or run.tokens_per_s_per_chip
        if run.suspect or not timed or not run.chip or not run.n_chips or not run.seq_len:
            continue
        chip = load_chip(run.chip)
        if chip is None:
            continue
        degrees = tuple(float(getattr(run, name) or 1) for name in DEGREES)
        yield run, _Job(
            chip, float(run.n_chips), float(run.seq_len), run.precision or "bf16", degrees,
            finetune=finetune(run, []),
        )  # fmt: skip


def _apart(a: _Job, b: _Job) -> float:
    """Distance without the model."""
    if a.chip.family == b.chip.family:
        chip = 0.0 if a.chip.name == b.chip.name else OTHER_CHIP
    else:
        chip = OTHER_FAMILY if a.chip.vendor == b.chip.vendor else OTHER_VENDOR
    parts = [
        chip,
        PER_LN_CHIPS * math.log(a.n_chips / b.n_chips),
        PER_LN_LENGTH * math.log(a.seq_len / b.seq_len),
        0.0 if _width(a.precision) == _width(b.precision) else OTHER_PRECISION,
        0.0 if trains(a.finetune) == trains(b.finetune) else OTHER_TRAINING,
        *(PER_LN_DEGREE * math.log(x / y) for x, y in zip(a.degrees, b.degrees)),
    ]
    return math.hypot(*parts)


def _apart_model(a: _Job, b: _Job) -> float:
    kind = 0.0 if a.architecture == b.architecture else OTHER_ARCHITECTURE
    return math.hypot(kind, PER_LN_PARAMS * math.log(a.params / b.params))


def _width(precision: str) -> str:
    return "16 bits" if precision in ("fp16", "bf16") else precision


def _sized(run: Run) -> tuple[float, str] | None:
    """Parameters and architecture of a run's model."""
    shaped = shape(run)
    return None if isinstance(shaped, NoShape) else _size(shaped.model)


@lru_cache(maxsize=1024)
def _size(model: Model) -> tuple[float, str]:
    return float(total_params(model)), architecture(model)


def _near(found: Case, plan: _Job, job: _Job, distance: float, predict: Predict) -> Near:
    run = found.run
    timed = step_time(run, found.work.seq_len, found.work.global_batch_size)
    assert timed is not None  # _jobs passes no run without one
    try:
        predicted: float | None = predict(found).step_time_s
    except InputError:
        predicted = None
    rate = found.work.tokens_per_step / (timed[0] * found.cluster.n_chips)
    ran = f"{counted(found.work.global_batch_size, 'sequence')} a step, {rate:,.0f} tokens/s/chip"
    why = f"{ran}; {_why(found, plan, job)}"
    return Near(run.id, run.source, timed[0], predicted, "s", why, distance)


def _why(found: Case, plan: _Job, job: _Job) -> str:
    """What is the same and what differs, in words."""
    same: list[str] = []
    differs: list[str] = []

    def compare(what: str, ours: Any, theirs: Any, unit: str = "") -> None:
        if ours == theirs:
            same.append(f"{what} {ours}{unit}")
        else:
            differs.append(f"{what} {theirs}{unit} instead of {ours}{unit}")

    compare("chip", plan.chip.name, job.chip.name)
    compare("chips", f"{plan.n_chips:.0f}", f"{job.n_chips:.0f}")
    compare("model of", f"{plan.params / 1e9:.3g}", f"{job.params / 1e9:.3g}", " B parameters")
    compare("kind", plan.architecture, job.architecture)
    compare("length", f"{plan.seq_len:.0f}", f"{job.seq_len:.0f}")
    if plan.finetune != "none" or job.finetune != "none":
        compare("finetune", plan.finetune, job.finetune)
    compare("precision", _width(plan.precision), _width(job.precision))
    for name, ours, theirs in zip(DEGREES, plan.degrees, job.degrees):
        if ours != theirs:
            compare(name, f"{ours:.0f}", f"{theirs:.0f}")
    framework = found.framework or "a program not named"
    parts = [f"{found.model.name} with {framework}"]
    if same:
        parts.append("same " + ", ".join(same))
    if differs:
        parts.append("differs in " + ", ".join(differs))
    return "; ".join(parts)
