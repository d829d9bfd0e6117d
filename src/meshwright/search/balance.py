"""What each way of balancing experts would cost a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.checks import run
from meshwright.checks.shapes import moe
from meshwright.cost.balance import WORDS
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.simulate.told import told
from meshwright.strategy.records import Strategy
from meshwright.work import Work


@dataclass(frozen=True, slots=True)
class Balanced:
    """A step and the fullest rank's memory beyond those with a loss of each microbatch, and the bytes of
    counts that the slowest rank sends a step. All None where a rule forbids the word."""

    time_s: float | None
    memory_bytes: float | None
    traffic_bytes: float | None


def balanced(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
) -> dict[str, Balanced]:
    """Each word with its costs, for a plan of plain numbers; empty where the model has no experts."""
    if not moe(model):
        return {}
    plain = told(model, cluster, work, replace(strategy, moe_balance="microbatch"), profile)
    found: dict[str, Balanced] = {}
    for word in WORDS:
        other = replace(strategy, moe_balance=word)
        if any(d.severity == "error" for d in run(model, cluster, work, other, profile=profile)):
            found[word] = Balanced(None, None, None)
            continue
        costs = told(model, cluster, work, other, profile)
        found[word] = Balanced(
            float(costs.step_time_s - plain.step_time_s),
            float(costs.peak_bytes - plain.peak_bytes),
            float(costs.counts_sent_bytes),
        )
    return found
