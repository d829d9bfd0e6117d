"""`meshwright chips`: data sheets and aliases."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("chips")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--sources", is_flag=True, help="Where the figures are from.")
@json_flag
def command(words: tuple[str, ...], sources: bool, as_json: bool) -> None:
    """Chips with memory, dense peaks, networks and aliases; WORDs narrow the list (chips b200)."""
    from meshwright import api

    found = api.chips(words)
    if as_json:
        output.print_json(found)
    else:
        from meshwright.report.terminal.tables import print_chips

        print_chips(found, output.console(), sources=sources)
