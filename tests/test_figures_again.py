"""Figures of the computed pages asked again: where one fails, the model has moved since."""

from __future__ import annotations

import pytest

from meshwright.search.guide import rule, table
from meshwright.search.mixes import Mix
from scripts import script

bandwidth = script("bandwidth")
DRIFT = 0.05  # a page is written anew when the model moves further than this
TABLE, RULE = table.shipped(), rule.shipped()
QUICK = [case for case in TABLE if case.n_chips <= 128 or case.job.cluster >= 4]  # small spaces, and TPUs
FIGURES = bandwidth.read(bandwidth.DATA.read_text(encoding="utf-8"))
AGAIN = [
    *[p for p in FIGURES if p.fabric in ("TPU v5p", "TPU v7") and p.model != "Llama-3.1-405B"][::9],
    bandwidth.Point("Llama-3.1-405B", "H100"),
]


@pytest.mark.parametrize("case", QUICK[5::19], ids=lambda case: str(case.job))
def test_cells_of_the_table_come_out_again(case: table.Case) -> None:
    """Run `make guide` where this fails: the model has moved."""
    now = table.solved(case.job)
    assert (now.n_chips, now.sequences) == (case.n_chips, case.sequences)
    assert now.step_time_s == pytest.approx(case.step_time_s, rel=DRIFT)
    assert case.strategy is not None
    assert now.loss(Mix.of(case.strategy)) <= DRIFT
    assert now.loss(RULE.mix(case.facts())) == pytest.approx(case.loss(RULE.mix(case.facts())), abs=DRIFT)


@pytest.mark.parametrize("point", AGAIN, ids=str)
def test_figures_come_out_again(point: object) -> None:
    """Run `make bandwidth` where this fails: the model has moved."""
    now, then = bandwidth.solved(point), FIGURES[point]
    assert (now["chips"], now["tokens"]) == (then["chips"], then["tokens"])
    for name in ("best", "without"):
        assert now[name]["step_time_s"] == pytest.approx(then[name]["step_time_s"], rel=DRIFT)
