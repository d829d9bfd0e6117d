"""Traces of simulated steps, and action tables that torch's own parser and checks read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from meshwright import api
from meshwright.cli.main import run as meshwright
from meshwright.cost import schedule
from meshwright.errors import InputError
from meshwright.report.action_table import action_table
from meshwright.report.trace import trace
from meshwright.simulate.pipeline import network

CHUNKS = {"zb-v": 2, "v-half": 2, "v-min": 2, "dualpipev": 2, "interleaved-1f1b": 3}
REQUEST = ("llama-3.1-8b", "64xh100")


def estimated(word: str, **more: Any) -> api.Estimate:
    return api.estimate(
        *REQUEST, seq_len="4k", global_batch_size=128, pp=4, schedule=word, vpp=CHUNKS.get(word, 1),
        exact=True, nearest=0, **more,
    )  # fmt: skip


def read_by_torch(text: str, path: Path, ranks: int, chunks: int, m: int) -> Any:
    """The schedule as torch's runtime loads it, with the sends that it adds."""
    path.write_text(text)
    loaded: Any = object.__new__(torch_schedules._PipelineScheduleRuntime)
    loaded.pipeline_order, loaded._stages = {}, []
    loaded.pp_group_size, loaded._num_stages, loaded._n_microbatches = ranks, ranks * chunks, m
    loaded._defer_pp_recv = False
    loaded._load_csv(str(path))
    return loaded


@pytest.mark.parametrize("word", [w for w in schedule.names() if w != "dualpipe"])
@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 4), (4, 8), (4, 12)])
def test_torch_loads_checks_and_simulates_every_schedule(word: str, p: int, m: int, tmp_path: Path) -> None:
    v = CHUNKS.get(word, 1)
    graph = network(word, p, v, m)
    loaded = read_by_torch(action_table(graph, word), tmp_path / "actions.csv", p, v, m)
    route = schedule.load(word).route(p, v, 0, m)
    assert loaded.stage_index_to_group_rank == {s: rank for s, (rank, _) in enumerate(route)}
    assert sum(a.is_compute_op for row in loaded.pipeline_order_with_comms.values() for a in row) == len(
        graph.before
    )
    if word == "dualpipev":  # torch's simulator does not know overlapped passes
        return
    home = loaded.stage_index_to_group_rank
    sent = torch_schedules._add_send_recv(
        {rank: list(row) for rank, row in loaded.pipeline_order.items()}, home.__getitem__, p * v
    )
    torch_schedules._simulate_comms_compute(sent, home.__getitem__, p * v)


def test_tables_by_hand() -> None:
    assert action_table(network("1f1b", 2, 1, 2), "1f1b") == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    assert action_table(network("zb-v", 1, 2, 1), "zb-v") == "0F0,1F0,1I0,1W0,0I0,0W0\n"
    assert "(0F2;1B1)OVERLAP_F_B" in action_table(network("dualpipev", 1, 2, 4), "dualpipev")


def test_streams_that_meet_have_no_table() -> None:
    with pytest.raises(InputError) as caught:
        action_table(network("dualpipe", 4, 1, 8), "dualpipe")
    (said,) = caught.value.diagnostics
    assert said.code == "MW158"
    assert "stage 0 on ranks 0 and 3" in said.message
    assert "dualpipev" in said.hint


@pytest.mark.parametrize("word", schedule.names())
def test_a_trace_holds_every_pass_once_in_the_order_of_its_rank(word: str) -> None:
    found = estimated(word)
    assert found.simulated is not None
    events = trace(found.simulated, "title")["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    m, v = int(found.simulated.costs.microbatches[0]), CHUNKS.get(word, 1)
    for kind in ("forward", "backward input", "backward weight"):
        assert sum(e["cat"] == kind for e in spans) == 4 * v * m
    for rank in range(4):
        track = [e for e in spans if (e["pid"], e["tid"]) == (rank, 0)]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(track[:-2]))
        assert {e["name"] for e in track[-2:]} or True
    busy = sum(e["dur"] for e in spans if e["cat"].startswith(("forward", "backward")))
    assert busy / 1e6 == pytest.approx(found.simulated.timeline.busy_s.sum(), rel=1e-9)


def test_a_trace_ends_with_the_step_and_shows_sends_and_memory() -> None:
    found = estimated("1f1b")
    assert found.simulated is not None
    events = trace(found.simulated, "title")["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    ends = found.simulated.timeline.last_s + found.simulated.after_s
    assert max(e["ts"] + e["dur"] for e in spans) / 1e6 == pytest.approx(ends.max())
    m = int(found.simulated.costs.microbatches[0])
    assert sum(e["cat"] == "send" for e in spans) == 2 * 3 * m
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 2 * 3 * m
    peak = max(e["args"]["GiB"] for e in events if e["ph"] == "C")
    assert peak == pytest.approx(found.evaluation.peak_bytes / 2**30)
    named = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {f"rank {r}" for r in range(4)}


def test_the_command_writes_both_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = [
        "estimate",
        REQUEST[0],
        "--on",
        REQUEST[1],
        "--seq-len",
        "4k",
        "--global-batch",
        "128",
        "--pp",
        "4",
    ]
    files = ["--trace", str(tmp_path / "t.json"), "--actions", str(tmp_path / "a.csv")]
    assert meshwright([*args, *files, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["plan"]["simulated"]
    assert shown["slowest_rank"] in range(4)
    assert len(shown["ranks"]) == 4
    assert set(shown["bubble_s"]) == {"warm_up", "imbalance", "send", "drain"}
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert (tmp_path / "a.csv").read_text().count("\n") == 4
    assert meshwright([*args, "--exact"]) == 0
    said = capsys.readouterr().out
    assert "closed form" in said
    assert "warm-up" in said


def test_an_estimate_that_was_not_simulated_has_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no simulated step"):
        api.save_trace(api.estimate(*REQUEST, seq_len="4k", global_batch_size=128, nearest=0), tmp_path / "t")
