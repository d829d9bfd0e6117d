"""`meshwright max`: the largest length, microbatch, depth or batch that fits."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command(
    "max",
    epilog="QUANTITY is seq_len, microbatch_size, n_layers or global_batch, as in "
    "meshwright max seq_len llama-3.1-8b --on 8xh100 --global-batch 8",
)
@click.argument("quantity", metavar="QUANTITY")
@request
@click.option("--up-to", metavar="N", help="The end of the range; k = 1024.")
@click.option("-o", "--output", "path", metavar="FILE", help="Write the plan at the maximum as YAML.")
@json_flag
def command(quantity: str, up_to: str | None, path: str | None, as_json: bool, **flags: Any) -> int:
    """The largest value of one quantity that fits, and the fastest strategy there.

    A flag that is given is fixed (a list searches those values), the rest is searched.
    """
    from meshwright import api

    api.check_outputs(path)
    given = arguments(flags, several=True)
    with output.progress("searching", quiet=as_json) as update:
        found = api.largest(quantity, up_to=up_to, progress=update, **given)
    if path is not None and found.plan is not None:
        api.save(found.plan, path)
        output.say(f"wrote {path}")
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.largest import print_maximum

        print_maximum(found, output.console())
    return 0 if found.value is not None else 1
