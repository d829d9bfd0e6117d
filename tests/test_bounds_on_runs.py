"""Every shipped training run that can be evaluated: the predicted step obeys the physics of its machine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from meshwright.calibrate.cases import Case, case
from meshwright.calibrate.predict import Prediction, predict
from meshwright.calibrate.rows import Run, Shipped, shipped
from meshwright.cost.flops import model_flops
from meshwright.errors import InputError

TABLES: tuple[Shipped, ...] = ("training", "training-small-one-node")


@cache
def predicted(table: Shipped) -> tuple[tuple[Run, Case, Prediction], ...]:
    """Each run of the table that is a case and legal, with what the cost model says of it."""
    found = []
    for run in shipped(table):
        one = case(run)
        if isinstance(one, Case):
            try:
                found.append((run, one, predict(one)))
            except InputError:
                continue
    return tuple(found)


@pytest.mark.parametrize(("table", "least"), [("training", 850), ("training-small-one-node", 650)])
def test_most_runs_are_evaluated(table: Shipped, least: int) -> None:
    """The bounds below are worth what they cover: at most a fifth of a table may fall out."""
    assert len(predicted(table)) >= least


@pytest.mark.parametrize("table", TABLES)
def test_no_step_beats_its_hardware_flops_at_peak(table: Shipped) -> None:
    """Seconds >= all FLOPs that are really done / (chips x dense peak of the run's precision)."""
    faults = []
    for run, one, found in predicted(table):
        at_peak = found.hardware_flops / (
            one.cluster.n_chips * one.cluster.chip.peak_flops(one.work.precision)
        )
        if not found.step_time_s >= at_peak:
            faults.append((run.id, found.step_time_s, at_peak))
    assert not faults


@pytest.mark.parametrize("table", TABLES)
def test_no_step_beats_its_model_flops_at_peak(table: Shipped) -> None:
    """A utilisation above 1 is impossible in the model's own count, causal attention halved."""
    faults = []
    for run, one, found in predicted(table):
        finetune = found.strategy.finetune if found.strategy else "none"
        flops = model_flops(one.model, one.work.attended_len, finetune) * one.work.tokens_per_step
        assert found.model_flops == pytest.approx(flops, rel=1e-12)
        mfu = flops / (
            found.step_time_s * one.cluster.n_chips * one.cluster.chip.peak_flops(one.work.precision)
        )
        if not 0 < mfu <= 1:
            faults.append((run.id, mfu))
    assert not faults


@pytest.mark.parametrize("table", TABLES)
def test_hardware_flops_are_between_model_flops_and_twice_them(table: Shipped) -> None:
    """Recompute adds a third at most; flash attention's fifth product, replicated key/value heads, whole
    squares of unfused attention, the imbalance of dropless experts and scans the rest.
    """
    faults = [
        (run.id, found.hardware_flops / found.model_flops)
        for run, _, found in predicted(table)
        if not 0.97 <= found.hardware_flops / found.model_flops <= 2.2
    ]
    assert not faults


@pytest.mark.parametrize("table", TABLES)
def test_no_step_moves_state_faster_than_memory_can(table: Shipped) -> None:
    """The optimizer reads its shard once a step: its bytes through HBM at full bandwidth."""
    faults = []
    for run, one, found in predicted(table):
        if not found.step_time_s >= found.memory_bytes["optimizer"] / one.cluster.chip.hbm_bytes_s:
            faults.append(run.id)
    assert not faults


@pytest.mark.parametrize("table", TABLES)
def test_predictions_are_whole(table: Shipped) -> None:
    """Parts sum to the step, nothing is negative or not a number, and the peak holds at least the context."""
    for run, _, found in predicted(table):
        assert found.time_s is not None
        assert sum(found.time_s.values()) == pytest.approx(found.step_time_s, rel=1e-9), run.id
        parts = np.array([*found.time_s.values(), *found.memory_bytes.values()])
        assert np.all(np.isfinite(parts)), run.id
        assert np.all(parts >= 0), run.id
        assert found.peak_bytes > found.memory_bytes["framework"] > 0, run.id


def test_measured_steps_obey_the_same_bound() -> None:
    """The tables too: no run that is not marked suspect is faster than its model FLOPs at peak.

    Rows whose FLOPs were never done as stated (a suspect cell) are marked in the table, so each row found
    here is a fault of the table or of the FLOP count.
    """
    faults = []
    for run, one, found in predicted("training"):
        if run.suspect or not run.step_time_s:
            continue
        at_peak = found.model_flops / (one.cluster.n_chips * one.cluster.chip.peak_flops(one.work.precision))
        if run.step_time_s < at_peak:
            faults.append((run.id, run.step_time_s, at_peak))
    assert not faults
