"""How the work is split: degrees as numbers or arrays, everything else as words."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import permutations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Num = int | float | npt.NDArray[Any]

Schedule = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev"
]
CpMethod = Literal["ring", "all-to-all", "all-gather", "hierarchical"]
# A loss of each microbatch, of each sequence, of the global batch (all forwards first, or counted by a
# forward of their own) or of the microbatches so far; or a bias that the step's counts move.
MoeBalance = Literal["microbatch", "sequence", "global", "global-counted", "running", "bias"]
Optimizer = Literal["adamw", "adamw-bf16", "adamw-8bit", "adafactor", "muon", "lion", "sgd"]

RECOMPUTE_MODULES = (
    "core_attn", "qkv", "norm", "mlp", "moe", "moe_act", "mla_up", "shared_expert", "ssm",
)  # fmt: skip

DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp")

AXES = ("tp", "cp", "dp", "pp")
# All orders, the usual one first: tensor-parallel traffic innermost, the pipeline outermost.
ORDERS = (AXES, *(order for order in permutations(AXES) if order != AXES))


@dataclass(frozen=True, slots=True)
class Strategy:
    """A complete strategy. Degrees, `microbatch_size` and `zero_group` may be arrays that broadcast.

    dp * tp * pp * cp = chips. ep divides dp * cp * tp / etp: experts are laid over the ranks of one stage
    independently of attention. `zero_group` is the number of chips that one copy of the sharded optimizer
    state is spread over (it divides dp * cp). `layers_per_stage` lists decoder layers of each virtual stage
    in order (stage 0's first chunk, stage 1's first chunk, ..., stage 0's second chunk, ...); None splits
    evenly, embedding and head counted as work.
    `placement` orders the axes from the fastest network outwards; many orders at once are an array of their
    places in `ORDERS`.
    """

    dp: Num
    tp: Num = 1
    sp: bool = False
    pp: Num = 1
    vpp: Num = 1
    cp: Num = 1
    cp_method: CpMethod = "ring"
    ep: Num = 1
    etp: Num = 1
    zero: int = 0
    zero_group: Num = 1
    schedule: Schedule = "1f1b"
    microbatch_size: Num = 1
    recompute: str = "none"  # none | full | selective:a+b (more words in the formats)
    layers_per_stage: tuple[int, ...] | None = None
    optimizer: Optimizer = "adamw"
    offload: str = "none"  # none | activations | activations:N | experts | optimizer | params, joined by +
    dispatcher: Literal["all-to-all", "deep-ep", "hybrid-ep", "all-gather"] = "all-to-all"
    moe_balance: MoeBalance = "microbatch"
    placement: Any = AXES  # tuple[str, ...], or an array of whole numbers
    finetune: str = "none"  # none | lora:RANK | qlora:RANK | dpo | dpo+lora:RANK (more in the formats)

    def at(self, i: int) -> Strategy:
        """The strategy at index `i` where degrees are arrays, as plain numbers."""
        plain: dict[str, Any] = {name: column[i].item() for name, column in self._arrays().items()}
        if "placement" in plain:
            plain["placement"] = ORDERS[plain["placement"]]
        return replace(self, **plain)

    def take(self, part: npt.NDArray[Any]) -> Strategy:
        """The strategies at the indices (or under the mask) `part` where degrees are arrays."""
        picked: dict[str, Any] = {name: column[part] for name, column in self._arrays().items()}
        return replace(self, **picked)

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        columns = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}
