"""One step: parts that sum to the whole, one formula for one plan and for many, bounds, the tree of terms."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwright.checks import illegal
from meshwright.cost.adapters import trained_share
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.flops import model_flops
from meshwright.cost.stages import stages
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model import presets
from meshwright.model.params import block_params, mtp_params, shared_set_params, total_params
from meshwright.model.records import Model
from meshwright.profiles.load import load
from meshwright.strategy.records import Strategy
from meshwright.work import Work

SCALARS = ("step_time_s", "recompute_s", "peak_bytes", "peak_stage", "hardware_flops", "floor_time_s")
LLAMA = presets.load("llama-3.1-8b")
H100 = parse("64xh100")

# (model, machine, work, framework): dense, experts, hybrid of state spaces and attention.
CASES: dict[str, tuple[str, str, Work, str]] = {
    "dense": ("llama-3.1-70b", "256xh100", Work(8192, 512), "megatron-core"),
    "experts": ("deepseek-v3", "512xh800", Work(4096, 2048, "fp8"), "megatron-core"),
    "hybrid": ("nemotron-h-8b", "128xb200", Work(8192, 256, "mxfp8"), "megatron-core"),
}
WORDS = [
    {
        "sp": sp,
        "zero": zero,
        "recompute": recompute,
        "schedule": schedule,
        "cp_method": method,
        "dispatcher": dispatcher,
    }
    for (sp, zero, recompute), (schedule, method, dispatcher) in zip(
        product((True, False), (0, 1, 2, 3), ("none", "full", "selective:norm+core_attn", "layers:2")),
        [
            ("1f1b", "ring", "all-to-all"),
            ("interleaved-1f1b", "all-to-all", "deep-ep"),
            ("gpipe", "ring", "hybrid-ep"),
        ]
        * 11,
    )
]


def legal(
    model: Model,
    cluster: Cluster,
    work: Work,
    words: dict[str, Any],
    rng: np.random.Generator,
    most: int = 12,
) -> Strategy:
    """Up to `most` random legal strategies under the words, as arrays."""
    n = 3000
    powers = {a: 2 ** rng.integers(0, high, n) for a, high in
              (("tp", 4), ("pp", 5), ("cp", 3), ("ep", 7), ("etp", 2), ("microbatch_size", 3))}  # fmt: skip
    powers["vpp"] = (
        rng.choice([2, 3, 4, 5], n) if words["schedule"] == "interleaved-1f1b" else np.ones(n, int)
    )
    dp = np.maximum(cluster.n_chips // (powers["tp"] * powers["pp"] * powers["cp"]), 1)
    group = np.maximum(dp * powers["cp"] // 2 ** rng.integers(0, 3, n), 1)
    drawn = Strategy(dp=dp, zero_group=group, **powers, **words)
    broken = np.zeros(n, bool)
    for mask in illegal(model, cluster, work, drawn).values():
        broken |= np.broadcast_to(mask, (n,))
    keep = np.flatnonzero(~broken)[:most]
    arrays = {f.name: getattr(drawn, f.name)[keep] for f in fields(drawn)
              if isinstance(getattr(drawn, f.name), np.ndarray)}  # fmt: skip
    return replace(drawn, **arrays)


def assert_consistent(found: Evaluation) -> None:
    assert set(found.time_s) == set(TIME_KEYS)
    assert set(found.memory_bytes) == set(MEMORY_KEYS)
    np.testing.assert_allclose(sum(found.time_s.values()), found.step_time_s, rtol=1e-12)
    np.testing.assert_allclose(sum(found.memory_bytes.values()), found.peak_bytes, rtol=1e-12)
    for part in (*found.time_s.values(), *found.memory_bytes.values(), found.recompute_s):
        assert np.all(np.asarray(part) >= 0)
        assert np.all(np.isfinite(part))
    assert np.all(found.recompute_s <= np.asarray(found.time_s["compute"]) * (1 + 1e-12))
    assert np.all(found.step_time_s >= np.asarray(found.floor_time_s))


@pytest.mark.parametrize("case", CASES)
def test_one_plan_equals_the_same_plan_among_many(case: str) -> None:
    """300 random legal strategies of each model, under words of every kind: arrays against plain numbers."""
    name, place, work, framework = CASES[case]
    model, cluster = presets.load(name), parse(place)
    profile = load(framework, cluster.chip)
    rng = np.random.default_rng(7)
    compared = 0
    for words in WORDS:
        many = legal(model, cluster, work, words, rng)
        n = np.size(many.dp)
        if not n:
            continue
        together = evaluate(model, cluster, work, many, profile)
        assert_consistent(together)
        assert np.shape(together.step_time_s) == (n,)
        for i in range(n):
            alone = evaluate(model, cluster, work, many.at(i), profile)
            for field in SCALARS:
                assert getattr(alone, field) == pytest.approx(getattr(together, field)[i], rel=1e-12), field
            for key in TIME_KEYS:
                assert alone.time_s[key] == pytest.approx(together.time_s[key][i], rel=1e-12, abs=1e-15), key
            for key in MEMORY_KEYS:
                assert alone.memory_bytes[key] == pytest.approx(together.memory_bytes[key][i], rel=1e-12), key
        compared += n
    assert compared >= 300


def test_many_candidates_take_the_shared_table_and_agree() -> None:
    """More than 32 candidates share rows of equal layer shape; a slice of them gives the same numbers."""
    work, profile = Work(8192, 256), load("megatron-core", H100.chip)
    tp, pp = (x.ravel() for x in np.meshgrid([1, 2, 4, 8], [1, 2, 4, 8]))
    many = Strategy(dp=np.tile(64 // (tp * pp), 4), tp=np.tile(tp, 4), pp=np.tile(pp, 4), sp=True, zero=1,
                    zero_group=np.tile(64 // (tp * pp), 4),
                    microbatch_size=np.repeat([1, 2, 1, 2], 16))  # fmt: skip
    whole = evaluate(LLAMA, H100, work, many, profile)
    part = replace(
        many, **{f: getattr(many, f)[5:9] for f in ("dp", "tp", "pp", "zero_group", "microbatch_size")}
    )
    few = evaluate(LLAMA, H100, work, part, profile)
    np.testing.assert_allclose(whole.step_time_s[5:9], few.step_time_s, rtol=1e-13)
    np.testing.assert_allclose(whole.peak_bytes[5:9], few.peak_bytes, rtol=1e-13)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b"])
def test_parts_of_a_large_request_agree_with_single_plans(schedule: str) -> None:
    """Twenty thousand candidates: in parts by their number of stage classes, on grids of axes."""
    model, cluster, work = presets.load("deepseek-v3"), parse("512xh800"), Work(4096, 2048)
    profile = load("megatron-core", cluster.chip)
    words = {"sp": True, "zero": 1, "recompute": "full", "schedule": schedule, "dispatcher": "deep-ep"}
    few = legal(model, cluster, work, words, np.random.default_rng(3), most=400)
    names = [f.name for f in fields(few) if isinstance(getattr(few, f.name), np.ndarray)]
    at = np.random.default_rng(4).integers(0, np.size(few.dp), 20_000)
    many = replace(few, **{name: getattr(few, name)[at] for name in names})
    together = evaluate(model, cluster, work, many, profile)
    assert_consistent(together)
    for i in range(0, 20_000, 1000):
        alone = evaluate(model, cluster, work, many.at(i), profile)
        for field in SCALARS:
            assert getattr(alone, field) == pytest.approx(getattr(together, field)[i], rel=1e-12), field
        for key in (*TIME_KEYS, *MEMORY_KEYS):
            found, own = together.time_s | together.memory_bytes, alone.time_s | alone.memory_bytes
            assert own[key] == pytest.approx(found[key][i], rel=1e-12, abs=1e-13), key


@pytest.mark.parametrize("shape", [(1,), (3,), (40,)])
def test_shape_of_the_request_is_the_shape_of_the_answer(shape: tuple[int, ...]) -> None:
    profile = load("megatron-core", H100.chip)
    strategy = Strategy(dp=np.full(shape, 64), zero=1, zero_group=np.full(shape, 64))
    found = evaluate(LLAMA, H100, Work(8192, 128), strategy, profile)
    for value in (found.step_time_s, found.peak_bytes, *found.time_s.values(), *found.memory_bytes.values()):
        assert np.shape(value) == shape
    alone = evaluate(LLAMA, H100, Work(8192, 128), Strategy(dp=64, zero=1, zero_group=64), profile)
    assert isinstance(alone.step_time_s, float)
    np.testing.assert_allclose(found.step_time_s, alone.step_time_s, rtol=1e-13)


def test_lengths_and_batches_may_be_arrays() -> None:
    profile = load("megatron-core", H100.chip)
    strategy = Strategy(dp=64, zero=1, zero_group=64)
    found = evaluate(
        LLAMA, H100, Work(np.array([2048, 4096, 8192]), np.array([512, 256, 128])), strategy, profile
    )
    for i, (s, b) in enumerate([(2048, 512), (4096, 256), (8192, 128)]):
        alone = evaluate(LLAMA, H100, Work(s, b), strategy, profile)
        assert found.step_time_s[i] == pytest.approx(alone.step_time_s, rel=1e-12)
        assert found.peak_bytes[i] == pytest.approx(alone.peak_bytes, rel=1e-12)


@pytest.mark.parametrize(
    "recompute", ["none", "full", "minimal", "every:2", "layers:1", "products:2", "selective:mlp"]
)
def test_recompute_seconds_lie_within_compute(recompute: str) -> None:
    profile = load("megatron-core", H100.chip)

    def found(word: str) -> Evaluation:
        return evaluate(
            LLAMA, H100, Work(8192, 128), Strategy(dp=64, zero=1, zero_group=64, recompute=word), profile
        )

    plain, again = found("none"), found(recompute)
    assert again.time_s["compute"] - again.recompute_s == pytest.approx(plain.time_s["compute"], rel=1e-12)
    assert (again.recompute_s > 0) == (recompute != "none")
    assert again.model_flops == plain.model_flops
    assert again.hardware_flops >= plain.hardware_flops


def test_flops_of_a_step() -> None:
    """All chips' hardware FLOPs: model FLOPs, half a flash core's forward more, and under full recompute a
    forward.
    """
    work = Work(8192, 128)
    profile = load("megatron-core", H100.chip)
    for degrees in ({"dp": 64}, {"dp": 8, "tp": 8, "sp": True}, {"dp": 16, "pp": 4}, {"dp": 16, "cp": 4}):
        strategy = Strategy(zero=1, zero_group=degrees["dp"] * degrees.get("cp", 1), **degrees)
        found = evaluate(LLAMA, H100, work, strategy, profile)
        core = 2 * 8192 * 32 * 128 * 32 * work.tokens_per_step  # causal, forward, all layers
        assert found.hardware_flops == pytest.approx(found.model_flops + 0.5 * core, rel=1e-3)
        full = evaluate(LLAMA, H100, work, replace(strategy, recompute="full"), profile)
        head = 2 * 4096 * 128256 * work.tokens_per_step
        assert full.hardware_flops - found.hardware_flops == pytest.approx(
            found.model_flops / 3 - head, rel=1e-3
        )
        assert found.model_flops == model_flops(LLAMA, 8192) * work.tokens_per_step


@pytest.mark.parametrize("name", presets.names())
def test_stages_hold_every_parameter(name: str) -> None:
    """On one chip and over four stages: every parameter once; a tied matrix once more where its two ends are
    on two ranks, a block used at several layers on each rank, everything once more where ranks hold a stage
    of each way.
    """
    model = presets.load(name)
    profile = load("megatron-core", H100.chip)
    extra = mtp_params(model).total if model.mtp_layers else 0
    whole = total_params(model) + extra
    tied = model.vocab * model.d_model if model.tied_embeddings else 0
    for word, pp, vpp, copies in (
        ("1f1b", 1, 1, 0),
        ("1f1b", 4, 1, 1),
        ("zb-v", 4, 2, 0),
        ("dualpipe", 4, 1, 0),
    ):
        strategy = Strategy(dp=64 // pp, pp=pp, vpp=vpp, schedule=word)  # type: ignore[arg-type]
        held = stages(model, H100, Work(4096, 64), strategy, profile, 1)
        total = float(((held.dense + held.expert) * held.multiplicity).sum())
        both_ways = 2 if word == "dualpipe" else 1
        every = whole + copies * tied + (pp - 1) * shared_set_params(model).total
        assert total == pytest.approx(both_ways * every, rel=1e-9), word


@pytest.mark.parametrize("finetune", ["none", "lora:16", "dpo"])
def test_the_machine_does_what_the_mathematics_asks(finetune: str) -> None:
    """Model FLOPs are counted from parameters, hardware FLOPs from operations: without recomputation they are
    those of the same products, for every preset. Scans and attention backward differ from their conventions;
    the three products of adapters beside two of a frozen parameter are no model FLOPs.
    """
    work, strategy = Work(1024, 64), Strategy(dp=64, finetune=finetune)
    for name in presets.names():
        found = evaluate(presets.load(name), H100, work, strategy, load("megatron-core", H100.chip))
        beside = 1.5 * trained_share(presets.load(name), finetune) if "lora" in finetune else 0.0
        assert 0.97 < found.hardware_flops / found.model_flops < 1.03 + beside, name


def test_model_flops_of_modules_and_shared_blocks_by_hand() -> None:
    """Zamba2-7B: 13 uses of one block of 334 M parameters, each with a matrix of D x D and an adapter; of a
    frozen DeepSeek-V3 its prediction module has no weight gradients either."""
    zamba = presets.load("zamba2-7b")
    assert zamba.shared_block is not None
    plain = replace(zamba, shared_block=None, shared_at=())
    d, f, rank, uses, length = 3584, 14336, 128, 13, 4096
    block = 2 * d * 2 * d * 3 + 2 * d * d + 3 * d * f  # attention reads two widths
    each = block + d * d + rank * (d + 2 * f)
    mixing = 2.0 * (length / 2) * 32 * 2 * 224
    more = model_flops(zamba, length) - model_flops(plain, length)
    assert more == pytest.approx(3.0 * uses * (2.0 * each + mixing), rel=1e-3)
    deep = presets.load("deepseek-v3")
    alone = replace(deep, mtp_layers=0)
    trained, frozen = (model_flops(deep, 1, w) - model_flops(alone, 1, w) for w in ("none", "lora:8"))
    assert frozen / trained == pytest.approx(2.0 / 3.0, rel=1e-3)


def test_every_stage_holds_a_shared_block() -> None:
    """Zamba2: layers of all stages take turns with both sets of the block, so each stage keeps both."""
    zamba, profile = presets.load("zamba2-7b"), load("megatron-core", H100.chip)
    assert zamba.shared_block is not None
    sets = 2 * block_params(zamba.shared_block, zamba).total
    tied = zamba.vocab * zamba.d_model
    for pp in (1, 2, 4):
        held = stages(zamba, H100, Work(4096, 64), Strategy(dp=64 // pp, pp=pp), profile, 1)
        more = (pp - 1) * sets + (pp > 1) * tied
        total = float((held.dense * held.multiplicity).sum())
        assert total == pytest.approx(total_params(zamba) + more, rel=1e-9)
    gathered = stages(zamba, H100, Work(4096, 64), Strategy(dp=64, zero=3), profile, 1).largest
    assert float(np.max(gathered)) >= sets / 2  # a unit of its own


def test_a_shared_block_runs_at_each_of_its_uses() -> None:
    """Zamba2: beside the layers of its pattern, the shared block's FLOPs as often as it is used.

    Adapters and the output matrix of each use may be counted beside: up to a sixth more.
    """
    zamba = presets.load("zamba2-7b")
    assert zamba.shared_block is not None
    alone = replace(zamba, shared_block=None, shared_at=())
    block = replace(alone, blocks=(zamba.shared_block,), pattern=(0,) * len(zamba.shared_at))

    def flops(model: Model) -> float:
        held = stages(model, H100, Work(4096, 64), Strategy(dp=64), load("megatron-core", H100.chip), 1)
        return float(held.cost["flops"].sum())

    one, two = (flops(replace(alone, pattern=alone.pattern[:1] * n)) for n in (1, 2))
    head = 2 * one - two
    ratio = (flops(zamba) - flops(alone)) / (flops(block) - head)
    assert 0.999 < ratio < 1.17


@pytest.mark.parametrize("case", CASES)
def test_the_tree_says_what_the_numbers_say(case: str) -> None:
    name, place, work, framework = CASES[case]
    model, cluster = presets.load(name), parse(place)
    profile = load(framework, cluster.chip)
    strategy = Strategy(
        dp=cluster.n_chips // 16, tp=4, sp=True, pp=4, zero=1, zero_group=cluster.n_chips // 16
    )
    found = evaluate(model, cluster, work, strategy, profile, detail=True)
    plain = evaluate(model, cluster, work, strategy, profile)
    assert plain.terms is None
    assert found.terms is not None
    assert found.step_time_s == plain.step_time_s
    nodes = dict(found.terms.walk())
    assert nodes["step"].value == found.step_time_s
    assert nodes["step.time"].value == found.step_time_s
    assert nodes["step.memory"].value == found.peak_bytes
    for _, node in found.terms.walk():
        if node.combine == "sum" and node.children:
            assert sum(c.value for c in node.children) == pytest.approx(node.value, rel=1e-9, abs=1e-12), (
                node.name
            )
    for key in TIME_KEYS:
        assert nodes[f"step.time.{key}"].value == found.time_s[key]
        assert nodes[f"step.time.{key}"].formula


def test_listed_layers_are_kept() -> None:
    """An uneven split is evaluated as listed: its longest stage sets the time.

    16 microbatches: 16 x 20 + 12 layers against 16 x 8 + 24, the last stage with a head of about 1.5 layers
    more in both: 2.0.
    """
    profile = load("megatron-core", H100.chip)
    base = Strategy(dp=16, pp=4, zero=1, zero_group=16)

    def seconds(layers: tuple[int, ...] | None) -> float:
        return float(
            evaluate(
                LLAMA, H100, Work(8192, 256), replace(base, layers_per_stage=layers), profile
            ).step_time_s
        )

    even, uneven = seconds((8, 8, 8, 8)), seconds((4, 4, 4, 20))
    assert seconds(None) <= even * (1 + 1e-9)
    assert 1.8 < uneven / even < 2.2
