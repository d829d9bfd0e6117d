"""Intervals around estimates: quantiles of measured errors, the narrowest group that says enough."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import meshwright
from meshwright.calibrate import bands
from meshwright.calibrate.bands import ANY, INSIDE, Residual, interval, measured_bands, write
from meshwright.model import presets


def spread(kind: str, n: int, width: float, sources: int = 4) -> list[Residual]:
    """n runs whose errors are spread evenly from -width to width."""
    return [("f", kind, str(i % sources), width * (2 * i / (n - 1) - 1)) for i in range(n)]


def test_a_band_holds_its_share_of_the_runs() -> None:
    runs = spread("dense", 101, 0.3)
    low, high, n, sources = measured_bands(runs)["f", "dense"]
    assert (n, sources) == (101, 4)
    inside = sum(low <= math.exp(-residual) <= high for *_, residual in runs)
    assert inside / len(runs) == pytest.approx(INSIDE, abs=0.02)
    assert low == pytest.approx(math.exp(-0.8 * 0.3))


def test_an_estimate_lies_in_its_interval() -> None:
    """Where a group is off to one side the interval reaches from the estimate to there."""
    slow = [("f", "dense", str(i % 4), -0.5 - 0.001 * i) for i in range(40)]
    low, high, *_ = measured_bands(slow)["f", "dense"]
    assert low == 1.0
    assert high == pytest.approx(math.exp(0.535), rel=0.01)


def test_groups_that_say_too_little_are_not_written() -> None:
    found = measured_bands(
        [*spread("dense", 60, 0.1), *spread("moe", 5, 0.5), *spread("mla", 60, 0.2, sources=2)]
    )
    assert ("f", "dense") in found
    assert ("f", "moe") not in found
    assert ("f", "mla") not in found
    assert {(ANY, ANY), ("f", ANY)} <= set(found)


def test_the_file_round_trips(tmp_path: Path) -> None:
    write(tmp_path / "bands.csv", spread("dense", 40, 0.1), "2026-01-01")
    lines = (tmp_path / "bands.csv").read_text().splitlines()
    assert lines[0] == ",".join(bands.COLUMNS)
    assert all(line.endswith(",2026-01-01") for line in lines[1:])


def test_every_estimate_has_an_interval_around_it() -> None:
    assert (ANY, ANY) in bands.bands()
    for low, high in bands.bands().values():
        assert 0.3 < low <= 1.0 <= high < 3.0
    model = presets.load("llama-3.1-8b")
    found = interval("megatron-core", model, 2.0)
    assert found is not None
    assert found == interval("megatron-core", model, 2.0)
    one = meshwright.estimate("llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size=64, nearest=0)
    assert one.interval_s is not None
    assert one.interval_s[0] <= one.step_time_s <= one.interval_s[1]
    assert one.json()["plan"]["step_time_interval_s"] == list(one.interval_s)
    assert interval("nobody's", model, 1.0) == interval("another's", model, 1.0)


def test_every_estimate_has_an_interval_around_its_peak() -> None:
    for low, high in bands.bands(bands.MEMORY).values():
        assert 0.5 < low <= 1.0 <= high < 1.5
    one = meshwright.estimate("llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size=64, nearest=0)
    assert one.interval_bytes is not None
    low, high = one.interval_bytes
    assert low <= float(one.evaluation.peak_bytes) <= high
    assert one.json()["plan"]["memory"]["peak_interval_gib"] == [low / 2**30, high / 2**30]
