"""Ways out where nothing fits: each is taken, and does what is said of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from meshwright import api
from meshwright.errors import Diagnostic, InputError
from meshwright.search import blocked

JOB: dict[str, Any] = {"model": "llama-3.1-8b", "seq_len": "8k", "global_batch_size": 8}


def test_what_stands_in_the_way_is_named_and_leaving_it_free_helps() -> None:
    fixed = {"zero": 0, "tp": 1, "pp": 1, "cp": 1, "offload": "none"}
    found = api.plan(**JOB, cluster="8xh100", top=1, **fixed)
    assert not found.plans
    (said,) = (s for s in found.ways_out if "left free" in s)
    named = re.findall(r"(\w+) left free \((\w+) (\w+)\)", said)
    assert {name for name, _, _ in named} == {"zero", "tp", "pp", "offload"}  # and not cp
    for name, field, value in named:
        assert name == field
        assert api.plan(**JOB, cluster="8xh100", top=1, **fixed | {name: value}).plans
        assert api.plan(**JOB, cluster="8xh100", top=1, **{k: v for k, v in fixed.items() if k != name}).plans
    assert not api.plan(**JOB, cluster="8xh100", top=1, **{k: v for k, v in fixed.items() if k != "cp"}).plans


def test_what_only_together_stands_in_the_way_is_told_together() -> None:
    degrees = {"dp": 8, "tp": 1, "pp": 1, "cp": 1}
    fixed = {**degrees, "zero": 0, "recompute": "none", "offload": "none"}
    found = api.plan(**JOB, cluster="8xh100", overrides={"usable_gib": 40}, top=1, **fixed)
    assert not found.plans
    assert any(said.startswith("no single one of dp, tp") for said in found.ways_out)


def test_chips_are_counted_by_state_alone() -> None:
    found = api.plan("llama-3.1-405b", "8xh100", seq_len="8k", global_batch_size=8, top=1)
    assert not found.plans
    (said,) = found.ways_out
    alone, here, offloaded = (
        int(n.replace(",", ""))
        for n in re.findall(r"fill ([\d,]+) chips?.*are ([\d,]+); .*host ([\d,]+)", said)[0]
    )
    assert here == 8
    assert offloaded < alone
    for chips, offload in ((offloaded - 1, "optimizer"), (alone - 1, "none")):  # no strategy holds less
        few = api.plan(
            "llama-3.1-405b", f"{chips}xh100", overrides={"scale_up_size": 1}, seq_len=1024,
            global_batch_size=chips, zero=3, offload=offload, recompute="full", top=1,
        )  # fmt: skip
        assert not few.plans
    assert found.json()["ways_out"] == [said]


def test_nothing_is_said_where_something_fits() -> None:
    assert api.plan(**JOB, cluster="8xh100", top=1).ways_out == ()


@pytest.mark.parametrize("fixed", [{"tp": "1:2"}, {"recompute": ["none", "full"]}])
def test_ranges_and_lists_are_fixed_too(fixed: dict[str, Any]) -> None:
    found = api.plan(**JOB, cluster="1x4090", top=1, **fixed)
    assert not found.plans
    assert any(next(iter(fixed)) in said for said in found.ways_out)


def test_weights_on_the_host_are_counted_too() -> None:
    """And where they alone would do, the word that puts them there is named."""

    def said(chips: int) -> str:
        asked = {"seq_len": 1024, "global_batch_size": chips, "top": 1}
        return api.plan("llama-3.1-405b", f"{chips}xh100", **asked).ways_out[0]

    few = said(8)
    optimizer, params = map(int, re.findall(r"on the host (\d+), with weights there too (\d+)", few)[0])
    assert 8 < params < optimizer
    assert "--offload" not in few
    assert "--offload optimizer+params tries that" in said(params)


def test_no_search_is_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One field alone is all fields; and where what makes room is fixed there is no second look."""
    seen: list[str] = []
    scan = blocked.scan

    def counted(request: Any, space: Any, **asked: Any) -> Any:
        seen.append(repr(space))
        return scan(request, space, **asked)

    monkeypatch.setattr(blocked, "scan", counted)
    found = api.plan(**JOB, cluster="1x4090", top=1, tp=1)
    assert len(found.ways_out) >= 2
    assert len(seen) == len(set(seen))


def test_what_cannot_be_built_is_not_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise InputError(Diagnostic("MW101", "no such product"))

    monkeypatch.setattr(blocked, "build", refuses)
    found = api.plan(**JOB, cluster="1x4090", top=1, tp=1)
    assert found.ways_out[-1] == "no plan can be built with tp left free either"
