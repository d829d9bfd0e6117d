"""Errors of sources that the fit did not see: shipped beside the errors of the runs it was fitted to."""

from __future__ import annotations

import io
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from meshwright import api
from meshwright.calibrate import rows, unseen
from meshwright.report.terminal import validation


def test_the_shipped_figures_are_of_every_source_once() -> None:
    found = dict(unseen.unseen())
    every = found.pop(unseen.ALL)
    assert sum(one.n_runs for one in found.values()) == every.n_runs
    assert every.median_abs_error_percent < every.p90_abs_error_percent
    timed = [r for r in rows.shipped("training") if r.framework == "paxml" and not r.suspect]
    assert {r.source_key for r in timed} <= {"arXiv", *found}


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"a": [1.0, 2.0, 9.0], "b": [4.0]}
    unseen.write(tmp_path / "left_out.csv", errors, "2026-01-02")
    monkeypatch.setattr(unseen, "files", lambda _: tmp_path)
    found = unseen.unseen.__wrapped__()
    assert found["a"].n_runs == 3
    assert found["a"].median_abs_error_percent == 2.0
    assert found[unseen.ALL].median_abs_error_percent == statistics.median([1, 2, 9, 4])
    assert found["b"].date == "2026-01-02"


def test_validation_says_that_the_numbers_were_fitted_to_its_runs(tmp_path: Path) -> None:
    """Of the shipped table; a table of one's own was not seen, whatever it holds."""
    found = api.validate(framework="paxml")
    every = unseen.unseen()[unseen.ALL]
    shown = found.json()["left_out"]
    assert shown["median_abs_error_percent"] == every.median_abs_error_percent
    assert set(shown["by_source"]) == set(unseen.unseen()) - {unseen.ALL}
    console = Console(file=io.StringIO(), width=200)
    validation.print_validation(found, console, rows=False)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "were fitted to" in said
    assert f"{every.median_abs_error_percent} %" in said
    labels = [*found.json()["fit_verdict"], *found.json()["ranking"], "bias", "90 % below", "in interval"]
    legend = said[said.index("what the words mean") :]
    assert all(label in legend for label in labels)
    own = tmp_path / "own.csv"
    own.write_text(
        "id,model,chip,n_chips,seq_len,global_batch_size,framework,dp,step_time_s,source\n"
        "mine,llama-3.1-8b,h100,8,8192,64,torchtitan,8,20,me\n"
    )
    assert api.validate(own).json()["left_out"] is None
