"""States by optimizer and width, adapters and quantised bases, preference pairs, host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.adapters import adapted
from meshwright.cost.states import update_bytes, widths
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.hardware import chips
from meshwright.model import presets
from meshwright.model.params import embedding_params, head_params, total_params
from meshwright.profiles import load as profiles
from meshwright.strategy import finetune, offload
from meshwright.strategy.records import Strategy
from meshwright.units import GIB
from published_runs import Run

HF, MEGATRON = (
    profiles.load(name, chips.load("h100")).framework for name in ("hf-trainer", "megatron-core@bridge-25.09")
)
NONE = frozenset[str]()
STATES = ("params", "grads", "optimizer")


def held(run: Run, *names: str) -> float:
    return float(sum(run.found.memory_bytes[name] for name in names or STATES))


def small_steps(**words: object) -> Run:
    """Llama-3 8B fine-tuned on one chip at a length at which states decide."""
    return Run("llama-3-8b", "1xh100", 512, 1, framework="hf-trainer", recompute="full", **words)  # type: ignore[arg-type]


def test_torch_adamw_peaks_at_five_copies() -> None:
    """Lesson 1. 80.32e9 bytes for 8.03 B parameters in 16 bits on one chip, and the same sharded over two
    where the program makes sharded parameters fp32 (lesson 2): 10 and 20 bytes a parameter."""
    n = total_params(presets.load("llama-3-8b"))
    assert held(small_steps()) == pytest.approx(10.0 * n, rel=1e-3)
    two = Run("llama-3-8b", "2xh100", 512, 2, framework="hf-trainer", zero=3, recompute="full")
    assert held(two) == pytest.approx(20.0 * n / 2.0, rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "hf", "megatron"),
    [
        ("adamw", (4.0, 2.0), (12.0, 4.0)),
        ("adamw-bf16", (4.0, 2.0), (8.0, 4.0)),
        ("adamw-8bit", (2.03125, 0.0), (6.03125, 0.0)),
        ("lion", (2.0, 2.0), (8.0, 4.0)),
        ("muon", (2.0, 0.0), (8.0, 0.0)),
        ("adafactor", (0.0, 0.0), (4.0, 0.0)),
        ("sgd", (0.0, 0.0), (4.0, 0.0)),
    ],
)
def test_optimizer_state_by_kind(
    optimizer: str, hf: tuple[float, float], megatron: tuple[float, float]
) -> None:
    """State in the parameter's own 16 bits, or fp32 moments and a master copy; step temporaries."""
    strategy = Strategy(dp=1, optimizer=optimizer)  # type: ignore[arg-type]
    for framework, wanted in ((HF, hf), (MEGATRON, megatron)):
        found = widths(framework, strategy, NONE)
        assert (found.optimizer, found.step) == wanted


def test_wide_weights_have_wide_moments() -> None:
    strategy = Strategy(dp=1)
    assert widths(HF, strategy, frozenset({"fp32-weights"})).trained == 16.0
    assert widths(HF, strategy, frozenset({"bf16-weights"})).trained == 8.0
    assert widths(HF, replace(strategy, zero=2), NONE).trained == 16.0  # DeepSpeed's master copy


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b"])
@pytest.mark.parametrize(("zero", "pp"), [(0, 1), (1, 1), (3, 1), (1, 2)])
def test_muon_leaves_embedding_and_head_to_adam(name: str, zero: int, pp: int) -> None:
    """One fp32 moment beside an fp32 master copy, and a second one of the vocabulary's matrices (one matrix
    where they are tied): summed over ranks 8 N + 4 V D each."""
    model, n = presets.load(name), total_params(presets.load(name))
    run = Run(name, "8xh100", 512, 8, framework="megatron-core@bridge-25.09", optimizer="muon", zero=zero,
              pp=pp, tp=2, recompute="full", microbatch_size=1)  # fmt: skip
    found = evaluate(run.model, run.cluster, run.work, run.strategy, run.profile, detail=True)
    copies = 1 if zero else 4 // pp
    ends = 1 if model.tied_embeddings and pp == 1 else 2
    n += (ends - 1) * model.vocab * model.d_model if model.tied_embeddings else 0  # a copy on the last stage
    whole = 2 * (8 // pp // 2) * sum(stage.memory_bytes["optimizer"] for stage in found.by_stage)
    assert whole == pytest.approx(copies * (8.0 * n + 4.0 * ends * model.vocab * model.d_model), rel=1e-3)


def test_trainers_keep_moments_of_the_embedding_wide() -> None:
    """8-bit Adam of bitsandbytes under the Trainer: two moments of 1.0156 bytes, of the embedding of four."""
    model = presets.load("llama-3.1-8b")
    n, embedding = total_params(model), model.vocab * model.d_model
    run = Run("llama-3.1-8b", "1xh100", 512, 1, framework="hf-trainer", optimizer="adamw-8bit")
    own = Run("llama-3.1-8b", "1xh100", 512, 1, framework="torchtune", optimizer="adamw-8bit", zero=0)
    assert held(run, "optimizer") == pytest.approx(2.03125 * n + (8.0 - 2.03125) * embedding, rel=1e-6)
    assert held(own, "optimizer") == pytest.approx(2.03125 * n, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [("adamw", 8.0), ("adamw-bf16", 4.0), ("adamw-8bit", 2.03125), ("lion", 4.0), ("muon", 4.0), ("sgd", 0.0),
     ("adafactor", 0.0)],
)  # fmt: skip
def test_adapters_have_the_optimizer_that_is_asked_for(optimizer: str, each: float) -> None:
    model = presets.load("llama-3-8b")
    run = Run(
        "llama-3-8b", "1xh100", 4096, 1, framework="hf-trainer", finetune="lora:16", optimizer=optimizer
    )
    adapters = adapted(model, finetune.parse("lora:16"), 0.0).params
    assert held(run, "optimizer") == pytest.approx(each * adapters)


def test_only_adapters_train() -> None:
    """LoRA: gradients and moments of rank x (k + n) numbers a matrix, in fp32; the base stays as it was."""
    model = presets.load("llama-3-8b")
    run = small_steps(finetune="lora:16")
    d, f, kv = 4096, 14336, 1024
    adapters = 32 * 16 * ((d + d) * 2 + (d + kv) * 2 + (d + f) * 3)
    assert adapted(model, finetune.parse("lora:16"), 0.0).params == adapters
    assert run.found.memory_bytes["grads"] <= 4.0 * adapters * 1.001
    assert run.found.memory_bytes["params"] == pytest.approx(2.0 * total_params(model) + 4.0 * adapters)
    assert held(run) < 0.25 * held(small_steps())


def test_fewer_targets_are_fewer_adapters_and_less_kept() -> None:
    model = presets.load("llama-3-8b")
    kinds = [adapted(model, finetune.parse(f"lora:8{at}"), 4.0) for at in ("@qv", "@qkv", "@attention", "")]
    assert [k.params for k in kinds] == sorted(k.params for k in kinds)
    assert [k.live for k in kinds] == sorted(k.live for k in kinds)
    assert kinds[0].saved < 0 < kinds[-1].saved  # frozen layers keep less than trained ones


def test_quantised_base() -> None:
    """Matrices of the layers at 0.5625 bytes, embedding and head in 16 bits."""
    model = presets.load("llama-3-8b")
    ends = embedding_params(model) + head_params(model)
    base = small_steps(finetune="qlora:1").found.memory_bytes["params"]
    assert base == pytest.approx(0.5625 * (total_params(model) - ends) + 2.0 * ends, rel=2e-3)
    eight = small_steps(finetune="qlora-int8:1").found.memory_bytes["params"]
    assert base < eight < small_steps(finetune="lora:1").found.memory_bytes["params"]


def test_preference_pairs_hold_two_models_and_two_rows() -> None:
    """Lesson 17."""
    words = {"framework": "hf-trainer", "recompute": "full", "zero": 0}
    alone, pairs, adapters = (
        Run("qwen2.5-0.5b", "1xh100", 4096, 1, finetune=word, **words)  # type: ignore[arg-type]
        for word in ("none", "dpo", "dpo+lora:8")
    )
    n = total_params(presets.load("qwen2.5-0.5b"))
    assert held(pairs, "params") - held(alone, "params") == pytest.approx(2.0 * n, rel=1e-4)
    assert held(pairs, "activations") == pytest.approx(2.0 * held(alone, "activations"), rel=1e-6)
    assert held(pairs, "logits") > 4.0 * held(alone, "logits")  # two rows, and the reference's beside them
    assert held(adapters, "params") < held(pairs, "params")


def test_preference_pairs_take_two_rows_and_a_pass_of_the_reference() -> None:
    """Eight thirds of the arithmetic of one row, with adapters six thirds and the mixing; time follows."""
    words = {"recompute": "none", "zero": 1}
    alone, pairs, lora, adapters = (
        Run("llama-3-8b", "8xh100", 4096, 64, finetune=word, **words).found  # type: ignore[arg-type]
        for word in ("none", "dpo", "lora:8", "dpo+lora:8")
    )
    assert pairs.model_flops == pytest.approx(alone.model_flops * 8 / 3, rel=1e-9)
    assert pairs.hardware_flops == pytest.approx(alone.hardware_flops * 8 / 3, rel=5e-3)  # attention: 7 / 2
    assert pairs.time_s["compute"] == pytest.approx(alone.time_s["compute"] * 8 / 3, rel=0.05)
    assert pairs.floor_time_s == pytest.approx(alone.floor_time_s * 8 / 3, rel=5e-3)
    forward = alone.hardware_flops / 3.0
    assert adapters.hardware_flops - 2.0 * lora.hardware_flops == pytest.approx(2.0 * forward, rel=0.02)
    assert adapters.step_time_s < pairs.step_time_s
    assert pairs.time_s["bubble"] == pytest.approx(alone.time_s["bubble"], abs=1e-12)


def test_the_reference_runs_through_every_axis() -> None:
    """Its forward sends what a forward sends: through the pipeline, over tp, and its ZeRO-3 gathers."""
    split = {"recompute": "none", "zero": 1, "tp": 2, "cp": 2, "pp": 2}
    alone, pairs = (
        Run("llama-3-8b", "16xh100", 8192, 64, finetune=word, **split).found  # type: ignore[arg-type]
        for word in ("none", "dpo")
    )
    for axis in ("tp", "pp", "bubble"):
        assert pairs.time_s[axis] > 2.0 * alone.time_s[axis] > 0
    bare: dict[str, Any] = {"zero": 3, "recompute": "none", "options": ("no-overlap",)}
    gathers = [  # all of them: with overlap the second row of a pair hides more than the reference sends
        Run("llama-3-8b", "512xh100", 512, 512, finetune=word, **bare).found.time_s["dp"]
        for word in ("none", "dpo")
    ]
    assert gathers[1] > gathers[0]


def test_what_waits_in_host_memory() -> None:
    """State and parameters leave the device; what moves stays."""
    plain, optimizer, both = (small_steps(offload=w) for w in ("none", "optimizer", "optimizer+params"))
    assert held(optimizer, "optimizer", "grads") == 0.0
    assert held(optimizer, "params") == held(plain, "params")
    assert held(both) == 0.0
    assert held(both, "activations") > 0


def test_more_data_parallel_ranks_do_not_divide_activations() -> None:
    """Lessons 4 and 5: neither sharding nor replicas divide activations, and replicas divide nothing."""
    runs = [
        Run("llama-3-8b", f"{n}xh100", 32768, n, framework="hf-trainer", zero=3, recompute="full")
        for n in (8, 64)
    ]
    assert held(runs[0], "activations") == held(runs[1], "activations")
    replicas = [
        Run("llama-3-8b", f"{n}xh100", 2048, n, framework="hf-trainer", zero=0, recompute="full").gib
        for n in (2, 8)
    ]
    assert replicas[0] == pytest.approx(replicas[1])


def test_logits_cost_what_the_program_copies() -> None:
    """Lesson 6. 35.1 GiB on whole logits, 23.2 on fused ones, at 4 x 4096 tokens and a vocabulary of 128k."""
    words = {
        "framework": "hf-trainer",
        "recompute": "full",
        "microbatch_size": 4,
        "finetune": "lora:16@attention",
    }
    whole, chunked = (
        Run("llama-3-8b", "1xa100", 4096, 4, options=("fused-kernels", *o), **words)  # type: ignore[arg-type]
        for o in ((), ("liger",))
    )
    live = [held(r, *STATES, "activations", "logits", "communication") / GIB for r in (whole, chunked)]
    assert live == pytest.approx([35.06, 23.20], rel=0.05)


def test_frozen_weights_that_stay_gathered() -> None:
    """Lesson 14. litgpt of 2023, LoRA of Llama-2-7B: 21.3 GB on one GPU, 22.2 on two."""
    words = {"framework": "litgpt@2023", "finetune": "lora:8@qv"}
    one = Run("llama-2-7b", "1xa100", 1304, 1, recompute="none", **words)  # type: ignore[arg-type]
    two = Run("llama-2-7b", "2xa100", 1304, 2, recompute="full", zero=3, **words)  # type: ignore[arg-type]
    whole = held(two, "params") + held(two, "communication")
    assert whole == pytest.approx(1.5 * held(one, "params"), rel=0.1)


@given(rank=st.integers(1, 512))
def test_words_survive_the_trip(rank: int) -> None:
    for text in (f"lora:{rank}", f"qlora:{rank}@attention", f"dpo+lora:{rank}", "dpo", "none"):
        assert finetune.parse(text).word == text
        assert finetune.parse(finetune.parse(text).word) == finetune.parse(text)
    assert finetune.parse("full").word == "none"
    for text in ("optimizer", "activations+optimizer", f"activations:{rank}+params", "experts"):
        assert offload.parse(text).word == text


@pytest.mark.parametrize(
    "word",
    ["", "lora", "lora:", "lora:0", "lora:-1", "lora:8@mlp", "qlora:x", "dpo+", "dpo+dpo", "lora:99999999"],
)
def test_faulty_words_of_fine_tuning(word: str) -> None:
    if word == "dpo+":
        assert finetune.parse(word).word == "dpo"
        return
    with pytest.raises(InputError) as caught:
        finetune.parse(word)
    assert caught.value.diagnostics[0].code == "MW143"
    assert caught.value.diagnostics[0].hint


@pytest.mark.parametrize("word", ["", "optimiser", "activations:0", "experts+activations", "none+params"])
def test_faulty_words_of_offload(word: str) -> None:
    with pytest.raises(InputError) as caught:
        offload.parse(word)
    assert caught.value.diagnostics[0].code == "MW142"
    assert caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("optimizer", "nbytes"),
    [
        ("adamw", 34.0),  # 2 x 4 gradient, 2 x 12 state, 2 weight
        ("adamw-bf16", 26.0),
        ("lion", 26.0),
        ("sgd", 18.0),  # the master copy alone
    ],
)
def test_the_update_moves_what_the_optimizer_holds(optimizer: str, nbytes: float) -> None:
    usual = profiles.load("megatron-core", chips.load("h100")).framework
    framework = replace(usual, weight_bytes=2.0, grad_bytes=4.0, optimizer_bytes=12.0)
    strategy = Strategy(dp=8, optimizer=optimizer)  # type: ignore[arg-type]
    assert update_bytes(framework, strategy, frozenset()) == nbytes
    own = replace(usual, weight_bytes=4.0, grad_bytes=4.0, optimizer_bytes=8.0)  # the weights are the master
    assert update_bytes(own, strategy, frozenset()) == nbytes - 2.0


@pytest.mark.parametrize(
    ("zero", "pp", "batch", "stay"),
    [
        (0, 1, 64, True), (1, 1, 64, True), (1, 1, 16, False), (2, 1, 64, False), (2, 2, 64, True),
        (3, 1, 64, False),
    ],
)
def test_gradients_that_add_up_over_microbatches_stay_beside_an_optimizer_on_the_host(
    zero: int, pp: int, batch: int, stay: bool
) -> None:
    """Of 16 ranks, four microbatches or one; what is scattered at each of them leaves."""
    given = {"framework": "torchtitan", "recompute": "full", "zero": zero, "pp": pp}
    own = Run("llama-3.1-8b", "16xh100", 4096, batch, **given)
    there = Run("llama-3.1-8b", "16xh100", 4096, batch, **given, offload="optimizer")
    assert held(there, "grads") == (pytest.approx(held(own, "grads")) if stay else 0.0)
    assert held(own, "grads") > 0 or batch == 16
