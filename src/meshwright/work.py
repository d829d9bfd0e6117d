"""What is asked of the machine: how much text, in what pieces, in which precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")


# Framework switches that move a time or a peak, and what each does.
EFFECTS: dict[str, str] = {
    "no-overlap": "nothing hides behind compute",
    "ep-overlap": "expert traffic runs beside another microbatch's compute",
    "cuda-graphs-full": "the whole step is captured: no launches, fused experts",
    "cuda-graphs-partial": "half of the kernels are captured",
    "cuda-graphs": "half of the kernels are captured",
    "all-to-all": "plain dispatch of experts",
    "deep-ep": "fused dispatch, one copy a node",
    "hybrid-ep": "fused dispatch, one copy a node, fewer kernels",
    "dropless": "every token reaches its experts, so the busiest rank waits for no one",
    "balanced-routing": "tokens are spread evenly over the experts",
    "fused-loss": "no fp32 copy of the logits",
    "vocab-tiling": "logits a tile at a time",
    "chunked-ce": "logits a chunk at a time",
    "liger": "fused kernels and a chunked loss",
    "te-cross-entropy": "no fp32 copy of the logits",
    "bf16-optimizer": "Adam moments in bf16",
    "bf16-weights": "master weights in bf16",
    "fp32-weights": "weights kept in fp32",
    "fp32-gradients": "gradients kept and reduced in fp32",
    "compile": "norms and activations without inner copies",
    "fp32-accumulation": "gradients added up in whole fp32 buffers",
    "fused-optimizer": "the optimizer step makes no temporaries",
    "opt-in-bwd": "each layer steps as soon as its gradient is there",
    "unsloth": "its kernels and losses",
}
# Words of the measured tables that the model reads nothing from.
TOLD = frozenset(
    {
        "act-offload", "async-tp", "deterministic", "dora", "dp-overlap", "dpo", "emb",
        "expandable-segments", "expert-offload", "fused-kernels", "fp8-block", "fp8-current",
        "fp8-delayed", "fsdp", "int4",
        "int8", "lamb", "lora", "megatron-fsdp", "mxfp8", "nf4", "no-sync", "offload-optimizer",
        "offload-param", "overlap", "packing", "param-gather-overlap", "reward", "rl", "sft",
        "tiled-mlp", "token-drop", "tp-overlap", "unfused-attention", "unsloth-gc",
        "varlen",
    }
)  # fmt: skip


def unknown_options(words: Iterable[str]) -> tuple[str, ...]:
    """The words that no framework switch is called by; `act-offload:20` counts as `act-offload`."""
    return tuple(w for w in words if w.partition(":")[0] not in EFFECTS and w.partition(":")[0] not in TOLD)


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
