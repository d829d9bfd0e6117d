"""Plans near the best in order of their simulated pipelines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.files import request as requests
from meshwright.search import rerank
from meshwright.search.bounds import Request
from meshwright.search.necessity import does_without
from meshwright.search.plan import Found, search
from meshwright.search.ranking import Candidate, Shortlist
from meshwright.search.scan import scans
from meshwright.search.space import build
from meshwright.simulate import many
from meshwright.simulate.exact import exact
from meshwright.simulate.many import passes, step_times
from meshwright.strategy.records import Strategy

ASKED: dict[str, Any] = {"seq_len": 4096, "global_batch_size": 64}


def found(fixed: dict[str, Any], model: str = "llama-3.1-70b", on: str = "64xh100") -> tuple[Request, Found]:
    read = requests.read(model, on, strategy={}, **ASKED)
    request = Request(read.model, read.cluster.cluster, read.work, read.profile)
    return request, search(request.model, request.cluster, request.work, fixed, request.profile)


def test_plans_stand_in_order_of_their_simulated_steps() -> None:
    request, told = found({"pp": 8})
    simulated = [p.seconds for p in told.plans]
    closed = [float((p.evaluation.closed_form or p.evaluation).step_time_s) for p in told.plans]
    assert simulated == sorted(simulated)
    assert closed != sorted(closed)  # or this job would show nothing
    assert told.reranked >= len(told.plans)
    for plan in told.plans[:3]:
        alone = exact(request.model, request.cluster, request.work, plan.strategy, request.profile)
        assert plan.seconds == pytest.approx(float(alone.evaluation.step_time_s), rel=1e-9)
    (said,) = (s for s in told.why if s.text.startswith("By closed forms alone"))
    assert said.values["closed_form_s.other"] < said.values["closed_form_s"]
    assert said.values["step.time.other"] > said.values["step.time"]


def test_losses_compare_simulated_steps() -> None:
    _, told = found({"pp": 8})
    best = told.plans[0].seconds
    for need in told.necessity:
        if need.simulated_step_time_s is not None:
            assert need.loss_percent == pytest.approx(100 * (need.simulated_step_time_s / best - 1), abs=1e-9)
            assert need.loss_percent >= 0


def test_the_same_search_says_the_same() -> None:
    (_, one), (_, other) = found({"pp": 4}), found({"pp": 4})
    assert [(p.strategy, p.seconds) for p in one.plans] == [(p.strategy, p.seconds) for p in other.plans]
    assert one.necessity == other.necessity


def test_plans_without_a_pipeline_are_left_alone() -> None:
    _, told = found({"pp": 1}, "llama-3.1-8b", "16xh100")
    assert told.reranked == 0
    for plan in told.plans:
        assert plan.seconds == pytest.approx(float(plan.evaluation.step_time_s), rel=1e-12)
    assert not any(s.text.startswith("By closed forms alone") for s in told.why)


def test_what_is_told_is_simulated_however_few_passes_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, every = found({"pp": 8})
    monkeypatch.setattr(rerank, "MOST_PASSES", 0)
    _, some = found({"pp": 8})
    assert len(some.plans) <= some.reranked < every.reranked
    assert all(p.evaluation.closed_form is not None for p in some.plans)
    assert [p.seconds for p in some.plans] == sorted(p.seconds for p in some.plans)
    assert all(n.simulated_step_time_s == n.step_time_s for n in some.necessity)


def test_a_pipeline_that_is_too_long_to_be_simulated_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MOST_PASSES", 0)
    told = api.plan("llama-3.1-70b", "64xh100", pp=8, top=2, **ASKED)
    assert told.plans
    for plan, shown in zip(told.plans, told.json()["plans"]):
        assert shown["simulated_step_time_s"] is None
        assert shown["step_time_s"] == shown["closed_form_step_time_s"] == plan.step_time_s


def test_a_shortlist_keeps_what_is_asked_and_what_is_near() -> None:
    def strategies(*seconds: float) -> Shortlist:
        kept = Shortlist(top=2, most=4, band=0.05)
        for part in np.array_split(np.array(seconds), 2):
            kept.take(
                part, lambda i, part=part: Candidate(Strategy(dp=int(1e6 * part[i])), float(part[i]), 0.0)
            )
        return kept

    def times(kept: Shortlist) -> list[float]:
        return [plan.step_time_s for plan in kept.plans]

    assert times(strategies(3.0, 1.0, 1.2, 2.0)) == [1.0, 1.2]  # two are asked, no third is near
    assert times(strategies(1.2, 1.0, 1.04, np.inf, 1.03)) == [1.0, 1.03, 1.04]
    crowd = strategies(1.01, 1.04, 1.02, 1.0, 1.05, 1.03)
    assert times(crowd) == [1.0, 1.01, 1.02, 1.03]
    assert crowd.bar == 1.03
    assert Shortlist().bar == np.inf


def test_a_slow_rank_holds_up_many_pipelines_as_it_does_one() -> None:
    read = requests.read("deepseek-v3", "256xh800", seq_len=4096, global_batch_size=1024, strategy={},
                         options=("straggler:1.2",))  # fmt: skip
    assert read.work.slowness == 1.2
    request = (read.model, read.cluster.cluster, read.work)
    given = [
        Strategy(dp=16, pp=16, ep=16, recompute="full", zero=1, zero_group=16, moe_balance=word, schedule=run)
        for word in ("microbatch", "global-counted") for run in ("1f1b", "dualpipe")
    ]  # fmt: skip
    slow = step_times(*request, given, read.profile)
    alone = [exact(*request, s, read.profile).evaluation.step_time_s for s in given]
    np.testing.assert_allclose(slow, alone, rtol=1e-9)
    unhurried = (*request[:2], replace(read.work, options=frozenset()))
    even = step_times(*unhurried, given, read.profile)
    for late, strategy in zip(slow - even, given):
        # A fifth of what the rank computes and updates, and nothing of what it sends or waits for.
        parts = exact(*unhurried, strategy, read.profile).evaluation.time_s
        own = parts["compute"] + parts["optimizer"]
        assert 0.2 * own <= late <= 0.2 * 1.1 * (own + parts["other"])


def test_how_many_passes_a_simulation_takes() -> None:
    read = requests.read("llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size=64, strategy={})
    alike, whole = passes(read.work, Strategy(dp=2, pp=4))
    assert whole == 2 * 4 * 32
    assert passes(read.work, Strategy(dp=2, pp=2, tp=2))[0] != alike
    _, rounds = passes(replace(read.work, global_batch_size=2_000_000), Strategy(dp=2, pp=4))
    assert rounds < 1_000


def test_the_command_tells_the_simulated_time_and_the_closed_form() -> None:
    plan = api.plan("llama-3.1-70b", "64xh100", pp=8, top=3, **ASKED)
    told = plan.json()
    assert told["reranked"] == plan.reranked > 0
    for one, of_plan in zip(told["plans"], plan.plans):
        assert one["simulated_step_time_s"] == one["step_time_s"] == of_plan.step_time_s
        assert one["closed_form_step_time_s"] == of_plan.closed_form.step_time_s != of_plan.step_time_s
    best = plan.plans[0]
    names = ("dp", "tp", "sp", "pp", "vpp", "cp", "cp_method", "zero", "zero_group")
    fields = {name: getattr(best.strategy, name) for name in (*names, "microbatch_size", "schedule")}
    again = api.estimate(
        "llama-3.1-70b", "64xh100", work=plan.work, recompute=best.strategy.recompute, **fields
    )
    assert again.step_time_s == pytest.approx(best.step_time_s, rel=1e-12)


def test_no_plan_that_is_kept_beats_the_best_without_a_technique_it_lacks() -> None:
    """What is kept for its place in the ranking may be the best without something, once simulated."""
    read = requests.read(
        "zamba2-7b", "32xtrn2", seq_len=2048, global_batch_size=16, strategy={},
        overrides={"scale_up_gbytes_s": 900, "scale_out_gbits_s": 10, "usable_gib": 78},
    )  # fmt: skip
    request = Request(read.model, read.cluster.cluster, read.work, read.profile)
    space = build(request.model, request.cluster, request.work, {}, request.profile)
    (kept,) = rerank.searches([(request, 10)], space)
    for technique, without in kept.without.items():
        mine = [plan.seconds for plan in kept.best if does_without(technique, plan.strategy)]
        assert without.plans[0].seconds <= min(mine) * (1 + 1e-12), technique


PINS: dict[str, dict[str, Any]] = {
    "pp": {"pp": 1}, "vpp": {"vpp": 1}, "tp": {"tp": 1}, "sp": {"sp": False}, "cp": {"cp": 1},
    "ep": {"ep": 1}, "etp": {"etp": 1}, "recompute": {"recompute": "none"}, "zero-3": {"zero": [0, 1, 2]},
    "offload": {"offload": "none"},
}  # fmt: skip


def losses_are_those_of_pins(model: str, on: str, **asked: Any) -> None:
    """What a plan loses without each technique is what a search finds that has it pinned off."""
    told = api.plan(model, on, top=1, **asked)
    for need in told.necessity:
        if not need.loss_percent and told.plans:
            continue  # it is not used
        pin = {"precision": "bf16"} if need.without == "low-precision" else PINS[need.without]
        best = api.plan(model, on, top=1, **{**asked, **pin}).best
        found = None if best is None else best.step_time_s
        assert found == (need.step_time_s and pytest.approx(need.step_time_s, rel=1e-9)), need


JOBS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "zamba2-7b"]),
        "on": st.sampled_from(["8xh100", "24xh100", "32xh100", "16xtrn2", "32xtrn2"]),
        "seq_len": st.sampled_from([2048, 8192]),
        "global_batch_size": st.sampled_from([16, 48, 128]),
        "overrides": st.fixed_dictionaries(
            {
                "scale_up_gbytes_s": st.sampled_from([50, 450, 900]),
                "scale_out_gbits_s": st.sampled_from([10, 100, 800]),
            }
        ),
    }
)


@given(JOBS)
@settings(max_examples=2)
def test_losses_are_those_of_searches_with_the_technique_pinned_off(job: dict[str, Any]) -> None:
    losses_are_those_of_pins(**job)


def test_nothing_but_the_list_depends_on_how_many_plans_are_asked_for() -> None:
    """Here the best plan without cp is the ninth by closed form of those without it."""
    asked: dict[str, Any] = {"seq_len": 4096, "global_batch_size": 32}
    one, many = (api.plan("llama-3.1-70b", "128xh100", top=top, **asked) for top in (1, 400))
    assert one.necessity == many.necessity
    assert one.plans[0].strategy == many.plans[0].strategy
    losses_are_those_of_pins("llama-3.1-70b", "128xh100", **asked)


def test_a_best_plan_that_is_slow_once_simulated_is_not_the_end_of_the_search() -> None:
    """Over a slow network simulated steps are a quarter longer than the closed forms near the best."""
    asked: dict[str, Any] = {
        "seq_len": 32768, "global_batch_size": 32, "overrides": {"scale_out_gbits_s": 10},
    }  # fmt: skip
    read = requests.read("llama-3.1-8b", "256xh800", strategy={}, **asked)
    r = Request(read.model, read.cluster.cluster, read.work, read.profile)
    words = {"schedule": ["any"]}
    best = search(r.model, r.cluster, r.work, words, r.profile, top=1).plans[0]
    (wide,) = scans([(r, 1, ())], build(r.model, r.cluster, r.work, words, r.profile), band=0.2)
    steps = step_times(r.model, r.cluster, r.work, [plan.strategy for plan in wide.best], r.profile)
    first = int(np.nanargmin(steps))
    assert best.seconds == pytest.approx(float(steps[first]), rel=1e-9)
    closed = [plan.step_time_s for plan in wide.best]
    assert closed[first] > (1 + rerank.BAND) * closed[0]  # or this job would show nothing
