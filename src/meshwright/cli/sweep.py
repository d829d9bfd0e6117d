"""`meshwright sweep`: the best plan along one field or two, planned anew at every point."""

from __future__ import annotations

import os
from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, fields, json_flag, names, request


@click.command("sweep")
@request
@click.option(
    "--over",
    "over",
    metavar="FIELD=VALUES",
    multiple=True,
    required=True,
    help="A,B,C or A:B[:N], geometric, 16 points unless N; one field or two.",
)
@click.option(
    "--slack",
    default="3%",
    show_default=True,
    metavar="PERCENT",
    help="How much slower than the best the simplest plan may be.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=None, help="Processes; as many as there are cores."
)
@json_flag
def command(over: tuple[str, ...], slack: str, jobs: int | None, as_json: bool, **flags: Any) -> int:
    """Where the best strategy changes along a field, and the simplest one that is almost as fast.

    MODEL may list several, separated by commas. A field is a strategy field (pp), part of the work (seq_len,
    global_batch, tokens_per_step, precision, framework), n_chips, on, or a figure cluster.FIELD.

    \b
    meshwright sweep deepseek-v3 --on 2304xh100 --seq-len 4k --global-batch 9216 \\
        --over cluster.scale_up_size=8,16,32,72,144,576
    """  # fmt: skip
    from meshwright import api

    given = arguments(flags, several=True)
    given["model"] = names(given["model"])
    share = api.percent("--slack", slack)
    jobs = jobs or os.cpu_count() or 1
    with output.progress("sweeping", quiet=as_json) as update:
        found = api.sweep(**given, over=fields(over), slack=share, processes=jobs, progress=update)
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.sweep import print_sweep

        print_sweep(found, output.console())
    return 0 if any(p.best is not None for p in found.points) else 1
