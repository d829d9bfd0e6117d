"""Write `docs/accuracy.md`: how far the model is from the published runs that ship with it.

`python docs/accuracy.py` validates every shipped table, predicts each source by a fit that never saw it, and
lists the twenty worst runs with what their predicted step is made of; the errors of sources left out also
make `error_bands.csv`, the intervals around estimates. Takes a few minutes.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshwright.calibrate import bands, fit, rows
from meshwright.calibrate.predict import predict
from meshwright.calibrate.validate import validate

PAGE = Path(__file__).parent / "accuracy.md"
BANDS = Path(bands.__file__).parent / "error_bands.csv"
TABLES = ("training", "training-small-one-node", "memory", "memory-small")


def percent(value: float | None) -> str:
    """One decimal, or a dash."""
    return "-" if value is None else f"{value:.1f} %"


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = list(head)
    out = ["| " + " | ".join(titles) + " |", "| " + " | ".join("---" for _ in titles) + " |"]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)])


def figures(found: Mapping[str, Any]) -> list[str]:
    """Number of runs, median, ninetieth percentile and bias of one group."""
    keys = ("median_abs_error_percent", "p90_abs_error_percent", "bias_percent")
    return [f"{found['n']:,}", *(percent(found[k]) for k in keys)]


def summary() -> str:
    """Every shipped table in a line, then the training table by framework, chip, architecture and source."""
    head = ("table", "figure", "runs", "median error", "90 % below", "bias")
    lines, training = [], {}
    for name in TABLES:
        found = validate(rows.shipped(name)).json()  # type: ignore[arg-type]
        training = training or found
        lines += [[name, what, *figures(found[what])] for what in ("time", "memory") if found[what]["n"]]
    verdict, ranking = training["fit_verdict"], training["ranking"]
    text = [
        table(head, lines),
        "",
        f"Of {verdict['ran']} runs of the training table that ran and state what they recompute, "
        f"{verdict['refused']} are called impossible; of {verdict['oom']} that ran out of memory, "
        f"{verdict['accepted']} are called possible. Picking the fastest layout of a group loses "
        f"{percent(ranking['mean_regret_percent'])} on average; "
        f"Kendall's tau is {ranking['kendall_tau']:.2f}.",
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


def left_out() -> str:
    """Each source predicted by a fit without it, and the worst runs of the fit with all of them."""
    found = fit.observations(rows.shipped("training"))
    fitted = fit.fit(found, progress=lambda line: print(line, file=sys.stderr))
    groups: dict[str, list[float]] = {}
    for _, source, residual in fitted.left_out:
        groups.setdefault(source, []).append(100.0 * abs(math.expm1(residual)))
    lines = [[s, f"{len(e)}", percent(statistics.median(e)), percent(max(e))] for s, e in groups.items()]
    every = [e for errors in groups.values() for e in errors]
    lines.append(["**all**", f"{len(every)}", percent(statistics.median(every)), percent(max(every))])
    head = ("source", "runs", "median error", "worst")
    text = ["## Sources that the fit never saw", "", table(head, lines)]
    cases = {one.case.run.id: one.case for one in found}
    apart = [
        (cases[i].framework or "", bands.architecture(cases[i].model), source, residual)
        for i, source, residual in fitted.left_out
    ]
    bands.write(BANDS, apart, datetime.now(tz=UTC).date().isoformat())
    worst = sorted(zip(fitted.residuals, found, strict=True), key=lambda pair: -abs(pair[0][2]))[:20]
    parts = []
    for (id_, _, residual), one in worst:
        seconds = predict(one.case).time_s or {}
        whole = sum(seconds.values())
        largest = sorted(seconds.items(), key=lambda item: -item[1])[:3]
        made_of = ", ".join(f"{name} {100 * s / whole:.0f} %" for name, s in largest)
        parts.append([id_, f"{one.seconds:.3g} s", f"{100 * math.expm1(residual):+.0f} %", made_of])
    text += ["", "## The twenty worst runs", ""]
    text.append(table(("run", "measured", "error", "predicted step is made of"), parts))
    return "\n".join(text)


if __name__ == "__main__":
    PAGE.write_text(
        "# Accuracy\n\nWritten by `python docs/accuracy.py`; errors are of predicted against measured, runs "
        "marked suspect apart.\n\n" + summary() + "\n\n" + memory() + "\n\n" + left_out() + "\n",
        encoding="utf-8",
    )
