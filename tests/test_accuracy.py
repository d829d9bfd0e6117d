"""The shipped tables are predicted no worse than when the figures below were committed.

Each limit is the committed figure and a tenth more: a change that costs more accuracy than that has to say so
here. `docs/accuracy.md` holds the figures themselves.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest

from meshwright.calibrate import rows
from meshwright.calibrate.rows import Shipped
from meshwright.calibrate.statistics import Ranked, pooled
from meshwright.calibrate.validate import EXPERTS, Validation, validate
from meshwright.calibrate.validate import _ranked as ranked_rows
from meshwright.search.ranking import TIED

# Table, figure, committed median and ninetieth percentile of the absolute error, percent.
COMMITTED: tuple[tuple[Shipped, str, float, float], ...] = (
    ("training", "time", 4.6, 14.2),
    ("training", "memory", 3.8, 8.5),
    ("training-small-one-node", "time", 10.2, 17.2),
    ("memory", "memory", 5.4, 26.0),
)


@cache
def found(table: Shipped) -> Validation:
    return validate(rows.shipped(table))


@pytest.mark.parametrize(("table", "figure", "median", "p90"), COMMITTED)
def test_errors_are_what_they_were(table: Shipped, figure: str, median: float, p90: float) -> None:
    errors = getattr(found(table), figure)
    assert errors.median_abs_error_percent <= 1.1 * median
    assert errors.p90_abs_error_percent <= 1.1 * p90


@pytest.mark.parametrize(
    ("architectures", "median", "p90"),
    [(("dense",), 4.1, 13.3), (EXPERTS, 7.5, 21.8)],
    ids=["dense", "experts"],
)
def test_dense_models_and_experts_are_as_near_as_they_were(
    architectures: tuple[str, ...], median: float, p90: float
) -> None:
    errors = found("training").time_of(*architectures)
    assert errors.median_abs_error_percent <= 1.1 * median
    assert errors.p90_abs_error_percent <= 1.1 * p90


def test_runs_that_ran_are_called_possible() -> None:
    """Six of 789 runs of the training table are not."""
    verdict = found("training").fit_verdict
    assert verdict.refused <= 0.012 * verdict.ran


def test_layouts_are_ranked_as_they_were() -> None:
    """The layout picked of a group loses 2.1 % of speed on average."""
    ranking = found("training").ranking
    assert ranking.mean_regret_percent <= 2.5
    assert ranking.kendall_tau >= 0.5
    both = pooled([ranking, found("training-small-one-node").ranking])
    assert both.mean_regret_percent <= 2.5
    assert both.kendall_tau >= 0.7


def test_what_counts_as_a_tie_is_what_cannot_be_ordered() -> None:
    """Of pairs of layouts of one job, those predicted within `TIED` are ordered no better than by a coin,
    the others in most cases; every job counts once."""
    jobs: dict[object, list[Ranked]] = {}
    for row in ranked_rows(found("training").outcomes):
        jobs.setdefault(row.group, []).append(row)
    near, far = [], []
    for rows_of_job in jobs.values():
        layouts = {row.layout: row for row in rows_of_job}
        right: dict[bool, list[bool]] = {True: [], False: []}
        for a, b in combinations(layouts.values(), 2):
            close = max(a.predicted, b.predicted) / min(a.predicted, b.predicted) - 1.0 <= TIED
            right[close].append((a.measured - b.measured) * (a.predicted - b.predicted) > 0)
        near += [sum(right[True]) / len(right[True])] if right[True] else []
        far += [sum(right[False]) / len(right[False])] if right[False] else []
    assert sum(near) / len(near) < 0.6
    assert sum(far) / len(far) > 0.8
