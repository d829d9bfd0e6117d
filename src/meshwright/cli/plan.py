"""`meshwright plan`: search, rank, explain, write."""

from __future__ import annotations

import os
from typing import Any

import click

from meshwright.cli import output
from meshwright.cli.options import arguments, json_flag, request, target_flag


@click.command("plan")
@request
@click.option("-o", "--output", "path", metavar="FILE", help="Write the best plan (or --rank N) as YAML.")
@click.option(
    "--rank", type=click.IntRange(min=1), default=1, help="Which plan -o writes.", show_default=True
)
@click.option("--top", type=click.IntRange(1, 1000), default=10, help="Plans to show.", show_default=True)
@click.option("--show-space", is_flag=True, help="List the axes and values that are searched.")
@click.option("--objective", metavar="WORD", help="time, cost, energy or simplicity (fewest axes).")
@click.option("--slack", metavar="PERCENT", help="How much slower a simpler plan may be.  [default: 3%]")
@click.option("--chips-up-to", metavar="N", help="Try other numbers of chips, domain by domain, up to N.")
@click.option("--deadline", metavar="TIME", help="60d, with --total-tokens: the fewest chips that meet it.")
@click.option("--pareto", is_flag=True, help="Also the fastest plans in less memory.")
@target_flag
@click.option("--report", "page", metavar="FILE", help="Write a report of the best plan as an HTML page.")
@click.option("--terms", is_flag=True, help="With --json: the tree of terms of every plan.")
@json_flag
def command(
    path: str | None,
    rank: int,
    top: int,
    show_space: bool,
    objective: str | None,
    slack: str | None,
    chips_up_to: str | None,
    deadline: str | None,
    pareto: bool,
    target: str | None,
    page: str | None,
    terms: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search for the fastest strategy that fits. A flag that is given is fixed, the rest is searched.

    A list searches those values (--tp 4,8), a range what lies in it (--pp 4:16), `any` every word there is
    (--schedule any); --global-batch 512:4096 searches batches.
    """
    from meshwright import api

    api.check_outputs(path, page)
    api.check_outputs(page, read=flags.get("model"))
    given = arguments(flags, several=True)
    with output.progress("searching", quiet=as_json) as update:
        found = api.plan(
            **given,
            top=max(top, rank),
            show_space=show_space,
            objective=objective,
            slack=slack,
            chips_up_to=chips_up_to,
            deadline=deadline,
            pareto=pareto,
            target=target,
            nearest=3,
            progress=update,
        )
    if path is not None and found.plans:
        written = api.save(found, path, rank=rank)
        output.say(f"wrote plan {rank} ({api.summary(written)}) to {path}")
    if page is not None and (found.best or found.nearest) is not None:
        from meshwright import reporting

        with output.progress("reporting", quiet=as_json) as update:
            processes = os.cpu_count() or 1
            reporting.report(**given, found=found, path=page, processes=processes, progress=update)
        output.say(f"wrote a report to {page}")
    if as_json:
        output.print_json(found.json(terms=terms))
    else:
        from meshwright.report.terminal.plan import print_plan

        print_plan(found, output.console(), shown=top)
    return 0 if found.plans else 1
