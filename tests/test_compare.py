"""Comparisons: terms add up on both sides, differences are what estimates say, sentences cite their terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright import units
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.files import fields
from meshwright.report.comparison import PER_TOKEN, Comparison, Row

WORK: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 256}
ARGS = ["--on", "64xh100", "--seq-len", "8k", "--global-batch", "256"]


@pytest.fixture(scope="module")
def pipelined() -> Comparison:
    """The 70B model with and without a pipeline."""
    return meshwright.compare(
        {"pp": 1, "zero": 3},
        {"pp": 4},
        model="llama-3.1-70b",
        cluster="64xh100",
        tp=8,
        recompute="full",
        **WORK,
    )


def parts(rows: tuple[Row, ...]) -> list[Row]:
    return [row for row in rows if row.term.count(".") == 2]


def test_parts_sum_to_the_whole_on_both_sides(pipelined: Comparison) -> None:
    for rows in (pipelined.time, pipelined.memory):
        for i in range(2):
            assert sum(row.values[i] for row in parts(rows)) == pytest.approx(rows[0].values[i])
            assert sum(row.differences[i] for row in parts(rows)) == pytest.approx(rows[0].differences[i])


def test_values_are_those_of_the_estimates(pipelined: Comparison) -> None:
    for i, side in enumerate(pipelined.sides):
        assert pipelined.time[0].values[i] == pytest.approx(side.step_time_s)
        by_name = {row.term: row.values[i] for row in pipelined.time}
        for name, seconds in side.evaluation.time_s.items():
            assert by_name[f"step.time.{name}"] == pytest.approx(seconds)


def test_largest_difference_first(pipelined: Comparison) -> None:
    for rows in (pipelined.time, pipelined.memory):
        sizes = [row.largest for row in parts(rows)]
        assert sizes == sorted(sizes, reverse=True)


def test_what_differs_is_what_was_asked_and_what_follows(pipelined: Comparison) -> None:
    assert pipelined.differs["strategy.pp"] == (1, 4)
    assert pipelined.differs["strategy.dp"] == (8, 2)
    assert "strategy.tp" not in pipelined.differs
    assert not [name for name in pipelined.differs if name.startswith(("model.", "cluster.", "work."))]


def test_sentences_cite_the_terms_that_moved(pipelined: Comparison) -> None:
    asked, time, memory = pipelined.sentences
    assert asked.values["strategy.pp.B"] == 4
    assert time.terms[0] == parts(pipelined.time)[0].term
    assert memory.terms[0] == parts(pipelined.memory)[0].term
    for said in (time, memory):
        for term in said.terms:
            row = next(r for r in (*pipelined.time, *pipelined.memory) if r.term == term)
            assert (said.values[f"{term}.A"], said.values[f"{term}.B"]) == row.values


def test_a_slower_network_moves_the_term_that_uses_it() -> None:
    found = meshwright.compare(
        {}, {"cluster.scale_out_gbits_s": 25}, model="llama-3.1-8b", cluster="64xh100", tp=2, **WORK
    )
    assert found.differs == {"cluster.scale_out_gbits_s": (400.0, 25.0)}
    assert found.sentences[1].terms[0] == "step.time.dp"
    assert found.time[0].differences[1] > 0
    assert all(row.differences[1] == 0 for row in found.memory)


def test_the_same_twice_differs_in_nothing() -> None:
    found = meshwright.compare(
        "llama-3.1-8b", "llama-3.1-8b", cluster="8xh100", tp=2, recompute="full", **WORK
    )
    assert found.differs == {}
    assert not any(row.largest for row in (*found.time, *found.memory))
    assert "nothing" in found.sentences[0].text


def test_steps_of_other_sizes_are_compared_per_token() -> None:
    found = meshwright.compare({}, {"n_chips": 128}, model="llama-3.1-8b", cluster="64xh100", tp=2, **WORK)
    assert found.time_unit == PER_TOKEN
    for i, side in enumerate(found.sides):
        assert found.time[0].values[i] == pytest.approx(1e6 / side.tokens_per_s_per_chip)


def test_estimates_and_plan_files_are_sides(tmp_path: Path, pipelined: Comparison) -> None:
    from meshwright import api

    path = tmp_path / "a.yaml"
    api.save(pipelined.sides[0], path)
    found = meshwright.compare(str(path), pipelined.sides[1])
    for again, row in zip(found.time, pipelined.time):
        assert again.values == pytest.approx(row.values)


def test_search_finds_no_slower_side() -> None:
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "16xh100", **WORK}
    derived = meshwright.compare({"tp": 2}, {"tp": 4}, recompute="full", **asked)
    searched = meshwright.compare({"tp": 2}, {"tp": 4}, search=True, **asked)
    for before, after in zip(derived.sides, searched.sides):
        assert after.strategy.tp == before.strategy.tp
        assert after.step_time_s <= before.step_time_s


def test_faults_of_all_sides_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        meshwright.compare({"tp": 3}, {"pp": 7}, model="llama-3.1-8b", cluster="64xh100", **WORK)
    text = str(caught.value)
    assert "tp 3" in text
    assert "pp 7" in text
    with pytest.raises(InputError, match="1 side"):
        meshwright.compare("llama-3.1-8b", cluster="64xh100", **WORK)


def test_fields_have_one_name() -> None:
    assert fields.canonical("--global-batch") == fields.canonical("global_batch_size")
    asked = fields.changed({"tokens_per_step": 1}, "global_batch", "512")
    assert asked == {"global_batch_size": "512"}
    asked = fields.settled({"cluster": "8xh100"}, {"n_chips": 16, "on": "4xb200"})
    assert asked["cluster"] == "16xb200"
    asked = fields.changed({"overrides": {"usable_gib": 70.0}}, "cluster.scale_out_gbits_s", "50GB/s")
    assert asked["overrides"] == {"usable_gib": 70.0, "scale_out_gbits_s": pytest.approx(400.0)}
    with pytest.raises(InputError, match="no field"):
        fields.settled({}, {"ppp": 1})


def test_intervals_and_cost_stand_beside_what_they_belong_to(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compare", "llama-3.1-8b", *ARGS, "--vary", "tp=1,2", "--total-tokens", "1T"]
    assert run([*args, "--price-per-chip-hour", "2"]) == 0
    shown = capsys.readouterr().out
    found = meshwright.compare(
        {"tp": 1}, {"tp": 2}, model="llama-3.1-8b", cluster="64xh100", total_tokens="1T",
        price_per_chip_hour=2.0, **WORK,
    )  # fmt: skip
    for side in found.sides:
        assert side.interval_s is not None
        assert side.interval_bytes is not None
        assert side.run is not None
        assert side.run.cost_usd is not None
        low, high = side.interval_s
        assert f"{units.seconds_text(low)} to {units.seconds_text(high)}" in shown
        assert " to ".join(units.bytes_text(end) for end in side.interval_bytes) in shown
        cost = side.run.cost_usd
        ends = (units.money_text(cost * end / side.step_time_s) for end in (low, high))
        assert f"{units.money_text(cost)} ({' to '.join(ends)})" in shown
    assert "cost at $2.00 a chip-hour" in shown
    assert run(args) == 0
    assert "cost" not in capsys.readouterr().out


def test_shares_of_different_peaks_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "llama-3.1-8b", *ARGS, "--vary", "precision=bf16,fp8"]) == 0
    shown = capsys.readouterr().out
    assert "989 TFLOP/s bf16" in shown
    assert "1.98 PFLOP/s fp8" in shown
    assert "shares of different peaks" in shown
    assert run(["compare", "llama-3.1-8b", *ARGS, "--vary", "tp=1,2"]) == 0
    assert "peaks" not in capsys.readouterr().out


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compare", "llama-3.1-8b", *ARGS, "--vary", "pp=1,2", "--case", "tp=2", "--case", "tp=4"]
    assert run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "meshwright.compare/1"
    degrees = [(s["plan"]["strategy"]["tp"], s["plan"]["strategy"]["pp"]) for s in found["sides"]]
    assert degrees == [(2, 1), (2, 2), (4, 1), (4, 2)]
    assert [s["name"] for s in found["sides"]] == ["A", "B", "C", "D"]
    assert len(found["time"][0]["differences"]) == 4
    assert len(found["sentences"]) == 9
    assert run(args) == 0
    said = capsys.readouterr().out
    assert [
        w
        for w in (
            "B differs from A in dp 16 (A: 32), pp 2 (A: 1)",
            "B - A",
            "bubble",
            "memory of the fullest",
        )
        if w not in said
    ] == []


@pytest.mark.parametrize("odd", [["--vary", "pp"], ["--case", "tp"], ["--vary", "nothing=1,2"], []])
def test_odd_requests_are_told(odd: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "llama-3.1-8b", *ARGS, *odd]) == 2
    assert "MW910" in capsys.readouterr().err


def test_long_lists_of_layers_are_short_in_tables_and_whole_in_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from meshwright.cli.main import run

    layers = ["+".join(map(str, some)) for some in ([8] * 15 + [6], [7, *[8] * 14, 7])]
    args = ["compare", "llama-3.1-405b", "--on", "1024xh100", "--seq-len", "8k", "--global-batch", "256",
            "--tp", "8", "--pp", "16", "--vary", f"layers_per_stage={','.join(layers)}"]  # fmt: skip
    assert run(args) == 0
    table = capsys.readouterr().out.partition("asked or derived differently")[2]
    assert "8 x15, 6" in table
    assert "7, 8 x14, 7" in table
    assert max(map(len, table.splitlines())) < 140
    assert run([*args, "--json"]) == 0
    assert [8] * 15 + [6] in json.loads(capsys.readouterr().out)["differs"]["strategy.layers_per_stage"]


def test_stages_of_many_sizes_stay_short() -> None:
    from meshwright.report.terminal.comparison import _word

    assert _word([8, 7, 8, 7, 7, 8, 7, 0]) == "8, 7, 8, ..., 0 (8 in all)"
    assert _word([14, 14, 15, 9]) == "14,14,15,9"
