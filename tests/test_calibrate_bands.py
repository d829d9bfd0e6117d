"""Intervals around estimates: quantiles of measured errors, the narrowest group that says enough."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import meshwright
from meshwright.calibrate import bands
from meshwright.calibrate.bands import (
    ANY,
    EXPERTS,
    INSIDE,
    MEMORY,
    NO_EXPERTS,
    TIME,
    TUNED,
    WHOLE,
    Residual,
    asked,
    held,
    interval,
    measured,
    peak_interval,
    share_that_holds,
    without_source,
    write,
)
from meshwright.calibrate.coverage import (
    ADAPTERS,
    COVERED,
    LONGEST,
    ONE,
    QUANTISED,
    SEVERAL,
    SHORT,
    Kind,
    kind_of,
)
from meshwright.cli.main import run
from meshwright.hardware import chips
from meshwright.hardware.records import Chip
from meshwright.model import presets
from meshwright.model.records import Model


def spread(group: tuple[str, str], n: int, width: float, sources: int = 4) -> list[Residual]:
    """n runs whose errors are spread evenly from -width to width."""
    return [Residual(group, str(i % sources), width * (2 * i / (n - 1) - 1), str(i)) for i in range(n)]


def test_a_band_holds_its_share_of_the_runs() -> None:
    runs = spread(("f", "dense"), 101, 0.3)
    found = measured(runs)["f", "dense"]
    assert (found.n_runs, found.n_sources) == (101, 4)
    inside = sum(found.low <= math.exp(-one.value) <= found.high for one in runs)
    assert inside / len(runs) == pytest.approx(INSIDE, abs=0.02)
    assert found.low == pytest.approx(math.exp(-0.8 * 0.3), rel=0.01)


def test_an_estimate_lies_in_its_interval() -> None:
    """Where a group is off to one side the interval reaches from the estimate to there."""
    slow = [Residual(("f", "dense"), str(i % 4), -0.5 - 0.001 * i, str(i)) for i in range(40)]
    found = measured(slow)["f", "dense"]
    assert found.low == 1.0
    assert found.high == pytest.approx(math.exp(0.535), rel=0.01)


def test_a_source_weighs_as_the_root_of_its_runs() -> None:
    """400 runs of one source and 25 of each of four weigh as 20 and four times 5."""
    group = ("f", "dense")
    one = [Residual(group, "large", 0.0, str(i)) for i in range(400)]
    four = [Residual(group, str(s), 1.0, str(i)) for s in range(4) for i in range(25)]
    assert measured(one + four)[group].low == pytest.approx(math.exp(-1.0))
    assert measured(one + [Residual(group, str(s), 1.0) for s in range(2)])[group].low > 0.99


def test_a_run_predicted_several_times_is_one_run() -> None:
    """It weighs as before, and says as much of a group as one run does."""
    group = ("f", "dense")
    once = spread(group, 60, 0.3)
    again = once + 4 * [one for one in once if one.source == "0"]
    found, more = measured(once)[group], measured(again)[group]
    assert (more.n_runs, more.n_predictions, more.n_sources) == (60, 120, 4)
    assert (more.low, more.high) == pytest.approx((found.low, found.high), rel=0.02)
    assert group not in measured(10 * spread(group, 9, 0.1))


def test_groups_that_say_too_little_are_not_written() -> None:
    found = measured(
        [
            *spread(("f", "dense"), 60, 0.1),
            *spread(("f", "moe"), 5, 0.5),
            *spread(("f", "mla"), 60, 0.2, sources=2),
        ]
    )
    assert ("f", "dense") in found
    assert ("f", "moe") not in found
    assert ("f", "mla") not in found
    assert {(ANY, ANY), ("f", ANY)} <= set(found)


def test_less_that_is_seen_is_never_more_certain() -> None:
    residuals = [*spread((COVERED, EXPERTS), 60, 0.3), *spread((ONE, EXPERTS), 60, 0.1)]
    table = {group: (m.low, m.high) for group, m in measured(residuals).items()}
    assert table[ONE, EXPERTS][0] > table[COVERED, EXPERTS][0]
    assert asked(table, (ONE, EXPERTS)) == asked(table, (SEVERAL, EXPERTS)) == table[COVERED, EXPERTS]


def test_a_source_is_held_against_the_others() -> None:
    """One that is off by far lies outside of what the others make, whatever it does to their interval."""
    far = [Residual((COVERED, NO_EXPERTS), "far", 0.9, str(i)) for i in range(30)]
    every = [*spread((COVERED, NO_EXPERTS), 60, 0.1), *far]
    inside = without_source(every, every)
    assert len(inside) == 90
    assert sum(inside[:60]) > 40
    assert not any(inside[60:])
    runs, sources = held(every, inside)
    assert runs == sum(inside) / 90
    assert sources == pytest.approx(sum(sum(inside[i:60:4]) / 15 for i in range(4)) / 5)


def test_intervals_reach_as_far_as_a_new_source_asks() -> None:
    """Sources that are each off to one side: eight tenths of the others hold less of a new one."""
    group = (COVERED, NO_EXPERTS)
    runs = [Residual(group, str(s), 0.05 * s + 0.002 * i, str(i)) for s in range(-6, 7) for i in range(9)]
    assert min(held(runs, without_source(runs, runs))) < INSIDE
    share = share_that_holds(runs, runs)
    assert share > INSIDE
    assert min(held(runs, without_source(runs, runs, share))) >= INSIDE
    assert min(held(runs, without_source(runs, runs, share - 0.01))) < INSIDE


def test_the_file_round_trips(tmp_path: Path) -> None:
    write(tmp_path / MEMORY, measured(spread(("f", "dense", "short"), 40, 0.1)), "2026-01-01")
    lines = (tmp_path / MEMORY).read_text().splitlines()
    assert lines[0] == ",".join((*bands.GROUPS[MEMORY], *bands.FIGURES))
    assert all(line.endswith(",2026-01-01") for line in lines[1:])


def test_every_estimate_has_an_interval_around_it() -> None:
    assert (ANY, ANY) in bands.bands(TIME)
    for low, high in bands.bands(TIME).values():
        assert 0.3 < low <= 1.0 <= high < 3.0
    one = meshwright.estimate("llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size=64, nearest=0)
    assert one.interval_s is not None
    assert one.interval_s[0] <= one.step_time_s <= one.interval_s[1]
    plan = one.json()["plan"]
    assert plan["step_time_interval_s"] == list(one.interval_s)
    assert plan["step_time_interval_because"] == ""


def test_what_no_run_covers_is_less_certain_and_says_why() -> None:
    model, experts = presets.load("llama-3.1-8b"), presets.load("qwen3-235b-a22b")
    h100, l40s = chips.load("h100"), chips.load("l40s")

    def width(found: bands.Interval) -> float:
        return found.ends[1] / found.ends[0]

    def of(chip: Chip, program: str, model: Model, length: int = 8192, tunes: str = "none") -> bands.Interval:
        return interval(chip, kind_of(chip, program, model, length, tunes), 2.0)

    seen = of(h100, "megatron-core", model)
    assert seen.because == ""
    for chip, program, said in (
        (l40s, "megatron-core", "no measured run on L40S"),
        (h100, "levanter", "no measured run with levanter"),
        (l40s, "levanter", "no measured run on L40S, none with levanter"),
        (h100, "maxtext", "no measured run on H100-SXM with maxtext"),
    ):
        found = of(chip, program, model)
        assert found.because == said
        assert width(found) > width(seen)
    far, near = (of(c, "megatron-core", experts) for c in (l40s, h100))
    assert width(far) > width(near)
    assert width(of(l40s, "levanter", experts)) > width(far)
    assert of(l40s, "nobody's", model).ends == of(l40s, "another's", model).ends


def test_lengths_and_adapters_that_no_run_has_are_less_certain() -> None:
    """And a job with what one field alone is unseen of is as sure as any such."""
    model, h100, tpu = presets.load("llama-3.1-8b"), chips.load("h100"), chips.load("tpu-v6e")

    def of(chip: Chip, program: str, length: int, tunes: str) -> bands.Interval:
        return interval(chip, kind_of(chip, program, model, length, tunes), 1.0)

    def width(found: bands.Interval) -> float:
        return found.ends[1] / found.ends[0]

    seen = of(h100, "megatron-core", 8192, "none")
    for chip, program, length, tunes, said in (
        (h100, "megatron-core", 2**20, "none", "of over 64k tokens a sequence on H100-SXM"),
        (tpu, "maxtext", 2**17, "none", "of over 64k tokens a sequence on TPU-v6e"),
        (h100, "megatron-core", 8192, "qlora:16", f"that trains {QUANTISED} with megatron-core"),
        (h100, "torchtitan", 8192, "lora:16", f"that trains {ADAPTERS} with torchtitan"),
    ):
        found = of(chip, program, length, tunes)
        assert found.because == f"no measured run {said}"
        assert width(found) > width(seen)
    both = of(h100, "megatron-core", 2**20, "qlora:16")
    assert both.because.count("none") == 1
    assert width(both) >= width(found)


def test_peaks_of_what_was_measured_less_are_less_certain() -> None:
    kind = Kind("h100", "megatron-core", "dense")
    usual = peak_interval(kind, 1.0)
    for other in ({"framework": "trl"}, {"length": LONGEST}, {"trains": QUANTISED}, {"architecture": "moe"}):
        wider = peak_interval(kind._replace(**other), 1.0)
        assert wider[0] <= usual[0]
        assert wider[1] / wider[0] > usual[1] / usual[0]
    assert bands.of_peak(Kind("h100", "megatron-core", "moe")) == (WHOLE, EXPERTS, SHORT)
    assert bands.of_peak(Kind("h100", "trl", "moe"))[0] == TUNED


def test_verbs_say_why_an_interval_is_wide(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--on", "8xl40s", "--seq-len", "4096", "--global-batch", "64"]
    said = "no measured run on L40S"
    assert run(["estimate", "llama-3.2-1b", *args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["step_time_interval_because"] == said
    for verb in (["estimate"], ["compare", "--vary", "tp=1,2"], ["explain", "--plain"]):
        run([verb[0], "llama-3.2-1b", *args, *verb[1:]])
        assert f"with {said}" in " ".join(capsys.readouterr().out.split())


def test_every_estimate_has_an_interval_around_its_peak() -> None:
    for low, high in bands.bands(MEMORY).values():
        assert 0.3 < low <= 1.0 <= high < 2.5
    one = meshwright.estimate("llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size=64, nearest=0)
    assert one.interval_bytes is not None
    low, high = one.interval_bytes
    assert low <= float(one.evaluation.peak_bytes) <= high
    kind = kind_of(one.cluster.chip, "megatron-core", one.model, 4096, "none")
    assert one.interval_bytes == peak_interval(kind, float(one.evaluation.peak_bytes))
    assert one.json()["plan"]["memory"]["peak_interval_gib"] == [low / 2**30, high / 2**30]
