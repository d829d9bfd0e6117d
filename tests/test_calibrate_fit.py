"""The fit: synthetic runs whose numbers are known, no runs, and one run that is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshwright.calibrate.fit import (
    SPREAD,
    Key,
    Observation,
    at_shipped,
    fit,
    log_step,
    observations,
    prior_profile,
    problem,
    solve,
    spread_of,
)
from meshwright.calibrate.predict import predict
from meshwright.calibrate.rows import shipped
from meshwright.errors import InputError
from meshwright.profiles import load as profiles

FOUNDRY = "llm-foundry@2023"


@cache
def foundry() -> tuple[Observation, ...]:
    """Forty runs of one framework on two chips."""
    runs = [r for r in shipped("training") if r.framework == "llm-foundry"]
    return tuple(observations(runs)[::4][:40])


def synthetic(
    found: tuple[Observation, ...], truth: dict[Key, float], noise: float = 0.0
) -> list[Observation]:
    """The runs with the step times that the model gives under `truth` (log factors), and log-normal noise."""
    rng = np.random.default_rng(3)
    task = problem(list(found))
    made = []
    for one, keys, prior in zip(found, task.keys, task.priors):
        value, _ = log_step(one, truth, keys, prior)
        made.append(replace(one, seconds=math.exp(value + noise * rng.standard_normal())))
    return made


def fitted_log(numbers: dict[str, object], one: Observation, kind: str) -> float:
    """log of how far the fit moved a composed number of the run's profile from its prior."""
    composed = profiles.compose(one.profile.framework, one.case.cluster.chip, numbers)[kind].value
    return math.log(composed / prior_profile(one)[kind])


def test_unchanged_numbers_stay_where_they_are() -> None:
    found = fit(synthetic(foundry(), {}))
    for table in ("fitted_base", "chip", "framework", "pair"):
        rows = [found.numbers[table]] if table == "fitted_base" else found.numbers[table].values()
        for row in rows:
            for kind, number in row.items():
                assert number["value"] == pytest.approx(1.0, abs=2e-3), (table, kind)
    assert max(abs(r) for _, _, r in found.residuals) < 1e-3


@pytest.mark.parametrize("change", [-0.15, 0.10])
def test_a_slower_or_faster_framework_is_recovered(change: float) -> None:
    """Products 14 % slower (or 10 % faster) than their prior: direction and size come back, a little shrunk.

    Forty runs at 6 % noise against a spread of 10 to 12 % of each factor: at least two thirds of the change.
    """
    truth: dict[Key, float] = {("framework", FOUNDRY, "matrix"): change}
    found = fit(synthetic(foundry(), truth))
    for one in (foundry()[0], foundry()[-1]):
        moved = fitted_log(found.numbers, one, "matrix")
        assert 0.66 * abs(change) < abs(moved) < 1.1 * abs(change)
        assert moved * change > 0
    assert np.median([abs(r) for _, _, r in found.residuals]) < 0.02


def test_noise_does_not_hide_the_change() -> None:
    truth: dict[Key, float] = {("framework", FOUNDRY, "matrix"): -0.15}
    found = fit(synthetic(foundry(), truth, noise=0.05))
    assert -0.22 < fitted_log(found.numbers, foundry()[0], "matrix") < -0.06


def test_a_chip_and_its_framework_are_told_apart_by_other_frameworks() -> None:
    """One chip slower for both of two frameworks: the chip's factor moves, not only the frameworks'."""
    runs = [
        r
        for r in shipped("training")
        if r.framework in ("llm-foundry", "megatron-core") and "H100" in (r.chip or "")
    ]
    found = tuple(observations(runs)[::5][:30])
    assert len({one.generation for one in found}) >= 2
    truth: dict[Key, float] = {("chip", "h100", "matrix"): -0.12}
    numbers = fit(synthetic(found, truth)).numbers
    chip = math.log(numbers["chip"]["h100"]["matrix"]["value"])
    assert chip < -0.03
    for table in numbers["framework"].values():
        assert math.log(table["matrix"]["value"]) > chip


def test_factors_do_not_leave_their_spread_for_few_runs() -> None:
    """One run that is twice too slow moves no factor by more than 2.5 of its standard deviations."""
    (one,) = synthetic(foundry()[:1], {})
    found = fit([replace(one, seconds=2 * one.seconds)])
    moved = 0.0
    for table in ("chip", "framework"):
        for kinds in found.numbers[table].values():
            for kind, number in kinds.items():
                assert abs(math.log(number["value"])) < 2.5 * SPREAD[table, kind], (table, kind)
                moved = max(moved, abs(math.log(number["value"])))
    assert moved > 0.02
    assert found.residuals[0][2] < 0  # still faster than measured


def test_nothing_to_fit_is_an_error_with_a_way_out() -> None:
    with pytest.raises(InputError) as caught:
        fit([])
    (found,) = caught.value.diagnostics
    assert found.code == "MW401"
    assert "validate" in found.hint


def test_rows_without_a_time_or_marked_suspect_do_not_steer() -> None:
    run = foundry()[0].case.run
    timeless = replace(run, step_time_s=None, tokens_per_s_per_chip=None)
    doubtful = replace(run, suspect="contradicts its sibling")
    assert observations([timeless]) == []
    assert observations([doubtful]) == []
    assert len(observations([doubtful], skip_suspect=False)) == 1
    assert len(observations([run])) == 1


def test_one_outlier_does_not_steer() -> None:
    """A run four times too slow among forty: the recovered number hardly moves (soft L1), and the run
    shows.
    """
    truth: dict[Key, float] = {("framework", FOUNDRY, "matrix"): -0.10}
    clean = synthetic(foundry(), truth)
    spoilt = [replace(clean[0], seconds=4 * clean[0].seconds), *clean[1:]]
    before = fitted_log(fit(clean).numbers, clean[-1], "matrix")
    found = fit(spoilt)
    after = fitted_log(found.numbers, clean[-1], "matrix")
    assert abs(after - before) < 0.03
    worst = max(found.residuals, key=lambda r: abs(r[2]))
    assert worst[0] == clean[0].case.run.id
    assert np.median([abs(r) for _, _, r in found.residuals]) < 0.05


def test_the_loss_grows_linearly_for_outliers() -> None:
    """One factor, ten equal rows, one row far off: soft L1 stays near the ten, least squares does not."""
    jacobian = np.ones((11, 1))
    residual = np.zeros(11)
    residual[0] = -2.0  # predicted far below measured
    point, spread, weights = np.zeros(1), np.array([10.0]), np.ones(11)
    robust = float(solve(residual, jacobian, point, spread, weights)[0])
    squares = 2.0 / 11
    assert 0 < robust < squares / 5
    even = np.full(11, -0.1)
    assert float(solve(even, jacobian, point, spread, weights)[0]) == pytest.approx(0.1, rel=1e-3)


def test_shrinkage_is_that_of_the_written_spread() -> None:
    """A row at the noise against a spread of the same size meets half way: ridge in closed form."""
    noise = 0.06
    small = 1e-4  # deep inside the quadratic part
    target = solve(np.array([-small]), np.ones((1, 1)), np.zeros(1), np.array([noise]), np.ones(1))
    assert float(target[0]) == pytest.approx(small / 2, rel=1e-2)


def test_spreads_cover_every_fitted_kind() -> None:
    for table in ("chip", "framework"):
        kinds = {kind for t, kind in SPREAD if t == table}
        allowed = profiles.CHIP_KINDS if table == "chip" else profiles.FRAMEWORK_KINDS
        assert kinds <= set(allowed)
    assert all(0 < s <= 1 for s in SPREAD.values())
    task = problem(list(foundry()[:3]))
    assert all(spread_of(name) > 0 for name in task.names)


def test_each_source_is_predicted_by_a_fit_without_it() -> None:
    """Left-out rows are all rows; a source alone in its habits is predicted less well than when fitted."""
    half = len(foundry()) // 2
    truth: dict[Key, float] = {("framework", FOUNDRY, "matrix"): -0.2}
    made = [replace(one, source="first" if i < half else "second")
            for i, one in enumerate(synthetic(foundry(), truth))]  # fmt: skip
    made[half:] = [replace(one, seconds=1.3 * one.seconds) for one in made[half:]]
    found = fit(made, rounds=4)
    assert sorted(r[0] for r in found.left_out) == sorted(r[0] for r in found.residuals)
    second = [abs(r) for _, s, r in found.residuals if s == "second"]
    unseen = [abs(r) for _, s, r in found.left_out if s == "second"]
    assert np.median(unseen) > np.median(second)


def test_the_slope_of_a_number_is_its_derivative() -> None:
    one = foundry()[0]
    task = problem([one])
    (keys,), (prior,) = task.keys, task.priors
    value, slopes = log_step(one, {}, keys, prior)
    step = 0.02
    for kind in ("matrix", "attention", "traffic"):
        moved, _ = log_step(one, {keys[kind][0]: step}, keys, prior)
        assert slopes[kind] == pytest.approx((moved - value) / step, rel=1e-6, abs=1e-9)
    assert slopes["matrix"] < 0 < slopes["traffic"]


def test_the_shipped_numbers_are_read_back_as_a_point() -> None:
    """Linearised at the shipped numbers, the residuals are the errors of validation."""
    found = observations(shipped("training"))[::60]
    solution = at_shipped(found)
    for residual, one in zip(solution.residual, found, strict=True):
        assert residual == pytest.approx(math.log(predict(one.case).step_time_s / one.seconds), abs=2e-3)
