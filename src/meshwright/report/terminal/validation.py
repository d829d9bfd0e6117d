"""A validation for a person: errors of time and memory, fit verdicts, ranking, and where it is worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from meshwright import units

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.calibrate.validate import Validation

_COLUMNS = (
    ("n", "n"),
    ("median_abs_error_percent", "median error"),
    ("p90_abs_error_percent", "90 % below"),
    ("bias_percent", "bias"),
    ("median_of_source_medians_percent", "median of sources"),
    ("interval_coverage_percent", "in interval"),
)


def print_validation(found: Validation, console: Console, *, rows: bool) -> None:
    """The summary; with `rows` every figure compared."""
    shown: dict[str, Any] = found.json()
    console.print(f"{shown['runs']:,} runs, {shown['evaluated']:,} evaluated")
    for word in ("skipped", "missed"):
        if shown.get(word):
            console.print(f"{word}: {', '.join(f'{reason} {n:,}' for reason, n in shown[word].items())}")
    console.print()
    console.print(_errors("accuracy", {"time": shown["time"], "memory": shown["memory"]}))
    fit, ranking = shown["fit_verdict"], shown["ranking"]
    console.print()
    console.print(f"fits: {', '.join(f'{k} {_figure(k, v)}' for k, v in fit.items())}")
    console.print(f"ranking: {', '.join(f'{k} {_figure(k, v)}' for k, v in ranking.items())}")
    for label, values in shown["by"].items():
        table = {name: v.get("time", v) for name, v in values.items() if isinstance(v, dict)}
        if table:
            console.print()
            console.print(_errors(f"by {label}", table))
    if rows:
        console.print(_rows(shown["rows"]))


def _errors(title: str, values: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("")
    for _, header in _COLUMNS:
        table.add_column(header, justify="right")
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
    table = Table(title="runs", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for header in ("id", "metric", "measured", "predicted", "error", "fits"):
        table.add_column(header, justify="left" if header in ("id", "metric") else "right")
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
