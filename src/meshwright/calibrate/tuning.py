"""A row's words about fine-tuning, optimizer and host memory put into Meshwright's own."""

from __future__ import annotations

import re
from typing import Any

from meshwright.calibrate.rows import Run

# Ranks of the programs' own scripts, where neither cell nor notes say one.
RANKS = {"hf-trainer": 16, "fsdp-qlora": 64, "qwen-finetune": 64, "prime-rl": 64, "megatron-core": 32}
USUAL_RANK = 8  # PEFT's own default
# Where a program's scripts put adapters when they are left alone.
TARGETS = {"litgpt": "qv", "ms-swift": "attention", "hf-trainer": "attention"}
# Fine-tuning in the performance tables of NeMo and Megatron-Bridge (rows that name no kind of job): adapters
# on linear_qkv alone (scripts/performance, llama3_70b_lora_config; NeMo, finetune_performance_optimizations),
# and packed SQuAD v1.1 (NeMo user guide, performance summary). Tokens of a document are assumed: 120 words of
# context and a question; with half or twice as many no such step moves by 1 %.
_IN_TABLES = re.compile(r"\bSFT\b|\bLoRA\b|fine-tuning")
_TABLE_TARGETS, _TABLE_DOCUMENTS = "qkv", "documents:256"
_BASES = {"nf4": "qlora", "int4": "qlora", "int8": "qlora-int8"}
OPTIMIZERS = {
    "adam": "adamw", "adamw": "adamw", "muon+adamw": "muon", "lamb": "adamw", "paged-adamw": "adamw",
    "cpu-adam": "adamw", "adamw-8bit": "adamw-8bit", "paged-adamw-8bit": "adamw-8bit", "lion": "lion",
    "sgd": "sgd", "muon": "muon", "adafactor": "adafactor",
}  # fmt: skip
ON_HOST = ("paged-adamw", "paged-adamw-8bit", "cpu-adam")  # state in memory that the host lends
# What the notes say of widths and losses, as words of options.
NOTED = (
    (r"weights, gradients and states all in bf16|\bpure bf16\b|16-bit state", "bf16-weights"),
    (r"keeps fp32 parameters", "fp32-weights"),
    (r"fp32 grad(?:ient)? accumulation", "fp32-accumulation"),
    (r"fused loss head|chunked loss", "chunked-ce"),
)
OPTIONS = {"offload-optimizer": "optimizer", "fsdp-cpu-offload": "params", "offload-param": "params"}


def noted_options(run: Run) -> frozenset[str]:
    """Words of options that only the notes of a row state, or the recipe that its kind of job starts from."""
    noted = {word for pattern, word in NOTED if re.search(pattern, run.notes)}
    megatron = run.framework == "megatron-core" or "Megatron back end" in run.notes
    if megatron and run.kind in ("sft", "dpo"):
        noted.add("fp32-gradients")  # what Megatron-Bridge's common fine-tuning recipe sets
    if _tuned_for_a_table(run):
        noted.add(_TABLE_DOCUMENTS)
    return frozenset(noted)


def _tuned_for_a_table(run: Run) -> bool:
    return run.kind is None and run.framework == "megatron-core" and bool(_IN_TABLES.search(run.notes))


def finetune(run: Run, derived: list[tuple[str, str]]) -> str:
    """The fine-tuning word of a row; `none` where every parameter trains on plain text."""
    pairs = "dpo" if run.kind == "dpo" or "dpo" in run.options else ""
    if not run.options & {"lora", "dora"} and run.kind not in ("lora", "qlora"):
        return pairs or "none"
    stated = re.search(r"\brank ([1-9]\d*)", run.notes)
    rank = int(stated.group(1)) if stated else RANKS.get(run.framework or "", USUAL_RANK)
    several = re.search(r"\bfour concurrent adapters", run.notes)
    if several:
        rank *= 4
    if not stated:
        derived.append(("finetune", f"rank {rank}, what scripts of {run.framework} set"))
    method = next((word for option, word in _BASES.items() if option in run.options), "")
    method = method or ("qlora" if run.kind == "qlora" else "lora")
    targets = _TABLE_TARGETS if _tuned_for_a_table(run) else TARGETS.get(run.framework or "", "all")
    if re.search(r"all (?:linear )?layers", run.notes):
        targets = "all"
    elif stated_on := re.search(r"on query(, key)? and value", run.notes):
        targets = "qkv" if stated_on[1] else "qv"
    elif run.framework == "litgpt" and re.search(r"\bconfig (gemma|phi)", run.notes):
        targets = "all"  # lora_projection, lora_mlp and lora_head are true in these of config_hub/finetune
    suffix = "" if targets == "all" else f"@{targets}"
    return f"{pairs}{'+' if pairs else ''}{method}:{rank}{suffix}"


def offload(run: Run) -> str:
    """The offload word of a row."""
    words = []
    for option in sorted(run.options):
        if option.startswith("expert-offload"):
            words.append(option.replace("expert-offload", "experts").replace(":", "-"))
        elif option.startswith("act-offload"):
            words.append(option.replace("act-offload", "activations"))
        elif option in ("unsloth", "unsloth-gc"):  # its checkpoints wait in host memory
            words.append("activations")
    states = {OPTIONS[option] for option in run.options if option in OPTIONS}
    if run.optimizer in ON_HOST or "params" in states:
        states.add("optimizer")
    words = words[:1] + sorted(states)
    return "+".join(words) or "none"


def add_words(run: Run, given: dict[str, Any], derived: list[tuple[str, str]]) -> None:
    """Fine-tuning, offload and optimizer, put into `given` where the row states them."""
    word = finetune(run, derived)
    if word != "none":
        given["finetune"] = word
    if offload(run) != "none":
        given["offload"] = offload(run)
    optimizer = OPTIMIZERS.get(run.optimizer or "", "adamw")
    if optimizer != "adamw":
        given["optimizer"] = optimizer
