"""Rules about keeping experts evenly loaded."""

from __future__ import annotations

import numpy as np

from meshwright.checks.rule import Mask, Rule, mask
from meshwright.checks.shapes import moe
from meshwright.cost.balance import HOLDS_ALL
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of
from meshwright.work import Work


class BalanceWithoutExperts(Rule):
    """Balancing experts needs experts."""

    code, reason, where = "MW117", "experts balanced that there are none of", "moe_balance"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        return mask((strategy.moe_balance != "microbatch" or work.capacity is not None) and not moe(model))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        words, ways = [], []
        if strategy.moe_balance != "microbatch":
            words.append(f"moe_balance is {strategy.moe_balance}")
            ways.append("leave --moe-balance out")
        if work.capacity is not None:
            word = f"capacity:{work.capacity:g}"
            words.append(f"experts take {word}")
            ways.append(f"leave {word} out of --moe-balance or --options")
        return f"{' and '.join(words)}, but {model.name} has no experts", "; ".join(ways)


class ForwardsFirst(Rule):
    """A loss of the whole batch wants every forward before the first backward; some schedules cannot."""

    code, reason, where = "MW118", "backwards before the last forward", "moe_balance, schedule"

    def violated(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> Mask:
        s = strategy
        if s.moe_balance != HOLDS_ALL or layout_of(s.schedule) == "round":
            return mask(False)
        several = np.asarray(work.global_batch_size) > np.asarray(s.dp) * s.microbatch_size
        return mask(several & (np.asarray(s.pp) > 1))

    def explain(self, model: Model, cluster: Cluster, work: Work, strategy: Strategy) -> tuple[str, str]:
        return (
            f"{strategy.schedule} runs backwards of early microbatches beside forwards of late ones, but the "
            "exact loss of the global batch needs the counts of all forwards before the first backward",
            "use --schedule 1f1b, or --moe-balance global-counted, running or bias",
        )
