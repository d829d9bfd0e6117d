"""Write `docs/accuracy.md`: how far the model is from the published runs that ship with it.

`python docs/accuracy.py` validates every shipped table, predicts each source and each pair of a model and a
chip by a fit that never saw it (from the linearisation at the shipped numbers), and lists the twenty worst
runs: what their predicted step is made of, and what was found where one was looked into. Errors of sources
left out also make `left_out.csv`, which `validate` shows; those of sources left out with chips, programs and
architectures make `error_bands.csv`, the intervals around estimates, and those of peaks `memory_bands.csv`.
`covered.csv` says what the runs are of. Takes minutes.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.calibrate import bands, coverage, fit, rows, unseen
from meshwright.calibrate.cases import Case
from meshwright.calibrate.predict import predict
from meshwright.calibrate.statistics import pooled
from meshwright.calibrate.validate import EXPERTS, validate

PAGE = Path(__file__).parent / "accuracy.md"
BANDS = Path(bands.__file__).parent / bands.TIME
MEMORY_BANDS = BANDS.parent / bands.MEMORY
COVERED = BANDS.parent / coverage.COVERED_FILE
LEFT_OUT = Path(unseen.__file__).parent / "left_out.csv"
READINGS = Path(__file__).parent / "accuracy_readings.csv"  # part of a run's id, and what was found of it
TABLES = ("training", "training-small-one-node", "memory", "memory-small")


def percent(value: float | None) -> str:
    """One decimal, or a dash."""
    return "-" if value is None else f"{value:.1f} %"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = list(head)
    out = ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |"]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)])


def spread(errors: list[float]) -> list[str]:
    """Number, median, ninetieth percentile and largest of some errors."""
    return [
        f"{len(errors)}",
        percent(statistics.median(errors)),
        percent(float(np.percentile(errors, 90))),
        percent(max(errors)),
    ]


def reading(run: str) -> str:
    """What is likely missing in the prediction of a run, by the first line of the readings that names it."""
    lines = csv.DictReader(READINGS.read_text(encoding="utf-8").splitlines())
    return next((line["reading"] for line in lines if line["run"] in run), "")


def figures(found: Mapping[str, Any]) -> list[str]:
    """Number of runs, median, ninetieth percentile and bias of one group."""
    keys = ("median_abs_error_percent", "p90_abs_error_percent", "bias_percent")
    return [f"{found['n']:,}", *(percent(found[k]) for k in keys)]


def summary() -> str:
    """Every shipped table in a line, then the training table by framework, chip, architecture and source."""
    head = ("table", "figure", "runs", "median error", "90 % below", "bias")
    lines, training, ranked = [], {}, []
    for name in TABLES:
        validation = validate(rows.shipped(name))  # type: ignore[arg-type]
        found = validation.json()
        training = training or found
        ranked += [validation.ranking] if name.startswith("training") else []
        lines += [[name, what, *figures(found[what])] for what in ("time", "memory") if found[what]["n"]]
        if name == "training":
            experts = validation.time_of(*EXPERTS).json()
            lines.append([name, "time, mixture of experts", *figures(experts)])
    verdict, ranking, both = training["fit_verdict"], training["ranking"], pooled(ranked)
    text = [
        table(head, lines),
        "",
        f"Of {verdict['ran']} runs of the training table that ran and state what they recompute, "
        f"{verdict['refused']} are called impossible; of {verdict['oom']} that ran out of memory, "
        f"{verdict['accepted']} are called possible. Picking the fastest layout of a group loses "
        f"{percent(ranking['mean_regret_percent'])} on average; "
        f"Kendall's tau is {ranking['kendall_tau']:.2f}. Both training tables together: "
        f"{percent(both.mean_regret_percent)} and {both.kendall_tau:.2f} ({both.pairs:,} pairs).",
    ]
    for label in ("framework", "chip", "architecture", "source"):
        groups = [[name, *figures(v)] for name, v in training["by"][label].items() if v["n"]]
        text += ["", f"## Step time by {label}", "", table((label, *head[2:]), groups)]
    return "\n".join(text)


# Sources off whose rows a number of memory was read: copies of logits, what adapters keep, fragments, what
# the allocator keeps, the size of a context.
READ_OFF = (
    "foundation-model-stack/fms-acceleration", "PrimeIntellect-ai/prime-rl", "modelscope/ms-swift",
    "AnswerDotAI/fsdp_qlora", "bigscience-workshop/bigscience", "QwenLM/Qwen", "https",
)  # fmt: skip


def peaks() -> list[bands.Residual]:
    """Residuals of every peak of the training and memory tables. No number of memory is fitted, so no run has
    to be left out."""
    found = []
    for name in ("training", "memory"):
        validation = validate(rows.shipped(name))  # type: ignore[arg-type]
        kinds = {
            o.run.id: coverage.kind_of(
                o.case.cluster.chip, o.case.framework or "", o.case.model, o.case.work.seq_len,
                o.case.given.get("finetune", "none"),
            )
            for o in validation.outcomes if isinstance(o.case, Case)
        }  # fmt: skip
        found += [
            bands.Residual(bands.of_peak(kinds[r.id]), r.source, math.log(r.predicted / r.measured), r.id)
            for r in validation.rows if r.metric == "peak_memory_gib" and r.predicted
        ]  # fmt: skip
    return found


def peak_intervals(today: str) -> list[str]:
    """The interval around a peak by what trains, experts and length, and how often it holds a source that is
    not in it; written as `memory_bands.csv`. Sources off which a number was read say nothing of new ones."""
    unread, read = [], []
    for one in peaks():
        (read if one.source.startswith(READ_OFF) else unread).append(one)
    usual = [one for one in unread if bands.LONGER not in one.group]  # too few sources have longer ones
    share = bands.share_that_holds(unread, usual)
    found = bands.measured(unread, share)
    bands.write(MEMORY_BANDS, found, today)
    inside, others = (bands.without_source(unread, judged, share) for judged in (unread, read))
    table_of = {group: (m.low, m.high) for group, m in found.items()}
    lines = []
    for group in sorted({one.group for one in unread}):
        own = [one for one in unread if one.group == group]
        low, high = bands.asked(table_of, group)
        counts = (f"{len(own)}", f"{len({one.source for one in own})}")
        lines.append([*group, *counts, f"{low:.2f} to {high:.2f}", *percents(unread, inside, group)])
    inside_usual = bands.without_source(unread, usual, share)
    (runs, mean), every, (known, _) = (
        percents(usual, inside_usual), percents(unread, inside), percents(read, others)
    )  # fmt: skip
    head = (*bands.GROUPS[bands.MEMORY], "runs", "sources", "interval, of predicted", "holds of runs",
            "holds of a source, mean")  # fmt: skip
    return [
        "## How wide an interval of a peak is",
        "",
        "Training: all parameters with a program of the training runs; tuning: everything else; longer: over "
        "16k tokens a sequence. Runs of sources that no number was read off, each against intervals that the "
        f"other such sources make. An interval reaches over {100 * share:.0f} % of the runs that make it, a "
        "source weighing as the root of its runs: that is what it takes to hold 80 % of the runs up to 16k "
        f"of a source left out. So they hold {runs} of these (mean of sources {mean}), {every[0]} of them "
        f"and longer ones (mean {every[1]}), of each group as the table says, and {known} of the runs of "
        "sources with a number read off. Where a group has too few runs or sources a wider one is asked, "
        "and less usual jobs are never held for more certain than usual ones.",
        "",
        table(head, lines),
    ]


def memory() -> str:
    """Peaks by framework, by whether a number was read off their source, and verdicts of the memory table."""
    head = ("table", "runs of", "runs", "median error", "90 % below", "bias")
    lines = []
    for name in ("training", "memory"):
        found = validate(rows.shipped(name))  # type: ignore[arg-type]
        by = {k: v["memory"] for k, v in found.by["framework"].items() if v["memory"]["n"]}
        lines += [[name, framework, *figures(v)] for framework, v in by.items()]
        peaks = [r for r in found.rows if r.metric == "peak_memory_gib" and r.error_percent is not None]
        for label, inside in (("sources with a number read off", True), ("all other sources", False)):
            part = [r.error_percent or 0.0 for r in peaks if r.source.startswith(READ_OFF) == inside]
            ranked = sorted(abs(e) for e in part)
            shown = (ranked[len(ranked) // 2], ranked[9 * len(ranked) // 10], statistics.median(part))
            lines.append([name, f"**{label}**", f"{len(part)}", *map(percent, shown)])
    verdict = found.fit_verdict
    small = validate(rows.shipped("memory-small")).rows
    gib = statistics.median(abs((r.predicted or 0.0) - r.measured) for r in small if r.predicted)
    return "\n".join(
        [
            "## Peak memory",
            "",
            table(head, lines),
            "",
            "No number of memory is fitted. Habits of programs come from their code and papers, some off "
            "measured rows; the last line of each table says what to expect of a source that nothing was "
            f"read off. In the memory table {verdict.refused} of {verdict.ran} runs that ran are called "
            f"impossible and {verdict.accepted} of {verdict.oom} that ran out of memory possible; peaks of "
            f"tiny models are {gib:.2f} GiB off.",
        ]
    )


def intervals(solution: fit.Solution, today: str) -> list[str]:
    """The interval around a step by what runs cover of a job, and how often it holds a source that is not in
    it; written as `error_bands.csv`."""
    known = set(coverage.kinds(solution.task.found))
    apart = coverage.apart(fit.observations(rows.shipped("memory")), known)
    held = coverage.held(solution) + apart
    residuals = bands.of_times(held)
    alone = [r for h, r in zip(held, residuals, strict=True) if h.left_out == "source"]
    share = bands.share_that_holds(residuals, alone)
    found = bands.measured(residuals, share)
    bands.write(BANDS, found, today)
    inside = bands.without_source(residuals, alone, share)
    lines = []
    for group, m in found.items():
        errors = [100.0 * abs(math.expm1(r.value)) for r in residuals if r.group == group]
        if errors:  # else a wider group, asked where one of these says too little
            counts = (f"{m.n_runs:,}", f"{m.n_predictions:,}", f"{m.n_sources}")
            ends = f"{m.low:.2f} to {m.high:.2f}"
            lines.append([*group, *counts, *spread(errors)[1:3], ends, *percents(alone, inside, group)])
    runs, mean = percents(alone, inside)
    head = ("covered by runs", "experts", "runs", "predictions", "sources", "median error", "90 % below",
            "interval, of predicted", "holds of runs", "holds of a source, mean")  # fmt: skip
    return [
        "## How wide an interval of a time is",
        "",
        "A job is covered by a run of its program on its chip, one of its architecture, one on its chip of "
        "sequences as long, and one of its program that trains the same parameters. Every run is predicted "
        "by fits without its source, and without its chip, its program, both, its architecture or its length "
        f"too; {len(apart)} times of the memory table, which is in no fit, stand beside them. By what those "
        "fits still saw it counts to a class, so a run counts to several. The interval of a class reaches "
        f"over {100 * share:.0f} % of its predictions, a source weighing as the root of its runs, and over "
        "that of the classes of which more is seen: that is what it takes to hold 80 % of a source that is "
        f"left out. Counted with intervals that the other sources make, they hold {runs} of all runs whose "
        f"source alone is left out (mean of sources {mean}), of each class as the table says.",
        "",
        table(head, lines),
    ]


def percents(
    judged: Sequence[bands.Residual], inside: Sequence[bool], group: bands.Group | None = None
) -> tuple[str, str]:
    """Of what share of the runs of a group (all), and of each source's in the mean, an interval holds what
    was measured."""
    own = [(r, i) for r, i in zip(judged, inside, strict=True) if group in (None, r.group)]
    if not own:
        return "-", "-"
    runs, mean = bands.held([r for r, _ in own], [i for _, i in own])
    return f"{100.0 * runs:.0f} %", f"{100.0 * mean:.0f} %"


def left_out() -> str:
    """Each source and each pair of model and chip predicted by a fit without it, and the worst runs."""
    found = fit.observations(rows.shipped("training"))
    solution = fit.at_shipped(found)
    groups: dict[str, list[float]] = {}
    sources = solution.held_out(lambda one: one.source)
    for _, source, residual in sources:
        groups.setdefault(source, []).append(100.0 * abs(math.expm1(residual)))
    lines = [[s, *spread(e)] for s, e in groups.items()]
    lines.append(["**all**", *spread([e for errors in groups.values() for e in errors])])
    pairs = solution.held_out(lambda one: f"{one.case.model.name} on {one.case.cluster.chip.name}")
    apart_too = [100.0 * abs(math.expm1(residual)) for *_, residual in pairs]
    lines.append([f"{len({pair for _, pair, _ in pairs})} pairs of model and chip", *spread(apart_too)])
    text = [
        "## What the fit never saw",
        "",
        "Each source predicted by a fit without it; in the last line each pair of a model and a chip.",
        "",
        table(("source", "runs", "median error", "90 % below", "worst"), lines),
    ]
    today = datetime.now(tz=UTC).date().isoformat()
    unseen.write(LEFT_OUT, groups, today)
    coverage.write(COVERED, found, today)
    text += ["", *intervals(solution, today), "", *peak_intervals(today)]
    worst = sorted(zip(solution.residual, found, strict=True), key=lambda pair: -abs(pair[0]))[:20]
    parts = []
    for residual, one in worst:
        id_ = one.case.run.id
        seconds = predict(one.case).time_s or {}
        whole = sum(seconds.values())
        largest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
        made_of = ", ".join(f"{name} {100 * s / whole:.0f} %" for name, s in largest)
        error = f"{100 * math.expm1(residual):+.0f} %"
        parts.append([id_, f"{one.seconds:.3g} s", error, made_of, reading(id_)])
    text += ["", "## The twenty worst runs", ""]
    head = (
        "run",
        "measured",
        "error",
        "predicted step is made of",
        "what is likely missing, where looked into",
    )
    text.append(table(head, parts))
    return "\n".join(text)


if __name__ == "__main__":
    PAGE.write_text(
        "# Accuracy\n\nWritten by `python docs/accuracy.py`; errors are of predicted against measured, runs "
        "marked suspect apart.\n\n" + summary() + "\n\n" + memory() + "\n\n" + left_out() + "\n",
        encoding="utf-8",
    )
