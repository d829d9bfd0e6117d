"""`meshwright explain`: the tree of terms behind an estimate."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("explain")
@request
@click.option("--depth", type=click.IntRange(min=1), default=None, help="Levels of the tree to show.")
@click.option("--term", "path", metavar="PATH", help="Only this part, for example step.time.compute.")
@json_flag
def command(depth: int | None, path: str | None, as_json: bool, **flags: Any) -> None:
    """Where an estimate comes from: every term with its value, formula and inputs."""
    from meshwright import api

    found = api.estimate(**arguments(flags), nearest=0)
    if as_json:
        output.print_json(api.explained(found, path=path, depth=depth))
    else:
        from meshwright.report.terminal.tree import print_tree

        print_tree(found, output.console(), depth=depth, path=path)
