"""`meshwright ranks`: which rank sits where, and which groups cross which link."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("ranks")
@request
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="One rank in detail.")
@click.option("--axis", metavar="GROUP", help="Every group of one kind: tp, dp, ep, shard, ...")
@click.option("--full", is_flag=True, help="Leave nothing out: every rank and every group by itself.")
@json_flag
def command(rank: int | None, axis: str | None, full: bool, as_json: bool, **flags: Any) -> None:
    """Where each rank of a strategy sits, and which groups of ranks cross which link."""
    from meshwright import api

    given = arguments(flags)
    given.pop("price_per_chip_hour", None)
    found = api.ranks(**given)
    if as_json:
        output.print_json(found.json(axis=axis, rank=rank, full=full))
        return
    from meshwright.report.terminal.ranks import print_axis, print_rank, print_ranks

    if rank is not None:
        print_rank(found, rank, output.console())
    elif axis is not None:
        print_axis(found, axis, output.console(), full=full)
    else:
        print_ranks(found, output.console())
