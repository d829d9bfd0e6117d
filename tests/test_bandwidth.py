"""The page on bandwidth and pipelines: written from its figures, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from scripts import script

bandwidth = script("bandwidth")
FIGURES = bandwidth.read(bandwidth.DATA.read_text(encoding="utf-8"))
PAGE = bandwidth.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_the_command_writes() -> None:
    assert bandwidth.page(FIGURES) == PAGE
    assert list(FIGURES) == bandwidth.points()
    assert bandwidth.read(bandwidth.written(FIGURES)) == FIGURES


def curves() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What was found along each curve of the page: wider domains, then more bandwidth between them."""
    for model in bandwidth.MODELS:
        for fabric in bandwidth.FABRICS:
            for field, values in (("domain", fabric.domains), ("gbits", fabric.gbits)):
                points = [fabric.point(model, **{"domain": fabric.at, field: value}) for value in values]
                yield f"{model} {fabric.name} {field}", [FIGURES[p] for p in points if p in FIGURES]


CURVES = dict(curves())


@pytest.mark.parametrize("name", [n for n in CURVES if not ("TPU" in n and "domain" in n)])
def test_more_bandwidth_and_wider_switches_never_make_a_plan_slower(name: str) -> None:
    for plan in ("best", "without"):
        steps = [found[plan]["step_time_s"] for found in CURVES[name] if found[plan] is not None]
        assert all(b <= a * (1 + 1e-5) for a, b in pairwise(steps))


@pytest.mark.parametrize("name", CURVES)
def test_the_loss_falls_until_the_model_cannot_tell_it_from_nothing(name: str) -> None:
    """Above `TELLS` it falls at every step; once below, it stays below."""
    losses = [bandwidth.loss(found) for found in CURVES[name]]
    for before, after in pairwise(losses):
        assert after is not None or before is None
        assert after is None or before is None or after < max(before, bandwidth.TELLS)


def test_curves_fall() -> None:
    """So that the test above has something to look at."""
    falls = [
        (a, b) for found in CURVES.values() for a, b in pairwise(map(bandwidth.loss, found)) if a is not None
    ]
    assert sum(a > bandwidth.TELLS for a, _ in falls) > 15


def test_no_plan_without_a_pipeline_is_faster_than_the_best() -> None:
    losses = [bandwidth.loss(found) for found in FIGURES.values()]
    assert min(x for x in losses if x is not None) >= 0
    for found in FIGURES.values():
        assert found["without"] is None or found["without"]["pp"] == 1


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([0.2, 0.05, 0.01], "32 (about 23)"),
        ([0.2, 0.05, 0.04], "above 32"),
        ([0.01, 0.0, 0.0], "at 8 or less"),
        ([None, 0.02, 0.01], "16"),
        ([0.01, 0.05, 0.02], "32 (about 25)"),
    ],
)
def test_a_crossing_is_where_the_loss_stays_small(losses: list[float | None], said: str) -> None:
    assert bandwidth.crossing((8, 16, 32), losses) == said


def test_an_exact_loss_holds_what_it_is_said_to_hold() -> None:
    rows = {row[:4]: row[-1] for row in bandwidth.held_rows()}
    assert rows[("1f1b", "16", "1", "64")] == "4.0 x"
    assert rows[("interleaved-1f1b", "16", "2", "64")] == "2.7 x"
    assert rows[("1f1b", "16", "1", "1")] == "1.0 x"
    for row in rows:
        assert re.search(rf"\| {row[0]} \| {row[1]} \| {row[2]} \| {row[3]} \|", PAGE)


def test_with_one_microbatch_an_exact_loss_costs_nothing() -> None:
    for job in bandwidth.ONE_MICROBATCH:
        plan = FIGURES[bandwidth.Point(*job, batch=bandwidth.FEW)]["best"]
        assert (plan["pp"], plan["microbatches"]) == (1, 1)
        for word in ("global", "global-counted"):
            seconds, held = plan["balance"][word]
            assert held <= 2**20  # counts of all layers, nothing more
            assert seconds < 0.01 * plan["step_time_s"]
