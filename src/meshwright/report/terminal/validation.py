"""A validation for a person: errors of time and memory, fit verdicts, ranking, and where it is worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.calibrate.bands import INSIDE
from meshwright.calibrate.statistics import TIE
from meshwright.calibrate.unseen import ALL, Unseen
from meshwright.report.terminal.table import plain_table, print_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from meshwright.calibrate.validate import Validation

_COLUMNS = (
    ("n", "n"),
    ("median_abs_error_percent", "median error"),
    ("p90_abs_error_percent", "90 % below"),
    ("bias_percent", "bias"),
    ("median_of_source_medians_percent", "median of sources"),
    ("interval_coverage_percent", "in interval"),
)
_SPARE = ("median of sources", "in interval", "bias")  # where the terminal is narrow

_MEANS = {
    "skipped": "a cell is missing that nothing fills, or a chip is without figures; counted nowhere else",
    "missed": "stated in full and not predicted, for the reason that is named; it counts as wrong",
    "median error": "half of the runs are predicted nearer than this",
    "90 % below": "nine runs in ten are",
    "bias": "mean of predicted over measured, less 1: above 0 where too much time or memory is predicted",
    "median of sources": "of each source's own median, so that a source counts once however many runs it has",
    "in interval": f"measured within an estimate's interval, which is made to hold {INSIDE:.0%} of such runs",
    "ran, refused": "runs that ran and say what they recompute; those of them that are called impossible",
    "oom, accepted": "runs that ran out of memory; those of them that are called possible",
    "recompute_unstated, unstated_wrong": "runs of both kinds that do not say it; those judged wrongly",
    "groups, pairs": f"jobs measured in several layouts; pairs of these whose times differ by over {TIE:.0%}",
    "top1_right": "jobs of which the layout predicted fastest was the fastest",
    "mean_regret_percent": "time lost by taking the layout predicted fastest instead of the fastest",
    "kendall_tau": "pairs in the right order less those in the wrong one, of all: 1 is perfect, 0 is chance",
}


def print_validation(found: Validation, console: Console, *, rows: bool) -> None:
    """The summary; with `rows` every figure compared."""
    shown: dict[str, Any] = found.json()
    console.print(f"{units.counted(shown['runs'], 'run')}, {shown['evaluated']:,} evaluated")
    for word in ("skipped", "missed"):
        if shown.get(word):
            console.print(f"{word}: {', '.join(f'{reason} {n:,}' for reason, n in shown[word].items())}")
    console.print()
    print_table(
        console, _errors("accuracy", {"time": shown["time"], "memory": shown["memory"]}), spare=_SPARE
    )
    if found.left_out is not None:
        _print_left_out(found.left_out[ALL], console)
    fit, ranking = shown["fit_verdict"], shown["ranking"]
    console.print()
    console.print(f"fits: {', '.join(f'{k} {_figure(k, v)}' for k, v in fit.items())}")
    console.print(f"ranking: {', '.join(f'{k} {_figure(k, v)}' for k, v in ranking.items())}")
    for label, values in shown["by"].items():
        table = {name: v.get("time", v) for name, v in values.items() if isinstance(v, dict)}
        if table:
            console.print()
            print_table(console, _errors(f"by {label}", table), spare=_SPARE)
    console.print()
    console.print("what the words mean")
    for word, means in _MEANS.items():
        console.print(f"  {word}: {means}")
    if rows:
        print_table(console, _rows(shown["rows"]), spare=("fits", "metric"))


def _print_left_out(found: Unseen, console: Console) -> None:
    median, most = (found.median_abs_error_percent / 100, found.p90_abs_error_percent / 100)
    console.print()
    console.print(
        "These are the runs that the numbers of time were fitted to. Each source predicted by a fit without "
        f"it: median error {units.percent_text(median)}, 90 % below {units.percent_text(most)} "
        f"({units.counted(found.n_runs, 'run')}, {found.date}). No number of memory is fitted."
    )


def _errors(title: str, values: dict[str, dict[str, Any]]) -> Table:
    table = plain_table("", *(f">{header}" for _, header in _COLUMNS), title=title)
    for name, errors in values.items():
        table.add_row(name, *(_figure(key, errors.get(key)) for key, _ in _COLUMNS))
    return table


def _figure(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return units.percent_text(value / 100) if key.endswith("percent") else units.number_text(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rows(listed: list[dict[str, Any]]) -> Table:
    table = plain_table("id", "metric", ">measured", ">predicted", ">error", ">fits", title="runs")
    for row in listed:
        predicted = row["predicted"]
        table.add_row(
            str(row["id"]),
            row["metric"],
            units.number_text(row["measured"]),
            "-" if predicted is None else units.number_text(predicted),
            _figure("error_percent", row["error_percent"]),
            {True: "yes", False: "no", None: "-"}[row["fits"]],
        )
    return table
