"""Estimates on disk: plan files, traces of a simulated step, action tables of a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright import __version__, units
from meshwright.errors import Diagnostic, InputError
from meshwright.files.typed import typed
from meshwright.report import as_json
from meshwright.report.records import Estimate, Plan

if TYPE_CHECKING:
    from meshwright.simulate.exact import Exact


def summary(found: Estimate) -> str:
    """One line: the strategy and its step time."""
    return f"{as_json.strategy_line(found.strategy)}, {units.seconds_text(found.step_time_s)} a step"


@typed
def save(result: Estimate | Plan, path: str | Path, *, rank: int = 1) -> Estimate:
    """Write a plan file of the estimate, or of plan `rank` (from 1) of a search. Returns what was written."""
    from meshwright.files.plan_file import write_plan

    chosen = result if isinstance(result, Estimate) else _ranked(result, rank)
    shown = as_json.plan_json(chosen)
    strategy = {k: v for k, v in shown["strategy"].items() if k != "stages" and v is not None}
    work = {
        k: v
        for k, v in as_json.work_json(chosen.work).items()
        if k != "tokens_per_step" and v not in (None, [])
    }
    framework = chosen.profile.framework
    write_plan(
        Path(path),
        model=chosen.given.model,
        cluster=chosen.given.cluster,
        work=work | {"framework": f"{framework.name}@{framework.generation}"},
        strategy=strategy,
        price_per_chip_hour=chosen.price_per_chip_hour,
        estimate={
            "version": __version__,
            "profile": as_json.profile_name(chosen),
            "fits": chosen.fits,
            "step_time_s": chosen.step_time_s,
            "tokens_per_s_per_chip": chosen.tokens_per_s_per_chip,
            "mfu": chosen.mfu,
            "peak_gib": shown["memory"]["peak_gib"],
            "capacity_gib": shown["memory"]["capacity_gib"],
        },
    )
    return chosen


@typed
def save_trace(found: Estimate, path: str | Path) -> None:
    """Write the simulated step of an `exact` estimate as a Chrome trace, which Perfetto opens too."""
    import json

    from meshwright.files.text import write_text
    from meshwright.report.trace import trace

    title = f"{found.model.name} on {found.cluster.name}: {summary(found)}"
    write_text(Path(path), json.dumps(trace(_simulated(found), title)))


@typed
def save_actions(found: Estimate, path: str | Path) -> None:
    """Write the schedule of an `exact` estimate as the table that `torch.distributed.pipelining` loads."""
    from meshwright.files.text import write_text
    from meshwright.report.action_table import action_table

    network = _simulated(found).timeline.network
    write_text(Path(path), action_table(network, found.strategy.schedule))


def _simulated(found: Estimate) -> Exact:
    if found.simulated is None:
        raise InputError(
            Diagnostic("MW909", "this estimate has no simulated step", hint="estimate with exact=True")
        )
    return found.simulated


def _ranked(found: Plan, rank: int) -> Estimate:
    if 1 <= rank <= len(found.plans):
        return found.plans[rank - 1]
    count = len(found.plans)
    raise InputError(
        Diagnostic(
            "MW905", f"rank {rank} of {units.counted(count, 'plan')}", where="--rank",
            hint=f"choose 1 to {count}" if count else "no plan fits, so there is none to write",
        )
    )  # fmt: skip
