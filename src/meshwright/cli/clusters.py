"""`meshwright clusters`: named machines, and what a spelling means."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag


@click.command("clusters")
@click.argument("on", required=False, metavar="[CLUSTER]")
@click.option(
    "--set", "sets", metavar="cluster.FIELD=VALUE", multiple=True, help="Replace a figure; repeatable."
)
@json_flag
def command(on: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Named machines and how to spell a cluster; with CLUSTER, every figure that a plan would use of it."""
    from meshwright import api
    from meshwright.errors import Diagnostic, InputError
    from meshwright.report.terminal.tables import print_cluster, print_machines

    overrides = arguments({"model": "", "sets": sets})["overrides"] if sets else {}
    if on is None and sets:
        hint = f"name one: meshwright clusters 8xh100 --set {sets[0]}"
        raise InputError(Diagnostic("MW901", "--set replaces figures of a cluster", where="--set", hint=hint))
    if on is None:
        machines = api.machines()
        if as_json:
            output.print_json(machines)
        else:
            print_machines(machines, output.console())
        return
    found = api.cluster(on, overrides)
    if as_json:
        output.print_json(found)
    else:
        print_cluster(found, output.console())
