"""`meshwright explain`: why an estimate is what it is, in sentences and as a tree of terms."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("explain")
@request
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=None,
    help="Levels of the tree to show; of the whole tree 3 unless given, all with --term and --json.",
)
@click.option("--term", "path", metavar="PATH", help="Only this part, for example step.time.compute.")
@click.option(
    "--runner-up", is_flag=True, help="Search what is not given for the next plan, or a better one."
)
@click.option("--plain", is_flag=True, help="The story in words that need no training, on a page.")
@json_flag
def command(
    depth: int | None, path: str | None, runner_up: bool, plain: bool, as_json: bool, **flags: Any
) -> None:
    """Why a plan takes its time: what binds, where communication stops hiding, then the terms behind it.

    Each sentence names the terms and values that it rests on (--json). --term PATH shows a part of the tree.
    """
    from meshwright import api

    with output.progress("searching", quiet=as_json) as update:
        found = api.explain(**arguments(flags), runner_up=runner_up, progress=update)
    if as_json:
        output.print_json(found.json(path=path, depth=depth, plain=plain))
    else:
        from meshwright.report.terminal.explanation import print_explanation, print_plain

        if plain:
            print_plain(found, output.console())
        else:
            print_explanation(found, output.console(), depth=depth, path=path)
