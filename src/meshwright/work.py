"""What is asked of the machine: how much text, in what pieces, in which precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshwright import units

Precision = Literal["fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
PRECISIONS: tuple[Precision, ...] = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")


# Framework switches that move a time or a peak, and what each does.
EFFECTS: dict[str, str] = {
    "no-overlap": "nothing hides behind compute",
    "p2p-overlap": "sends of a pipeline run beside its passes, where the framework would wait",
    "ep-overlap": "expert traffic runs beside another microbatch's compute",
    "cuda-graphs-full": "the whole step is captured: no launches, fused experts",
    "cuda-graphs-partial": "attention, state-space layers and routing are captured; experts are launched",
    "cuda-graphs-router": "routing alone is captured",
    "cuda-graphs": "every layer is captured whole",
    "all-to-all": "plain dispatch of experts",
    "deep-ep": "fused dispatch, one copy a node",
    "hybrid-ep": "fused dispatch, one copy a node, fewer kernels",
    "dropless": "every token reaches its experts, so the busiest rank waits for no one",
    "token-drop": "every expert takes a fixed number of tokens, so the host need not ask",
    "capacity": "capacity:F, experts take F times the mean of tokens, padded to it, and drop the rest",
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
    "compile": "norms and activations without inner copies, neighbouring passes in one",
    "fused-kernels": "norms and rotations are kernels, not plain tensor operations",
    "async-tp": "tensor-parallel traffic runs beside pieces of its products",
    "fp32-accumulation": "gradients added up in whole fp32 buffers",
    "fused-optimizer": "the optimizer step makes no temporaries",
    "opt-in-bwd": "each layer steps as soon as its gradient is there",
    "outer-optimizer": "ZeRO-3 within groups shards optimizer state over all of them",
    "no-sync": "ZeRO-2 and 3 scatter gradients once a step and add them up whole until then",
    "fixed-segments": "graphs are captured while allocator segments cannot grow, which strands memory",
    "unsloth": "its kernels and losses",
    "straggler": "straggler:X, one rank whose passes take X times as long, which all wait for",
    "documents": "documents:N, packed documents of N tokens, which attention stays inside",
}
# Switches that carry a number: its range and an example.
VALUED: dict[str, tuple[int, int, str]] = {
    "straggler": (1, 100, "1.1"), "documents": (1, 2**40, "2k"), "capacity": (1, 100, "1.25"),
}  # fmt: skip
# Switches that a flag of their own spells, by that flag.
FLAGS: dict[str, frozenset[str]] = {
    "straggler": frozenset({"straggler"}),
    "documents": frozenset({"documents"}),
    "moe_balance": frozenset({"balanced-routing", "dropless", "capacity"}),
}
# Words of the measured tables that the model reads nothing from.
TOLD = frozenset(
    {
        "act-offload", "deterministic", "dora", "dp-overlap", "dpo", "emb",
        "expandable-segments", "expert-offload", "fp8-block", "fp8-current",
        "fp8-delayed", "fsdp", "int4",
        "int8", "lamb", "lora", "megatron-fsdp", "mxfp8", "nf4", "offload-optimizer",
        "offload-param", "overlap", "packing", "param-gather-overlap", "reward", "rl", "sft",
        "tiled-mlp", "tp-overlap", "unfused-attention", "unsloth-gc",
        "varlen",
    }
)  # fmt: skip


def unknown_options(words: Iterable[str]) -> tuple[str, ...]:
    """The words that no framework switch is called by; `act-offload:20` counts as `act-offload`."""
    return tuple(w for w in words if w.partition(":")[0] not in EFFECTS and w.partition(":")[0] not in TOLD)


def restated(of_file: Iterable[str], given: Iterable[str], flags: Iterable[str] = ()) -> frozenset[str]:
    """Switches of a file under those that are given beside it: words that a flag of their own spells take the
    place of that flag's words, `flags` also name those that spelled none; any other word replaces all.

    >>> sorted(restated({"compile", "documents:2k"}, ["documents:4k"]))
    ['compile', 'documents:4k']
    >>> sorted(restated({"compile", "dropless"}, [], ["moe_balance"]))
    ['compile']
    >>> sorted(restated({"compile"}, ["liger"]))
    ['liger']
    """
    names = {word: word.partition(":")[0] for word in given}
    spelled = {flag for flag, words in FLAGS.items() if words.intersection(names.values())}
    gone = frozenset[str]().union(*(FLAGS[flag] for flag in (*spelled, *flags) if flag in FLAGS))
    if any(name not in gone for name in names.values()):
        return frozenset(names)
    return frozenset(names) | {word for word in of_file if word.partition(":")[0] not in gone}


def faulty_values(words: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """What is wrong with switches that carry a number, and with numbers where there is none to carry, each
    with a way out."""
    said = []
    distinct = sorted(set(words))
    for name in VALUED:
        several = [word for word in distinct if word.partition(":")[0] == name]
        if len(several) > 1:
            said.append((f"{name} stands twice: {' and '.join(several)}", f"keep {' or '.join(several)}"))
    for word in distinct:
        name, colon, text = word.partition(":")
        if name in VALUED:
            low, high, example = VALUED[name]
            value = _number(name, text)
            if value is None or not low <= value <= high:
                said.append((f"{word!r} needs a number from {low} to {high:,}", f"write {name}:{example}"))
        elif colon and name in EFFECTS:
            carry = ", ".join(f"{one}:" for one in VALUED)
            said.append((f"{word!r}: {name} carries no number", f"write {name}; a number follows {carry}"))
    capped = [word for word in distinct if word.partition(":")[0] == "capacity"]
    if capped and "dropless" in distinct:
        fault = f"{capped[0]!r} drops what an expert has no room for, and dropless drops nothing"
        said.append((fault, f"keep {capped[0]} or dropless"))
    return tuple(said)


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

    @property
    def slowness(self) -> float:
        """How many times as long the slowest rank's passes take (1: all alike)."""
        return self._value("straggler") or 1.0

    @property
    def document_len(self) -> float | None:
        """Tokens of a packed document; None where a sequence is one. Of unequal ones the mean weighted by
        tokens, sum(d^2) / sum(d)."""
        return self._value("documents")

    @property
    def capacity(self) -> float | None:
        """Tokens that an expert takes over the mean; None where nothing bounds them."""
        return self._value("capacity")

    @property
    def attended_len(self) -> Any:
        """The length that attention is causal over."""
        return self.seq_len if self.document_len is None else np.minimum(self.document_len, self.seq_len)

    def _value(self, name: str) -> float | None:
        found = [word for word in self.options if word.startswith(f"{name}:")]
        return _number(name, found[0].partition(":")[2]) if found else None


def _number(name: str, text: str) -> float | None:
    """The number that a switch carries: tokens (k = 1024) or a plain one."""
    try:
        return float(units.parse_length(text) if name == "documents" else text)
    except (units.UnitError, ValueError):
        return None
