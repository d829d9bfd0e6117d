"""Peak memory of every pipeline stage of one plan, each at its own fullest moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import memory, schedule
from meshwright.cost.evaluation import MEMORY_KEYS, StageMemory
from meshwright.cost.flops import split_weights
from meshwright.cost.stages import Pipelines, Stages
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
    spans: dict[str, Span],
    microbatches: Any,
    cluster: Cluster,
) -> tuple[StageMemory, ...]:
    """Peaks of the pipeline ranks in order; all ranks of a stage hold alike.

    `classes` and `lines` are those of one plan. Ranks of one class hold the same layers and differ in the
    microbatches that they have in flight (of `v-half` and `v-min` the fullest rank's count is taken for all).
    """
    plan = schedule.load(strategy.schedule)
    of_rank = _classes_of_ranks(model, work, strategy, lines)
    found = memory.peaks(
        model, work, strategy, profile, _over_ranks(classes, of_rank), spans, plan, microbatches, cluster
    )
    n = len(of_rank)
    columns = {name: np.broadcast_to(found.by_category[name], (1, n))[0] for name in MEMORY_KEYS}
    kept, steps = (np.broadcast_to(x, (1, n))[0] for x in (found.kept, found.steps))
    return tuple(
        StageMemory(
            stage=r,
            moment="optimizer" if steps[r] else "backward",
            memory_bytes={name: float(values[r]) for name, values in columns.items()},
            kept_bytes=float(kept[r]),
        )
        for r in range(n)
    )


def _classes_of_ranks(
    model: Model, work: Work, strategy: Strategy, lines: Pipelines
) -> npt.NDArray[np.int64]:
    """The stage class of each pipeline rank, [pp]."""
    pp, vpp = (int(np.ravel(x)[0]) for x in (strategy.pp, strategy.vpp))
    weights, head = split_weights(model, float(np.ravel(work.seq_len)[0]))
    layout = layout_of(strategy.schedule)
    laid = split(model, pp, vpp, strategy.layers_per_stage, head, 0.0, weights, layout)
    same = laid.counts[:, None, :] == lines.counts[:, :, 0].T[None]
    found: npt.NDArray[np.int64] = np.argmax(same.all(-1), axis=1)
    return found


def _over_ranks(classes: Stages, of_rank: npt.NDArray[np.int64]) -> Stages:
    """The stages with a column a rank instead of one a class."""

    def taken(value: Any) -> Any:
        return value[:, of_rank] if np.ndim(value) == 2 and np.shape(value)[1] > 1 else value

    names = ("dense", "expert", "largest_dense", "largest_expert", "offloaded", "staged", "live", "head")
    return replace(
        classes,
        **{name: taken(getattr(classes, name)) for name in names},
        cost={name: taken(values) for name, values in classes.cost.items()},
        multiplicity=np.ones((1, len(of_rank))),
        fullest_rank=np.arange(len(of_rank), dtype=float)[None],
    )
