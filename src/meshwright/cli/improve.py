"""`meshwright improve`: what one step away from a strategy helps most."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request, target_flag


@click.command("improve")
@request
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, help="Neighbours to show.", show_default=True
)
@target_flag
@json_flag
def command(top: int, target: str | None, as_json: bool, **flags: Any) -> None:
    """Neighbours of a strategy: which single change helps most, what it moves, and how far the best plan is.

    What is left out of the strategy is derived as in estimate.
    """
    from meshwright import api

    with output.progress("trying neighbours", quiet=as_json) as update:
        found = api.improve(**arguments(flags), target=target, progress=update)
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.improvement import print_improved

        print_improved(found, output.console(), shown=top)
