"""Longest paths of repeated blocks: what the cost model's table has is what the simulation takes."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.cost import schedule
from meshwright.simulate.longest import counts, paths, seconds
from meshwright.simulate.pipeline import Durations, period

SHARES = np.random.default_rng(7).dirichlet((3.0, 3.0, 3.0), 12)


def idle_and_busy(word: str, pp: int, m: int, shares: np.ndarray) -> np.ndarray:
    """Seconds of a step by the closed form, of equal stages with these passes, [n]."""
    n, (forward, gradient, weight) = pp - 1, shares.T
    idle = schedule.load(word).bubble(n * forward, n * (gradient + weight), n * weight, 2, pp, m)
    return np.asarray(m * shares.sum(1) + idle)


def test_paths_of_one_microbatch_by_hand() -> None:
    """Down, up, and both ways back, a chunk a pass; the first rank ends with both of its weight parts."""
    (found,) = counts("zb-v", 2, 1, np.array([[0.5, 0.2, 0.3]]))
    assert found.tolist() == [4, 4, 2]


@pytest.mark.parametrize("word", ["v-half", "v-min"])
@pytest.mark.parametrize("pp", [2, 3, 4, 7])
def test_the_table_is_what_the_simulation_says(word: str, pp: int) -> None:
    """Read off anew, the paths give the closed form's step; `docs/schedule_paths.py` writes the table."""
    found = paths(word, pp)
    for m in (pp, pp + 1, 3 * pp):
        there = found[found[:, 6] <= m]
        longest = seconds(there, m, SHARES).max(0) / 2  # a chunk is half a rank
        np.testing.assert_allclose(idle_and_busy(word, pp, m, SHARES), longest, rtol=1e-9)


@pytest.mark.parametrize("word", ["zb-v", "v-half", "v-min"])
@pytest.mark.parametrize("pp", [2, 3, 4, 5, 8, 18])
def test_closed_forms_of_vs_are_the_simulated_steps(word: str, pp: int) -> None:
    """F, I and W as unequal as may be; from as many microbatches as ranks on within 1.5 % (ZB-V exactly),
    fewer within a tenth."""
    for m in sorted({1, 2, pp - 1, pp, pp + 1, 2 * pp}):
        for shares in SHARES[:6]:
            forward, gradient, weight = shares / 2
            simulated = period(word, pp, 2, m, Durations(forward, gradient, weight))
            (closed,) = idle_and_busy(word, pp, m, shares[None])
            within = 0.1 if m < pp else 1e-9 if word == "zb-v" else 0.015
            assert closed == pytest.approx(simulated, rel=within)
