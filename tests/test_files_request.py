"""Requests: plan files round-trip, flags win over files, every fault of every part comes at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import api
from meshwright.errors import InputError
from meshwright.files import given as givens
from meshwright.files import request
from meshwright.files.work_given import WorkGiven, work_of
from meshwright.hardware import cluster as clusters

ASK: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 128}


def codes(**kwargs: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        request.read(**{"model": "llama-3.1-8b", "cluster": "64xh100", **ASK, **kwargs})
    return [d.code for d in caught.value.diagnostics]


def test_all_faults_at_once() -> None:
    found = codes(
        model="lama-9", cluster="64xh1000", seq_len="8q", precision="fp7", framework="megatron-cor",
        strategy={"tp": "x", "zero": 7, "tpp": 1}, overrides={"scale_outt": 1.0},
    )  # fmt: skip
    assert len(found) >= 8
    assert {"MW902", "MW903", "MW100", "MW103", "MW830"} <= set(found)


def test_a_plan_survives_the_trip(tmp_path: Path) -> None:
    first = api.estimate(
        "llama-3.1-70b", "64xh100", seq_len="8k", global_batch_size=256, tp=8, pp=2, vpp=5,
        overrides={"scale_out_gbits_s": 200.0}, total_tokens="1T", options=["fused-loss"], nearest=0,
    )  # fmt: skip
    path = tmp_path / "plan.yaml"
    api.save(first, path)
    second = api.estimate(path, nearest=0)
    assert second.strategy == first.strategy
    assert second.work == first.work
    assert second.cluster == first.cluster
    assert second.model == first.model
    assert second.step_time_s == first.step_time_s
    api.save(second, tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == path.read_text()


def test_a_chip_without_bf16_trains_in_fp16_unless_told() -> None:
    ask: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "8xv100-sxm2-32gb", **ASK}
    read = request.read(**ask)
    assert read.work.precision == "fp16"
    assert read.derived["precision"].because == "V100-SXM2-32GB has no bf16 units"
    assert request.read(**ask, precision="bf16").work.precision == "bf16"  # which the rules refuse
    assert request.read(**(ask | {"cluster": "8xh100"})).work.precision == "bf16"


@pytest.mark.parametrize(
    ("options", "strategy", "left"),
    [
        ((), {}, {"fused-loss", "documents:2k", "capacity:1.25"}),
        (("documents:4k",), {}, {"fused-loss", "documents:4k", "capacity:1.25"}),
        (("dropless",), {}, {"fused-loss", "documents:2k", "dropless"}),
        ((), {"moe_balance": "microbatch"}, {"fused-loss", "documents:2k"}),
        (("compile",), {}, {"compile"}),
        (("compile", "straggler:1.1"), {}, {"compile", "straggler:1.1"}),
    ],
)
def test_switches_of_a_file_go_by_what_restates_them(
    tmp_path: Path, options: tuple[str, ...], strategy: dict[str, str], left: set[str]
) -> None:
    """Words with a flag of their own take that flag's place in a file, any other word replaces all."""
    path = tmp_path / "plan.yaml"
    own = ["fused-loss", "documents:2k", "capacity:1.25"]
    api.save(api.estimate("qwen3-30b-a3b", "8xh100", **ASK, ep=8, options=own, nearest=0), path)
    assert set(request.read(path, None, options=options, strategy=strategy).work.options) == left


def test_flags_win_over_a_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    api.save(api.estimate("llama-3.1-8b", "8xh100", **ASK, zero=3, nearest=0), path)
    changed = request.read(path, None, seq_len="4k", strategy={"recompute": "full"})
    assert changed.work.seq_len == 4096
    assert changed.work.global_batch_size == 128
    assert changed.strategy["recompute"] == "full"
    assert changed.strategy["zero"] == 3
    moved = request.read(path, "16xh200", strategy={})
    assert moved.cluster.cluster.chip.family == "h200"


def test_a_model_record_and_a_cluster_record_are_taken(tmp_path: Path) -> None:
    base = request.read("llama-3.1-8b", "16xdgx-h100", **ASK)
    again = request.read(base.model, base.cluster.cluster, **ASK)
    assert again.model == base.model
    path = tmp_path / "plan.yaml"
    api.save(api.estimate(base.model, base.cluster.cluster, **ASK, nearest=0), path)
    read_back = request.read(path, None)
    assert read_back.model == base.model
    assert read_back.cluster.cluster.scale_up_size == base.cluster.cluster.scale_up_size
    assert read_back.cluster.cluster.n_chips == base.cluster.cluster.n_chips


@pytest.mark.parametrize("spelling", ["64xh100", "16xdgx-h100", "1xh100", "tpu-v5p:8x8x8", "2*tpu-v5p:8x8x8"])
def test_a_cluster_record_survives_the_trip(tmp_path: Path, spelling: str) -> None:
    record = clusters.parse(spelling)
    ask = {"seq_len": 2048, "global_batch_size": 2048, "nearest": 0}
    path = tmp_path / "plan.yaml"
    api.save(api.estimate("llama-3.2-1b", record, **ask), path)
    assert request.read(path, None).cluster.cluster == record
    assert f"cluster: {spelling}\n" in path.read_text(), "the data sheet's figures need no repetition"


def test_figures_of_a_record_can_be_replaced(tmp_path: Path) -> None:
    record = clusters.parse("64xh100", {"scale_up_size": 4, "oversubscription": 2})
    slow = request.read("llama-3.1-8b", record, **ASK, overrides={"scale_out_gbits_s": 100}).cluster
    assert slow.cluster.scale_out_bytes_s == pytest.approx(100e9 / 8 / 2)
    assert slow.cluster.scale_up_size == 4
    assert slow.overrides == {"scale_up_size": 4, "oversubscription": 2, "scale_out_gbits_s": 100}
    spelled = request.read("llama-3.1-8b", "64xh100", **ASK, overrides=slow.overrides).cluster.cluster
    assert replace(spelled, derived=()) == replace(slow.cluster, derived=())


def test_a_chip_changed_in_python_is_saved_with_its_figures(tmp_path: Path) -> None:
    record = clusters.parse("64xh100")
    fast = replace(record, chip=replace(record.chip, bf16_flops=1.5e15))
    path = tmp_path / "plan.yaml"
    first = api.estimate("llama-3.1-8b", fast, **ASK, nearest=0)
    api.save(first, path)
    assert api.estimate(path, nearest=0).step_time_s == first.step_time_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 3), ("model", None), ("cluster", 3), ("work", {"seq_len": 4096}), ("precision", 8),
        ("options", [3]), ("options", 3), ("framework", 1), ("overrides", [400]), ("profile", 2),
    ],
)  # fmt: skip
def test_an_argument_of_the_wrong_kind_is_named(name: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        request.read(**{"model": "llama-3.1-8b", "cluster": "64xh100", **ASK, name: value})
    (said,) = caught.value.diagnostics
    assert said.where == name
    assert repr(value) in said.message


def test_options_may_be_one_text() -> None:
    read = request.read("llama-3.1-8b", "64xh100", **ASK, options="fused-loss+compile")
    assert read.work.options == {"fused-loss", "compile"}


def test_cluster_files_take_units_and_chip_figures(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "version: 1\non: 64xh100\nscale_out_gbits_s: 50GB/s\nusable_gib: 70GiB\n"
        "chip: {bf16: 800TFLOP/s, tdp_w: 650}\n"
    )
    cluster = request.read("llama-3.1-8b", str(path), **ASK).cluster.cluster
    assert cluster.scale_out_bytes_s == 50e9
    assert cluster.usable_bytes == 70 * 2**30
    assert cluster.chip.bf16_flops == 800e12
    assert cluster.chip.tdp_w == 650
    assert "replaced by the cluster file" in cluster.chip.source


def test_a_cluster_file_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\non: 64xh100\n")
    assert "MW807" in codes(model=str(path))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("scale_out_gbits_s", "400", 400.0),
        ("scale_out_gbits_s", "400Gbit/s", 400.0),
        ("scale_out_gbits_s", "50GB/s", 400.0),
        ("scale_up_gbytes_s", "450GB/s", 450.0),
        ("usable_gib", "70GiB", 70.0),
        ("oversubscription", "2", 2.0),
    ],
)
def test_overrides_take_units(name: str, text: str, value: float) -> None:
    assert givens.override(name, text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "text"), [("scale_out", "1"), ("usable_gib", "lots"), ("oversubscription", "2GB")]
)
def test_overrides_that_are_refused(name: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        givens.override(name, text)
    assert caught.value.diagnostics[0].hint


def test_tokens_per_step_are_whole_sequences() -> None:
    read = work_of(WorkGiven(seq_len=8192, tokens_per_step="16M"), None, {})
    assert read.work.global_batch_size == 2048
    assert "16,777,216" in read.derived["global_batch_size"].because
    decimal = work_of(WorkGiven(seq_len=4000, tokens_per_step="16M"), None, {})
    assert decimal.work.global_batch_size == 4000


@given(st.integers(1, 2**17), st.integers(1, 2**14))
def test_tokens_per_step_give_back_the_batch(seq_len: int, batch: int) -> None:
    read = work_of(WorkGiven(seq_len=seq_len, tokens_per_step=seq_len * batch), None, {})
    assert read.work.global_batch_size == batch
    assert read.work.tokens_per_step == seq_len * batch


def test_tokens_that_are_no_whole_sequences_show_the_arithmetic() -> None:
    with pytest.raises(InputError, match=r"10,000 / 8,192 = 1\.22"):
        work_of(WorkGiven(seq_len=8192, tokens_per_step=10000), None, {})


@given(st.integers(1, 10**5), st.integers(1, 10**5))
def test_batch_ranges_reach_both_ends(low: int, high: int) -> None:
    if low > high:
        low, high = high, low
    tried = work_of(WorkGiven(8192, f"{low}:{high}", several=True), None, {}).batches
    assert tried[0] == low
    assert tried[-1] == high
    assert list(tried) == sorted(set(tried))


def test_a_range_of_batches_is_for_plan_only() -> None:
    assert codes(global_batch_size="128:256") == ["MW903"]


def test_missing_work_is_named() -> None:
    assert codes(seq_len=None, global_batch_size=None) == ["MW903", "MW903"]
    assert codes(tokens_per_step="1M") == ["MW903"]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), "free", [2]])
def test_what_is_no_price_is_named(price: Any) -> None:
    said = "price_per_chip_hour is .*, and it must be a number or text" if price == [2] else "not a price"
    with pytest.raises(InputError, match=said):
        api.estimate("llama-3.1-8b", "64xh100", **ASK, price_per_chip_hour=price, total_tokens="1T")


def test_a_price_may_be_text() -> None:
    found = api.estimate(
        "llama-3.1-8b", "64xh100", **ASK, price_per_chip_hour="2.5", total_tokens="1T", nearest=0
    )
    assert found.run is not None
    assert found.run.cost_usd == pytest.approx(2.5 * found.run.chip_hours)
