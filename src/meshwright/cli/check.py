"""`meshwright check`: what is wrong or unwise in a strategy."""

from __future__ import annotations

from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request


@click.command("check")
@request
@json_flag
def command(as_json: bool, **flags: Any) -> int:
    """Every rule against one strategy. Exit 1 when it cannot run or does not fit, 0 with warnings only."""
    from meshwright import api

    given = arguments(flags)
    given.pop("price_per_chip_hour", None)
    found = api.check(**given)
    if as_json:
        output.print_json(found.json())
    else:
        from meshwright.report.terminal.checked import print_checked

        print_checked(found, output.console())
    return 0 if found.ok else 1
