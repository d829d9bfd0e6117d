"""A row's own words put into Meshwright's: lengths, batches, degrees, schedule, recompute, precision.

Only cells, and what a program's pages always mean by them, are used; no measured value decides anything but
the batch of a row that prints both a time and a rate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.calibrate.columns import OFF, ON, ULYSSES
from meshwright.calibrate.rows import Run
from meshwright.calibrate.tuning import noted_options
from meshwright.hardware.records import Chip
from meshwright.model.records import Model, Moe
from meshwright.units import counted
from meshwright.work import Precision

FP16_ERA = (
    "megatron-lm", "megatron-deepspeed", "deepspeed", "oneflow", "metaseq", "colossalai", "megatron-zb",
)  # fmt: skip
BRIDGE = ("megatron-core",)
MEGATRON = ("megatron-core", "megatron-lm", "megascale", "primus")
# Lengths that a page leaves out and that its own figures give back: MFU over tokens/s agrees to 0.1 %.
SEQUENCES = {"torchtitan": 8192, "paxml": 2048, "fms-fsdp": 4096}
# Releases that a source means although no cell says so: by the longest beginning of the source.
ERAS = {
    "tatsu-lab/stanford_alpaca": "2023",
    "NVIDIA/NeMo@": "24.12",  # the long-sequence page came with that release
    "NVIDIA/NeMo-Framework-Launcher": "24.05",  # its page: before 24.07
    "NVIDIA NeMo user guide 24.12": "24.12",
    "NVIDIA/Megatron-LM@d98e8a6:tests": "core",  # tests of 2025, whatever the chip
    "arXiv:2402.15627": "2023",  # its baseline is Megatron-LM of that year
    "pytorch/torchtitan@b5bcd76:benchmarks/llama3_h100_202412": "2024",
    "pytorch/torchtitan:docs/performance.md": "2024",  # its earlier versions
    "yanring/Megatron-MoE-ModelZoo": "26.02",  # Megatron-Core 0.15 and 0.16, which Bridge 26.02 carries
    "arXiv:2603.07685": "26.02",  # Megatron-Core 0.16
    "NVIDIA/Megatron-LM@d98e8a6:images": "24.07",  # Megatron-Core r0.8, which NeMo 24.07 carries
    # Numbers of issues tell their dates: 3000 to 6999 were opened in 2024.
    **dict.fromkeys((f"hiyouga/LlamaFactory#{n}" for n in (3, 4, 5, 6)), "2024"),
    "modelscope/ms-swift@d2b45ec8c:docs/source_en/LLM/Benchmark.md": "2023",  # first-generation Qwen
}
DATED = (*BRIDGE, "megatron-lm", "torchtitan", "hf-trainer", "ms-swift", "llama-factory")
DEEPSPEED = ("megatron-deepspeed", "deepspeed")
MEGATRON_TESTS = "NVIDIA/Megatron-LM@d98e8a6:tests"
SELECTIVE = {  # what a bare `selective` means to each program
    "torchtitan": "products:2",  # its `op` list: every second matrix product, attention, scattered sums
    "maxtext": "minimal",
    "paxml": "minimal",
    "kempnerforge": "minimal",
    "fms-fsdp": "every:2",  # checkpoints a share of the blocks
}


def options(run: Run) -> frozenset[str]:
    """The row's switches, with what its notes say."""
    return run.options | noted_options(run)


def slices(run: Run) -> int:
    """Slices of a TPU job that the notes count (`2 slice(s) of v4-128`)."""
    match = re.search(r"(\d+) slice\(s\)", run.notes)
    return int(match.group(1)) if match else 1


def links(run: Run) -> int | None:
    """Fast links of a chip that the interconnect cell counts (`NVLink 4 inter-GPU connects`)."""
    match = re.search(r"NVLink (\d+) inter-GPU connects", run.interconnect or "")
    return int(match.group(1)) if match else None


def sequence(run: Run, derived: list[tuple[str, str]]) -> int | None:
    """The sequence length that the program's page uses throughout, where its figures confirm it."""
    length = SEQUENCES.get(run.framework or "")
    if length is None:
        return None
    if run.framework == "torchtitan" and (run.model or "").startswith("Llama-2"):
        length = 4096
    derived.append(("seq_len", f"what {run.framework}'s own MFU and tokens/s imply"))
    return length


def degrees(run: Run, derived: list[tuple[str, str]]) -> dict[str, Any] | None:
    """Degrees as stated, or None where neither tp and pp nor a sharded data-parallel group that spans all
    chips fix them."""
    given: dict[str, Any] = {
        name: value
        for name in ("dp", "tp", "pp", "vpp", "cp", "etp", "ep")
        if (value := getattr(run, name)) is not None
    }
    ulysses = ULYSSES.fullmatch(run.sp or "")
    if ulysses:
        given["cp"], given["cp_method"] = int(ulysses.group(1)), "all-to-all"
        derived.append(("cp", f"sp is {run.sp!r}: attention is split over its heads by an all-to-all"))
    if run.tp is None or run.pp is None:
        known = (run.dp or 0) * (run.cp or 1) * (run.tp or 1) * (run.pp or 1)
        alone = run.zero == 3 and run.framework == "paxml"  # its page: FSDP plus data parallel, no other axis
        if known != run.n_chips and not alone:
            return None
        why = "its page names no such axis"
        if known == run.n_chips:
            why = f"the other degrees give all {counted(run.n_chips, 'chip')}"
        for name in ("tp", "pp"):
            if given.get(name) is None:
                given[name] = 1
                derived.append((name, why))
    if given.get("vpp") == 1:
        del given["vpp"]  # a schedule without virtual stages says the same
    return given


def batch_size(
    run: Run, given: Mapping[str, Any], seq_len: int, derived: list[tuple[str, str]]
) -> int | None:
    """Sequences a step where the cell is empty but others fix it: from a step time, or a local batch."""
    samples = re.search(r"samples_per_s (\d+(?:\.\d+)?)", run.notes)
    if run.step_time_s and run.tokens_per_s_per_chip and run.n_chips:
        batch = round(run.step_time_s * run.tokens_per_s_per_chip * run.n_chips / seq_len)
        if batch > 0:
            derived.append(("global_batch_size", "step_time_s x tokens_per_s_per_chip x n_chips / seq_len"))
            return batch
    if run.step_time_s and samples:
        batch = round(run.step_time_s * float(samples.group(1)))
        if batch > 0:
            derived.append(("global_batch_size", "step_time_s x samples/s of the notes"))
            return batch
    if run.framework == "torchtitan" and run.microbatch_size and run.n_chips:
        ranks = run.n_chips // int(given["tp"] * given["pp"] * given.get("cp", 1))
        derived.append(
            ("global_batch_size", f"a local batch of {run.microbatch_size} on {counted(ranks, 'rank')}")
        )
        return run.microbatch_size * ranks
    if run.microbatch_size and run.kind is not None and run.n_chips:
        # Tables of peaks: the number of microbatches does not move a peak, one is the least.
        ranks = run.n_chips // int(given["tp"] * given["pp"] * given.get("cp", 1))
        derived.append(("global_batch_size", "one microbatch a rank and stage: more do not move the peak"))
        return run.microbatch_size * max(1, ranks) * int(given["pp"])
    return None


def add_words(
    run: Run, given: dict[str, Any], batch: int, model: Model, derived: list[tuple[str, str]]
) -> None:
    """Everything of the strategy that is not a degree, put into `given` in Meshwright's words."""
    tp, pp = given["tp"], given["pp"]
    sp = (run.sp or "").lower()
    if sp in OFF or (sp in ON and tp > 1):
        given["sp"] = sp in ON
    if run.source.startswith(MEGATRON_TESTS):
        _tested(run, given, derived)
    if run.framework == "megatron-zb" or "embedding counted as layers" in run.notes:
        _short_ends(run, given, model, derived)
    elif run.framework in ("megatron-lm", "megatron-deepspeed"):
        _even_stages(run, given, model, derived)
    if run.zero is not None:
        given["zero"] = run.zero
        if run.zero == 0 and run.framework in BRIDGE:
            given["zero"] = 1
            derived.append(("zero", "0 on its pages says that FSDP is off; the optimizer is sharded"))
    ranks = (run.n_chips or 0) // (tp * pp)
    _fused_dispatch(run, given, ranks * tp, model, derived)
    if run.zero_group is not None:
        two_a_chip = run.chip == "TPU-v7-Ironwood"
        given["zero_group"] = max(1, run.zero_group // 2) if two_a_chip else run.zero_group
    elif slices(run) > 1 and run.zero == 3:
        given["zero_group"] = ranks // slices(run)
        derived.append(("zero_group", "sharded within a slice, data parallel across slices"))
    _schedule(run, given, derived)
    _microbatch(run, given, batch, derived)
    if run.recompute is not None:
        given["recompute"] = run.recompute
        if run.recompute == "selective":
            given["recompute"] = SELECTIVE.get(run.framework or "", "selective:core_attn")
            derived.append(("recompute", f"what {run.framework or 'Megatron'} means by selective"))
            if run.framework == "fms-fsdp":
                _counted_again(run, given, derived)
    if run.layers_per_stage is not None:
        given["layers_per_stage"] = tuple(int(n) for n in run.layers_per_stage.split("+"))
    if "bf16-optimizer" in run.options:
        # DeepSpeed's BF16 optimizer is named for its weights: master and moments stay in fp32.
        given["optimizer"] = "adamw" if run.framework in DEEPSPEED else "adamw-bf16"
    experts = any(isinstance(b.ffn, Moe) for b in model.blocks)
    if experts and run.framework in MEGATRON and tp > 1:
        if "etp" not in given and given.get("ep", 1) == 1:
            given["etp"] = tp
            derived.append(("etp", "the program splits experts over tp where nothing else is said"))
        if "sp" not in given:
            given["sp"] = True
            derived.append(("sp", "the program refuses experts with tp but without sp"))
    if not experts:
        given.pop("etp", None)  # what it would split is not there; some launch scripts set it for every model
        if given.get("ep") == 1:
            del given["ep"]


def _tested(run: Run, given: dict[str, Any], derived: list[tuple[str, str]]) -> None:
    """What the arguments of Megatron's own tests leave out means what the program does without them."""
    if run.zero is None:
        given["zero"] = 0
        derived.append(("zero", "the test's arguments do not ask for the distributed optimizer"))


def _even_stages(run: Run, given: dict[str, Any], model: Model, derived: list[tuple[str, str]]) -> None:
    """Megatron-LM cuts layers evenly, embedding and head beside them, unless it is told otherwise; so does
    DeepSpeed, by the number of transformer layers.

    **Source** of the latter: Megatron-DeepSpeed, megatron/model/gpt_model.py (`type:transformer`).
    """
    chunks = given["pp"] * given.get("vpp", 1)
    if run.layers_per_stage is None and chunks > 1 and model.n_layers % chunks == 0:
        given["layers_per_stage"] = (model.n_layers // chunks,) * chunks
        derived.append(("layers_per_stage", "the program cuts layers evenly unless told otherwise"))


def _short_ends(run: Run, given: dict[str, Any], model: Model, derived: list[tuple[str, str]]) -> None:
    """The zero-bubble papers, and BLOOM's later runs, give the first and the last stage one layer less, for
    embedding and head."""
    if "one layer per chunk" in run.notes and "vpp" not in given:
        given["vpp"] = (model.n_layers + 2) // given["pp"]
        derived.append(("vpp", "one layer a chunk, as the row's notes say"))
    chunks = given["pp"] * given.get("vpp", 1)
    each, left = divmod(model.n_layers + 2, chunks)
    if run.layers_per_stage is None and chunks > 1 and left == 0:
        given["layers_per_stage"] = (each - 1, *(each,) * (chunks - 2), each - 1)
        derived.append(("layers_per_stage", "one layer less on the first and on the last stage"))


def _counted_again(run: Run, given: dict[str, Any], derived: list[tuple[str, str]]) -> None:
    """The share of the blocks that a program checkpoints, from both rates that its page prints.

    Hardware over model FLOPs is 1 + share / 3: forward is a third of what a step takes, and only that comes
    twice.
    """
    if not run.hfu_percent or not run.mfu_percent or run.hfu_percent <= run.mfu_percent:
        return
    share = 3.0 * (run.hfu_percent / run.mfu_percent - 1.0)
    every = round(1.0 / share)
    given["recompute"] = f"every:{every}" if every > 1 else "full"
    derived.append(("recompute", f"HFU over MFU says that {min(share, 1.0):.0%} of the blocks run again"))


def program(run: Run) -> str | None:
    """The program that trains: the framework of the row, or the back end that its notes name."""
    return "megatron-core" if re.search(r"\bMegatron back end\b", run.notes) else run.framework


def _fused_dispatch(
    run: Run, given: dict[str, Any], ranks: int, model: Model, derived: list[tuple[str, str]]
) -> None:
    """DeepEP and HybridEP send between expert ranks: a row that names one and no degree has several."""
    if "ep" in given or not run.options & {"deep-ep", "hybrid-ep"}:
        return
    experts = [b.ffn.n_experts for b in model.blocks if isinstance(b.ffn, Moe)]
    fitting = [n for n in (8, 4, 2) if ranks % n == 0 and all(e % n == 0 for e in experts)]
    if experts and fitting:
        given["ep"] = fitting[0]
        derived.append(("ep", "its dispatcher sends between expert ranks: one node's worth"))


def _schedule(run: Run, given: dict[str, Any], derived: list[tuple[str, str]]) -> None:
    if run.pp_schedule is None or given["pp"] == 1:
        return
    given["schedule"] = run.pp_schedule
    vpp = given.get("vpp", 1)
    if run.pp_schedule == "interleaved-1f1b" and vpp == 1:
        given["vpp"] = 2
        derived.append(("vpp", "interleaved without a number of chunks: the least that interleaves"))
    if run.pp_schedule == "1f1b" and vpp > 1:
        given["schedule"] = "interleaved-1f1b"


def _microbatch(run: Run, given: dict[str, Any], batch: int, derived: list[tuple[str, str]]) -> None:
    """Sequences of one forward: as stated; torchtitan's local batch is cut by its pipeline; MaxText has no
    gradient accumulation, so a step is one microbatch."""
    tp, pp, cp = given["tp"], given["pp"], given.get("cp", 1)
    ranks = max(1, (run.n_chips or 0) // (tp * pp * cp))
    if run.microbatch_size is not None:
        given["microbatch_size"] = run.microbatch_size
        if run.framework == "torchtitan" and pp > 1 and run.microbatch_size % pp == 0:
            given["microbatch_size"] = run.microbatch_size // pp
            derived.append(("microbatch_size", f"local batch {run.microbatch_size}, one microbatch a stage"))
    elif run.framework == "maxtext" and pp == 1 and batch % ranks == 0:
        given["microbatch_size"] = batch // ranks
        derived.append(
            ("microbatch_size", f"batch {batch} on {counted(ranks, 'rank')}: no gradient accumulation")
        )


def precision(run: Run, chip: Chip, derived: list[tuple[str, str]]) -> Precision:
    stated = run.precision
    if stated in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        return stated  # type: ignore[return-value]  # the words of the column are those of the type
    old = chip.family == "v100" or run.framework in FP16_ERA
    derived.append(("precision", f"16 bits, as {run.framework or chip.name} ran at the time"))
    return "fp16" if old else "bf16"


def release(run: Run) -> str:
    """The release cell, with the patch number where the notes know it (`NeMo container 26.02.01`)."""
    noted = re.search(r"NeMo (?:container )?(\d\d\.\d\d(?:\.\d\d)?)", run.notes)
    stated = run.release or ""
    if noted and noted.group(1).startswith(stated):
        return noted.group(1)
    if "unfused-attention" in run.options and run.framework == "megatron-lm":
        return "unfused-core"
    if run.framework == "megatron-deepspeed" and "sequence parallelism and flash attention" in run.notes:
        return "" if "without" in run.notes else "2023"
    if stated or run.framework not in DATED:
        return stated
    meant = [begin for begin in ERAS if run.source.startswith(begin)]
    return ERAS[max(meant, key=len)] if meant else ""
