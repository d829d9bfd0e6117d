"""What published measurements found of parallelism and scale, asked of the model: orders and ratios.

The number in each docstring is the finding's in the collection of measured lessons (1: tensor parallelism
stops at the fast domain, ... 31). A ratio of two predictions carries the error of both, some 6 % each at
the median and opposed at worst, so a published ratio is met within 15 % unless the test says otherwise. The
strategies are the sources' own; nothing here is fitted to them one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.cost.step import evaluate
from meshwright.units import GIB
from published_runs import BLOOM, GPT_175B, Run, close, gpt, predicted_mfu

# --- tensor and pipeline parallelism -----------------------------------------------------------------------


def test_tensor_parallelism_stops_at_the_fast_domain() -> None:
    """Finding 1. V100 nodes of 8 on 100 Gb/s: 31.3, 7.3, 3.6 TFLOP/s at TP 8, 16, 32: out of the node more
    than halves, and halves again (the software of these runs is older than the profile's, so no closer).
    """
    rates = [
        Run(gpt(4096, 24, 32), "32xv100-sxm2-32gb", 1024, 64 * 32 // tp, "fp16", framework="oneflow",
            cluster={"scale_out_gbits_s": 12.5}, tp=tp, microbatch_size=8, zero=0).hardware_tflops
        for tp in (8, 16, 32)
    ]  # fmt: skip
    assert rates[0] > 2 * rates[1] > 3 * rates[2]
    assert close(rates[0], 31.3, 0.25)


def test_the_middle_of_tensor_and_pipeline_wins() -> None:
    """Finding 1, second half. 162B on 64 A100 in nodes of 8: TP 8 x PP 8 is best, both extremes lose."""
    rates = {
        tp: Run(
            gpt(20480, 32, 128), "64xa100", 2048, 128, framework="megatron-lm", tp=tp, pp=64 // tp
        ).hardware_tflops
        for tp in (2, 4, 8, 16, 32)
    }
    assert rates[8] >= 0.99 * max(rates.values())
    assert rates[2] < 0.93 * rates[8]
    assert rates[32] < 0.75 * rates[8]


@pytest.mark.parametrize(("batch", "gain"), [(12, 119 / 81), (60, 147 / 136)])
def test_interleaving_pays_at_small_batch(batch: int, gain: float) -> None:
    """Finding 3. 175B on 96 A100 (TP 8, PP 12): 81 to 119 TFLOP/s at batch 12, 136 to 147 at 60.

    The number of chunks is not printed; two to eight of them bracket the published gain.
    """
    plain, two, eight = (
        Run(GPT_175B, "96xa100", 2048, batch, framework="megatron-lm", tp=8, pp=12, vpp=v).hardware_tflops
        for v in (1, 2, 8)
    )
    assert 0.95 * two / plain <= gain <= 1.05 * eight / plain
    assert close(plain, 81 if batch == 12 else 136)


def test_interleaving_pays_less_as_the_batch_grows() -> None:
    """Finding 3 again: more than 10 % at small batches, less with each larger one."""
    gains = []
    for batch in (12, 24, 48, 96):
        plain, chunked = (
            Run(GPT_175B, "96xa100", 2048, batch, framework="megatron-lm", tp=8, pp=12, vpp=v).seconds
            for v in (1, 4)
        )
        gains.append(plain / chunked)
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.1


@pytest.mark.parametrize(("batch", "kept"), [(8, 88 / 162), (128, 160 / 178)])
def test_weak_scaling_in_depth_follows_the_bubble(batch: int, kept: float) -> None:
    """Finding 4. PP 1 to PP 8 with as many times the layers: 162 to 88 TFLOP/s at batch 8, 178 to 160 at
    128.
    """
    rates = [
        Run(
            gpt(20480, 3 * pp, 128), f"{8 * pp}xa100", 2048, batch, framework="megatron-lm", tp=8, pp=pp
        ).hardware_tflops
        for pp in (1, 8)
    ]
    assert close(rates[1] / rates[0], kept, 0.1)


def test_bubble_share_follows_stages_over_chunks_and_microbatches() -> None:
    """Finding 4, the law: (p - 1) / (v m) of the busy time, within what the head adds to the last stage (a
    tenth).
    """
    for pp, vpp, batch in ((4, 1, 64), (8, 1, 64), (8, 2, 64), (8, 4, 128)):
        found = Run(
            GPT_175B, "64xa100", 2048, batch, framework="megatron-lm", tp=64 // pp // 1, pp=pp, vpp=vpp
        ).found
        busy = sum(found.time_s[k] for k in ("compute", "tp", "pp"))
        assert close(found.time_s["bubble"] / busy, (pp - 1) / (vpp * batch), 0.12), (pp, vpp, batch)


def test_pipeline_is_how_to_fit_over_slow_links() -> None:
    """Finding 6. BLOOM on 384 A100: TP4 PP12 DP8 (146-157 TFLOP/s) over TP8 PP12 DP4 (129-142) over TP1
    PP48 (111).
    """
    rates = [
        Run(BLOOM, "384xa100", 2048, 2048, framework="megatron-deepspeed", cluster={"scale_out_gbits_s": 100},
            tp=tp, pp=pp, microbatch_size=2).hardware_tflops
        for tp, pp in ((4, 12), (8, 12), (1, 48))
    ]  # fmt: skip
    assert rates[0] > rates[1] > rates[2]
    assert close(rates[0], 151)
    assert close(rates[1], 136)
    assert close(rates[2], 111)


def stage_gib(run: Run) -> list[float]:
    """Peak of each stage, first to last."""
    found = evaluate(run.model, run.cluster, run.work, run.strategy, run.profile, detail=True)
    return [held.peak_bytes / GIB for held in found.by_stage]


@pytest.mark.parametrize(("recompute", "first_over_last"), [("none", 46.8 / 27.8), ("full", 35.8 / 32.0)])
def test_stage_memory_falls_along_the_pipeline(recompute: str, first_over_last: float) -> None:
    """Finding 7. 6.7B at TP2 PP4 without recompute: 46.8, 36.6, 30.1, 27.8 GB; with it almost flat.

    Logits of the last stage come out at the profile's width of the loss, so a third of slack.
    """
    run = Run(gpt(4096, 32, 32), "8xa100", 1024, 64, framework="megatron-lm", tp=2, pp=4, recompute=recompute,
              microbatch_size=4 if recompute == "none" else 1)  # fmt: skip
    peaks = stage_gib(run)
    assert max(peaks) == pytest.approx(run.gib, rel=1e-9)
    assert peaks[0] == max(peaks)
    if recompute == "none":
        assert peaks == sorted(peaks, reverse=True)
    assert close(peaks[0] / peaks[-1], first_over_last, 0.34 if recompute == "none" else 0.1)


# --- sharding ----------------------------------------------------------------------------------------------


def test_zero_3_collapses_at_fixed_batch() -> None:
    """Finding 9. 175B, batch 1536, from 384 to 1536 A100: ZeRO-3 144, 88, 44 TFLOP/s, tensor and pipeline
    parallelism 153, 149, 141. At 1536 chips the first is at most half of the second, and it has lost over a
    third.
    """
    sharded = [
        Run(
            GPT_175B, f"{n}xa100", 2048, 1536, framework="deepspeed", zero=3, microbatch_size=size
        ).hardware_tflops
        for n, size in ((384, 4), (1536, 1))
    ]
    split = [
        Run(GPT_175B, f"{n}xa100", 2048, 1536, framework="megatron-lm", tp=8, pp=12).hardware_tflops
        for n in (384, 1536)
    ]
    assert close(split[0], 153)
    assert close(split[1], 141)
    assert sharded[1] < 0.67 * sharded[0]
    assert sharded[1] < 0.5 * split[1]


@pytest.mark.parametrize(("tp", "size", "gain"), [(1, 2, 3625 / 2271), (2, 4, 3486 / 2785)])
def test_the_shard_group_stays_in_the_node(tp: int, size: int, gain: float) -> None:
    """Finding 10. 7B on 1024 A100: ZeRO-1 over all ranks 2271 tokens/s, within 8 GPUs 3625; equal on 8
    GPUs.

    The broadcasts of this framework are counted a rank, so the gain comes out larger: half as much again at
    most.
    """

    def rate(n: int, **group: int) -> float:
        batch = 64 * n // 8
        network = {"scale_out_gbits_s": 50} if n > 8 else {}
        return Run("llama-2-7b", f"{n}xa100", 2048, batch, framework="internevo", cluster=network, tp=tp,
                   zero=1, microbatch_size=size, **group).tokens_per_s  # fmt: skip

    assert rate(8) == rate(8, zero_group=8 // tp)
    predicted = rate(1024, zero_group=8 // tp) / rate(1024)
    assert 0.9 * gain < predicted < 1.5 * gain
    assert close(rate(1024, zero_group=8 // tp), 3625 if tp == 1 else 3486)


def test_sharded_weak_scaling_is_good_to_512() -> None:
    """Finding 11. MPT-7B on 128, 256, 512 H100: 45.7, 44.2, 42.2 % MFU."""
    shares = [
        Run("mpt-7b", f"{n}xh100", 2048, 12 * n, framework="llm-foundry", zero=3, recompute="none",
            microbatch_size=6).mfu(989) for n in (128, 256, 512)
    ]  # fmt: skip
    assert shares[0] >= shares[1] >= shares[2] > 0.88 * shares[0]
    for predicted, published in zip(shares, (0.457, 0.442, 0.422)):
        assert close(predicted, published)


def test_palm_needs_no_pipeline() -> None:
    """Finding 12. PaLM 540B on 6144 TPU v4, two pods on the data-centre network, TP 12 and FSDP: 46.2 %
    MFU; two pods give 1.95 times one. The network between pods has no data sheet: it is given, and without
    it an error says so.
    """
    words: dict[str, Any] = {
        "framework": "t5x",
        "zero": 3,
        "tp": 12,
        "sp": False,
        "recompute": "selective:core_attn",
    }
    two = Run("palm-540b", "2*tpu-v4:12x16x16", 2048, 2048, cluster={"scale_out_gbits_s": 25}, **words)
    one = Run("palm-540b", "tpu-v4:12x16x16", 2048, 1024, **words)
    assert two.strategy.pp == 1
    assert close(two.mfu(275), 0.462)
    assert 1.85 < 2 * two.tokens_per_s / one.tokens_per_s <= 2.0


def test_small_losses_of_weak_scaling() -> None:
    """Finding 27. H100 from 64 to 2048: 70B bf16 none, fp8 3 %; no precision more than 6 %, and fp8 no
    less.
    """
    kept = {}
    for precision in ("bf16", "fp8"):
        rates = [
            Run(
                "llama-3.1-70b", f"{n}xh100", 8192, 2 * n, precision, release="25.05", tp=4, pp=4, vpp=5
            ).tokens_per_s
            for n in (64, 2048)
        ]
        kept[precision] = rates[1] / rates[0]
    assert 0.94 < kept["fp8"] <= kept["bf16"] + 0.005 <= 1.005


@pytest.mark.parametrize(
    ("framework", "chips", "published"),
    [("megascale", (256, 1024), 59.0 / 65.3), ("megatron-lm@2023", (256, 1024), 44.7 / 53.0),
     ("megascale", (3072, 12288), 55.2 / 59.1), ("megatron-lm@2023", (3072, 12288), 41.2 / 48.7)],
)  # fmt: skip
def test_strong_scaling_at_fixed_batch(framework: str, chips: tuple[int, int], published: float) -> None:
    """Finding 28. 175B, batch 768 and 6144: four times the chips keep 85 to 93 % of the utilisation."""
    batch = 768 if chips[0] == 256 else 6144
    rates = [
        Run("gpt-3-175b", f"{n}xa100", 2048, batch, framework=framework, tp=8, pp=8, vpp=6).mfu(312)
        for n in chips
    ]
    assert close(rates[1] / rates[0], published, 0.12)


def test_better_software_is_worth_its_tenth() -> None:
    """Finding 28, the other axis. On the same chips MegaScale reaches 65.3 % where its baseline reaches
    53.0.
    """
    rates = [
        Run("gpt-3-175b", "256xa100", 2048, 768, framework=f, tp=8, pp=8, vpp=6).mfu(312)
        for f in ("megascale", "megatron-lm@2023")
    ]
    assert close(rates[0] / rates[1], 65.3 / 53.0)


def test_overlapped_tensor_parallelism_is_two_points() -> None:
    """Finding 28, an ablation. 175B on 256 A100 at batch 256: with its TP traffic overlapped 53.3 becomes
    55.5 % MFU. The other ablations (pipeline +2.5, data parallel +1.5, operators +1.7) change what no number
    of the model is alone.
    """
    base, ours = (
        Run("gpt-3-175b", "256xa100", 2048, 256, framework=f, tp=8, pp=8, vpp=6)
        for f in ("megatron-lm@2023", "megascale")
    )

    def seconds(exposed: float) -> float:
        numbers = base.profile.numbers
        numbers = numbers | {"tp_exposed": replace(numbers["tp_exposed"], value=exposed)}
        profile = replace(base.profile, numbers=numbers)
        return float(evaluate(base.model, base.cluster, base.work, base.strategy, profile).step_time_s)

    assert abs(seconds(1.0) / seconds(ours.profile["tp_exposed"]) - 55.5 / 53.3) < 0.02


# MFU of one slice and of two; of 128B on 2 x 256 chips less is kept than of any other.
SLICES = {
    "maxtext-v5p-64b-1x64": (70.31, 67.26),
    "maxtext-v5p-128b-1x256": (68.83, 59.66),
    "maxtext-v5p-256b-1x512": (67.09, 62.99),
    "maxtext-v5p-512b-1x512": (63.99, 61.45),
    "maxtext-v5e-16b-1x256": (61.1, 59.37),
}
MISSED = pytest.mark.xfail(strict=True, reason="published 87 %, predicted 97 %")


@pytest.mark.parametrize("run", SLICES)
def test_slices_of_tpus_reach_sixty_to_seventy_percent(run: str) -> None:
    """Finding 12, second half. MaxText without a pipeline: 64 to 70 % MFU on v5p, 61 on v5e, within 17 %."""
    assert close(predicted_mfu(run), SLICES[run][0], 0.17)


@pytest.mark.parametrize("run", [pytest.param(run, marks=MISSED if "128b" in run else ()) for run in SLICES])
def test_two_slices_of_tpus_keep_what_is_published(run: str) -> None:
    """Finding 12, second half. Two slices on the data-centre network keep 87 to 97 % of the MFU of one, each
    within 6 points.
    """
    one, two = SLICES[run]
    kept = predicted_mfu(run.replace("-1x", "-2x")) / predicted_mfu(run)
    assert kept < 1.0
    assert abs(kept - two / one) < 0.06


def test_llama_405b_falls_with_chips_and_with_context() -> None:
    """Finding 29. 43 % on 8192 H100, 41 % on 16384, 38 % at 128K with CP 16, no recompute; interleaved."""
    shares = [
        Run(
            "llama-3.1-405b",
            f"{n}xh100",
            s,
            batch,
            release="25.05",
            tp=8,
            pp=16,
            cp=cp,
            vpp=8,
            recompute="none",
        ).mfu(989)
        for n, s, batch, cp in ((8192, 8192, 2048, 1), (16384, 8192, 2048, 1), (16384, 131072, 128, 16))
    ]
    assert shares[0] > shares[1] > shares[2]
    for predicted, published in zip(shares, (0.43, 0.41, 0.38)):
        assert close(predicted, published, 0.25)  # another code base than the profile's


# --- batch and shape ---------------------------------------------------------------------------------------


def test_global_batch_dominates() -> None:
    """Finding 13. BLOOM at batch 512, 1024, 2048: from 113 to 152 TFLOP/s."""
    rates = [
        Run(BLOOM, "384xa100", 2048, batch, framework="megatron-deepspeed",
            cluster={"scale_out_gbits_s": 100}, tp=4, pp=12, microbatch_size=2).hardware_tflops
        for batch in (512, 1024, 2048)
    ]  # fmt: skip
    assert rates[0] < rates[1] < rates[2]
    assert close(rates[2] / rates[0], 152 / 113)


def test_microbatch_has_an_interior_optimum() -> None:
    """Finding 14. 91B at TP8 PP8: best at 2 (a larger one halves the microbatches that fill the pipeline)."""
    rates = {
        k: Run(
            gpt(9216, 80, 72), "64xa100", 2048, 128, framework="megatron-lm", tp=8, pp=8, microbatch_size=k
        ).seconds
        for k in (1, 2, 4, 8)
    }
    assert min(rates, key=lambda k: rates[k]) in (1, 2)
    assert rates[8] > 1.1 * rates[2]


def test_heads_of_an_odd_width_cost_a_third() -> None:
    """Finding 15. BLOOM at width 13824: 128 heads of 108 take 34 % longer than 64 of 216. 108 is no multiple
    of 8, as matrix units want rows of their operands; 104, 112 and 128 wide heads are.
    """

    def seconds(width: int, layers: int, heads: int) -> float:
        return Run(gpt(width, layers, heads, 250_880), "384xa100", 2048, 2048, framework="megatron-deepspeed",
                   cluster={"scale_out_gbits_s": 100}, tp=8, pp=6, microbatch_size=4).seconds  # fmt: skip

    assert close(seconds(13824, 78, 128) / seconds(13824, 78, 64), 162.72 / 121.28, 0.1)
    assert close(seconds(13312, 84, 128) / seconds(13312, 84, 64), 129.17 / 122.93, 0.04)
    assert close(seconds(14336, 72, 128) / seconds(14336, 72, 64), 124.89 / 120.18, 0.04)


def test_unaligned_widths_are_slower() -> None:
    """Finding 15. BLOOM shapes: width 14400 to 13824, that is 1800 to 1728 = 27 x 64 columns a rank at TP
    8, took 94 to 120 TFLOP/s. The layouts differ a little beside, so half of the gain (13 %) is asked.
    """
    rates = [
        Run(gpt(width, 80, heads, 250_880), "320xa100", 2048, 2048, framework="megatron-deepspeed",
            cluster={"scale_out_gbits_s": 100}, tp=8, pp=10, microbatch_size=1).hardware_tflops
        for width, heads in ((14400, 96), (13824, 96))
    ]  # fmt: skip
    assert rates[1] / rates[0] > 1.13


def test_utilisation_rises_with_model_size_and_stays() -> None:
    """Finding 16. Megatron-Core on H100: 41 % at 1.7B, 47 at 7B, 49 at 16B, then flat (42-48)."""
    small = Run("qwen3-1.7b", "8xh100", 4096, 64, microbatch_size=2).mfu(989)
    seven = Run("llama-2-7b", "8xh100", 4096, 64).mfu(989)
    fifteen = Run("nemotron-4-15b", "64xh100", 4096, 256, tp=2).mfu(989)
    seventy = Run("llama-2-70b", "64xh100", 4096, 256, tp=4, pp=4, vpp=5).mfu(989)
    large = Run("nemotron-4-340b", "128xh100", 4096, 256, tp=8, pp=8, vpp=12).mfu(989)
    assert small < 0.9 * seven
    assert seven < 1.02 * fifteen
    for share in (seventy, large):
        assert close(share, fifteen, 0.15)
    for predicted, published in ((small, 0.41), (seven, 0.47), (fifteen, 0.49)):
        assert close(predicted, published)
