"""Each verb end to end on small jobs: the JSON of the contract, what a person sees, exit codes."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli.main import run
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS

WORK = ["--seq-len", "8k", "--global-batch", "64"]
SMALL = ["llama-3.1-8b", "--on", "8xh100", *WORK, "--tp", "2", "--recompute", "full"]


def shown(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> Any:
    """The JSON object of a command that ends with `code`, plain JSON checked."""
    assert run([*args, "--json"]) == code

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def text(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    assert run([*args]) == code
    return capsys.readouterr().out


def test_what_does_not_fit_is_searched_for_as_it_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "--seq-len", "4k", "--global-batch", "64", "--precision", "fp8", "--framework",
        "megatron-core@nemo-24",
        "--set", "cluster.scale_out_gbits_s=200", "--options", "fused-loss", "--finetune", "lora:16",
        "--total-tokens", "1B", "--price-per-chip-hour", "2.5",
    ]  # fmt: skip
    said = text(capsys, "estimate", "llama-3.1-70b", "--on", "8xh100", *asked, "--tp", "1", "--zero", "0")
    (hint,) = [line for line in said.splitlines() if line.startswith("what fits")]
    words = shlex.split(hint.partition("meshwright ")[2].removesuffix(" searches for it"))
    assert words[0] == "plan"
    again = shown(capsys, "estimate", *words[1:], "--tp", "1", "--zero", "0")
    first = shown(capsys, "estimate", "llama-3.1-70b", "--on", "8xh100", *asked, "--tp", "1", "--zero", "0")
    assert again == first
    plain = text(capsys, "estimate", "llama-3.1-70b", "--on", "8xh100", *WORK)
    assert "meshwright plan Llama-3.1-70B --on 8xh100 --seq-len 8192 --global-batch 64 searches" in plain


def test_estimate_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(
        capsys, "estimate", *SMALL, "--total-tokens", "1T", "--price-per-chip-hour", "2.5", "--terms"
    )
    assert found["schema"] == "meshwright.estimate/1"
    assert found["model"]["params_total"] == 8030261248
    assert found["cluster"]["n_chips"] == 8
    assert found["work"]["tokens_per_step"] == 64 * 8192
    plan = found["plan"]
    assert plan["strategy"]["tp"] == 2
    assert plan["strategy"]["dp"] == 4
    assert sum(plan["strategy"]["stages"]) == 32
    assert plan["derived"]["dp"]["value"] == 4
    assert "tp" not in plan["derived"]
    assert tuple(plan["time_s"]) == TIME_KEYS
    assert sum(plan["time_s"].values()) == pytest.approx(plan["step_time_s"], rel=1e-9)
    memory = plan["memory"]
    assert tuple(memory["by_category_gib"]) == MEMORY_KEYS
    assert sum(memory["by_category_gib"].values()) == pytest.approx(memory["peak_gib"], rel=1e-9)
    assert plan["fits"] is (memory["peak_gib"] <= memory["capacity_gib"])
    tokens = plan["tokens_per_s_per_chip"] * plan["step_time_s"] * 8
    assert tokens == pytest.approx(64 * 8192)
    assert plan["model_tflops_per_chip"] / plan["mfu"] == pytest.approx(989, rel=0.01)
    assert plan["hfu"] > plan["mfu"]
    steps = 1e12 / (64 * 8192)
    assert plan["chip_hours"] == pytest.approx(steps * plan["step_time_s"] * 8 / 3600)
    assert plan["cost_usd"] == pytest.approx(plan["chip_hours"] * 2.5)
    assert plan["energy_kwh"] == pytest.approx(plan["chip_hours"] * 0.7)
    assert plan["terms"]["value"] == pytest.approx(plan["step_time_s"])
    assert plan["nearest"][0]["measured"] > 0


def test_estimate_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    said = text(capsys, "estimate", *SMALL, "--total-tokens", "1T")
    wanted = (
        "fits:", "step time", "tokens/s/chip", "MFU", "where the time goes", "memory of the fullest",
        "derived",
        "nearest:", "measured", "days", "at TDP", "--price-per-chip-hour",
    )  # fmt: skip
    assert not [w for w in wanted if w not in said]


def test_a_plan_that_does_not_fit_is_still_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "estimate", "llama-3.1-70b", "--on", "8xh100", *WORK)
    assert found["plan"]["fits"] is False
    assert any(d["code"] == "MW301" for d in found["plan"]["diagnostics"])
    assert "does not fit" in text(capsys, "estimate", "llama-3.1-70b", "--on", "8xh100", *WORK)


def test_plan_finds_writes_and_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    found = shown(capsys, "plan", "llama-3.1-8b", "--on", "8xh100", *WORK, "-o", str(path), "--rank", "2",
                  "--show-space", "--total-tokens", "1T")  # fmt: skip
    assert found["schema"] == "meshwright.plan/1"
    times = [p["simulated_step_time_s"] for p in found["plans"]]
    assert times == sorted(times)
    assert all(p["fits"] for p in found["plans"])
    assert found["feasible"] <= found["searched"]
    assert {n["without"] for n in found["necessity"]} == {
        "pp", "vpp", "tp", "sp", "cp", "ep", "etp", "recompute", "zero-3", "offload", "low-precision",
    }  # fmt: skip
    assert found["why"]
    assert found["nearest"] is None
    assert found["days"] == found["plans"][0]["days"]
    assert set(found["space"]["tp"]) >= {1, 2, 4, 8}
    assert isinstance(found["bounded"], dict)
    assert isinstance(found["rejected"], dict)
    written = shown(capsys, "estimate", str(path))
    assert written["plan"]["step_time_s"] == pytest.approx(found["plans"][1]["step_time_s"])
    assert written["plan"]["strategy"] == found["plans"][1]["strategy"]


def test_losses_say_of_what(capsys: pytest.CaptureFixture[str]) -> None:
    narrow = ["--cp", "1", "--vpp", "1", "--recompute", "none", "--zero", "1", "--microbatch-size", "1"]
    said = text(
        capsys, "plan", "llama-3.1-8b", "--on", "8xh100", *WORK, *narrow, "--set", "cluster.usable_gib=50"
    )
    assert "longer by: than the step of the best plan" in said
    assert "Doing without makes a step longer:" in said
    assert "the arithmetic of the busiest rank alone, recompute included" in said


def test_hardware_flops_count_products_that_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    plans = {
        word: shown(capsys, "estimate", *SMALL[:-1], word)["plan"]
        for word in ("none", "selective:norm", "full")
    }
    for word, plan in plans.items():
        assert ("HFU" in text(capsys, "estimate", *SMALL[:-1], word)) == (word != "none")
        assert "recompute" in plan["conventions"]["hfu"]
        assert plan["floor_time_s"] < plan["step_time_s"]
    again = {word: plan["hfu"] / plan["mfu"] for word, plan in plans.items()}
    assert again["selective:norm"] == pytest.approx(again["none"])
    assert again["full"] > 1.2 * again["none"]
    assert plans["full"]["floor_time_s"] > 1.2 * plans["none"]["floor_time_s"]


def test_plan_keeps_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "plan", "llama-3.1-8b", "--on", "8xh100", *WORK, "--tp", "2,4", "--pp", "1")
    assert {p["strategy"]["tp"] for p in found["plans"]} <= {2, 4}
    assert {p["strategy"]["pp"] for p in found["plans"]} == {1}


def test_plan_searches_batches(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "plan",
        "llama-3.1-8b",
        "--on",
        "8xh100",
        "--seq-len",
        "8k",
        "--tp",
        "1,2",
        "--pp",
        "1",
        "--cp",
        "1",
    ]
    ranged = shown(capsys, *args, "--global-batch", "32:128")
    rates = {
        batch: shown(capsys, *args, "--global-batch", str(batch))["plans"][0]["tokens_per_s_per_chip"]
        for batch in (32, 64, 128)
    }
    best = max(rates, key=lambda batch: rates[batch])
    assert ranged["work"]["global_batch_size"] == best
    assert ranged["plans"][0]["tokens_per_s_per_chip"] == pytest.approx(rates[best])


def test_nothing_fits_is_exit_1_with_the_nearest_miss(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    args = [
        "plan",
        "llama-3.1-405b",
        "--on",
        "8xh100",
        "--seq-len",
        "8k",
        "--global-batch",
        "8",
        "-o",
        str(path),
    ]
    found = shown(capsys, *args, code=1)
    assert found["plans"] == []
    assert found["nearest"]["plan"]["fits"] is False
    assert found["nearest"]["needs"]
    assert not path.exists()
    assert "nothing fits" in text(capsys, *args, code=1)


def test_what_is_asked_beyond_degrees_stands_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["mixtral-8x7b", "--on", "64xh100", "--seq-len", "4k", "--global-batch", "256"]
    words = ["--ep", "8", "--moe-balance", "capacity:1.25", "--finetune", "lora:16@qkv"]
    first, second = text(capsys, "estimate", *args, *words).splitlines()[:2]
    assert first.endswith(", capacity:1.25")
    assert "finetune lora:16@qkv" in second


def test_explain_shows_the_tree(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "explain", *SMALL)
    assert found["schema"] == "meshwright.explain/1"

    def check(node: dict[str, Any]) -> int:
        children = node["children"]
        if node["combine"] == "sum" and children:
            total = math.fsum(c["value"] for c in children)
            assert node["value"] == pytest.approx(total, rel=1e-6, abs=1e-12), node["name"]
        return 1 + sum(check(c) for c in children)

    assert check(found["plan"]["terms"]) > 20
    said = text(capsys, "explain", *SMALL, "--depth", "3")
    assert "bubble" in said
    assert "activations" in said
    part = text(capsys, "explain", *SMALL, "--term", "memory")
    assert "activations" in part
    assert "bubble" not in part.split("memory")[-1]
    assert run(["explain", *SMALL, "--term", "memroy"]) == 2


def test_check_says_yes_and_no(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "check", *SMALL)
    assert found["ok"] is True
    bad = shown(capsys, "check", "llama-3.1-8b", "--on", "8xh100", *WORK, "--tp", "3", "--pp", "5", code=1)
    assert bad["ok"] is False
    assert len(bad["diagnostics"]) >= 2
    full = shown(capsys, "check", "llama-3.1-70b", "--on", "8xh100", *WORK, code=1)
    assert full["strategy"]["dp"] == 8
    assert "not ok" in text(capsys, "check", "llama-3.1-70b", "--on", "8xh100", *WORK, code=1)
    assert run(["check", "llama-3.1-8b", "--on", "8xh100", *WORK, "--tp", "x"]) == 2


def test_moe_balance_is_a_switch_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["estimate", "mixtral-8x7b", "--on", "64xh100", *WORK, "--ep", "8"]
    even = shown(capsys, *args, "--moe-balance", "balanced")
    uneven = shown(capsys, *args, "--moe-balance", "dropless")
    assert even["work"]["options"] == ["balanced-routing"]
    assert uneven["plan"]["step_time_s"] >= even["plan"]["step_time_s"]
    assert run([*args, "--moe-balance", "lucky"]) == 2


TABLE = """\
id,source,model,framework,chip,n_chips,precision,seq_len,global_batch_size,tp,pp,cp,dp,step_time_s
one,mine@1:t,llama-3.1-8b,megatron-core,h100,8,bf16,8192,64,2,1,1,4,{}
two,mine@1:t,llama-3.1-8b,megatron-core,h100,8,bf16,8192,64,4,1,1,2,{}
"""


def test_validate_and_calibrate_own_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(TABLE.format(8.0, 9.0))
    found = shown(capsys, "validate", str(table))
    assert found["schema"] == "meshwright.validate/1"
    assert found["runs"] == 2
    assert found["time"]["n"] == 2
    error = found["time"]["median_abs_error_percent"]
    assert run(["validate", str(table), "--fail-above", f"{error + 1}"]) == 0
    capsys.readouterr()
    assert run(["validate", str(table), "--fail-above", f"{error - 1}%"]) == 1
    capsys.readouterr()
    assert "accuracy" in text(capsys, "validate", str(table), "--rows")

    # Runs twice as slow as the model says: a fit must move towards them, and estimates must follow.
    predicted = {r["id"]: r["predicted"] for r in found["rows"] if r["metric"] == "step_time_s"}
    table.write_text(TABLE.format(1.3 * predicted["one"], 1.3 * predicted["two"]))
    profile = tmp_path / "profile.json"
    fitted = shown(capsys, "calibrate", "runs", str(table), "-o", str(profile))
    assert fitted["runs"] == 2
    before = shown(capsys, "estimate", *SMALL)["plan"]["step_time_s"]
    after = shown(capsys, "estimate", *SMALL, "--profile", str(profile))["plan"]["step_time_s"]
    assert after > 1.05 * before


def test_validate_bad_tables_are_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    assert run(["validate", str(table)]) == 2
    table.write_text("")
    assert run(["validate", str(table)]) == 2
    assert run(["validate", "--fail-above", "low"]) == 2
    capsys.readouterr()


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    models = shown(capsys, "models", "llama", "405b")["models"]
    assert [m["name"] for m in models] == ["Llama-3.1-405B"]
    chips = shown(capsys, "chips", "h100")["chips"]
    assert any(c["bf16_tflops"] == pytest.approx(989, rel=0.01) for c in chips)
    assert all(c["source"] for c in chips)
    machines = shown(capsys, "clusters")
    assert any(m["name"] == "dgx-h100" for m in machines["machines"])
    one = shown(capsys, "clusters", "16xdgx-h100", "--set", "cluster.scale_out_gbits_s=200")
    assert one["cluster"]["n_chips"] == 128
    assert one["cluster"]["scale_out_gbits_s"] == pytest.approx(200)
    for args in (
        ["models", "qwen3"],
        ["chips", "b200", "--sources"],
        ["clusters"],
        ["clusters", "512xtpu-v5p"],
        ["version"],
    ):
        assert text(capsys, *args).strip()
    assert shown(capsys, "version")["schema"] == "meshwright.version/1"


def test_spellings_that_clusters_shows_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    for spelling in shown(capsys, "clusters")["spellings"]:
        if not spelling["example"].endswith(".yaml"):
            assert shown(capsys, "clusters", spelling["example"])["cluster"]["n_chips"] > 1


def test_the_python_face_is_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    import meshwright

    found = meshwright.estimate(
        "llama-3.1-8b", "8xh100", seq_len="8k", global_batch_size=64, tp=2, recompute="full"
    )
    assert found.json() == shown(capsys, "estimate", *SMALL)
    assert set(meshwright.__all__) == set(dir(meshwright))
    for name in meshwright.__all__:
        assert getattr(meshwright, name) is not None
