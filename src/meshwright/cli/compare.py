"""`meshwright compare`: plans, models or clusters side by side, term by term."""

from __future__ import annotations

from itertools import product
from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, distinct, json_flag, request_flags, settings


@click.command("compare")
@click.argument("sides", metavar="MODEL|PLAN...", nargs=-1, required=True)
@request_flags
@click.option(
    "--vary",
    "varied",
    metavar="FIELD=A,B",
    multiple=True,
    help="One side for each value: pp=1,8 or on=64xh100,64xb200 or cluster.scale_out_gbits_s=100,400.",
)
@click.option(
    "--case",
    "cases",
    metavar="'FIELD=VALUE ...'",
    multiple=True,
    help="One side with these fields, for example 'tp=8 pp=4'; repeatable.",
)
@click.option("--search", is_flag=True, help="Search what a side leaves out, instead of deriving it.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Levels of terms below time and memory.",
)
@json_flag
def command(
    sides: tuple[str, ...],
    varied: tuple[str, ...],
    cases: tuple[str, ...],
    search: bool,
    depth: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Where plans, models or clusters differ, the largest difference first. The first side is A.

    \b
    meshwright compare a.yaml b.yaml
    meshwright compare llama-3.1-405b --on 16384xh100 --seq-len 8k --tokens-per-step 16M --tp 8 --vary pp=8,16
    """  # fmt: skip
    from meshwright import api

    shared = arguments(flags, several=search)
    del shared["model"]
    named = [settings(case) for case in cases] or [{}]
    axes = distinct(varied, named)
    asked = [{"model": model, **c, **dict(v)} for model in sides for c in named for v in product(*axes)]
    with output.progress("estimating", quiet=as_json) as update:
        found = api.compare(*asked, search=search, depth=depth, progress=update, **shared)
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.comparison import print_comparison

        print_comparison(found, output.console())
