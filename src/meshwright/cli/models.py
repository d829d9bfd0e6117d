"""`meshwright models`: presets."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("models")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@json_flag
def command(words: tuple[str, ...], as_json: bool) -> None:
    """Model presets with their sizes and spellings; WORDs narrow the list (models llama 70b)."""
    from meshwright import api

    found = api.models(words)
    if as_json:
        output.print_json(found)
    else:
        from meshwright.report.terminal.tables import print_models

        print_models(found, output.console())
