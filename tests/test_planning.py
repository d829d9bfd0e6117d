"""A plan over numbers of chips, batches and budgets, and which of them an objective prefers."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from meshwright import api, units
from meshwright.checks.capacity import roomy_bytes
from meshwright.cli import output
from meshwright.errors import InputError
from meshwright.report.records import Plan
from meshwright.report.terminal.plan import _cheaper, print_plan
from meshwright.search.ranking import axes_used

NARROW: dict[str, Any] = {
    "cp": 1, "microbatch_size": "1:2", "zero": [1, 3], "zero_group": "all", "vpp": "1:2",
    "recompute": ["none", "full"],
}  # fmt: skip


def plan(on: str = "32xh100", batch: Any = 64, **given: Any) -> Plan:
    return api.plan("llama-3.1-8b", on, seq_len="4k", global_batch_size=batch, **(NARROW | given))


def test_ranges_lists_and_any_are_the_values_tried() -> None:
    space = plan(tp="2:4", pp=[1, 4], schedule="any", placement="any", show_space=True).space
    assert space is not None
    assert space["tp"] == (2, 4)
    assert space["pp"] == (1, 4)
    assert space["microbatch_size"] == (1, 2)
    assert len(space["schedule"]) == 10
    assert len(space["placement"]) == 24
    assert space["placement"][0] == "tp,cp,dp,pp"


def test_what_is_not_tried_of_a_field_is_told() -> None:
    """Every field of which there is more than the space holds says so, unless it was given."""
    found = api.plan("llama-3.2-1b", "12xh100", seq_len="4k", global_batch_size=96, show_space=True)
    assert found.space is not None
    assert found.left is not None
    assert {"schedule", "offload", "cp_method", "zero_group", "recompute", "microbatch_size"} <= set(
        found.left
    )
    assert 12 not in found.space["microbatch_size"]  # a divisor of the batch above 8
    some = api.plan(
        "llama-3.2-1b", "12xh100", seq_len="4k", global_batch_size=96, microbatch_size="8:96",
        zero_group="3:6", zero=1, show_space=True,
    )  # fmt: skip
    assert some.space is not None
    assert some.left is not None
    assert not {"zero_group", "microbatch_size"} & set(some.left)
    assert some.space["zero_group"] == (3, 4, 6)  # what divides the chips, and not powers of two alone
    assert 12 in some.space["microbatch_size"]


def test_the_words_that_a_search_leaves_are_told_with_the_flag_that_tries_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On TPUs loops over stages are all forwards, then all backwards, so 1F1B only spells the plan without a
    pipeline: it is not tried, nor are chunks."""
    few: dict[str, Any] = {"zero": 3, "zero_group": "all", "recompute": "full", "placement": "tp,cp,dp,pp"}
    asked = ("llama-3.1-8b", "16xtpu-v7")
    found = api.plan(*asked, seq_len="8k", global_batch_size=64, show_space=True, **few)
    assert found.space is not None
    assert found.space["schedule"] == ("gpipe",)
    assert found.space["vpp"] == (1,)
    assert {"1f1b", "interleaved-1f1b", "zb-v"} <= set(found.json()["untried"]["schedule"])
    assert set(found.untried) == {"schedule", "cp_method", "offload"}  # no experts, so no dispatcher
    print_plan(found, output.console(), shown=1)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("not tried: "))
    assert "schedule 1f1b, " in line
    assert "--schedule any" in line
    every = api.plan(*asked, seq_len="8k", global_batch_size=64, schedule="any", show_space=True, **few)
    assert every.space is not None
    assert set(found.untried["schedule"]) | {"gpipe"} == set(every.space["schedule"])
    assert "schedule" not in every.untried
    told = api.plan("mixtral-8x7b", "16xh100", seq_len="8k", global_batch_size=64, target="torchtitan",
                    **few | {"zero": 0})  # fmt: skip
    assert set(told.untried["schedule"]) == {
        "gpipe",
        "zb-v",
        "dualpipev",
    }  # what it has, and nobody asked for
    assert told.untried["dispatcher"] == ("deep-ep",)
    print_plan(told, output.console(), shown=1)
    assert "both of what torchtitan can be told" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": "4:2"}, "tp 4:2 runs backwards"),
        ({"tp": "3:3"}, "tp 3:3 holds none of the values there are: 1, 2, 4"),
        ({"zero_group": "5:7"}, "zero_group 5:7 holds none of the values there are: 1, 2, 4"),
        ({"tp": "1:2:3"}, "not a range"),
        ({"tp": "0:4"}, "tp is 0"),
        ({"objective": "glory"}, "no objective 'glory'"),
        ({"deadline": "60d"}, "nothing says how long that is"),
        ({"deadline": "-3d", "total_tokens": "1T"}, "deadline is -3; it must be more than 0"),
        ({"deadline": "0d", "total_tokens": "1T"}, "deadline is 0; it must be more than 0"),
        ({"slack": "-2%"}, "slack is -0.02; it must be 0 or more"),
        ({"chips_up_to": "0"}, "chips-up-to is 0, outside 1 to 10000000 chips"),
        ({"chips_up_to": "10M"}, "outside 1 to 10000000 chips"),
        ({"target": "megatron"}, "no target 'megatron'"),
        ({"target": "torchtitan", "schedule": "zb-2p"}, "torchtitan has no schedule zb-2p"),
        ({"target": "deepspeed", "precision": "fp8"}, "DeepSpeed has no matrix products in fp8"),
    ],
)
def test_what_cannot_be_asked_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan(**given)


def test_a_target_keeps_what_it_has() -> None:
    found = plan(target="deepspeed", zero=None, vpp=None, recompute=None, show_space=True)
    assert found.space is not None
    assert found.space["schedule"] == ("1f1b",)
    assert found.space["vpp"] == (1,)
    assert found.space["recompute"] == ("none", "full")
    for one in found.plans:
        assert one.strategy.pp == 1 or one.strategy.zero <= 1
        assert "deepspeed" in one.json()["plan"]["expressed_by"]
    assert found.json()["target"] == "deepspeed"


def test_the_deadline_takes_the_fewest_chips_that_meet_it() -> None:
    found = plan(on="64xh100", total_tokens="1T", deadline="40d")
    counts = [c.n_chips for c in found.choices]
    assert counts == sorted(counts)
    assert counts[-1] == 64
    late = [c.n_chips for c in found.choices if not c.meets]
    met = [c.n_chips for c in found.choices if c.meets]
    assert late, "the case is there to have both"
    assert found.cluster.n_chips == min(met)
    assert found.best is not None
    assert found.best.run is not None
    assert found.best.run.days <= 40
    cheap = plan(on="64xh100", total_tokens="1T", deadline="40d", objective="cost")
    hours = {c.n_chips: c.best.run.chip_hours for c in cheap.choices if c.best and c.best.run and c.meets}
    assert cheap.best is not None
    assert cheap.best.run is not None
    assert cheap.best.run.chip_hours == pytest.approx(min(hours.values()))
    assert _cheaper(cheap) is None
    dear = max(hours, key=lambda n: hours[n])
    taken = next(c.best for c in cheap.choices if c.n_chips == dear)
    said = _cheaper(replace(cheap, plans=(taken,))) or ""
    assert said.startswith(f"{cheap.cluster.n_chips} chips with a batch of ")
    assert "fewer chip-hours: --objective cost" in said


def test_a_deadline_that_nothing_meets_is_a_result() -> None:
    found = plan(on="16xh100", total_tokens="10T", deadline="3d")
    assert found.plans == ()
    assert found.nearest is not None
    assert found.nearest.fits
    assert "days for 10.0T tokens on 16 chips, and the deadline is 3 days" in found.needs
    assert "the deadline is 8.00 h:" in plan(on="16xh100", total_tokens="10T", deadline="8h").needs
    assert sum(found.bounded.values()) > 0


def test_batches_of_a_range_are_choices() -> None:
    found = plan(batch="32:128")
    assert [c.global_batch_size for c in found.choices] == [32, 64, 128]
    rates = [c.best.tokens_per_s_per_chip for c in found.choices if c.best]
    assert found.best is not None
    assert found.best.tokens_per_s_per_chip == max(rates)
    assert found.searched > plan(batch=32).searched


def test_the_simplest_is_within_its_slack_and_uses_no_more_axes() -> None:
    fastest = plan().best
    simple = plan(objective="simplicity", slack="10%").best
    assert fastest is not None
    assert simple is not None
    axes = ("tp", "pp", "vpp", "cp", "ep", "etp")
    used = [sum(getattr(p.strategy, a) > 1 for a in axes) for p in (simple, fastest)]
    assert used[0] <= used[1]
    assert simple.step_time_s <= 1.1 * fastest.step_time_s


def test_ties_are_within_three_percent_of_the_fastest() -> None:
    shown = plan().json()["plans"]
    best = shown[0]["step_time_s"]
    assert [p["tied"] for p in shown] == [p["step_time_s"] <= 1.03 * best for p in shown]
    assert shown[0]["tied"]


def test_a_tight_plan_names_the_tied_one_that_leaves_room() -> None:
    """40 GiB: microbatches of 2 fill nearly all of it, microbatches of 1 are 2 to 3 % slower."""
    found = plan("16xh100", 128, tp=2, pp=2, vpp="1:4", overrides={"usable_gib": 40.0})
    first = found.plans[0]
    (said,) = [s for s in found.why if "--rank" in s.text]
    rank = int(said.text.partition("; plan ")[2].split()[0])
    roomy = found.plans[rank - 1]
    room = roomy_bytes(float(first.evaluation.capacity_bytes))
    assert first.evaluation.peak_bytes > room >= roomy.evaluation.peak_bytes
    assert found.tied(roomy)
    assert axes_used(roomy.strategy) <= axes_used(first.strategy)
    assert said.values["step.memory.other"] == roomy.evaluation.peak_bytes
    assert all(
        p.evaluation.peak_bytes > room or axes_used(p.strategy) > axes_used(first.strategy)
        for p in found.plans[1 : rank - 1]
    )
    wide = plan("16xh100", 128, tp=2, pp=2, vpp="1:4")
    assert not [s for s in wide.why if "--rank" in s.text]


def test_words_that_leave_the_step_as_it_is_say_what_they_hold() -> None:
    found = plan("8xh100", 64, overrides={"usable_gib": 60.0})
    (said,) = [s for s in found.why if s.text.startswith("The step takes as long with")]
    best = found.plans[0].strategy
    assert best.zero < 3
    other = api.estimate(
        "llama-3.1-8b", "8xh100", seq_len="4k", global_batch_size=64, nearest=0,
        **{f.name: getattr(best, f.name) for f in fields(best)} | {"zero": 3},
    )  # fmt: skip
    held = float(other.closed_form.peak_bytes)
    assert said.values["step.memory.zero 3"] == pytest.approx(held)
    more = held - said.values["step.memory"]
    assert f"zero 3 ({units.bytes_text(more)} more)" in said.text
    assert other.step_time_s == pytest.approx(found.plans[0].step_time_s)


def test_no_point_of_the_front_beats_another() -> None:
    front = plan(pareto=True).pareto
    assert len(front) > 1
    goods = [p.goods() for p in front]
    for i, one in enumerate(goods):
        assert not any(all(a <= b for a, b in zip(other, one)) for j, other in enumerate(goods) if i != j)
    peaks = [p.peak_bytes for p in front]
    assert peaks == sorted(peaks, reverse=True)  # one number of chips: slower plans hold less
