"""What bounds must keep, and what of a round they may cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.search.bounds import Held
from meshwright.search.found import Keep, Kind, Scan
from meshwright.search.necessity import does_without
from meshwright.search.ranking import axes_used
from meshwright.search.space import IntArray, Mask, Space, Words
from meshwright.strategy.records import Strategy

FloatArray = npt.NDArray[np.float64]

TIE = 0.01  # plans closer than this are not told apart: the model's own repeatability on published reruns
NO_MEMORY = "memory floor above capacity"
NO_TIME = "time floor above the best"
UNFIT = "MW301 does not fit in memory"


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds are made of (parameters, model FLOPs of a step) and what they must keep."""

    parameters: Held
    flops: float
    techniques: tuple[str, ...]
    slack: float | None = None  # None: nobody asks for other kinds of plans; else how much slower they may be
    kind: Kind = axes_used  # what other kinds are told apart by
    keep: Keep | None = None


def threshold(found: Scan, strategy: Strategy, limits: Limits) -> FloatArray:
    """Seconds above which a strategy changes no answer, [n]: the worst of the plans it could displace."""
    shape = np.shape(strategy.dp)
    if limits.keep is not None and limits.keep.wanted(found):
        return np.full(shape, limits.keep.bar_s)
    limit = np.full(shape, np.inf)
    if np.isfinite(found.shortlist.bar):
        near = found.best[0].step_time_s * (1 + max(TIE, limits.slack or 0.0))
        limit[:] = max(found.shortlist.bar, near)
    for technique in limits.techniques:
        bar = found.without[technique].bar
        if bar > limit.min(initial=np.inf):
            limit = np.where(does_without(technique, strategy), np.maximum(limit, bar), limit)
    return limit


def hopeless(found: Scan, bytes_floor: FloatArray) -> Mask:
    """What cannot fit; where the nearest miss is looked for, what is no nearer."""
    if found.seeks_nearest:
        return bytes_floor >= (found.nearest.peak_bytes if found.nearest else np.inf)
    return bytes_floor > found.capacity_bytes


@dataclass(frozen=True, slots=True)
class Bars:
    """Seconds above which a strategy is useful under no ZeRO word: the larger of what its (block, vpp),
    [b * v], and its expert degrees, [e], allow."""

    by_pair: FloatArray
    by_experts: FloatArray

    def of(self, pair: IntArray, experts: IntArray) -> FloatArray:
        """Of strategies with these places in both, [n]."""
        return np.maximum(self.by_pair.take(pair), self.by_experts.take(experts))


def bars(found: Scan, space: Space, words: Words, limits: Limits) -> Bars:
    """`threshold` on the axes, under the ZeRO and recompute words that do without most."""
    words = replace(words, recompute="none", zero=min(space.words["zero"]))
    outer = {name: np.broadcast_to(x[:, None], space.has_vpp.shape) for name, x in space.blocks.items()}
    outer["vpp"] = np.broadcast_to(space.vpp, space.has_vpp.shape)
    many = {"ep": 2, "etp": 2}  # stands for any rank count above 1
    by_pair = threshold(found, space.strategy(words, outer | many, 1), limits)
    inner = {
        "dp": np.full(len(space.ep), 2),
        "tp": 2,
        "pp": 2,
        "vpp": 2,
        "cp": 2,
        "ep": space.ep,
        "etp": space.etp,
    }
    by_experts = threshold(found, space.strategy(words, inner, 1), limits)
    return Bars(by_pair.ravel(), by_experts)
