"""How the layers of a run are laid over its pipelines: one rule for time, memory, simulation and report."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.flops import split_weights
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Classes, Layout, Split, layout_of, split, stage_classes

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Laid:
    """What decides the stages of a pipeline beside pp and vpp. Layers weigh `weights`, the `head` as much as
    so many: an even split counts the head by its arithmetic, and the embedding, a lookup, for nothing."""

    model: Model
    layers_per_stage: tuple[int, ...] | None
    weights: tuple[float, ...]
    head: float
    layout: Layout

    def split(self, pp: int, vpp: int) -> Split:
        """The stages of one pipeline."""
        return split(self.model, pp, vpp, *self._rule())

    def classes(self, pp: Any, vpp: Any) -> Classes:
        """The distinct stages of several pipelines, `pp` and `vpp` [n]."""
        return stage_classes(self.model, pp, vpp, *self._rule())

    def of_ranks(self, pp: int, vpp: int) -> IntArray:
        """The stage class of each rank of one pipeline, [pp]."""
        return _of_ranks(self, pp, vpp)

    def _rule(self) -> tuple[tuple[int, ...] | None, float, float, tuple[float, ...], Layout]:
        return self.layers_per_stage, self.head, 0.0, self.weights, self.layout


def laid(model: Model, seq_len: Any, strategy: Strategy) -> Laid:
    """The rule for strategies that share the words of `strategy`; of several lengths the shortest counts."""
    weights, head = split_weights(model, seq_len)
    return Laid(model, strategy.layers_per_stage, weights, head, layout_of(strategy.schedule))


@lru_cache(maxsize=4096)
def _of_ranks(rule: Laid, pp: int, vpp: int) -> IntArray:
    rows, classes = rule.split(pp, vpp).counts, rule.classes(pp, vpp).counts[0]
    found = np.asarray((rows[:, None] == classes[None]).all(-1).argmax(1), np.int64)
    found.setflags(write=False)  # the cache hands the same array to every caller
    return found
