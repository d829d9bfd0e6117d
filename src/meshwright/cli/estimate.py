"""`meshwright estimate`: one strategy, its time and its memory."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("estimate")
@request
@click.option("-o", "--output", "path", metavar="FILE", help="Write the plan with its estimate as YAML.")
@click.option("--terms", is_flag=True, help="With --json: the tree of terms.")
@json_flag
def command(path: str | None, terms: bool, as_json: bool, **flags: Any) -> None:
    """Step time, throughput, MFU and memory of one strategy. What is left out is derived, and said."""
    from meshwright import api

    found = api.estimate(**arguments(flags))
    if path is not None:
        api.save(found, path)
        output.say(f"wrote {path}")
    if as_json:
        output.print_json(found.json(terms=terms))
    else:
        from meshwright.report.terminal.estimate import print_estimate

        print_estimate(found, output.console())
