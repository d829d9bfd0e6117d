"""A plan for a person: the ranking, why the best one wins, what each kind of parallelism is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.records import Estimate, Plan
from meshwright.report.terminal.estimate import (
    memory_table,
    print_headline,
    print_nearest,
    print_run,
    print_tables,
)
from meshwright.report.terminal.findings import print_findings
from meshwright.report.terminal.table import fits, plain_table, print_table
from meshwright.search.ranking import TIED
from meshwright.search.words import LEFT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


POINTS = 12  # of a Pareto front that a person is shown


def print_plan(found: Plan, console: Console, *, shown: int) -> None:
    """The whole answer; without a plan that fits, the nearest miss."""
    best = found.best
    if best is None:
        _print_miss(found, console)
    else:
        print_headline(best, console)
        print_tables(best, console)
        console.print()
        _print_ranking(found, shown, console)
        if found.choices:
            console.print()
            print_table(console, _choices(found), spare=("tokens/s/chip",))
        if len(found.pareto) > 1 and (found.choices or found.asked_pareto):
            console.print()
            print_table(console, _pareto(found))
        if found.why:
            console.print()
            console.print("why")
            for sentence in found.why:
                console.print(f"  {sentence.text}")
        if found.necessity:
            console.print()
            print_table(console, _necessity(found, best))
        print_run(best, console)
        print_nearest(best, console)
    console.print()
    console.print(_searched(found))
    if found.space is not None:
        print_table(console, _space(found))
    if best is not None and best.diagnostics:
        console.print()
        print_findings(best.diagnostics, console)


_SHOWN = (
    "dp", "tp", "sp", "pp", "vpp", "cp", "cp_method", "ep", "etp", "schedule", "microbatch_size", "zero",
    "zero_group", "recompute", "optimizer", "offload", "dispatcher", "moe_balance", "placement",
)  # fmt: skip
_DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp")  # of which 1 says nothing
_SHORT = {"microbatch_size": "mbs", "zero_group": "group", "cp_method": "method"}


def _print_ranking(found: Plan, shown: int, console: Console) -> None:
    table = _ranking(found, shown)
    if console.is_terminal and not fits(console, table):
        table = _ranking(found, shown, together=True)
    print_table(console, table, spare=("MFU", "tokens/s/chip"))


def _ranking(found: Plan, shown: int, *, together: bool = False) -> Table:
    """The plans side by side: a column for each field in which they differ, the rest said once.

    `together` says these fields in one column of text, for a narrow terminal.
    """
    plans = found.plans[:shown]
    values = {name: [_word(getattr(p.strategy, name)) for p in plans] for name in _SHOWN}
    differ = [name for name in _SHOWN if len(set(values[name])) > 1]
    same = [f"{name} {values[name][0]}" for name in _SHOWN if name not in differ and values[name][0] != "1"]
    columns = ("differ in",) if together else tuple(f">{_SHORT.get(name, name)}" for name in differ)
    figures = (">step", ">tokens/s/chip", ">MFU", ">memory")
    table = plain_table(
        ">", *columns, *figures, title=f"plans, best first by {found.objective}",
        caption=f"in all of them: {', '.join(same)}{_ties(found, plans)}",
    )  # fmt: skip
    table.columns[0].min_width = 3
    for i, plan in enumerate(plans):
        cells = [values[name][i] for name in differ]
        said = [f"{_SHORT.get(n, n)} {c}" for n, c in zip(differ, cells) if c != "1" or n not in _DEGREES]
        table.add_row(
            f"{'=' if found.tied(plan) and len(plans) > 1 else ''}{i + 1}",
            *([", ".join(said)] if together else cells),
            units.seconds_text(plan.step_time_s),
            units.number_text(plan.tokens_per_s_per_chip),
            units.percent_text(plan.mfu),
            units.bytes_text(plan.evaluation.peak_bytes),
        )
    return table


def _ties(found: Plan, plans: tuple[Estimate, ...]) -> str:
    """What = means, where it is shown."""
    many = sum(found.tied(p) for p in plans)
    if many < 2:
        return ""
    return (
        f"\n= tied: within {TIED:.0%} of the fastest, closer than this model tells plans apart; "
        "plans that split the work alike stand behind the best of them"
    )


def _choices(found: Plan) -> Table:
    """The best plan of every number of chips and batch that was tried."""
    runs = any(c.best is not None and c.best.run is not None for c in found.choices)
    columns = (">chips", ">batch", ">step", ">tokens/s/chip", *((">days", ">chip-hours") if runs else ()), "")
    table = plain_table(*columns, title="chips and batches", caption=_cheaper(found))
    for choice in found.choices:
        chips, batch, best = f"{choice.n_chips:,}", f"{choice.global_batch_size:,}", choice.best
        if best is None:
            table.add_row(chips, batch, *([""] * (4 if runs else 2)), "nothing fits")
            continue
        row = [units.seconds_text(best.step_time_s), units.number_text(best.tokens_per_s_per_chip)]
        if best.run is not None:
            row += [units.number_text(best.run.days), units.count_text(round(best.run.chip_hours))]
        taken = best is found.best
        table.add_row(chips, batch, *row, "taken" if taken else ("" if choice.meets else "too late"))
    return table


def _cheaper(found: Plan) -> str | None:
    """Which chips and batch take the fewest chip-hours of those that meet the deadline, where others are
    taken."""
    met = [
        (c.best.run.chip_hours, c) for c in found.choices if c.meets and c.best is not None and c.best.run
    ]
    taken = next((hours for hours, choice in met if choice.best is found.best), None)
    fewest, least = min(met, key=lambda pair: pair[0], default=(0.0, None))
    if taken is None or least is None:
        return None
    less = 1.0 - fewest / taken
    if less < TIED:
        return None
    return (
        f"{units.counted(least.n_chips, 'chip')} with a batch of {least.global_batch_size:,} take "
        f"{units.percent_text(less, 0)} fewer chip-hours: --objective cost takes the cheapest"
    )


def _pareto(found: Plan) -> Table:
    """Plans that no other beats in everything."""
    left = len(found.pareto) - POINTS
    table = plain_table(
        ">chips", ">batch", ">step", ">memory", "strategy",
        title="no plan beats these in time, memory, chips and chip-hours at once",
        caption=f"{left} more with --json" if left > 0 else None,
    )  # fmt: skip
    for point in found.pareto[:POINTS]:
        table.add_row(
            f"{point.n_chips:,}", f"{point.global_batch_size:,}", units.seconds_text(point.step_time_s),
            units.bytes_text(point.peak_bytes), strategy_line(point.strategy),
        )  # fmt: skip
    return table


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _necessity(found: Plan, best: Estimate) -> Table:
    """What the step costs when a means may not be used."""
    table = plain_table(
        "without", ">best step", ">longer by", title="what each means is worth",
        caption=f"longer by: than the step of the best plan{_space_of(found)}",
    )  # fmt: skip
    for need in found.necessity:
        if need.step_time_s is None:
            table.add_row(need.without, "nothing fits", "")
        elif need.loss_percent == 0:
            table.add_row(need.without, units.seconds_text(best.step_time_s), "not used")
        else:
            loss = units.percent_text((need.loss_percent or 0.0) / 100)
            table.add_row(need.without, units.seconds_text(need.step_time_s), loss)
    return table


def _space_of(found: Plan) -> str:
    """Over which plans a target leaves the best and the others."""
    return (
        f"; both of what {found.target} can be told, others may need it more or less" if found.target else ""
    )


def _searched(found: Plan) -> Text:
    text = Text(
        f"searched {units.counted(found.searched, 'strategy')} in "
        f"{units.seconds_text(found.search_seconds)}, "
        f"{found.feasible:,} fit"
    )
    if found.reranked:
        text.append(f"; {found.reranked:,} near the best put in order by their simulated pipelines")
    for title, counts in (("cut by a bound", found.bounded), ("rejected", found.rejected)):
        if counts:
            listed = ", ".join(f"{reason} {n:,}" for reason, n in counts.items())
            text.append(f"\n{title}: {listed}")
    if found.untried:
        listed = "; ".join(
            f"{name} {', '.join(words)} ({LEFT[name][0]}; --{name.replace('_', '-')} any)"
            for name, words in found.untried.items()
        )
        text.append(f"\nnot tried: {listed}")
    return text


def _space(found: Plan) -> Table:
    table = plain_table("axis", "values", title="space", header=False)
    for axis, values in (found.space or {}).items():
        table.add_row(axis, ", ".join(str(v) for v in values))
    for axis, because in (found.left or {}).items():
        table.add_row(f"not all of {axis}", because)
    return table


def _print_miss(found: Plan, console: Console) -> None:
    late = found.nearest is not None and found.nearest.fits
    console.print(Text("no plan meets the deadline" if late else "nothing fits", style="bold red"))
    if late and found.choices:
        print_table(console, _choices(found), spare=("tokens/s/chip",))
    if found.nearest is not None and not late:
        e = found.nearest.evaluation
        console.print(f"nearest: {strategy_line(found.nearest.strategy)}")
        console.print(
            f"  needs {units.bytes_text(e.peak_bytes)} a chip, and a process can allocate "
            f"{units.bytes_text(e.capacity_bytes)}"
        )
        print_table(console, memory_table(found.nearest))
    if found.needs:
        console.print(found.needs)
    if found.ways_out:
        console.print()
        console.print("ways out")
        for said in found.ways_out:
            console.print(f"  {said}")
