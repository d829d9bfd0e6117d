"""Inverse questions: what `max` says fits, and what is next does not, by searches and estimates apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright import api, units
from meshwright.checks.rule import divisors
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.search.largest import LEAST_LENGTH, QUANTITIES

SMALL = {"model": "llama-3.2-1b", "cluster": "8xa100-40gb"}


def found(quantity: str, **request: Any) -> Any:
    return api.largest(quantity, **SMALL | request)


def something_fits(**request: Any) -> bool:
    return bool(api.plan(**SMALL | request, top=1).plans)


def test_the_longest_sequence_fits_and_the_next_does_not() -> None:
    answer = found("seq_len", global_batch_size=8)
    assert answer.bound == "memory"
    assert answer.plan.fits
    assert answer.plan.work.seq_len == answer.value
    assert answer.value % LEAST_LENGTH == 0
    assert something_fits(seq_len=answer.value, global_batch_size=8)
    assert not something_fits(seq_len=answer.above.value, global_batch_size=8)
    assert answer.value < answer.above.value <= answer.value * (1 + 1 / 32)
    assert answer.above.plan is not None
    assert not answer.above.plan.fits
    assert "GiB too much" in answer.needs
    best = api.plan(**SMALL, seq_len=answer.value, global_batch_size=8, top=1).best
    assert best is not None
    assert answer.plan.step_time_s == pytest.approx(best.step_time_s, rel=1e-9)


def test_fixed_flags_stay_fixed_and_lower_the_maximum() -> None:
    free = found("seq_len", global_batch_size=8)
    fixed = found("seq_len", global_batch_size=8, tp=1, cp=1, recompute="none")
    assert fixed.value < free.value
    strategy = fixed.plan.strategy
    assert (strategy.tp, strategy.cp, strategy.recompute) == (1, 1, "none")


def test_depth_to_the_layer() -> None:
    answer = found("n_layers", seq_len="4k", global_batch_size=8, pp=[1, 2], vpp=1)
    assert answer.plan.model.n_layers == answer.value
    assert answer.above.value == answer.value + 1
    from meshwright.model import presets

    model = presets.load("llama-3.2-1b")
    for n_layers, fits in ((answer.value, True), (answer.value + 1, False)):
        deep = SMALL | {"model": model.with_layers(n_layers)}
        got = api.plan(**deep, seq_len="4k", global_batch_size=8, pp=[1, 2], vpp=1, top=1)
        assert bool(got.plans) is fits


def test_a_fixed_strategy_against_estimates_one_by_one() -> None:
    """All fields fixed: the answer is what a walk over every legal value finds."""
    strategy = {"dp": 2, "tp": 2, "pp": 2, "schedule": "gpipe", "recompute": "none", "zero": 1,
                "offload": "none"}  # fmt: skip
    answer = found("global_batch", seq_len="4k", **strategy)
    assert answer.bound == "memory"
    walked = [
        batch
        for batch in range(2, answer.above.value + 1, 2)
        if api.estimate(**SMALL, seq_len="4k", global_batch_size=batch, nearest=0, **strategy).fits
    ]
    assert answer.value <= walked[-1] < answer.above.value

    strategy = {"dp": 2, "tp": 4, "recompute": "none", "zero": 1, "offload": "none"}
    answer = found("microbatch_size", seq_len="4k", global_batch_size=192, **strategy)
    fits = [
        size
        for size in divisors(96)
        if api.estimate(
            **SMALL, seq_len="4k", global_batch_size=192, microbatch_size=size, nearest=0, **strategy
        ).fits
    ]
    assert answer.value == max(fits)


def test_a_range_of_degrees_is_searched() -> None:
    few = found("global_batch", seq_len="4k", dp="1:2", pp=4, schedule="gpipe", up_to=16)
    assert (few.value, few.bound) == (16, "range")
    assert few.plan.strategy.dp <= 2


def test_memory_does_not_bind_a_batch_of_replicas() -> None:
    answer = found("global_batch", seq_len="4k", up_to="1k")
    assert (answer.value, answer.bound, answer.above) == (1024, "range", None)
    assert answer.plan.work.global_batch_size == 1024


def test_a_step_of_so_many_tokens_holds_fewer_longer_sequences() -> None:
    answer = found("seq_len", tokens_per_step="1M")
    assert answer.plan.work.tokens_per_step == 2**20
    assert 2**20 % answer.value == 0


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["max", "seq_len", "llama-3.1-405b", "--on", "8xh100", "--global-batch", "8", "--tp", "8"]
    assert run([*args, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "meshwright.max/1"
    assert shown["value"] is None
    assert shown["plan"] is None
    assert shown["above"]["value"] == LEAST_LENGTH
    assert shown["above"]["nearest"]["fits"] is False
    assert run(args) == 1
    assert "no seq_len fits" in capsys.readouterr().out


def test_json_text_and_plan_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    args = ["llama-3.2-1b", "--on", "8xa100-40gb", "--seq-len", "4k", "--global-batch", "8", "--tp", "8"]
    assert run(["max", "n_layers", *args, "--json", "-o", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["quantity"] == "n_layers"
    assert shown["model"]["n_layers"] == shown["value"]
    assert shown["plan"]["fits"]
    assert [p["value"] for p in shown["tried"]] == sorted(p["value"] for p in shown["tried"])
    assert run(["estimate", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["model"]["n_layers"] == shown["value"]
    assert again["plan"]["step_time_s"] == pytest.approx(shown["plan"]["step_time_s"], rel=1e-9)
    assert run(["max", "n_layers", *args, "--up-to", "20"]) == 0
    text = capsys.readouterr().out
    assert "n_layers up to 20 layers, the end of the range" in text
    assert "memory does not bind" in text


def test_faults_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        found("seq_lens", global_batch_size=8, seq_len="8k", tp="x")
    assert {d.code for d in caught.value.diagnostics} == {"MW911", "MW103"}
    with pytest.raises(InputError, match="what is asked for"):
        found("microbatch_size", seq_len="8k", global_batch_size=8, microbatch_size=2)
    with pytest.raises(InputError, match="up-to"):
        found("seq_len", global_batch_size=8, up_to=100)


def test_ends_are_named_for_what_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["llama-3.2-1b", "--on", "8xa100-40gb", "--seq-len", "4k", "--tp", "8", "--pp", "1"]

    def said(*more: str) -> str:
        run(["max", *more])
        return capsys.readouterr().out

    asked = "the end of the range that was asked"
    assert "as far as is tried without --up-to (128M tokens a step)" in said("global_batch", *args)
    assert asked in said("global_batch", *args, "--up-to", "64")
    whole = said("microbatch_size", *args, "--global-batch", "4")
    assert "microbatch_size up to 4 sequences, the whole batch" in whole
    part = said("microbatch_size", *args, "--global-batch", "4", "--up-to", "2")
    assert asked in part
    assert "the whole batch" not in part

    path = tmp_path / "plan.yaml"
    assert run(["estimate", *args, "--global-batch", "8", "-o", str(path)]) == 0
    capsys.readouterr()
    few = said("n_layers", str(path), "--set", "cluster.usable_gib=4", "--recompute", "none")
    assert "no n_layers fits with this file's strategy (tp 8, pp 1, " in few
    assert "), recompute none" in few


def test_what_a_file_fixes_is_told_and_can_be_freed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    args = ["llama-3.1-8b", "--on", "1xh100", "--seq-len", "4k", "--global-batch", "8"]
    args += ["--finetune", "lora:16"]
    assert run(["estimate", *args, "--recompute", "none", "-o", str(path)]) == 0

    def said(*more: str) -> str:
        capsys.readouterr()
        run(["max", "seq_len", str(path), *more])
        return " ".join(capsys.readouterr().out.split())

    fixed = said()
    told = fixed.partition("nothing fits with this file's strategy (")[2].partition(")")[0]
    assert "recompute none" in told
    assert "(tried in steps of 1k)" in fixed
    assert "a flag frees what the file fixes: --recompute any" in fixed

    def length(text: str) -> int:
        return units.parse_length(text.partition("seq_len up to ")[2].split()[0])

    assert length(said("--recompute", "any")) > length(fixed)


@pytest.mark.parametrize("args", [["max"], ["max", "llama-3.2-1b", "--on", "8xh100"]])
def test_a_missing_quantity_lists_them_all(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in QUANTITIES)
    assert "meshwright max seq_len" in said
