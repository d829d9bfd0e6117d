"""Balancing experts: what each word holds, sends and takes, by hand and against the simulated pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright import api
from meshwright.cli.main import run as meshwright
from meshwright.cost import schedule
from meshwright.cost.balance import WORDS, counting_forwards, exchange_bytes, in_flight
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.files import request as requests
from meshwright.search.balance import balanced
from meshwright.search.derive import complete
from meshwright.simulate.exact import exact
from meshwright.strategy.records import Strategy

V3 = {"pp": 16, "ep": 64, "recompute": "full"}


def asked(microbatches: int, *, on: str = "2048xh800", **given: Any) -> tuple[Any, Any, Any, Strategy, Any]:
    """DeepSeek-V3 with so many microbatches of one sequence on every data-parallel rank."""
    ranks = 2048 // (given.get("pp", 1) * given.get("tp", 1) * given.get("cp", 1))
    read = requests.read("deepseek-v3", on, seq_len=4096, global_batch_size=microbatches * ranks, strategy={})
    request = (read.model, read.cluster.cluster, read.work)
    return *request, complete(*request, given, read.profile).strategy, read.profile


def activations(microbatches: int, **given: Any) -> tuple[float, Evaluation]:
    """Bytes of activations that the first stage holds, the working set apart, and the evaluation."""
    request = asked(microbatches, **given)
    found = exact(*request)
    return float(found.held_bytes[0]), evaluate(*request)


def test_an_exact_global_loss_holds_four_times_the_first_stage_of_1f1b() -> None:
    """p = 16, m = 64: 64 microbatches in place of 16."""
    plain, _ = activations(64, **V3)
    held, _ = activations(64, **V3, moe_balance="global")
    assert held / plain == pytest.approx(64 / 16)


def test_it_holds_2_7_times_the_first_stage_of_interleaved() -> None:
    """p = 16, m = 64, v = 2: m v / (p v + p - 1) = 128 / 47 in microbatches of the rank.

    The simulated rank comes close: its chunks differ, since the embedding stands in one of them.
    """
    given = V3 | {"schedule": "interleaved-1f1b", "vpp": 2}
    plain, held = (exact(*asked(64, **given, moe_balance=w)).in_flight[0] for w in ("bias", "global"))
    assert held == pytest.approx(64, rel=1e-9)
    assert held / plain == pytest.approx(128 / 47, rel=0.03)
    closed = schedule.load("interleaved-1f1b").in_flight(0, 16, 2, 64)
    assert in_flight("global", closed, 64) / closed == pytest.approx(128 / 47)


@pytest.mark.parametrize("given", [V3, {"pp": 1, "tp": 8, "ep": 256, "zero": 3, "recompute": "full"}])
def test_with_one_microbatch_it_costs_nothing_but_its_counts(given: dict[str, Any]) -> None:
    model, cluster, work, strategy, profile = asked(1, **given)
    plain = evaluate(model, cluster, work, strategy, profile)
    for word in ("global", "global-counted"):
        found = evaluate(model, cluster, work, replace(strategy, moe_balance=word), profile)
        assert found.peak_bytes == plain.peak_bytes
        assert found.time_s["compute"] == plain.time_s["compute"]
        # Ranks without experts do not wait for counts, so what others wait for them may be less.
        counts = found.time_s["ep"] - plain.time_s["ep"]
        assert 0 <= found.step_time_s - plain.step_time_s <= counts * 1.1
        slack = 1e-9 * plain.step_time_s if strategy.pp == 1 else counts
        assert abs(found.time_s["bubble"] - plain.time_s["bubble"]) <= slack
        assert 0 < found.step_time_s - plain.step_time_s < 2e-3


def test_without_a_pipeline_microbatches_are_held_too() -> None:
    given = {"pp": 1, "tp": 8, "ep": 256, "zero": 1, "recompute": "full"}
    plain, _ = activations(4, **given)
    held, _ = activations(4, **given, moe_balance="global")
    assert held / plain == pytest.approx(4)


def test_a_counting_forward_takes_every_forward_again_and_no_memory() -> None:
    model, cluster, work, strategy, profile = asked(64, **V3)
    plain = evaluate(model, cluster, work, strategy, profile)
    counted = replace(strategy, moe_balance="global-counted")
    found = evaluate(model, cluster, work, counted, profile)
    assert found.peak_bytes == plain.peak_bytes
    # With full recompute the plain step runs F + F + 2F, this one another F, but for the head's part.
    assert found.hardware_flops / plain.hardware_flops == pytest.approx(5 / 4, rel=0.02)
    forward = exact(model, cluster, work, strategy, profile).costs.took[0].max()
    assert found.time_s["compute"] - plain.time_s["compute"] == pytest.approx(64 * forward, rel=1e-6)
    assert exact(model, cluster, work, counted, profile).evaluation.step_time_s == pytest.approx(
        found.step_time_s, rel=0.02
    )


def test_counts_that_are_sent_by_hand() -> None:
    """58 layers of 256 experts on one stage, 4 bytes a count, 2 (N - 1) / N of it through an all-reduce."""
    every = 58 * 256 * 4
    assert exchange_bytes("bias", 58, 58 * 256, 1, 64, 128) == 2 * 127 / 128 * every
    assert exchange_bytes("global", 58, 58 * 256, 1, 64, 128) == 2 * 127 / 128 * every
    assert exchange_bytes("running", 58, 58 * 256, 1, 64, 128) == 64 * 2 * 127 / 128 * every
    assert exchange_bytes("sequence", 58, 58 * 256, 2, 64, 8) == 64 * 2 * 2 * 7 / 8 * every


def test_what_is_sent_lies_in_the_order_of_how_often() -> None:
    model, cluster, work, strategy, profile = asked(64, pp=16, ep=32, tp=2)
    sent = {
        word: evaluate(model, cluster, work, replace(strategy, moe_balance=word), profile).counts_sent_bytes
        for word in WORDS
    }
    assert sent["microbatch"] == 0
    assert sent["bias"] == sent["global"] == sent["global-counted"]
    assert sent["running"] == pytest.approx(64 * sent["bias"])
    assert 0 < sent["sequence"] < sent["running"]
    per_stage = 4 * 256 * 4  # 4 layers a stage
    assert sent["bias"] == pytest.approx(2 * per_stage, rel=0.3)


@pytest.mark.parametrize("word", WORDS)
def test_many_strategies_cost_what_each_costs(word: str) -> None:
    model, cluster, work, strategy, profile = asked(64, pp=16, ep=64)
    many = replace(
        strategy, dp=np.array([128, 64, 256]), pp=np.array([16, 32, 8]), zero_group=np.array([128, 64, 256]),
        ep=np.array([64, 32, 8]), moe_balance=word,
    )  # fmt: skip
    together = evaluate(model, cluster, work, many, profile)
    for i in range(3):
        alone = evaluate(model, cluster, work, many.at(i), profile)
        assert together.step_time_s[i] == pytest.approx(alone.step_time_s, rel=1e-12)
        assert together.peak_bytes[i] == pytest.approx(alone.peak_bytes, rel=1e-12)
        assert np.broadcast_to(together.counts_sent_bytes, 3)[i] == pytest.approx(alone.counts_sent_bytes)


@pytest.mark.parametrize("word", ["gpipe", "1f1b", "interleaved-1f1b", "zb-1p"])
def test_forwards_first_in_simulation(word: str) -> None:
    """No rank holds fewer than all microbatches, and the closed form of the step stands."""
    vpp = 2 if word == "interleaved-1f1b" else 1
    given = {"pp": 8, "ep": 64, "schedule": word, "vpp": vpp, "recompute": "full"}
    request = asked(32, **given, moe_balance="global")
    found = exact(*request)
    np.testing.assert_allclose(found.in_flight, 32)
    assert found.evaluation.step_time_s == pytest.approx(evaluate(*request).step_time_s, rel=0.04)


def test_words_broadcast_and_stay_numbers() -> None:
    np.testing.assert_array_equal(in_flight("global", np.array([4.0, 8.0]), np.array([64, 2])), [64, 8])
    np.testing.assert_array_equal(counting_forwards("global-counted", np.array([1, 2])), [0, 2])
    assert counting_forwards("bias", 64) == 0


@pytest.mark.parametrize("word", ["zb-v", "v-half", "v-min", "dualpipe", "dualpipev"])
def test_schedules_that_run_backwards_early_forbid_it(word: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(64, pp=16, ep=64, schedule=word, moe_balance="global")
    assert [d.code for d in caught.value.diagnostics] == ["MW118"]
    asked(64, pp=16, ep=64, schedule=word, moe_balance="bias")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"moe_balance": "bias"}, "leave --moe-balance out"),
        ({"options": ["capacity:1.25"]}, "leave capacity:1.25 out of --moe-balance or --options"),
        (
            {"moe_balance": "bias", "options": ["capacity:1.25"]},
            "leave --moe-balance out; leave capacity:1.25 out of --moe-balance or --options",
        ),
    ],
)
def test_a_model_without_experts_has_none_to_balance(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as caught:
        api.estimate("llama-3.1-8b", "8xh100", seq_len="4k", global_batch_size=8, **given)
    assert [(d.code, d.hint) for d in caught.value.diagnostics] == [("MW117", hint)]
    assert not balanced(*requested("llama-3.1-8b"))


def requested(model: str) -> tuple[Any, Any, Any, Strategy, Any]:
    read = requests.read(model, "8xh100", seq_len=4096, global_batch_size=8, strategy={})
    request = (read.model, read.cluster.cluster, read.work)
    return *request, complete(*request, {}, read.profile).strategy, read.profile


def test_the_command_shows_each_word(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["deepseek-v3", "--on", "2048xh800", "--seq-len", "4k", "--global-batch", "8192"]
    strategy = ["--pp", "16", "--ep", "64", "--recompute", "full"]
    assert meshwright(["estimate", *args, *strategy, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["strategy"]["moe_balance"] == "microbatch"
    ways = plan["moe_balance"]
    assert tuple(ways) == WORDS
    assert ways["microbatch"] == {"time_s": 0.0, "memory_gib": 0.0, "traffic_bytes": 0.0}
    assert ways["global"]["memory_gib"] > 1
    assert ways["global-counted"]["time_s"] > 100 * ways["bias"]["time_s"] > 0
    assert ways["global-counted"]["memory_gib"] == 0.0
    assert meshwright(["estimate", *args, *strategy, "--moe-balance", "bias+dropless", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["plan"]["strategy"]["moe_balance"] == "bias"
    assert "dropless" in shown["work"]["options"]
    assert meshwright(["estimate", *args, *strategy, "--moe-balance", "bias+capacity:1.25", "--json"]) == 0
    capped = json.loads(capsys.readouterr().out)
    assert capped["plan"]["strategy"]["moe_balance"] == "bias"
    assert "capacity:1.25" in capped["work"]["options"]
    assert capped["plan"]["step_time_s"] != shown["plan"]["step_time_s"]
    assert meshwright(["explain", *args, *strategy]) == 0
    assert "balancing experts" in capsys.readouterr().out
