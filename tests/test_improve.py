"""Neighbours of a strategy: one step away, worth what estimates say, explained by what moves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright import api
from meshwright.cli import output
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.report.terminal.improvement import print_improved
from meshwright.search.improve import TRADED, changed, spelled
from meshwright.search.shift import memory_shift, sentence, time_shift
from meshwright.strategy.records import Strategy
from meshwright.strategy.targets import load

ASKED: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "16xh100", "seq_len": "8k", "global_batch_size": 64,
    "tp": 4, "pp": 2, "recompute": "full",
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Any:
    return api.improve(**ASKED)


def test_neighbours_are_worth_what_estimates_say(found: Any) -> None:
    base = api.estimate(**ASKED, nearest=0)
    assert found.base.strategy == base.strategy
    for near in found.neighbours:
        s = near.strategy
        fields = {name: getattr(s, name) for name in Strategy.__dataclass_fields__}
        request = {k: v for k, v in ASKED.items() if k not in fields}
        again = api.estimate(**request, **fields, nearest=0)
        assert again.step_time_s == pytest.approx(float(near.evaluation.step_time_s), rel=1e-9)
        assert near.gain == pytest.approx(base.step_time_s / again.step_time_s - 1)
        assert near.fits is again.fits


def test_gains_say_of_what(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_improved(found, output.console(), shown=2)
    said = capsys.readouterr().out
    assert "gain: in tokens/s over the plan above" in said
    assert f"{found.best_gain:+.1%} tokens/s" in said


def test_each_is_one_step_away(found: Any) -> None:
    base = found.base.strategy
    for near in found.neighbours:
        names = set(near.changes) - {"sp"} if {"tp"} & set(near.changes) else set(near.changes)
        degrees = names & set(TRADED)
        assert len(degrees) in (0, 2), near.changes
        if degrees:
            ratios = [getattr(near.strategy, d) / getattr(base, d) for d in degrees]
            assert ratios[0] * ratios[1] == pytest.approx(1)
            assert max(ratios) <= 3
        others = names - set(TRADED)
        assert others <= {"vpp", "schedule"} or len(others) == 1, near.changes
    assert len({near.strategy for near in found.neighbours}) == len(found.neighbours)


def test_every_kind_of_step_is_there(found: Any) -> None:
    seen = {name for near in found.neighbours for name in near.changes}
    assert {*TRADED, "sp", "vpp", "schedule", "microbatch_size", "recompute", "zero", "offload"} <= seen
    assert "placement" in seen
    pairs = {frozenset(n.changes) for n in found.neighbours}
    assert frozenset({"tp", "pp"}) in pairs


def test_order_and_best(found: Any) -> None:
    fits = [near.fits for near in found.neighbours]
    assert fits == sorted(fits, reverse=True)
    gains = [near.gain for near in found.neighbours if near.fits]
    assert gains == sorted(gains, reverse=True)
    assert found.helpful[0].gain > 0.1  # recompute of everything where all fits without
    assert found.best_gain >= found.helpful[0].gain
    best = api.plan(**{k: ASKED[k] for k in ("model", "cluster", "seq_len", "global_batch_size")}, top=1).best
    assert best is not None
    assert found.best.step_time_s <= best.step_time_s * (1 + 1e-9)


def test_sentences_add_up(found: Any) -> None:
    first = found.base.evaluation
    for near in found.neighbours:
        moved = dict(time_shift(first, near.evaluation))
        gap = float(near.evaluation.step_time_s) - float(first.step_time_s)
        assert sum(moved.values()) == pytest.approx(gap, abs=6e-3 * float(first.step_time_s))
        held = float(near.evaluation.peak_bytes) - float(first.peak_bytes)
        bytes_moved = dict(memory_shift(first, near.evaluation))
        assert sum(bytes_moved.values()) == pytest.approx(held, abs=6e-3 * float(first.peak_bytes))
        word = "less" if gap < -1e-3 * float(first.step_time_s) else "more" if gap > 1e-3 else ""
        assert re.match(rf"The step takes .*{word}", near.why)
    dropped = next(n for n in found.neighbours if n.changes.get("recompute") == ("full", "none"))
    assert "recompute -" in dropped.why
    assert "activations +" in dropped.why
    assert sentence(first, first) == "The step takes as long; memory is as before."


def test_neighbours_that_fit_come_first_where_the_strategy_does_not() -> None:
    asked = ASKED | {"tp": 1, "pp": 1, "recompute": "none", "cluster": "8xh100", "microbatch_size": 2}
    answer = api.improve(**asked)
    assert not answer.base.fits
    assert answer.helpful
    assert all(near.fits for near in answer.helpful)
    assert answer.neighbours[: len(answer.helpful)] == answer.helpful


def test_experts_trade_their_degrees() -> None:
    answer = api.improve("mixtral-8x7b", "32xh100", seq_len="4k", global_batch_size=64, tp=2, ep=4)
    kinds = {frozenset(near.changes) for near in answer.neighbours}
    assert frozenset({"ep"}) in kinds
    assert frozenset({"ep", "etp"}) in kinds
    assert frozenset({"dispatcher"}) in kinds


def test_a_group_that_follows_the_replicas_is_no_change() -> None:
    base = Strategy(dp=8, zero=1, zero_group=8)
    assert changed(base, replace(base, dp=4, tp=2, zero_group=4)) == {"dp": (8, 4), "tp": (1, 2)}
    assert spelled(changed(base, replace(base, zero_group=4))) == "zero_group 8 -> 4"


def test_json_text_and_plan_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ["llama-3.1-8b", "--on", "16xh100", "--seq-len", "8k", "--global-batch", "64", "--tp", "4"]
    assert run(["improve", *args, "--recompute", "full", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "meshwright.improve/1"
    first = shown["neighbours"][0]
    assert first["gain_percent"] > 0
    assert first["changes"]["recompute"]["from"] == "full"
    assert shown["best"]["gain_percent"] >= first["gain_percent"]
    path = tmp_path / "best.yaml"
    assert run(["plan", *args[:-2], "-o", str(path), "--json"]) == 0
    capsys.readouterr()
    assert run(["improve", str(path), "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "neighbours" in text
    assert run(["improve", *args, "--tp", "3"]) == 2


def test_what_a_framework_cannot_be_told_stands_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """On TPUs a pipeline is all forwards, then all backwards, and remat policies are by name of a result."""
    asked: dict[str, Any] = {"seq_len": "8k", "global_batch_size": 64, "tp": 2, "pp": 2, "schedule": "gpipe"}
    answer = api.improve("llama-3.1-8b", "16xtpu-v7", recompute="full", **asked)
    assert answer.framework == "maxtext"
    assert all(near.strategy.schedule == "gpipe" for near in answer.neighbours if near.strategy.pp > 1)
    lacking = {word for near in answer.beyond for word in near.lacks}
    assert {"schedule zb-v", "schedule 1f1b", "recompute every:2"} <= lacking
    assert answer.json()["beyond"][0]["lacks"] == list(answer.beyond[0].lacks)
    print_improved(answer, output.console(), shown=2)
    assert "maxtext cannot be told of " in capsys.readouterr().out


def test_a_target_is_asked_of_the_strategy_of_its_neighbours_and_of_the_search() -> None:
    answer = api.improve(**ASKED, target="torchtitan")
    assert {word for near in answer.beyond for word in near.lacks} >= {"recompute selective:norm"}
    own = load("torchtitan")
    assert answer.best is not None
    assert not own.lacks(answer.best.strategy)
    known = own.lacks(answer.base.strategy)  # ZeRO-1 is the habit of the profile's framework
    assert known == ("zero 1",)
    assert all(set(own.lacks(near.strategy)) <= set(known) for near in answer.neighbours)
    with pytest.raises(InputError, match="torchtitan has no zero 1"):
        api.improve(**ASKED, zero=1, target="torchtitan")
    assert run(["improve", "llama-3.1-8b", "--on", "8xh100", "--target", "nothing"]) == 2


def test_a_neighbour_that_beats_the_search_is_told_as_a_neighbour(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A search tries microbatches of powers of two beyond 8."""
    asked: dict[str, Any] = {"seq_len": "1k", "global_batch_size": 144, "microbatch_size": 6, "zero": 3}
    answer = api.improve("llama-3.2-1b", "12xh100", recompute="none", **asked)
    assert answer.best is not None
    assert answer.best.strategy.microbatch_size == 12
    assert answer.search_s is not None
    assert answer.found_by == answer.json()["best"]["found_by"] == "neighbour"
    assert answer.search_s > answer.best.step_time_s
    print_improved(answer, output.console(), shown=2)
    assert "the best plan found (one step away; a whole search, " in capsys.readouterr().out
