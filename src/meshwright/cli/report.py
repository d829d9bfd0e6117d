"""`meshwright report`: everything about one plan in one HTML file."""

from __future__ import annotations

import os
from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("report")
@request
@click.option(
    "-o", "--output", "path", metavar="FILE", default="report.html", show_default=True, help="The page."
)
@click.option(
    "--quick", is_flag=True, help="Leave out the what-ifs, which search anew at some twenty points."
)
@click.option("--pareto", is_flag=True, help="Also the fastest plans in less memory.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=None, help="Processes; as many as there are cores."
)
@json_flag
def command(path: str, quick: bool, pareto: bool, jobs: int | None, as_json: bool, **flags: Any) -> None:
    """One offline HTML page about a plan file, or about the best plan of a search.

    Verdict, what binds, memory, the pipeline pass by pass, communication, what-ifs over bandwidth, domain and
    length, other plans, the price of simplicity, checks and sources.
    """
    from meshwright import api, reporting

    given = arguments(flags, several=True)
    with output.progress("reporting", quiet=as_json) as update:
        found = reporting.report(
            **given, path=path, quick=quick, pareto=pareto, processes=jobs or os.cpu_count() or 1,
            progress=update,
        )  # fmt: skip
    output.say(f"wrote {path}: {api.summary(found.estimate)}")
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.reported import print_reported

        print_reported(found, output.console())
