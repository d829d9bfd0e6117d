"""Validation's arithmetic on small tables with a known predictor, and its contract on the shipped table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.calibrate import rows
from meshwright.calibrate.cases import Case
from meshwright.calibrate.predict import Prediction
from meshwright.calibrate.rows import Run
from meshwright.calibrate.statistics import Judged, Ranked, errors, ranking
from meshwright.calibrate.validate import judge, validate
from meshwright.errors import Diagnostic, InputError
from meshwright.units import GIB

BASE = Run(
    "r", source="lab@1:page", framework="megatron-core", model="Llama-3.1-8B", chip="H100-SXM", n_chips=64,
    seq_len=8192, global_batch_size=128, microbatch_size=1, tp=2, pp=2, cp=2, precision="bf16",
    recompute="none",
)  # fmt: skip


def said(step_time_s: float = 1.0, gib: float = 40.0, capacity_gib: float = 79.0) -> Prediction:
    memory = {"params": 0.5 * gib, "activations": 0.3 * gib, "allocator": 0.15 * gib, "framework": 0.05 * gib}
    memory_bytes = {k: v * GIB for k, v in memory.items()}
    return Prediction(step_time_s, memory_bytes, capacity_gib * GIB, 1e18, 1.25e18)


def one_second(case: Case) -> Prediction:
    return said()


def test_time_error_is_predicted_over_measured() -> None:
    result = validate([replace(BASE, step_time_s=0.8)], predict=one_second)
    (row,) = result.rows
    assert row.error_percent == pytest.approx(25.0)
    assert result.time.bias_percent == pytest.approx(25.0)


def test_tokens_per_second_become_a_step_time() -> None:
    rate = 8192 * 128 / (64 * 2.0)  # two seconds a step
    (row,) = validate([replace(BASE, tokens_per_s_per_chip=rate)], predict=one_second).rows
    assert row.measured == pytest.approx(2.0)
    assert row.error_percent == pytest.approx(-50.0)
    assert row.stated_as == "tokens_per_s_per_chip"


def test_step_time_goes_before_tokens_per_second() -> None:
    (row,) = validate([replace(BASE, step_time_s=1.0, tokens_per_s_per_chip=1.0)], predict=one_second).rows
    assert row.stated_as == "step_time_s"


@pytest.mark.parametrize(
    ("kind", "share"), [("allocated", 0.8), ("active", 0.8), ("reserved", 0.95), ("device", 1.0), (None, 1.0)]
)
def test_memory_is_compared_in_the_sense_of_its_kind(kind: str | None, share: float) -> None:
    result = validate([replace(BASE, peak_memory_gib=40.0, memory_kind=kind)], predict=one_second)
    assert result.memory.bias_percent == pytest.approx(100 * (share - 1))


def test_suspect_rows_stand_apart() -> None:
    runs = [replace(BASE, step_time_s=1.0), replace(BASE, id="s", step_time_s=9.0, suspect="copied cell")]
    result = validate(runs, predict=one_second)
    assert result.time.n == 1
    assert result.time.median_abs_error_percent == 0.0
    assert [row.id for row in result.suspect_rows] == ["s"]
    assert result.json()["suspect"]["time"]["n"] == 1


def test_refusals_are_misses_and_are_counted() -> None:
    def refuse(case: Case) -> Prediction:
        raise InputError(Diagnostic("MW101", "dp x tp is not the chips"))

    runs = [replace(BASE, step_time_s=1.0), replace(BASE, id="oom", out_of_memory=1)]
    result = validate(runs, predict=refuse)
    assert result.missed == {"refused (MW101)": 2}
    assert (result.evaluated, result.time.n, result.time.missed) == (0, 0, 1)
    assert result.time.within_25_percent == 0.0
    assert all(row.predicted is None and row.missed for row in result.rows)
    # What a rule forbids is called impossible, rightly of a run that failed.
    verdict = result.fit_verdict
    assert (verdict.ran, verdict.refused, verdict.oom, verdict.accepted) == (1, 1, 1, 0)


def test_a_fault_of_ours_is_no_miss() -> None:
    def broken(case: Case) -> Prediction:
        raise ZeroDivisionError("a fault of ours")

    with pytest.raises(ZeroDivisionError):
        validate([replace(BASE, step_time_s=1.0)], predict=broken)


def test_unsupported_rows_are_misses_not_skips() -> None:
    result = validate([replace(BASE, step_time_s=1.0, options=frozenset({"emb"}))], predict=one_second)
    assert result.skipped == {}
    assert result.missed == {"not modelled": 1}


def test_fit_verdict_counts_only_stated_recompute() -> None:
    def by_id(case: Case) -> Prediction:
        return said(gib=100.0 if "big" in case.run.id else 40.0)

    runs = [
        replace(BASE, id="ran", step_time_s=1.0),
        replace(BASE, id="ran-big", step_time_s=1.0),
        replace(BASE, id="oom", out_of_memory=1),
        replace(BASE, id="oom-big", out_of_memory=1),
        replace(BASE, id="unstated-big", step_time_s=1.0, recompute=None),
        replace(BASE, id="suspect-big", step_time_s=1.0, suspect="yes"),
    ]
    verdict = validate(runs, predict=by_id).fit_verdict
    assert (verdict.ran, verdict.refused, verdict.oom, verdict.accepted) == (2, 1, 2, 1)
    assert (verdict.recompute_unstated, verdict.unstated_wrong) == (1, 1)


def test_rates_are_put_in_the_convention_of_their_source() -> None:
    run = replace(BASE, source="yanring/Megatron-MoE-ModelZoo@1", tflops_per_chip=10_000.0)
    result = validate([run], predict=one_second)
    (row,) = result.rows
    assert result.time.n == 0
    assert row.metric == "tflops_per_chip"
    assert row.predicted == pytest.approx(1e18 / 64 / 1e12)  # model FLOPs, causal half
    hardware = replace(BASE, source="arXiv:2104.04473 x", tflops_per_chip=10_000.0)
    (other,) = validate([hardware], predict=one_second).rows
    assert other.predicted is not None
    assert other.predicted > 1.25e18 / 64 / 1e12  # hardware FLOPs and the masked half


def test_layouts_of_one_job_are_ranked() -> None:
    times = {"a": (1.0, 2.0), "b": (2.0, 1.0), "c": (4.0, 4.0)}

    def known(case: Case) -> Prediction:
        return said(times[case.run.id][1])

    runs = [
        replace(BASE, id=name, tp=tp, cp=4 // tp, step_time_s=times[name][0])
        for name, tp in (("a", 1), ("b", 2), ("c", 4))
    ]
    other_job = replace(BASE, id="a", n_chips=32, step_time_s=1.0)
    found = validate([*runs, other_job], predict=known).ranking
    assert (found.groups, found.pairs, found.top1_right) == (1, 3, 0)
    assert found.mean_regret_percent == pytest.approx(100.0)
    assert found.kendall_tau == pytest.approx(1 / 3)


def test_pairs_within_three_percent_are_not_counted() -> None:
    found = ranking([Ranked("g", "a", 1.0, 2.0), Ranked("g", "b", 1.029, 1.0), Ranked("g", "c", 2.0, 3.0)])
    assert found.pairs == 2
    assert found.kendall_tau == 1.0


def test_interval_coverage_comes_from_the_bands() -> None:
    runs = [replace(BASE, id=str(i), step_time_s=t) for i, t in enumerate((0.95, 1.05, 2.0, 3.0))]
    result = validate(runs, predict=one_second, error_bands=lambda case, t: (0.9 * t, 1.1 * t))
    assert result.time.interval_coverage_percent == pytest.approx(50.0)
    assert validate(runs, predict=one_second).time.interval_coverage_percent is None


def test_framework_keeps_only_its_runs() -> None:
    runs = [replace(BASE, step_time_s=1.0), replace(BASE, id="t", framework="torchtitan", step_time_s=1.0)]
    assert validate(runs, framework="torchtitan", predict=one_second).runs == 1


@given(st.lists(st.floats(-99, 1e4), min_size=1, max_size=40))
def test_percentiles_agree_with_their_definition(values: list[float]) -> None:
    found = errors(Judged(v, "s") for v in values)
    size = sorted(abs(v) for v in values)
    assert found.n == len(values)
    assert found.median_abs_error_percent == pytest.approx(np.median(size))
    assert found.p90_abs_error_percent is not None
    assert size[0] <= found.p90_abs_error_percent <= size[-1]
    assert sum(v <= found.p90_abs_error_percent * (1 + 1e-9) for v in size) >= 0.9 * len(size) - 1


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.floats(0.1, 10), st.floats(0.1, 10)),
        min_size=1,
        max_size=30,
    )
)
def test_a_perfect_prediction_has_no_regret(points: list[tuple[int, int, float, float]]) -> None:
    found = ranking(Ranked(g, layout, m, m) for g, layout, m, _ in points)
    assert found.mean_regret_percent in (None, 0.0)
    assert found.kendall_tau in (None, 1.0)
    assert found.top1_right == found.groups


def plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(k) is str and plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(plain(v) for v in value)
    return value is None or type(value) in (str, int, float, bool)


def test_json_keeps_the_contract_on_the_shipped_table() -> None:
    runs = rows.shipped("training")
    found = validate(runs, predict=one_second).json()
    assert {"runs", "evaluated", "skipped", "time", "memory", "fit_verdict", "ranking", "by", "rows"} <= set(
        found
    )
    assert plain(found)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    figures = {
        "n", "median_abs_error_percent", "p90_abs_error_percent", "bias_percent",
        "median_of_source_medians_percent", "interval_coverage_percent",
    }  # fmt: skip
    assert figures <= set(found["time"])
    assert figures <= set(found["memory"])
    assert {"ran", "refused", "oom", "accepted", "recompute_unstated"} <= set(found["fit_verdict"])
    assert {"groups", "pairs", "top1_right", "mean_regret_percent", "kendall_tau"} <= set(found["ranking"])
    assert set(found["by"]) == {"framework", "chip", "architecture", "source", "metric"}
    assert figures <= set(next(iter(found["by"]["chip"].values())))
    keys = {"id", "metric", "measured", "predicted", "error_percent", "fits"}
    assert all(keys <= set(row) for row in found["rows"])
    assert found["runs"] == len(runs)
    assert found["runs"] == found["evaluated"] + sum(found["skipped"].values()) + sum(
        found["missed"].values()
    )
    assert found["by"]["metric"]["step_time_s"]["n"] == found["time"]["n"]


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[int, int]] = []
    runs = [replace(BASE, id=str(i), step_time_s=1.0) for i in range(5)]
    validate(runs, predict=one_second, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]


def test_processes_give_what_one_gives() -> None:
    runs = rows.shipped("training")[:80]
    assert validate(runs, jobs=2, predict=one_second).json() == validate(runs, predict=one_second).json()


def test_a_users_table_goes_all_the_way(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "id,model,chip,n_chips,seq_len,global_batch_size,tp,pp,step_time_s\nm,llama-3.1-8b,h100,8,8192,64,1,1,2.0\n"
    )
    outcome = judge(rows.read(path)[0], one_second)
    assert isinstance(outcome.case, Case)
    assert outcome.prediction is not None
