"""Peak memory of every pipeline stage of one plan, each at its own fullest moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost import memory
from meshwright.cost.activations import activations, moments
from meshwright.cost.evaluation import MEMORY_KEYS, StageMemory
from meshwright.cost.flops import split_weights
from meshwright.cost.stages import Layers, Pipelines, Stages, classes_of_ranks, over_ranks
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of, split
from meshwright.work import Work


def by_stage(
    model: Model,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    classes: Stages,
    lines: Pipelines,
    layers: Layers,
    spans: dict[str, Span],
    microbatches: Any,
    cluster: Cluster,
) -> tuple[StageMemory, ...]:
    """Peaks of the pipeline ranks in order; all ranks of a stage hold alike.

    `classes`, `lines` and `layers` are those of one plan. Ranks of one class hold the same layers and differ
    in the microbatches that they have in flight.
    """
    pp, vpp = (int(np.ravel(x)[0]) for x in (strategy.pp, strategy.vpp))
    weights, head = split_weights(model, float(np.ravel(work.attended_len)[0]))
    layout = layout_of(strategy.schedule)
    cut = split(model, pp, vpp, strategy.layers_per_stage, head, 0.0, weights, layout)
    at = classes_of_ranks(cut.counts, lines.counts[:, :, 0])
    each = moments(model, work, strategy, lines, by_rank=True)
    saved = activations(strategy, layers, model.n_layers, each, microbatches, at, counted=True)
    ranks = over_ranks(classes, at)
    held = memory.contents(model, work, strategy, profile, ranks, spans, saved, microbatches, cluster)
    return told(memory.peaks(held, cluster), pp)


def told(found: memory.Peaks, ranks: int) -> tuple[StageMemory, ...]:
    """Peaks of one plan with an axis for its ranks, a record a rank."""

    def row(values: Any) -> Any:
        return np.broadcast_to(values, (1, ranks))[0]

    columns = {name: row(found.by_category[name]) for name in MEMORY_KEYS}
    kept, steps = row(found.kept), row(found.steps)
    return tuple(
        StageMemory(
            stage=r,
            moment="optimizer" if steps[r] else "backward",
            memory_bytes={name: float(values[r]) for name, values in columns.items()},
            kept_bytes=float(kept[r]),
        )
        for r in range(ranks)
    )
