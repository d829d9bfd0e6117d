"""`meshwright guide`: the golden rule, in words, without a search."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, models, work_flags


@click.command("guide")
@click.argument("model", metavar="[MODEL|PLAN]", required=False, shell_complete=models)
@work_flags
@click.option(
    "--compare", is_flag=True, help="Search too: the best plan, and the best that follows the rule."
)
@json_flag
def command(model: str | None, compare: bool, as_json: bool, **flags: Any) -> None:
    """Which mix of parallelism to take, by a decision tree fitted to computed plans; at once, in words.

    Without a model it prints the whole tree.

    \b
    meshwright guide deepseek-v3 --on 2048xh100 --seq-len 4k
    """  # fmt: skip
    from meshwright import api

    given = arguments(flags | {"model": model})
    with output.progress("searching", quiet=as_json) as update:
        found = api.guide(compare=compare, progress=update, **given)
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.guide import print_guide

        print_guide(found, output.console())
