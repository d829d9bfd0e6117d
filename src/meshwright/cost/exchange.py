"""What a rank does beside its passes: it waits for the host link, and exchanges what nothing hides."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost import data_parallel, host_link, schedule
from meshwright.cost.data_parallel import Traffic
from meshwright.cost.host_link import Waits
from meshwright.cost.rows import added
from meshwright.cost.stages import Layers, Stages, over_classes
from meshwright.hardware.records import Cluster
from meshwright.profiles.records import Profile
from meshwright.strategy.records import Strategy


def beside(
    stages: Stages,
    layers: Layers,
    sent: Traffic,
    microbatches: Any,
    strategy: Strategy,
    profile: Profile,
    options: frozenset[str],
    cluster: Cluster,
) -> tuple[Waits, Any]:
    """Seconds that a microbatch's passes wait for the host link, and seconds a step of `sent` that stand in
    the way of a rank of each stage class, [n, C]; `microbatches` [n, 1].

    While a pass waits for the host link, the network goes on: it hides behind both.
    """
    forward, backward = stages.cost["forward"], stages.cost["backward"]
    plan, each = schedule.load(strategy.schedule), Waits()
    if host_link.used(strategy):
        fetch = sent.fetch / plan.PARAMETERS_HELD
        link = host_link.copies(stages.offloaded, fetch, strategy, profile.framework, cluster)
        of_weight, piped = layers.summed("weight"), over_classes(np.asarray(strategy.pp) > 1)
        each = link.waits(forward, backward, of_weight, splits=piped if plan.SPLITS_BACKWARD else False)
    hiders = added([forward, each.forward]), added([backward, each.backward])
    last = hiders[1]
    if plan.SPLITS_BACKWARD:
        of_weight = added([layers.summed("weight"), each.weight])
        last = data_parallel.last_passes(strategy, last, of_weight)
    return each, data_parallel.exposed(sent, *hiders, last, microbatches, profile, options)
