"""The cost model asked about a case: what the row states is kept, the profile's rules derive the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from meshwright.calibrate.cases import Case
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.hardware.records import Chip
from meshwright.profiles import load as profiles
from meshwright.profiles.records import Profile
from meshwright.search.derive import complete
from meshwright.strategy.records import Strategy

APART: dict[str, tuple[str, ...]] = {  # categories that are not in a peak of that kind
    "allocated": ("allocator", "framework"),
    "active": ("allocator", "framework"),
    "reserved": ("framework",),
}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What Meshwright says of a case. FLOPs are of a step, all chips, causal attention counted half."""

    step_time_s: float
    memory_bytes: dict[str, float]
    capacity_bytes: float
    model_flops: float
    hardware_flops: float
    kept_bytes: float = 0.0  # beside the categories: what the allocator holds while there is room
    strategy: Strategy | None = None
    time_s: dict[str, float] | None = None

    @property
    def peak_bytes(self) -> float:
        """The worst rank's peak, every category."""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether that peak is within what one process can allocate."""
        return self.peak_bytes <= self.capacity_bytes

    def peak_as(self, memory_kind: str | None) -> float:
        """The peak in bytes in the sense of a table's `memory_kind`.

        allocated, active: live tensors; reserved: and what the allocator keeps; device, or not told: all that
        the driver sees.
        """
        left_out = APART.get(memory_kind or "device", ())
        kept = 0.0 if "allocator" in left_out else self.kept_bytes
        return kept + sum(v for k, v in self.memory_bytes.items() if k not in left_out)


Predict = Callable[[Case], Prediction]


def profile_of(case: Case) -> Profile:
    """The profile for the case's framework and release; frameworks without one use the chip's default."""
    return _profile(case.framework, case.cluster.chip, case.release)


@lru_cache(maxsize=1024)
def _profile(framework: str | None, chip: Chip, release: str) -> Profile:
    try:
        return profiles.load(framework, chip, release)
    except InputError:
        return profiles.load(None, chip)


def predict(case: Case) -> Prediction:
    """Step time and memory of `case` by the cost model. Raises InputError where the strategy is not legal."""
    profile = profile_of(case)
    completed = complete(case.model, case.cluster, case.work, case.given, profile)
    found = evaluate(case.model, case.cluster, case.work, completed.strategy, profile)
    return Prediction(
        step_time_s=float(found.step_time_s),
        memory_bytes={k: float(v) for k, v in found.memory_bytes.items()},
        capacity_bytes=float(found.capacity_bytes),
        model_flops=float(found.model_flops),
        hardware_flops=float(found.hardware_flops),
        kept_bytes=float(found.kept_bytes),
        strategy=completed.strategy,
        time_s={k: float(v) for k, v in found.time_s.items()},
    )
