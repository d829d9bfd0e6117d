"""What is asked of the machine: how much text, in what pieces, in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True)
class Work:
    """One optimizer step's worth of training text.

    `seq_len` tokens a sequence, `global_batch_size` sequences a step over all ranks (either may be an
    array); `total_tokens` is the whole run, where known; `options` are framework switches in the words of
    the measured tables (`dropless`, `hybrid-ep`, `cuda-graphs-full`, ...).
    """

    seq_len: Any
    global_batch_size: Any
    precision: Precision = "bf16"
    total_tokens: float | None = None
    options: frozenset[str] = frozenset()

    @property
    def tokens_per_step(self) -> Any:
        """Tokens one optimizer step consumes."""
        return self.seq_len * self.global_batch_size
