"""One optimizer step: time and memory of the worst rank."""

from __future__ import annotations

from meshwright.cost.evaluation import Evaluation
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy
from meshwright.work import Work


def evaluate(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile, *, detail: bool = False
) -> Evaluation:
    """Step time and peak memory of `strategy`; arrays in its degrees give arrays out (see `Evaluation`).

    Words (schedule, recompute, zero, sp, ...) are single values: loop over them. `detail` builds the tree of
    terms and wants plain numbers. Assumes a legal strategy (see `checks`).
    """
    raise NotImplementedError
