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
@click.option("--exact", is_flag=True, help="Simulate the pipeline pass by pass; time of the slowest rank.")
@click.option("--trace", metavar="FILE", help="Write the simulated step as a Chrome/Perfetto trace (JSON).")
@click.option(
    "--actions", metavar="FILE", help="Write the action table that torch.distributed.pipelining loads."
)
@json_flag
def command(
    path: str | None,
    terms: bool,
    exact: bool,
    trace: str | None,
    actions: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Step time, throughput, MFU and memory of one strategy. What is left out is derived, and said."""
    from meshwright import api

    api.check_outputs(path, trace, actions)
    api.check_outputs(trace, actions, read=flags.get("model"))
    found = api.estimate(**arguments(flags), exact=bool(exact or trace or actions))
    if path is not None:
        api.save(found, path)
        output.say(f"wrote {path}")
    for file, write in ((trace, api.save_trace), (actions, api.save_actions)):
        if file is not None:
            write(found, file)
            output.say(f"wrote {file}")
    if as_json:
        output.print_json(found.json(terms=terms))
    else:
        from meshwright.report.terminal.estimate import print_estimate

        print_estimate(found, output.console())
