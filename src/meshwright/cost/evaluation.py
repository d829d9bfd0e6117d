"""What the cost model says of a strategy, or of a million: plain arrays and, for a person, the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from meshwright.cost.terms import Term

TIME_KEYS = ("compute", "tp", "cp", "ep", "dp", "pp", "bubble", "optimizer", "other")
MEMORY_KEYS = (
    "params", "grads", "optimizer", "activations", "logits", "communication", "kv_cache", "state",
    "allocator", "framework",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a rank of one pipeline stage holds at its fullest moment, in bytes by category.

    `moment`: the beginning of `backward`, or the `optimizer`'s step. `kept_bytes` as in `Evaluation`.
    """

    stage: int
    moment: Literal["backward", "optimizer"]
    memory_bytes: dict[str, float]
    kept_bytes: float

    @property
    def peak_bytes(self) -> float:
        """All categories."""
        return sum(self.memory_bytes.values())


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Time and memory of the worst rank. Every number may be an array over candidates (shape [n]).

    `time_s` are exposed seconds on the slowest rank and sum to `step_time_s`; `recompute_s` is contained in
    its `compute`. `memory_bytes` are the categories of the rank with the highest peak and sum to
    `peak_bytes`; `peak_stage` is that rank's pipeline stage. `kept_bytes` is what its allocator holds beyond
    the peak while there is room: a device reading shows it, and it is given back when it is needed.
    `closed_form` is the same by closed forms alone, where the step was simulated.
    """

    step_time_s: Any
    time_s: dict[str, Any]
    recompute_s: Any
    memory_bytes: dict[str, Any]
    peak_bytes: Any
    peak_stage: Any
    capacity_bytes: Any
    model_flops: Any  # a step, causal attention counted half, recompute not counted, all chips together
    hardware_flops: Any  # a step, what is really computed
    floor_time_s: Any  # hardware FLOPs of the busiest rank over peak: nothing is faster
    kept_bytes: Any = 0.0
    counts_sent_bytes: Any = 0.0  # by the slowest rank a step, to balance experts
    terms: Term | None = None  # only where one plan was asked for
    by_stage: tuple[StageMemory, ...] = ()  # likewise
    closed_form: Evaluation | None = None

    @property
    def fits(self) -> Any:
        """Whether the worst rank's peak is within what one process can allocate."""
        return self.peak_bytes <= self.capacity_bytes
