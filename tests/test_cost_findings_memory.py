"""What published measurements found of memory, length, experts and precision, asked of the model.

Numbers and tolerance as in `test_cost_findings`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from meshwright.model import presets
from meshwright.units import GIB
from published_runs import GPT_175B, Run, close, gpt

# --- recompute and memory ----------------------------------------------------------------------------------

KORTHIKANTI = {
    "22B": (gpt(6144, 48, 64), {"tp": 8}, 8, 4, 4, 1.42 / 1.10),
    "175B": (GPT_175B, {"tp": 8, "pp": 8, "vpp": 3}, 64, 64, 1, 18.13 / 13.75),
    "530B": (gpt(20480, 105, 128), {"tp": 8, "pp": 35, "vpp": 3}, 280, 280, 1, 49.05 / 37.83),
    "1T": (gpt(25600, 128, 160), {"tp": 8, "pp": 64}, 512, 512, 1, 94.42 / 71.49),
}


@pytest.mark.parametrize("size", KORTHIKANTI)
def test_selective_recompute_with_sequence_parallelism(size: str) -> None:
    """Finding 17. Against full recompute 29 to 32 % more throughput, and about a fifth of the activations
    that keeping all of them without sequence parallelism takes.
    """
    model, degrees, n, batch, microbatch, published = KORTHIKANTI[size]

    def run(recompute: str, *, sp: bool) -> Run:
        return Run(model, f"{n}xa100", 2048, batch, framework="megatron-lm@2021", recompute=recompute, sp=sp,
                   microbatch_size=microbatch, **degrees)  # fmt: skip

    full, selective, kept = run("full", sp=False), run("selective:core_attn", sp=True), run("none", sp=False)
    assert close(full.seconds / selective.seconds, published)
    saved = kept.found.memory_bytes["activations"] / selective.found.memory_bytes["activations"]
    assert 4 < saved < 6.5


def test_recomputing_fused_attention_saves_nothing() -> None:
    """Finding 18. Moonlight 16B: 36.618 to 36.614 GB and 4 % slower."""
    none, again = (
        Run("moonlight-16b-a3b", "8xh100", 4096, 64, ep=8, recompute=r)
        for r in ("none", "selective:core_attn")
    )
    assert 0.995 * none.gib < again.gib <= none.gib
    assert 1.0 < again.seconds / none.seconds < 1.06


def test_full_recompute_costs_a_tenth_to_a_quarter() -> None:
    """Finding 19. MPT-7B: 64.2 % MFU without, 58.0 and 54.8 with; InternLM 4103 to 3314 tokens/s (19 %). A
    forward pass is a quarter of the products, so no less than a tenth and no more than that quarter; HFU is
    4/3 of MFU there.
    """
    none = Run(
        "mpt-7b", "8xa100", 2048, 192, framework="llm-foundry", zero=3, recompute="none", microbatch_size=6
    )
    full = Run(
        "mpt-7b", "8xa100", 2048, 192, framework="llm-foundry", zero=3, recompute="full", microbatch_size=6
    )
    assert close(none.mfu(312), 0.642)
    assert 0.10 < 1 - full.mfu(312) / none.mfu(312) < 0.25
    assert full.found.hardware_flops / full.found.model_flops == pytest.approx(4 / 3, rel=0.02)
    words: dict[str, Any] = {"framework": "internevo", "zero_group": 8, "microbatch_size": 2}
    kept, again = (Run("llama-2-7b", "128xa100", 2048, 1024, recompute=r, **words) for r in ("none", "full"))
    assert 0.10 < 1 - again.tokens_per_s / kept.tokens_per_s < 0.25
    assert again.hardware_tflops > kept.hardware_tflops  # why plans are never ranked by hardware FLOPs


def test_context_parallel_holds_memory_flat() -> None:
    """Finding 20. 8B on 8 H100, FSDP and full recompute: the same peak from 32K (CP 1) to 262K (CP 8)."""
    peaks = [
        Run("llama-3.1-8b", "8xh100", s, 8 // cp, framework="torchtitan", zero=3, cp=cp, recompute="full").gib
        for s, cp in ((32768, 1), (65536, 2), (131072, 4), (262144, 8))
    ]
    assert max(peaks) < 1.02 * min(peaks)


def test_memory_falls_with_tp_and_not_with_microbatches() -> None:
    """Finding 21. 12-layer 70B slices on 8 B200 at PP 2: 66.6, 60.7, 39.1 GiB at TP 1, 2, 4; independent of
    the number of microbatches, time linear in it.
    """
    cut = presets.load("llama-3-70b").with_layers(12)

    def run(tp: int, microbatches: int) -> Run:
        return Run(cut, "8xb200", 4096, microbatches * (4 // tp), options=("no-overlap",), tp=tp, pp=2)

    peaks = [run(tp, 8).gib for tp in (1, 2, 4)]
    assert peaks == sorted(peaks, reverse=True)
    assert close(peaks[0], 66.6, 0.2)
    assert run(1, 8).gib == pytest.approx(run(1, 64).gib, rel=1e-12)
    times = [run(1, m).seconds for m in (8, 16, 24)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=1e-9)


def test_logits_are_a_bill_of_their_own() -> None:
    """Lesson of the memory runs: at a vocabulary of 128k, whole logits at 8 x 4096 tokens cost tens of GiB
    that a chunked loss does not (35.1 to 23.2 GiB at half of that).
    """
    whole, chunked = (
        Run("llama-3-8b", "8xh100", 4096, 64, framework="megatron-core", zero=1, microbatch_size=8,
            recompute="full", options=o).found for o in ((), ("liger",))
    )  # fmt: skip
    saved = (whole.peak_bytes - chunked.peak_bytes) / GIB
    logits = 8 * 4096 * 128256 / GIB  # at one byte each
    assert 4 * logits < saved < 12.5 * logits  # 10 bytes each, a quarter more with the allocator's slack


def test_recomputing_a_wide_mlp_moves_the_peak_to_the_update() -> None:
    """Finding 18. 70B in fp8 with the MLP recomputed peaks at 55.6 GB: then the optimizer's step is the
    fullest moment, and no set of modules brings it lower."""
    run = Run("llama-3.1-70b", "32xh100", 4096, 32, "fp8", release="26.02", tp=4, pp=4, vpp=5,
              recompute="selective:mlp")  # fmt: skip
    context = run.found.memory_bytes["framework"]
    assert run.found.memory_bytes["activations"] == 0.0
    assert close((run.found.peak_bytes - context) / 1e9, 55.6, 0.05)


@pytest.mark.parametrize(
    ("tp", "pp", "recompute", "published"),
    [(4, 4, "selective:core_attn", False), (4, 8, "selective:core_attn", True),
     (8, 4, "selective:core_attn", True), (4, 4, "selective:mlp", True),
     (4, 4, "selective:core_attn+norm", False)],
)  # fmt: skip
def test_stranded_memory_decides_borderline_runs(
    tp: int, pp: int, recompute: str, *, published: bool
) -> None:
    """Lesson 8. 70B in fp8 on 80 GB, CUDA graphs without expandable segments: at a peak of 58.8 GB most tries
    fail, at 59.6 too; 53.2, 50.2 and 55.6 pass, and so does the first once segments can grow."""
    words: dict[str, Any] = {"tp": tp, "pp": pp, "vpp": 5, "recompute": recompute}
    for options, fits in ((("fixed-segments",), published), ((), True)):
        run = Run("llama-3.1-70b", "32xh100", 4096, 32, "fp8", release="26.02", options=options, **words)
        assert bool(run.found.fits) == fits


def test_everything_sharded_is_no_less_where_activations_are_the_bill() -> None:
    """Lesson 11. A hybrid of experts on 8 GB200: 158.2 GiB plain, 160.8 under Megatron FSDP; within 5 %."""
    plain, sharded = (
        Run("nemotron-3-nano-30b-a3b", "8xgb200", 8192, 256, release="26.06", ep=8, zero=zero,
            microbatch_size=2, recompute="none").gib for zero in (1, 3)
    )  # fmt: skip
    assert close(sharded / plain, 160.8 / 158.2, 0.05)


def test_accumulating_without_scattering_costs_whole_gradients() -> None:
    """Lesson 12. Mixtral on 8 A100, 16-bit weights: 69 GB without accumulation and with sixteen scattered
    microbatches, out of memory with two that wait."""
    late: tuple[tuple[int, tuple[str, ...]], ...] = ((1, ()), (16, ()), (2, ("no-sync",)))
    once, many, waiting = (
        Run("mixtral-8x7b", "8xa100", 2048, 8 * m, framework="hf-trainer", zero=3, microbatch_size=1,
            recompute="full", options=("bf16-weights", *word)) for m, word in late
    )  # fmt: skip
    assert once.gib == many.gib < 69
    assert once.found.fits
    assert not waiting.found.fits


def test_adapters_without_sharding_keep_the_model_whole() -> None:
    """Lesson 13. 235B with adapters, TP 4 and EP 8 without ZeRO: more data parallelism frees nothing, and an
    optimizer on the host little."""
    few, many, moved = (
        Run("qwen3-235b-a22b", f"{n}xh100", 4096, n, framework="megatron-core", tp=4, ep=8, zero=0,
            finetune="lora:32", offload=offload, recompute="full").found.memory_bytes
        for n, offload in ((32, "none"), (128, "none"), (32, "optimizer"))
    )  # fmt: skip
    assert few == many
    assert few["params"] > 0.75 * sum(few.values())
    assert moved["optimizer"] == 0.0
    assert sum(moved.values()) > 0.8 * sum(few.values())


# --- sequence ----------------------------------------------------------------------------------------------


def test_tokens_fall_about_twofold_a_doubling() -> None:
    """Finding 22. 8B past 32K: 3890, 2540, 1071, 548 tokens/s, a factor of 1.5 to 2.4 a doubling,
    compiled."""
    rates = [
        Run(
            "llama-3.1-8b",
            "8xh100",
            s,
            8 // cp,
            framework="torchtitan",
            zero=3,
            cp=cp,
            recompute="full",
            options=("compile",),
        ).tokens_per_s
        for s, cp in ((32768, 1), (65536, 2), (131072, 4), (262144, 8))
    ]
    for shorter, longer in pairwise(rates):
        assert 1.5 < shorter / longer < 2.4


def test_long_context_experts_reach_more_flops() -> None:
    """Finding 23. At 128K more TFLOP/s than at 16K (389 against 295): attention dominates."""
    short, long = (
        Run(
            "qwen3-30b-a3b", "64xh100", s, 4 * 64 * 16384 // s, release="25.11", ep=8, cp=cp, recompute="full"
        )
        for s, cp in ((16384, 2), (131072, 8))
    )
    assert 1.1 < long.hardware_tflops / short.hardware_tflops < 1.7


# --- experts -----------------------------------------------------------------------------------------------


def test_hiding_the_all_to_all_pays() -> None:
    """Finding 24. Qwen3-30B +17.7 %, Qwen3-235B 19.7 to 17.6 s (+12 %) on H100: a few percent to a fifth."""
    for model, n, degrees in (
        ("qwen3-30b-a3b", 16, {"ep": 16}),
        ("qwen3-235b-a22b", 256, {"tp": 2, "pp": 8, "ep": 32, "vpp": 4}),
    ):
        plain, hidden = (
            Run(model, f"{n}xh100", 4096, 16 * n, release="25.11", options=o, **degrees).seconds
            for o in ((), ("ep-overlap",))
        )
        assert 1.02 < plain / hidden < 1.25, model


def test_host_time_belongs_in_the_model() -> None:
    """Finding 24, second half. Capturing the whole step helps small expert layers and does nothing for
    large products.
    """
    gains = {}
    for model, n, degrees in (("qwen3-30b-a3b", 16, {"ep": 16}), ("llama-3.1-70b", 64, {"tp": 4, "pp": 4})):
        plain, graphs = (
            Run(model, f"{n}xh100", 4096, 16 * n, release="25.11", options=o, **degrees).seconds
            for o in ((), ("cuda-graphs-full",))
        )
        gains[model] = plain / graphs
    assert gains["qwen3-30b-a3b"] > 1.08
    assert 1.0 <= gains["llama-3.1-70b"] < 1.05


# --- precision ---------------------------------------------------------------------------------------------


def gain_of(low: str, high: str, model: str, on: str, batch: int, release: str, **degrees: int) -> float:
    times = [Run(model, on, 8192, batch, p, release=release, **degrees).seconds for p in (high, low)]
    return times[0] / times[1]


def test_fp8_gains_grow_with_model_size() -> None:
    """Finding 25. fp8 over bf16 on H100: 8B 1.28-1.31, 15B 1.34, 70B to 340B 1.48-1.50, 405B 1.5-1.6; 1.2
    to 1.6.
    """
    gains = [
        gain_of("fp8", "bf16", "llama-3.1-8b", "8xh100", 128, "25.05"),
        gain_of("fp8", "bf16", "nemotron-4-15b", "64xh100", 256, "25.05", tp=2),
        gain_of("fp8", "bf16", "llama-3.1-70b", "64xh100", 128, "25.05", tp=4, pp=4, vpp=5),
        gain_of("fp8", "bf16", "nemotron-4-340b", "128xh100", 128, "25.05", tp=8, pp=8, vpp=12),
        gain_of("fp8", "bf16", "llama-3.1-405b", "1024xh100", 512, "25.05", tp=8, pp=8, vpp=8, cp=2),
    ]
    for predicted, published in zip(gains, (1.295, 1.34, 1.49, 1.49, 1.55)):
        assert 1.2 < predicted < 1.6
        assert close(predicted, published, 0.1)
    assert gains[0] <= gains[1] + 0.02 <= gains[2] + 0.02
    assert min(gains[3:]) > gains[2]


def test_fp8_gains_less_on_experts() -> None:
    """Finding 25, second half. Mixture of experts gain less than dense models of their size (Grok-1 1.24)."""
    dense = gain_of("fp8", "bf16", "llama-3.1-405b", "1024xh100", 512, "25.05", tp=8, pp=8, vpp=8, cp=2)
    experts = gain_of("fp8", "bf16", "grok-1", "512xh100", 1024, "25.05", tp=4, pp=8, ep=8)
    fine = gain_of("fp8", "bf16", "qwen3-235b-a22b", "256xh100", 1024, "25.05", tp=2, pp=8, ep=32, vpp=4)
    assert 1.0 < fine < experts < dense
    assert close(experts, 1.24)


def test_fp4_over_fp8_pays_more_where_fp4_is_faster() -> None:
    """Finding 26. 70B, NVFP4 over MXFP8: 1.5 on GB300 (three times the fp8 peak), 1.2-1.3 on GB200 (twice),
    1.02-1.04 on a hybrid of experts, whose recipe leaves much in wider numbers.
    """
    words: dict[str, Any] = {"release": "26.04", "tp": 1, "pp": 4, "vpp": 5}
    faster = gain_of("nvfp4", "mxfp8", "llama-3-70b", "64xgb300", 256, **words)
    older = gain_of("nvfp4", "mxfp8", "llama-3-70b", "64xgb200", 256, **words)
    hybrid = gain_of("nvfp4", "mxfp8", "nemotron-3-super-120b-a12b", "64xgb200", 512, "26.04", ep=64)
    assert close(faster, 1.5, 0.1)
    assert 1.2 <= older <= 1.3
    assert 1.01 <= hybrid <= 1.05


def test_fp8_holds_no_fewer_weights() -> None:
    """Lesson 10 of the memory runs. 8B under FSDP fits at batch 4 in bf16 and not in fp8: weights are no
    smaller.
    """
    for framework in ("torchtitan", "megatron-core"):
        wide, narrow = (
            Run("llama-3-8b", "8xmi300x", 8192, 32, p, framework=framework, microbatch_size=4).found
            for p in ("bf16", "fp8")
        )
        for name in ("params", "grads", "optimizer"):
            assert narrow.memory_bytes[name] >= wide.memory_bytes[name]


def test_hybrids_stay_below_dense_models_at_fp8() -> None:
    """Finding 30. Nemotron-H 56B: 27-28 % of the fp8 peak from 32 to 2048 H100, dense models 39-44 %."""
    hybrid = [
        Run("nemotron-h-56b", f"{n}xh100", 8192, 3 * n, "fp8", release="25.05", tp=8).mfu(1979)
        for n in (32, 2048)
    ]
    dense = Run("llama-3.1-70b", "64xh100", 8192, 256, "fp8", release="25.05", tp=4, pp=4, vpp=5).mfu(1979)
    assert all(close(share, 0.275) for share in hybrid)
    assert hybrid[1] > 0.95 * hybrid[0]
    assert max(hybrid) < 0.9 * dense
