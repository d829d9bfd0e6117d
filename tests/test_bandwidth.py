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


# Where a small loss rises; why is in docs/decisions.md.
RISES = {
    "Llama-3.1-405B GB200 NVL72 domain", "Llama-3.1-405B GB200 NVL72 gbits",
    "Llama-3.1-405B TPU v7 domain", "Llama-3.1-405B TPU v7 gbits",
    "DeepSeek-V3 H100 domain", "DeepSeek-V3 H100 gbits", "DeepSeek-V3 GB200 NVL72 gbits",
    "Kimi-K2 H100 domain", "Kimi-K2 GB200 NVL72 gbits",
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_large_losses_fall_and_small_ones_stay_small(name: str) -> None:
    losses = [bandwidth.loss(found) for found in CURVES[name]]
    known = [x for x in losses if x is not None]
    assert losses[len(losses) - len(known) :] == known  # where nothing fits without a pipeline comes first
    rises = [(a, b) for a, b in pairwise(known) if b > a + 5e-4]
    assert bool(rises) == (name in RISES)
    assert all(b < 0.05 for _, b in rises)
    assert all(b < a for a, b in pairwise(known) if a > bandwidth.LARGE)


def test_most_large_losses_are_looked_at() -> None:
    known = [bandwidth.loss(found) for curve in CURVES.values() for found in curve[:-1]]
    assert sum(x is not None and x > bandwidth.LARGE for x in known) > 15


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
