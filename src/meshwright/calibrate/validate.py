"""Measured runs against the model: what each row measured, what is predicted for it, the sum of that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from meshwright.calibrate.cases import Case, Miss, Skip, case
from meshwright.calibrate.conventions import convention, counted_flops, peak_flops, reading
from meshwright.calibrate.coverage import architecture
from meshwright.calibrate.predict import Predict, Prediction, predict
from meshwright.calibrate.rows import Run
from meshwright.calibrate.statistics import (
    Errors,
    FitVerdict,
    Judged,
    Ranked,
    Ranking,
    errors,
    fit_verdict,
    ranking,
)
from meshwright.calibrate.unseen import ALL, Unseen
from meshwright.errors import InputError

Metric = Literal["step_time_s", "peak_memory_gib", "tflops_per_chip", "mfu_percent", "hfu_percent", "fits"]
Bands = Callable[[Case, float], tuple[float, float] | None]  # (case, predicted step time) -> seconds
REFUSED = "refused"  # how a miss begins that is a rule's verdict on the run
EXPERTS = ("moe", "mla-moe", "hybrid-moe")  # architectures with experts
LABELS = ("framework", "chip", "architecture", "source")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one run: measured against predicted.

    `measured` of a time row is in seconds also where the table gives tokens/s (`stated_as` says which).
    A peak is predicted in the sense and unit that its source prints (`stated_as` says which).
    `fits` rows only say whether a run ran (`measured` 1) or ran out of memory (0).
    """

    id: str
    metric: Metric
    measured: float
    predicted: float | None
    error_percent: float | None
    fits: bool | None
    stated_as: str
    source: str
    labels: tuple[tuple[str, str], ...]
    suspect: str = ""
    missed: str = ""
    interval_s: tuple[float, float] | None = None

    def json(self) -> dict[str, Any]:
        """Plain types; keys as in the contract, more beside them."""
        out: dict[str, Any] = {
            "id": self.id,
            "metric": self.metric,
            "measured": self.measured,
            "predicted": self.predicted,
            "error_percent": self.error_percent,
            "fits": self.fits,
            "stated_as": self.stated_as,
            "source": self.source,
        }
        if self.suspect:
            out["suspect"] = self.suspect
        if self.missed:
            out["missed"] = self.missed
        if self.interval_s is not None:
            out["interval_s"] = list(self.interval_s)
        return out


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run and what became of it: a skip, a miss, or a prediction."""

    run: Run
    case: Case | Skip | Miss
    prediction: Prediction | None
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """What validation found. Rows marked `suspect` are in `suspect_rows`, outside every headline figure.

    `left_out`: the runs are those that the numbers were fitted to, and how well each source is predicted by
    a fit without it stands here (by source, and all together); None for other runs.
    """

    runs: int
    evaluated: int
    skipped: dict[str, int]
    missed: dict[str, int]
    time: Errors
    memory: Errors
    fit_verdict: FitVerdict
    ranking: Ranking
    by: dict[str, dict[str, dict[str, Any]]]
    rows: tuple[Row, ...]
    suspect_rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...] = field(repr=False, default=())
    left_out: Mapping[str, Unseen] | None = None

    def time_of(self, *architectures: str) -> Errors:
        """Step time of the runs of several architectures together."""
        return _errors(
            (r for r in self.rows if dict(r.labels)["architecture"] in architectures), ("step_time_s",)
        )

    def json(self) -> dict[str, Any]:
        """The `validate` object of the contract, plain types only."""
        return {
            "runs": self.runs,
            "evaluated": self.evaluated,
            "skipped": self.skipped,
            "missed": self.missed,
            "time": self.time.json(),
            "memory": self.memory.json(),
            "fit_verdict": self.fit_verdict.json(),
            "ranking": self.ranking.json(),
            "by": self.by,
            "left_out": self.left_out
            and {
                **self.left_out[ALL].json(),
                "by_source": {k: v.json() for k, v in self.left_out.items() if k != ALL},
            },
            "rows": [row.json() for row in self.rows],
            "suspect": {
                "runs": len({row.id for row in self.suspect_rows}),
                "time": _errors(self.suspect_rows, ("step_time_s",)).json(),
                "memory": _errors(self.suspect_rows, ("peak_memory_gib",)).json(),
                "rows": [row.json() for row in self.suspect_rows],
            },
        }


def validate(
    runs: Iterable[Run],
    *,
    framework: str | None = None,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    predict: Predict = predict,
    error_bands: Bands | None = None,
) -> Validation:
    """Predict every run and compare.

    `framework` keeps only its runs. `jobs` processes share the work (`predict` must then be a module's
    function). `progress(done, total)` is called as rows are done. `error_bands` gives the interval of a
    predicted time; the share of measured times inside it is `interval_coverage_percent`.
    """
    chosen = [r for r in runs if framework is None or (r.framework or "").lower() == framework.lower()]
    outcomes: list[Outcome] = []
    for outcome in _outcomes(chosen, jobs, predict):
        outcomes.append(outcome)
        if progress is not None:
            progress(len(outcomes), len(chosen))
    everything = [row for outcome in outcomes for row in _rows(outcome, error_bands)]
    rows = tuple(row for row in everything if not row.suspect)
    skipped = Counter(o.case.reason for o in outcomes if isinstance(o.case, Skip))
    missed = Counter(o.miss.reason for o in outcomes if o.miss is not None)
    return Validation(
        runs=len(outcomes),
        evaluated=sum(o.prediction is not None for o in outcomes),
        skipped=dict(sorted(skipped.items())),
        missed=dict(sorted(missed.items())),
        time=_errors(rows, ("step_time_s",)),
        memory=_errors(rows, ("peak_memory_gib",)),
        fit_verdict=fit_verdict(_fits(outcomes)),
        ranking=ranking(_ranked(outcomes)),
        by=_by(rows),
        rows=rows,
        suspect_rows=tuple(row for row in everything if row.suspect),
        outcomes=tuple(outcomes),
    )


def judge(run: Run, predict: Predict = predict) -> Outcome:
    """One run: skipped, missed or predicted."""
    found = case(run)
    if isinstance(found, Skip):
        return Outcome(run, found, None)
    if isinstance(found, Miss):
        return Outcome(run, found, None, found)
    try:
        prediction = predict(found)
    except InputError as error:
        codes = "+".join(sorted({d.code for d in error.diagnostics})) or "no code"
        return Outcome(run, found, None, Miss(run, f"{REFUSED} ({codes})", str(error)))
    return Outcome(run, found, prediction)


def _outcomes(runs: Sequence[Run], jobs: int, predict: Predict) -> Iterator[Outcome]:
    if jobs <= 1 or len(runs) < 64:
        yield from (judge(run, predict) for run in runs)
        return
    from concurrent.futures import ProcessPoolExecutor  # slow to import, and seldom wanted

    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(partial(judge, predict=predict), runs, chunksize=max(1, len(runs) // (8 * jobs)))


def step_time(run: Run, seq_len: float, batch: float) -> tuple[float, str] | None:
    """The measured step time in seconds and the column that it comes from; None where neither is given.

    T = seq_len * batch / (n_chips * tokens_per_s_per_chip) where the step time itself is not printed.
    """
    if run.step_time_s is not None:
        return run.step_time_s, "step_time_s"
    if run.tokens_per_s_per_chip is not None and run.n_chips:
        return seq_len * batch / (run.n_chips * run.tokens_per_s_per_chip), "tokens_per_s_per_chip"
    return None


def _rows(outcome: Outcome, bands: Bands | None) -> Iterator[Row]:
    """The comparisons that a run allows; of a missed run, what it would have been compared with."""
    run, found = outcome.run, outcome.case
    if isinstance(found, Skip):
        return
    seq_len = found.work.seq_len if isinstance(found, Case) else run.seq_len
    batch = found.work.global_batch_size if isinstance(found, Case) else run.global_batch_size
    kind = architecture(found.model) if isinstance(found, Case) else "unknown"
    labels = (
        ("framework", run.framework or "not stated"),
        ("chip", run.chip or "not stated"),
        ("architecture", kind),
        ("source", run.source_key),
    )
    prediction = outcome.prediction

    def row(metric: Metric, measured: float, said: float | None, stated_as: str, interval: Any = None) -> Row:
        error = None if said is None or metric == "fits" else 100.0 * (said / measured - 1.0)
        return Row(
            run.id, metric, measured, said, error, prediction.fits if prediction else None, stated_as,
            run.source_key, labels, run.suspect or "", outcome.miss.reason if outcome.miss else "", interval,
        )  # fmt: skip

    emitted = False
    timed = step_time(run, seq_len, batch) if seq_len and batch else None
    if timed is not None:
        emitted = True
        said = prediction.step_time_s if prediction else None
        interval = bands(found, said) if bands and said is not None and isinstance(found, Case) else None
        yield row("step_time_s", timed[0], said, timed[1], interval)
    if run.peak_memory_gib is not None:
        emitted = True
        printed = reading(run)
        said = prediction.peak_as(printed.kind) / printed.unit if prediction else None
        yield row("peak_memory_gib", run.peak_memory_gib, said, str(printed))
    if timed is None:
        for metric, measured, said in _rates(outcome):
            emitted = True
            yield row(metric, measured, said, metric)
            break
    if not emitted:
        fits = float(prediction.fits) if prediction else None
        yield row("fits", 0.0 if run.out_of_memory else 1.0, fits, "out_of_memory")


def _rates(outcome: Outcome) -> Iterator[tuple[Metric, float, float | None]]:
    """TFLOP/s, MFU or HFU of a run that prints no time, predicted in its source's own convention."""
    run, found, prediction = outcome.run, outcome.case, outcome.prediction

    def rate(hardware: bool) -> float | None:
        if prediction is None or not isinstance(found, Case):
            return None
        flops = counted_flops(found, prediction.model_flops, prediction.hardware_flops, hardware)
        return flops / (prediction.step_time_s * found.cluster.n_chips)

    hardware = convention(run).hardware
    peak = peak_flops(found) if isinstance(found, Case) else math.nan
    if run.tflops_per_chip is not None:
        said = rate(hardware)
        yield "tflops_per_chip", run.tflops_per_chip, None if said is None else said / 1e12
    if run.mfu_percent is not None:
        said = rate(hardware)
        yield "mfu_percent", run.mfu_percent, None if said is None else 100.0 * said / peak
    if run.hfu_percent is not None:
        said = rate(True)
        yield "hfu_percent", run.hfu_percent, None if said is None else 100.0 * said / peak


def _judged(row: Row) -> Judged:
    inside = None
    if row.interval_s is not None:
        inside = row.interval_s[0] <= row.measured <= row.interval_s[1]
    return Judged(row.error_percent, row.source, inside)


def _errors(rows: Iterable[Row], metrics: tuple[str, ...]) -> Errors:
    return errors(_judged(row) for row in rows if row.metric in metrics)


def _by(rows: Sequence[Row]) -> dict[str, dict[str, dict[str, Any]]]:
    """The same figures for each framework, chip, architecture and source (time, with memory beside it), and
    for each metric."""
    out: dict[str, dict[str, dict[str, Any]]] = {}
    for i, label in enumerate(LABELS):
        values = sorted({row.labels[i][1] for row in rows})
        out[label] = {}
        for value in values:
            mine = [row for row in rows if row.labels[i][1] == value]
            figures = _errors(mine, ("step_time_s",)).json()
            figures["memory"] = _errors(mine, ("peak_memory_gib",)).json()
            out[label][value] = figures
    metrics = sorted({row.metric for row in rows} - {"fits"})
    out["metric"] = {metric: _errors(rows, (metric,)).json() for metric in metrics}
    return out


def _fits(outcomes: Iterable[Outcome]) -> Iterator[tuple[bool, bool, bool]]:
    """Of each run whether it ran, is called possible, and states what it recomputes. A plan that a rule
    forbids is called impossible."""
    for o in outcomes:
        refused = o.miss is not None and o.miss.reason.startswith(REFUSED)
        if (o.prediction is not None or refused) and not o.run.suspect:
            fits = o.prediction is not None and o.prediction.fits
            yield o.run.out_of_memory != 1, fits, o.run.recompute_stated


def _ranked(outcomes: Iterable[Outcome]) -> Iterator[Ranked]:
    """Time rows with the job that they share and the layout that they try."""
    for o in outcomes:
        found = o.case
        if o.prediction is None or o.run.suspect or not isinstance(found, Case):
            continue
        timed = step_time(o.run, found.work.seq_len, found.work.global_batch_size)
        if timed is None:
            continue
        run = o.run
        shape: Hashable = (
            run.model, found.model.name, run.n_layers, run.d_model, run.n_heads, run.d_ff, run.vocab,
            run.n_experts,
        )  # fmt: skip
        machine: Hashable = (run.chip, run.n_chips, run.precision, run.options)
        program: Hashable = (run.source, found.framework, found.release)
        group: Hashable = (program, shape, machine, found.work.seq_len, found.work.global_batch_size)
        layout: Hashable = tuple(sorted((k, v) for k, v in found.given.items() if v != 1))
        yield Ranked(group, layout, timed[0], o.prediction.step_time_s)
