"""The rule of thumb for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.guide import ELSE, LEFT, Answer, Compared, Guide, lost, sentences
from meshwright.report.terminal.findings import print_findings
from meshwright.search.guide.table import SLACK
from meshwright.search.ranking import TIED

if TYPE_CHECKING:
    from rich.console import Console


def print_guide(found: Guide, console: Console) -> None:
    """The answer for a job, or the whole rule."""
    if found.answer is not None:
        _print_answer(found.answer, console)
        return
    for level, text in sentences(found.rule.root):
        console.print(f"{'  ' * level}{text}")
    console.print()
    console.print(f"Against the computed plans: {lost(found.rule.losses)}.")
    console.print("A loss is how much longer a step takes than in the computed plan.")
    console.print(f"Of models it was not fitted to: {lost(found.rule.unseen)}.")
    console.print(f"The rest is no rule: {LEFT}.")


def _print_answer(a: Answer, console: Console) -> None:
    work = a.work
    console.print(
        f"{a.model.name} on {a.cluster.n_chips:,} x {a.cluster.chip.name}, "
        f"{units.length_text(int(work.seq_len))} tokens x "
        f"{units.counted(work.global_batch_size, 'sequence')} a step"
    )
    batch = a.derived.get("global_batch_size")
    if batch is not None:
        console.print(f"  {batch.because}")
    console.print()
    console.print(f"Advice: {a.split}.")
    console.print(f"  dp {a.dp}, tp {a.mix.tp}, pp {a.mix.pp}, cp {a.mix.cp}, ep {a.mix.ep}")
    console.print(f"  The rule says: {a.words}.")
    console.print(f"  Not in the rule: {LEFT}.")
    console.print(f"  {ELSE}.")
    for remark in a.remarks:
        console.print(f"  Mind: {remark}.")
    console.print()
    console.print("What led there:")
    for said, value in a.path():
        console.print(f"  {said} (here {value})")
    console.print()
    console.print("What it loses (how much longer a step takes than in the computed plan):")
    console.print(f"  wherever this was the advice: {lost(a.advice.losses)}")
    for one in a.near:
        more = " or more" if one.loss >= SLACK else ""
        console.print(f"  a job like this one ({one.job}): {units.percent_text(one.loss)}{more}")
    if a.compared is not None:
        _print_compared(a.compared, console)


def _print_compared(found: Compared, console: Console) -> None:
    console.print()
    for name, plan in (("best plan", found.best), ("by the rule", found.followed)):
        said = (
            "nothing fits"
            if plan is None
            else f"{units.seconds_text(plan.step_time_s)}, {strategy_line(plan.strategy)}"
        )
        console.print(f"{name:12} {said}")
    if found.loss is not None:
        tied = ": a tie, closer than the model tells plans apart" if found.loss <= TIED else ""
        console.print(f"{'loss':12} {units.percent_text(found.loss)} of the best step time{tied}")
    print_findings(found.faults, console)
