"""Write `docs/experts.md`: layouts that experts published, and the best plan found for the same job.

`python docs/experts.py` takes ten runs of the shipped table by a stated rule, searches every strategy that
their framework can express on the same chips, and explains each difference by the terms of the step. Takes a
few minutes; run it again when the model changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import api, checks, units
from meshwright.calibrate import rows
from meshwright.calibrate.cases import Case
from meshwright.calibrate.predict import profile_of
from meshwright.calibrate.rows import Run
from meshwright.calibrate.validate import Outcome, judge, step_time
from meshwright.checks.shapes import moe
from meshwright.report.as_json import strategy_line
from meshwright.report.comparison import Row, compared
from meshwright.report.records import Estimate
from meshwright.search.improve import changed, spelled
from meshwright.strategy import targets

PAGE = Path(__file__).parent / "experts.md"
LAYOUTS = 10
CHIPS = 64  # fewer leave an expert little to choose
EXPLAIN = 0.15  # a larger gain is explained term by term
FASTER = 1e-3  # a smaller gain is none
TOLD = 0.9  # of the seconds that move in the best plan's favour
RULE = (
    "The rule. Rows of the table of training runs with a measured step, not marked suspect, on "
    f"{CHIPS} chips or more, that state layout, microbatch and recompute, that the model can predict and "
    f"says fit, of a framework whose own options are known ({', '.join(targets.names())}). Of several rows "
    "of one job (model, chips, precision, length, batch, source) the one measured fastest: what its author "
    "would keep. Then, most chips first, one row for each combination of framework, chip and dense or not, "
    f"and each model once: half of the {LAYOUTS} dense, half mixtures of experts."
)

# Which fields of a strategy move a part of the step, for the sentences.
MOVES: dict[str, tuple[str, ...]] = {
    "compute": ("recompute", "microbatch_size", "tp", "cp", "ep", "etp", "pp", "vpp", "layers_per_stage"),
    "tp": ("tp", "sp", "cp", "microbatch_size", "recompute"),
    "cp": ("cp", "cp_method", "microbatch_size"),
    "ep": ("ep", "etp", "dispatcher", "schedule", "cp", "tp", "placement"),
    "dp": ("dp", "zero", "zero_group", "pp", "tp", "cp", "ep", "placement"),
    "pp": ("pp", "vpp", "schedule", "microbatch_size"),
    "bubble": ("pp", "vpp", "schedule", "microbatch_size", "dp", "cp", "tp", "layers_per_stage"),
    "optimizer": ("zero", "zero_group", "dp", "pp", "tp", "offload"),
    "other": ("microbatch_size", "tp", "cp", "pp", "vpp", "dp", "offload"),
}


@dataclass(frozen=True, slots=True)
class Expert:
    """A published layout and the best plan for the same model, chips, batch, precision and framework."""

    run: Run
    measured_s: float
    expert: Estimate
    best: Estimate
    searched: int

    @property
    def gain(self) -> float:
        """Share of throughput that the best plan wins, both predicted."""
        return self.expert.step_time_s / self.best.step_time_s - 1.0


def candidates(runs: Iterable[Run]) -> list[tuple[Run, Case, float]]:
    """One run a job, the fastest, with its case and measured step; most chips first."""
    jobs: dict[tuple[Any, ...], tuple[Run, Case, float]] = {}
    for run in runs:
        if run.suspect or run.out_of_memory or (run.n_chips or 0) < CHIPS:
            continue
        if run.recompute is None or run.framework not in targets.names():
            continue
        judged = judge(run)
        found = _timed(judged)
        if found is not None:
            case, seconds = found
            work = case.work
            job = (case.framework, case.model.name, run.chip, run.n_chips, work.precision, work.seq_len,
                   work.global_batch_size, run.source_key)  # fmt: skip
            if job not in jobs or seconds < jobs[job][2]:
                jobs[job] = (run, case, seconds)
    return sorted(jobs.values(), key=lambda one: (-one[1].cluster.n_chips, one[0].id))


def _timed(judged: Outcome) -> tuple[Case, float] | None:
    """The case and its measured step, where the model predicts it and says that it fits."""
    case, prediction = judged.case, judged.prediction
    if not isinstance(case, Case) or prediction is None or not prediction.fits:
        return None
    if "microbatch_size" not in case.given:
        return None
    timed = step_time(judged.run, case.work.seq_len, case.work.global_batch_size)
    return None if timed is None else (case, timed[0])


def chosen(runs: Iterable[Run], many: int = LAYOUTS) -> list[tuple[Run, Case, float]]:
    """The runs of the rule, in the order of the page."""
    taken: dict[bool, list[tuple[Run, Case, float]]] = {False: [], True: []}
    cells, models = set(), set()
    for run, case, seconds in candidates(runs):
        sparse = bool(moe(case.model))
        cell = (case.framework, run.chip, sparse)
        if cell in cells or case.model.name in models or len(taken[sparse]) >= (many + 1) // 2:
            continue
        cells.add(cell)
        models.add(case.model.name)
        taken[sparse].append((run, case, seconds))
    return (taken[False] + taken[True])[:many]


def studied(run: Run, case: Case, measured_s: float) -> Expert:
    """The best plan for the job of a case against the case's own layout."""
    framework = profile_of(case).framework
    same: dict[str, Any] = {
        "work": case.work,
        "framework": "@".join(part for part in (framework.name, framework.generation) if part),
    }
    expert = api.estimate(case.model, case.cluster, nearest=0, **same, **case.given)
    kept = {name: getattr(expert.strategy, name) for name in ("optimizer", "finetune", "dispatcher")}
    found = api.plan(case.model, case.cluster, top=1, target=case.framework, **same, **kept)
    best = found.best
    # What the framework's options do not name (a layout of layers, say) may keep the expert ahead.
    if best is None or best.step_time_s > expert.step_time_s:
        best = expert
    detailed = api.estimate(case.model, case.cluster, nearest=0, **same, **_fields(best))
    return Expert(run, measured_s, expert, detailed, found.searched)


def _fields(estimate: Estimate) -> dict[str, Any]:
    names = type(estimate.strategy).__dataclass_fields__
    return {name: getattr(estimate.strategy, name) for name in names}


def time_rows(found: Expert) -> list[Row]:
    """Parts of the step that differ, the largest difference first."""
    rows_ = compared([found.expert, found.best], 1).time[1:]
    return [row for row in rows_ if abs(row.differences[1]) > 0]


def explanation(found: Expert) -> str:
    """Why the best plan is faster: named terms that make up the seconds saved, and the fields behind them.

    Terms in favour of the best plan are told until they make up nine tenths of all seconds in its favour,
    then the largest that goes against it.
    """
    saved = found.expert.step_time_s - found.best.step_time_s
    changes = changed(found.expert.strategy, found.best.strategy)
    moved = [(row, -row.differences[1]) for row in time_rows(found)]
    favour = sorted(((r, s) for r, s in moved if s > 0), key=lambda p: -p[1])
    against = sorted(((r, s) for r, s in moved if s < 0), key=lambda p: p[1])
    told, sum_ = [], 0.0
    for row, seconds in favour:
        if sum_ >= TOLD * sum(s for _, s in favour):
            break
        told.append(_term(row, seconds, changes) + _again(found, row))
        sum_ += seconds
    said = f"Of {units.seconds_text(saved)} saved: {'; '.join(told)}."
    if against:
        said += f" Against it: {_term(*against[0], changes)}."
    return said


def _again(found: Expert, row: Row) -> str:
    """Of the compute that differs, what is recompute."""
    less = float(found.expert.evaluation.recompute_s) - float(found.best.evaluation.recompute_s)
    if not row.term.endswith(".compute") or less == 0:
        return ""
    return f", of it recompute {'-' if less > 0 else '+'}{units.seconds_text(abs(less))}"


def _term(row: Row, seconds: float, changes: dict[str, tuple[Any, Any]]) -> str:
    name = row.term.rpartition(".")[2]
    behind = {field: changes[field] for field in MOVES.get(name, ()) if field in changes}
    because = f" ({spelled(behind)})" if behind else ""
    sign = "-" if seconds > 0 else "+"
    return f"`{row.term}` {sign}{units.seconds_text(abs(seconds))}{because}"


def checked(estimate: Estimate) -> str:
    """The checks that a plan passed, and what they remark."""
    found = checks.run(
        estimate.model, estimate.cluster, estimate.work, estimate.strategy, estimate.evaluation,
        estimate.profile,
    )  # fmt: skip
    broken = [d for d in found if d.severity == "error"]
    remarks = sorted({d.code for d in found if d.severity != "error"})
    rules = len(checks.RULES) + 1  # and memory
    said = f"{rules - len({d.code for d in broken}) - len(remarks)} of {rules} checks without a remark"
    said += f", none broken; remarks {', '.join(remarks)}" if remarks and not broken else ""
    return said + (f"; broken: {', '.join(d.code for d in broken)}" if broken else "")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    out = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)])


def summary(found: Sequence[Expert]) -> str:
    """One line a layout."""
    head = ("model", "chips", "framework", "measured", "expert layout", "best plan", "gain")
    lines = []
    for one in found:
        steps = (one.measured_s, one.expert.step_time_s, one.best.step_time_s)
        chips = f"{one.expert.cluster.n_chips:,} x {one.expert.cluster.chip.name}"
        lines.append(
            [one.expert.model.name, chips, one.run.framework or "", *(units.seconds_text(s) for s in steps),
             f"{one.gain:+.1%}"]
        )  # fmt: skip
    return table(head, lines)


def section(one: Expert) -> Iterator[str]:
    """A layout in full."""
    work, cluster = one.expert.work, one.expert.cluster
    yield f"## {one.expert.model.name} on {cluster.n_chips:,} x {cluster.chip.name}"
    yield (
        f"`{one.run.id}` ({one.run.source}): {units.length_text(int(work.seq_len))} tokens x "
        f"{int(work.global_batch_size):,} sequences, {work.precision}. {one.searched:,} strategies evaluated."
    )
    plans = (("expert", one.expert), ("best", one.best))
    yield table(
        ("layout", "strategy", "step", "MFU", "memory", "checks"),
        [
            [name, f"`{strategy_line(e.strategy)}`", units.seconds_text(e.step_time_s),
             units.percent_text(e.mfu), units.bytes_text(float(e.evaluation.peak_bytes)), checked(e)]
            for name, e in plans
        ],
    )  # fmt: skip
    if one.gain < FASTER:
        yield "The search finds nothing faster."
        return
    yield f"Changes: {spelled(changed(one.expert.strategy, one.best.strategy))}."
    rows_ = [
        [f"`{row.term}`", *(units.seconds_text(v) for v in row.values), f"{row.differences[1]:+.3g} s"]
        for row in time_rows(one)
        if abs(row.differences[1]) >= 1e-3 * one.expert.step_time_s
    ]
    yield table(("term", "expert", "best", "difference"), rows_)
    if one.gain > EXPLAIN:
        yield f"**Why {one.gain:.0%}.** {explanation(one)}"


def page(found: Sequence[Expert]) -> str:
    """The whole page."""
    large = [one for one in found if one.gain > EXPLAIN]
    within = len(found) - len(large)
    parts = [
        "# Expert layouts",
        "Written by `python docs/experts.py`. Both layouts of a row are predicted, so a gain is the model's "
        "word; how far that word is from measurements stands on the [accuracy page](accuracy.md). The best "
        "plan is of a whole search over what the framework can express, with the same model, chips, batch, "
        "precision, options, optimizer and dispatcher; memory may be full to the last byte (MW302). "
        f"{within} of {len(found)} experts are within {EXPLAIN:.0%} of it.",
        RULE,
        summary(found),
        *(text for one in found for text in section(one)),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Study every layout and write the page."""
    found = []
    for run, case, seconds in chosen(rows.shipped("training")):
        one = studied(run, case, seconds)
        print(f"{run.id}: {one.gain:+.1%}", file=sys.stderr)
        found.append(one)
    PAGE.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
