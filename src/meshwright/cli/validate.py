"""`meshwright validate`: the cost model against measured runs."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("validate")
@click.argument("table", required=False, type=click.Path())
@click.option("--framework", metavar="NAME", help="Only runs of this framework.")
@click.option("--task", type=click.Choice(["train"]), default="train", help="Which table.", show_default=True)
@click.option("--fail-above", metavar="PERCENT", help="Exit 1 when the median error of time is above this.")
@click.option("--rows", is_flag=True, help="List every run.")
@json_flag
def command(
    table: str | None, framework: str | None, task: str, fail_above: str | None, rows: bool, as_json: bool
) -> int:
    """Predict every published run (or those of TABLE) and compare: times, memory, fit verdicts, ranking."""
    from meshwright import api

    limit = None if fail_above is None else api.percent("--fail-above", fail_above)
    with output.progress("validating", quiet=as_json) as update:
        found = api.validate(table, framework=framework, progress=update, warn=output.warn)
    if as_json:
        output.print_json(api.validated(found))
    else:
        from meshwright.report.terminal.validation import print_validation

        print_validation(found, output.console(), rows=rows)
    if limit is None or not api.exceeds(found, limit):
        return 0
    output.say(f"the median error of step time is above {fail_above}, or no time was compared")
    return 1
