"""The closest published runs: exact against a full scan, and sensible in what they prefer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calibrate import nearest as module
from meshwright.calibrate.cases import Case, case
from meshwright.calibrate.nearest import nearest
from meshwright.calibrate.predict import Prediction
from meshwright.calibrate.rows import shipped
from meshwright.hardware import cluster as clusters
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.strategy.records import Strategy
from meshwright.work import Work


def double(found: Case) -> Prediction:
    run = found.run
    rate = run.tokens_per_s_per_chip or math.nan
    time = run.step_time_s or found.work.seq_len * found.work.global_batch_size / (
        found.cluster.n_chips * rate
    )
    return Prediction(2 * time, {"params": 1.0}, 2.0, 1.0, 1.0)


def test_a_published_run_finds_itself_first() -> None:
    run = next(r for r in shipped("training") if r.id == "dgxc-v25.04.02-llama31-70b-h100-64-bf16")
    found = case(run)
    assert isinstance(found, Case)
    strategy = Strategy(dp=run.dp or 1, tp=run.tp or 1, pp=run.pp or 1, cp=run.cp or 1)
    near = nearest(found.model, found.cluster, found.work, strategy, predict=double)
    assert len(near) == 3
    assert near[0].distance == 0.0
    assert [n.distance for n in near] == sorted(n.distance for n in near)
    same = {n.id for n in near if n.distance == 0.0}
    assert same <= {r.id for r in shipped("training") if r.n_chips == 64 and r.model == "Llama-3.1-70B"}
    assert all(n.error_percent == pytest.approx(100.0) for n in near)
    assert all(n.unit == "s" and n.measured > 0 and n.source and n.why for n in near)


def test_experts_are_compared_with_experts() -> None:
    model = presets.load("Qwen3-235B-A22B")
    cluster = clusters.parse("256xgb200")
    near = nearest(model, cluster, Work(4096, 4096, "mxfp8"), Strategy(dp=256, ep=64), predict=double)
    assert all("same" in n.why and "kind moe" in n.why for n in near)


def test_the_short_cut_is_exact() -> None:
    """Against a scan that builds every model: same distances."""
    plans = [
        ("llama-3.1-8b", "16xh100", 4096),
        ("deepseek-v3", "512xh800", 4096),
        ("gpt-3-175b", "256xtpu-v5p", 2048),
    ]
    for name, machine, seq_len in plans:
        model, cluster = presets.load(name), clusters.parse(machine)
        strategy = Strategy(dp=cluster.n_chips // 8, tp=8)
        near = nearest(model, cluster, Work(seq_len, 512), strategy, n=4, predict=double)
        plan = module._Job(
            cluster.chip,
            cluster.n_chips,
            seq_len,
            "bf16",
            (8, 1, 1, 1),
            total_params(model),
            module.architecture(model),
        )
        scanned = []
        for run, job in module._jobs(shipped("training")):
            sized = module._sized(run)
            if sized is not None and isinstance(case(run), Case):
                whole = replace(job, params=sized[0], architecture=sized[1])
                scanned.append(math.hypot(module._apart(plan, job), module._apart_model(plan, whole)))
        assert [n.distance for n in near] == pytest.approx(sorted(scanned)[:4])


def test_few_models_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counting(run: module.Run) -> tuple[float, str] | None:
        built.append(run.id)
        return original(run)

    original = module._sized
    monkeypatch.setattr(module, "_sized", counting)
    model, cluster = presets.load("llama-3.1-70b"), clusters.parse("64xh100")
    nearest(model, cluster, Work(8192, 128), Strategy(dp=2, tp=4, pp=4, cp=2), predict=double)
    assert len(built) < 0.25 * len(shipped("training"))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "nemotron-h-8b", "deepseek-v3"]),
    st.sampled_from(["8xh100", "64xa100", "256xgb200", "256xtpu-v5p"]),
    st.integers(1, 5),
)
def test_any_plan_has_neighbours(name: str, machine: str, n: int) -> None:
    cluster = clusters.parse(machine)
    near = nearest(
        presets.load(name), cluster, Work(4096, 512), Strategy(dp=cluster.n_chips), n=n, predict=double
    )
    assert len(near) == n
    assert len({x.id for x in near}) == n


def test_adapters_are_compared_with_adapters_and_differences_are_told() -> None:
    model, cluster = presets.load("llama-3.1-8b"), clusters.parse("8xh100")
    work = Work(4096, 64)
    whole = nearest(model, cluster, work, Strategy(dp=8), predict=double)
    assert not any("finetune" in n.why for n in whole)
    tuned = nearest(model, cluster, work, Strategy(dp=8, finetune="qlora:16"), predict=double)
    assert all("finetune qlora:16@attention instead of qlora:16" in n.why for n in tuned)
    assert all("qlora" in n.id for n in tuned)
