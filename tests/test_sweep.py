"""Sweeps: points that were not searched equal a search, changes lie where points differ, values are read."""

from __future__ import annotations

import json
import multiprocessing
import random
from typing import Any

import pytest

import meshwright
from meshwright import units
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.files.over import over
from meshwright.report.sweep import Point, Sweep
from meshwright.search import arrange
from meshwright.search.bounds import Request
from meshwright.search.space import build
from meshwright.search.sweep import Outcome, fresh

# Few words and sizes, so that a search is short; degrees are free.
FEW: dict[str, Any] = {
    "recompute": ["none", "full"],
    "zero": [1, 3],
    "microbatch_size": [1, 2],
    "zero_group": "all",
}
DENSE: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "16xh100", "seq_len": 8192, "global_batch_size": 64, **FEW
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model": "mixtral-8x7b", "cluster": "32xh100", "seq_len": 4096, "global_batch_size": 128, "cp": 1, **FEW
}  # fmt: skip
ARGS = ["llama-3.1-8b", "--on", "16xh100", "--seq-len", "8k", "--global-batch", "64"]


def searched(point: Point, fixed: dict[str, Any], slack: float, *, simulated: bool = True) -> Outcome:
    """A search of its own for a point."""
    e = point.best or point.nearest
    assert e is not None
    space = build(e.model, e.cluster, e.work, fixed, e.profile)
    return fresh(Request(e.model, e.cluster, e.work, e.profile), space, slack, simulated=simulated)


def same_as_searched(found: Sweep, points: list[Point], asked: dict[str, Any]) -> None:
    fixed = {k: v for k, v in asked.items() if k in (*FEW, "cp")}
    for point in points:
        alone = searched(point, fixed, found.slack, simulated=found.simulated)
        if alone.best is None:
            assert point.best is None
            continue
        simplest = alone.simplest(found.slack)
        assert simplest is not None
        assert point.best is not None
        assert point.simplest is not None
        assert point.best.strategy == alone.best.strategy
        assert point.best.step_time_s == pytest.approx(alone.best.seconds, rel=1e-12)
        assert point.simplest.step_time_s == pytest.approx(simplest.seconds, rel=1e-12)


@pytest.mark.parametrize("asked", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("field", "values"),
    [("cluster.scale_out_gbits_s", "10:3200:60"), ("cluster.scale_up_gbytes_s", "20:900:60")],
)
def test_points_along_a_bandwidth_equal_a_search(asked: dict[str, Any], field: str, values: str) -> None:
    found = meshwright.sweep(**asked, over={field: values})
    assert len(found.points) == 60
    assert found.searched < 20
    same_as_searched(found, random.Random(7).sample(found.points, 4), asked)


def test_very_many_points_go_by_closed_forms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bandwidths = {"cluster.scale_out_gbits_s": "10:3200:8"}
    few = meshwright.sweep(**SPARSE, over=bandwidths)
    monkeypatch.setattr(arrange, "MOST_SIMULATED", 7)
    many = meshwright.sweep(**SPARSE, over=bandwidths)
    assert (few.simulated, many.simulated) == (True, False)
    assert many.json()["simulated"] is False
    same_as_searched(many, [many.points[0], many.points[5]], SPARSE)
    for point in many.points:
        assert point.best is not None
        assert point.best.step_time_s == point.best.closed_form.step_time_s
    args = ["--tp", "2", "--jobs", "1", "--over", "cluster.scale_out_gbits_s=100:800:8"]
    assert run(["sweep", *ARGS, *args]) == 0
    assert "closed forms decide" in capsys.readouterr().out


def test_two_bandwidths_at_once() -> None:
    found = meshwright.sweep(
        **SPARSE, over={"cluster.scale_out_gbits_s": "25:800:6", "cluster.scale_up_gbytes_s": "50:900:5"}
    )
    assert len(found.points) == 30
    assert found.searched < 30
    same_as_searched(found, random.Random(5).sample(found.points, 4), SPARSE)


def test_memory_from_nothing_fits_to_plenty() -> None:
    found = meshwright.sweep(**DENSE, over={"cluster.usable_gib": "4:76:16"})
    fits = [p.best is not None for p in found.points]
    assert fits == sorted(fits)
    assert not all(fits)
    assert any(fits)
    first = fits.index(True)
    same_as_searched(found, [found.points[first - 1], found.points[first], found.points[-2]], DENSE)
    assert found.points[first - 1].nearest is not None
    assert any(change.before.best is None for change in found.changes)
    times = [p.best.step_time_s for p in found.points if p.best is not None]
    assert times == sorted(times, reverse=True)


def test_oversubscription_runs_the_other_way() -> None:
    found = meshwright.sweep(**DENSE, over={"cluster.oversubscription": [1, 2, 4, 8]})
    times = [p.best.step_time_s for p in found.points if p.best is not None]
    assert times == sorted(times)
    same_as_searched(found, [found.points[3]], DENSE)


def test_changes_lie_between_neighbours_that_differ() -> None:
    found = meshwright.sweep(**SPARSE, over={"cluster.scale_up_size": [2, 8, 32]})
    assert found.changes
    places = {c.between for c in found.changes}
    for a, b in zip(found.points, found.points[1:]):
        assert a.best is not None
        assert b.best is not None
        fields = {
            "tp",
            "pp",
            "vpp",
            "cp",
            "ep",
            "etp",
            "zero",
            "microbatch_size",
            "recompute",
            "sp",
            "schedule",
        }
        differ = {f for f in fields if getattr(a.best.strategy, f) != getattr(b.best.strategy, f)}
        between = (a.at["cluster.scale_up_size"], b.at["cluster.scale_up_size"])
        assert bool(differ) == (between in places)
        for change in found.changes:
            if change.between == between:
                assert differ <= set(change.differs())


def test_the_simplest_has_no_more_axes_and_is_within_slack() -> None:
    for slack in (0.0, 0.2):
        found = meshwright.sweep(**SPARSE, over={"cluster.scale_out_gbits_s": [50, 400]}, slack=slack)
        for p in found.points:
            assert p.best is not None
            assert p.simplest is not None
            assert p.simplest.step_time_s <= p.best.step_time_s * (1 + slack)
            used = [
                sum(getattr(e.strategy, a) > 1 for a in ("tp", "pp", "vpp", "cp", "ep", "etp"))
                for e in (p.simplest, p.best)
            ]
            assert used[0] <= used[1]


def test_several_models_lengths_that_make_whole_steps_and_chips() -> None:
    found = meshwright.sweep(
        ["llama-3.1-8b", "mamba-2.8b"], "8xh100", tokens_per_step="1M", over={"seq_len": "4k:16k:3"}, **FEW
    )
    assert found.over == {"seq_len": (4096, 8192, 16384)}
    assert [p.model for p in found.points] == ["llama-3.1-8b"] * 3 + ["mamba-2.8b"] * 3
    assert all(p.best is not None and p.best.work.tokens_per_step == 2**20 for p in found.points)
    chips = meshwright.sweep(**DENSE | {"tp": 2}, over={"n_chips": "7,16,32"})
    assert [None if p.best is None else p.best.cluster.n_chips for p in chips.points] == [None, 16, 32]
    assert chips.points[0].faults


def test_a_domain_that_does_not_divide_the_chips_is_the_largest_below() -> None:
    found = meshwright.sweep(**DENSE, over={"cluster.scale_up_size": [8, 72]}, tp=2)
    assert found.points[1].taken["cluster.scale_up_size"].value == 16
    assert found.points[1].best is not None
    assert found.points[1].best.cluster.scale_up_size == 16


def test_words_and_degrees_are_fields_too() -> None:
    found = meshwright.sweep(**DENSE, over={"tp": "1,2", "precision": "bf16,fp8"}, pp=1)
    assert [p.at for p in found.points] == [
        {"tp": t, "precision": p} for t in (1, 2) for p in ("bf16", "fp8")
    ]
    for p in found.points:
        assert p.best is not None
        assert p.best.strategy.tp == p.at["tp"]
        assert p.best.work.precision == p.at["precision"]


def test_processes_give_the_same_points() -> None:
    fields = {"cluster.scale_out_gbits_s": "25:800:4"}
    alone = meshwright.sweep(**DENSE, over=fields, tp=2)
    shared = meshwright.sweep(**DENSE, over=fields, tp=2, processes=2)
    for a, b in zip(alone.points, shared.points):
        assert a.at == b.at
        assert a.best is not None
        assert b.best is not None
        assert (a.best.strategy, a.best.step_time_s) == (b.best.strategy, b.best.step_time_s)


def test_a_process_that_is_killed_costs_no_point() -> None:
    fields = {"cluster.scale_out_gbits_s": "25:800:8"}
    killed: list[int] = []

    def kill_one(done: int, total: int) -> None:
        if not killed:
            child = multiprocessing.active_children()[0]
            killed.append(child.pid or 0)
            child.kill()

    alone = meshwright.sweep(**DENSE, over=fields, tp=2)
    shared = meshwright.sweep(**DENSE, over=fields, tp=2, processes=2, progress=kill_one)
    assert killed
    assert [p.at for p in shared.points] == [p.at for p in alone.points]
    for a, b in zip(alone.points, shared.points):
        assert a.best is not None
        assert b.best is not None
        assert (a.best.strategy, a.best.step_time_s) == (b.best.strategy, b.best.step_time_s)
    assert not multiprocessing.active_children()


def test_values() -> None:
    assert [v[0] for v in over("cluster.scale_out_gbits_s", "100:3200:6").values] == [
        100,
        200,
        400,
        800,
        1600,
        3200,
    ]
    assert len(over("cluster.scale_out_gbits_s", "100:3200").values) == 16
    assert over("cluster.scale_out_gbits_s", "50GB/s,200").values == ((400.0,), (200.0,))
    assert over("global-batch", "512:1024:3").field == "global_batch_size"
    for values in over("n_chips", "100:10000:40").values[1:-1]:
        assert all(bin(v).rstrip("0").count("1") <= 3 for v in values)
    assert over("schedule", "1f1b,zb-1p").values == (("1f1b",), ("zb-1p",))


@pytest.mark.parametrize(
    "text",
    ["seq_len=", "seq_len=8k:4k", "seq_len=4k:8k:1", "seq_len=x", "nothing=1", "seq_len", "tp=1:8:9:9"],
)
def test_odd_values_are_told(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", *ARGS, "--over", text]) == 2
    assert "error[MW91" in capsys.readouterr().err


def test_odd_requests_are_told_at_once() -> None:
    with pytest.raises(InputError, match="one or two fields"):
        meshwright.sweep(**DENSE, over={"tp": "1", "pp": "1", "cp": "1"})
    with pytest.raises(InputError, match="no one point"):
        meshwright.sweep(
            "llama-3.1-8b", "8xh100", seq_len=4096, global_batch_size="64:256", over={"tp": "1,2"}
        )
    with pytest.raises(InputError, match=r"(?s)backward.*holds no value|does not rise.*holds no value"):
        meshwright.sweep(**DENSE, over={"seq_len": "8k:4k", "tp": ""})


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "sweep",
        *ARGS,
        "--tp",
        "2",
        "--over",
        "cluster.scale_out_gbits_s=25:400:3",
        "--slack",
        "5",
        "--jobs",
        "1",
    ]
    assert run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "meshwright.sweep/1"
    assert found["over"] == {"cluster.scale_out_gbits_s": [25, 100, 400]}
    assert found["slack"] == pytest.approx(0.05)
    for point in found["points"]:
        assert point["best"]["step_time_s"] <= point["simplest"]["step_time_s"]
        assert sum(point["best"]["time_s"].values()) == pytest.approx(point["best"]["step_time_s"])
    assert run(args) == 0
    said = capsys.readouterr().out
    assert [w for w in ("scale_out_gbits_s", "simplest within 5 %", "█", "points in") if w not in said] == []
    for point in found["points"]:
        more = point["simplest"]["step_time_s"] / point["best"]["step_time_s"] - 1.0
        assert more == 0 or f"(+{units.percent_text(more)} step)" in said


def test_nothing_fits_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["llama-3.1-405b", "--on", "8xh100", "--seq-len", "8k", "--global-batch", "8", "--tp", "8"]
    assert run(["sweep", *args, "--over", "cluster.scale_up_gbytes_s=100,400", "--jobs", "1"]) == 1
    assert "nothing fits" in capsys.readouterr().out


def test_lengths_may_be_text() -> None:
    found = meshwright.sweep(
        "llama-3.2-1b", "8xh100", over={"seq_len": ["1k", "2k", "8q"]}, global_batch_size=8, tp=1, pp=1
    )
    assert [point.best is not None for point in found.points] == [True, True, False]


@pytest.mark.parametrize(
    ("models", "asked"),
    [
        ([], {"over": {"seq_len": [1024]}}),
        ("llama-3.2-1b", {"over": None}),
        ("llama-3.2-1b", {"over": {"seq_len": [1024]}, "slack": -1}),
        ("llama-3.2-1b", {"over": {"seq_len": [1024]}, "slack": "much"}),
    ],
)
def test_a_sweep_that_cannot_be_read_says_so(models: Any, asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        meshwright.sweep(models, "8xh100", global_batch_size=8, **asked)


def test_lists_of_layers_are_written_as_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["llama-3.2-1b", "--on", "8xh100", "--seq-len", "4k", "--global-batch", "64", "--pp", "2"]
    args += ["--tp", "1", "--cp", "1", "--zero", "1", "--microbatch-size", "1", "--recompute", "none"]
    assert run(["sweep", *args, "--over", "layers_per_stage=8+8,7+9"]) == 0
    said = capsys.readouterr().out
    assert "layers_per_stage 8+8 to 7+9" in said
    assert "[" not in said
