"""What published runs cover of a job."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.calibrate import coverage
from meshwright.calibrate.coverage import (
    ADAPTERS,
    COVERED,
    LONG,
    ONE,
    SEVERAL,
    SHORT,
    Kind,
    apart,
    covered,
    held,
    unseen,
)
from meshwright.calibrate.fit import at_shipped, observations
from meshwright.calibrate.rows import shipped

SEEN = {Kind("h100", "megatron-core", "dense"), Kind("h100", "megatron-core", "moe"),
        Kind("tpu-v7", "maxtext", "dense")}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "missing", "found"),
    [
        (Kind("h100", "megatron-core", "dense"), (), COVERED),
        (Kind("tpu-v7", "maxtext", "moe"), (), COVERED),
        (Kind("h100", "maxtext", "dense"), ("pair",), ONE),
        (Kind("h100", "megatron-core", "hybrid"), ("architecture",), ONE),
        (Kind("b200", "megatron-core", "dense"), ("chip",), ONE),
        (Kind("h100", "maxtext", "hybrid"), ("pair", "architecture"), SEVERAL),
        (Kind("b200", "paxml", "hybrid"), ("chip", "framework", "architecture"), SEVERAL),
        (Kind("h100", "megatron-core", "dense", LONG), ("length",), ONE),
        (Kind("h100", "megatron-core", "dense", SHORT, ADAPTERS), ("trains",), ONE),
    ],
)
def test_what_is_unseen_of_a_job(kind: Kind, missing: tuple[str, ...], found: str) -> None:
    assert unseen(kind, SEEN) == missing
    assert coverage.coverage(missing) == found


def test_the_shipped_runs_are_of_the_kinds_that_stand_in_the_file() -> None:
    """Run `python docs/accuracy.py` where this fails: the table of runs has changed."""
    every = coverage.kinds(observations(shipped("training")[::7]))
    assert set(every) <= covered()
    assert len(covered()) < 100


def test_a_run_counts_to_the_class_that_the_rest_leaves_it_in() -> None:
    found = observations(shipped("training"))[::13]
    solution = at_shipped(found)
    every = held(solution)
    kinds = coverage.kinds(found)
    n_long = sum(kind.length != coverage.SHORT for kind in kinds)
    assert len(every) == 5 * len(found) + 2 * n_long
    assert n_long
    for one in (every[3], every[len(found) + 3], every[3 * len(found) + 5]):
        lacks = one.left_out.split(", ")
        rest = [
            k for k, other in zip(kinds, found, strict=True)
            if other.source != one.source
            and not ("chip" in lacks and k.chip == one.kind.chip)
            and not ("framework" in lacks and k.framework == one.kind.framework)
        ]  # fmt: skip
        assert one.coverage == coverage.coverage(unseen(one.kind, rest))
    # A fit without more runs is off by more, in the mean; and along the line nearly as in full.
    by_source = [one.residual for one in every[: len(found)]]
    assert np.mean(np.abs(by_source)) > np.mean(np.abs(solution.residual))
    full = [residual for *_, residual in sorted(solution.held_out(lambda one: one.source))]
    order = sorted(range(len(found)), key=lambda i: (found[i].case.run.id, found[i].source))
    assert np.median(np.abs(np.array(by_source)[order] - np.array(full))) < 0.02


def test_runs_in_no_fit_are_held_against_the_shipped_numbers() -> None:
    found = observations(shipped("memory"))[::20]
    every = apart(found, covered())
    assert [one.id for one in every] == [one.case.run.id for one in found]
    adapters = [one for one in every if one.kind.trains != coverage.ALL]
    assert adapters
    assert all(one.coverage != COVERED for one in adapters)
    assert np.median([abs(one.residual) for one in adapters]) < 0.2
