"""`meshwright calibrate`: fit the efficiency numbers to measured runs."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.group("calibrate")
def command() -> None:
    """Fit the efficiency numbers to measurements.

    meshwright calibrate runs [TABLE] -o FILE fits them to the measured runs of a table, and --profile FILE
    uses what it wrote.
    """


@command.command("runs")
@click.argument("table", metavar="[TABLE]", type=click.Path(), required=False)
@click.option("-o", "--output", "path", metavar="FILE", help="Write the profile; --profile FILE uses it.")
@json_flag
def runs(table: str | None, path: str | None, as_json: bool) -> None:
    """Fit an efficiency profile to measured runs, a CSV in the form that validate reads.

    Your own TABLE starts from the shipped numbers and moves those of its frameworks and chips, the more the
    more it says; numbers that it says nothing about stay. Without TABLE: the published runs, from the priors,
    which is how the shipped numbers were made.
    """
    from meshwright import api

    found = api.calibrate(table, path=path, progress=output.say, warn=output.warn)
    if path is not None:
        output.say(f"wrote {path}")
    if as_json:
        output.print_json(found)
    else:
        from meshwright.report.terminal.tables import print_calibration

        print_calibration(found, output.console())
