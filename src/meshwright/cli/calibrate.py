"""`meshwright calibrate`: fit the efficiency numbers to measured runs."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("calibrate")
@click.argument("table", metavar="RUNS", type=click.Path())
@click.option("-o", "--output", "path", metavar="FILE", help="Write the profile; --profile FILE uses it.")
@json_flag
def command(table: str, path: str | None, as_json: bool) -> None:
    """Fit an efficiency profile to your own measured runs, a CSV in the form that validate reads.

    Numbers that your runs say nothing about stay as shipped.
    """
    from meshwright import api

    found = api.calibrate(table, path=path, progress=output.say)
    if path is not None:
        output.say(f"wrote {path}")
    if as_json:
        output.print_json(found)
    else:
        from meshwright.report.terminal.tables import print_calibration

        print_calibration(found, output.console())
