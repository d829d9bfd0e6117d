"""Techniques and the plans that do without them: what each one buys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.strategy.records import Strategy

Mask = npt.NDArray[np.bool_]

TECHNIQUES = ("pp", "vpp", "tp", "sp", "cp", "ep", "etp", "recompute", "zero-3", "offload", "low-precision")
LOW_PRECISIONS = frozenset({"fp8", "mxfp8", "nvfp4"})


@dataclass(frozen=True, slots=True)
class Necessity:
    """Step time of the best plan without a technique and the loss against the best plan in percent.

    All are None when nothing fits without it; the loss is 0 when the best plan does not use it. Steps are
    simulated as in the ranking; `simulated_step_time_s` is None where a plan was not.
    """

    without: str
    step_time_s: float | None
    loss_percent: float | None
    simulated_step_time_s: float | None


def does_without(technique: str, strategy: Strategy) -> Mask:
    """Which strategies do not use `technique`; broadcasts over degrees. Precision is not a strategy's."""
    shape = np.shape(strategy.dp)
    if technique in ("pp", "vpp", "tp", "cp", "ep", "etp"):
        return np.broadcast_to(np.asarray(getattr(strategy, technique)) == 1, shape)
    if technique == "sp":  # which one tensor-parallel rank has nothing of
        return np.broadcast_to(np.asarray(strategy.tp) == 1, shape) | (not strategy.sp)
    said: dict[str, Any] = {
        "recompute": strategy.recompute == "none",
        "zero-3": strategy.zero < 3,
        "offload": strategy.offload == "none",
        "low-precision": True,
    }
    return np.full(shape, said[technique], bool)
