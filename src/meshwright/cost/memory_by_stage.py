"""Peak memory of every pipeline stage of one plan, each at its own fullest moment."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost import memory
from meshwright.cost.activations import activations, moments
from meshwright.cost.evaluation import MEMORY_KEYS, StageMemory
from meshwright.cost.stages import over_ranks
from meshwright.cost.times import Part


def by_stage(part: Part) -> tuple[StageMemory, ...]:
    """Peaks of the pipeline ranks of one plan in order; all ranks of a stage hold alike.

    Ranks of one class hold the same layers and differ in the microbatches that they have in flight.
    """
    model, work, strategy, m = part.model, part.work, part.strategy, part.microbatches
    (line,) = part.tables.lines.lines
    at = line.of_ranks(model)
    each = moments(model, strategy, part.tables.lines, by_rank=True)
    saved = activations(strategy, part.layers, model.n_layers, each, m, at, counted=True)
    ranks = over_ranks(part.stages, at)
    held = memory.contents(model, work, strategy, part.profile, ranks, part.reach, saved, m, part.cluster)
    return told(memory.peaks(held, part.cluster), line.pp)


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
