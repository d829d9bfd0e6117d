"""The same question through every verb: the same best plan, and one step time of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright import api, reporting
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.report.records import Plan
from meshwright.search.ranking import IDEA, axes_used

# By closed forms alone a plan without a pipeline would be best; the simulated one has four stages.
MODEL, ON = "qwen3-32b", "16xh100"
WORK: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 32}


@pytest.fixture(scope="module")
def plan() -> Plan:
    found = api.plan(MODEL, ON, **WORK, top=3)
    assert found.best is not None
    assert found.best.strategy.pp > 1
    assert any(said.text.startswith("By closed forms alone") for said in found.why)
    return found


def same(found: api.Estimate | None, plan: Plan) -> None:
    assert found is not None
    assert plan.best is not None
    assert found.strategy == plan.best.strategy
    assert found.step_time_s == pytest.approx(plan.best.step_time_s, rel=1e-12)
    assert sum(found.evaluation.time_s.values()) == pytest.approx(found.step_time_s, rel=1e-12)
    assert min(found.evaluation.time_s.values()) >= 0


def test_the_saved_plan_is_estimated_explained_and_compared_alike(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    assert plan.best is not None
    api.save(plan.best, file)
    same(api.estimate(file), plan)
    same(api.estimate(file, exact=True), plan)
    same(api.explain(file).estimate, plan)
    same(api.compare(file, file).sides[0], plan)
    same(reporting.report(file, quick=True, pareto=False).estimate, plan)


def test_the_terms_add_up_to_the_step(plan: Plan) -> None:
    assert plan.best is not None
    terms = plan.best.evaluation.terms
    assert terms is not None
    for path, term in terms.walk():
        if term.combine == "sum" and term.children:
            total = sum(float(child.value) for child in term.children)
            assert total == pytest.approx(float(term.value), rel=1e-9, abs=1e-9), path
    assert dict(terms.walk())["step.time"].value == plan.best.step_time_s


def test_a_sweep_of_one_point_has_the_plan(plan: Plan) -> None:
    swept = meshwright.sweep(MODEL, ON, **WORK, over={"cluster.scale_out_gbits_s": [400]})
    same(swept.points[0].best, plan)


def test_improve_finds_the_plan(plan: Plan) -> None:
    same(api.improve(MODEL, ON, **WORK, tp=8, recompute="full").best, plan)


def test_the_guide_compares_with_the_plan(plan: Plan) -> None:
    answer = api.guide(MODEL, ON, **WORK, compare=True).answer
    assert answer is not None
    assert answer.compared is not None
    same(answer.compared.best, plan)


def test_the_report_is_of_the_plan(plan: Plan) -> None:
    found = reporting.report(MODEL, ON, **WORK, quick=True)
    same(found.estimate, plan)
    assert found.simulated is not None
    assert found.simulated.evaluation.step_time_s == pytest.approx(found.estimate.step_time_s, rel=1e-12)


def test_the_largest_batch_of_a_list_of_one_has_the_plan(plan: Plan) -> None:
    same(api.largest("global_batch", MODEL, ON, seq_len=8192, up_to=32).plan, plan)


def test_the_list_shows_ways_to_split_the_work_and_the_simplest_that_is_tied(plan: Plan) -> None:
    many = api.plan(MODEL, ON, **WORK)
    splits = [tuple(getattr(p.strategy, name) for name in IDEA) for p in many.plans]
    assert len(set(splits)) == len(many.plans) == 10
    assert [p.step_time_s for p in many.plans] == sorted(p.step_time_s for p in many.plans)
    assert many.plans[0].strategy == plan.plans[0].strategy
    assert many.best is not None
    simplest = min(axes_used(p.strategy) for p in many.plans if many.tied(p))
    assert simplest < axes_used(many.best.strategy)
    (said,) = (s for s in many.why if s.text.startswith("The simplest plan that is tied"))
    assert said.values["step.time"] == many.best.step_time_s
    assert f"does with {simplest} of the {axes_used(many.best.strategy)} axes" in said.text


def test_a_plan_file_keeps_the_price_of_a_chip_hour(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"total_tokens": "1T", "nearest": 0}
    priced = api.estimate("llama-3.1-8b", "8xh100", **WORK, **whole, zero=3, price_per_chip_hour=2.5)
    file = tmp_path / "plan.yaml"
    api.save(priced, file)
    assert priced.run is not None
    again, dearer = api.estimate(file), api.estimate(file, price_per_chip_hour=5)
    assert again.run is not None
    assert dearer.run is not None
    assert again.run.cost_usd == pytest.approx(priced.run.cost_usd)
    assert dearer.run.cost_usd == pytest.approx(2 * (priced.run.cost_usd or 0))
    searched = reporting.report(file, quick=True).search.best
    assert searched is not None
    assert searched.price_per_chip_hour == 2.5
    file.write_text(file.read_text().replace("price_per_chip_hour: 2.5", "price_per_chip_hour: .inf"))
    with pytest.raises(InputError, match="price_per_chip_hour"):
        api.estimate(file)


def test_the_guide_reads_a_price_as_other_verbs_do() -> None:
    asked: dict[str, Any] = {**WORK, "total_tokens": "1T", "compare": True}
    answer = api.guide("llama-3.1-8b", "8xh100", price_per_chip_hour="2.5", **asked).answer
    assert answer is not None
    assert answer.compared is not None
    assert answer.compared.best is not None
    assert answer.compared.best.price_per_chip_hour == 2.5
    with pytest.raises(InputError, match="not a price"):
        api.guide("llama-3.1-8b", "8xh100", price_per_chip_hour=-1, **asked)


def test_what_does_not_fit_names_the_way_to_what_does(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["llama-3.1-70b", "--on", "64xh100", "--seq-len", "8k", "--global-batch", "64"]
    assert run(["estimate", *args]) == 0
    (way,) = re.findall(r"meshwright (plan .*) searches for it", capsys.readouterr().out)
    assert way == "plan Llama-3.1-70B --on 64xh100 --seq-len 8192 --global-batch 64"
    assert run([*way.split(), "--top", "1"]) == 0


@pytest.mark.parametrize(
    ("model", "given"),
    [
        ("llama-3.1-8b", {"pp": 4, "offload": "activations:4"}),
        ("llama-3.1-8b", {"pp": 4, "offload": "params"}),
        ("llama-3.1-8b", {"pp": 4, "offload": "activations", "schedule": "zb-1p"}),
        ("mixtral-8x7b", {"offload": "experts"}),
    ],
)
def test_a_backward_that_waits_for_the_host_link_is_one_pass_everywhere(
    model: str, given: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"seq_len": 4096, "global_batch_size": 64, "nearest": 0, **given}
    told, exact = api.estimate(model, "16xh100", **asked), api.estimate(model, "16xh100", **asked, exact=True)
    assert exact.step_time_s == pytest.approx(told.step_time_s, rel=1e-9)
    assert exact.evaluation.time_s["compute"] == pytest.approx(told.evaluation.time_s["compute"], rel=1e-9)
