"""Ranks one by one: lists against the pieces and the levels that the cost uses, and the `ranks` verb."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.checks.layout import ExpertBorders
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model import presets
from meshwright.report.ranks import CARRIES, links
from meshwright.report.terminal.ranks import ranges_text
from meshwright.strategy.placement import Span, spans, walk
from meshwright.strategy.ranks import Group, coordinates, members, reached, starts, survey
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import virtual_stages
from meshwright.strategy.torus import Walk, places
from meshwright.work import Work

WORK = {"seq_len": "4k", "global_batch_size": 256}
MOE = [
    "deepseek-v3",
    "--on",
    "128xh800",
    "--seq-len",
    "4k",
    "--global-batch",
    "512",
    "--pp",
    "4",
    "--ep",
    "16",
]
small = st.sampled_from([1, 2, 3, 4, 6, 8])


def stage_of_each(strategy: Strategy, n: int) -> dict[int, list[int]]:
    """Ranks of each pipeline stage in rank order, from the strides alone."""
    stride, found = 1, {}
    for axis in strategy.placement:
        if axis == "pp":
            break
        stride *= int(getattr(strategy, axis))
    for rank in range(n):
        found.setdefault(rank // stride % int(strategy.pp), []).append(rank)
    return found


@settings(max_examples=120, deadline=None)
@given(small, small, small, small, st.permutations(["tp", "cp", "dp", "pp"]), st.data())
def test_lists_say_what_the_cost_uses(
    tp: int, cp: int, dp: int, pp: int, order: list[str], data: st.DataObject
) -> None:
    n, stage = tp * cp * dp * pp, tp * cp * dp
    etp = data.draw(st.sampled_from([e for e in (1, 2, 3) if stage % e == 0]))
    ep = data.draw(st.sampled_from([e for e in (1, 2, 3, 4, 8, 16) if stage // etp % e == 0]))
    zero_group = data.draw(st.sampled_from([z for z in range(1, dp * cp + 1) if dp * cp % z == 0]))
    strategy = Strategy(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, zero=1, zero_group=zero_group, placement=tuple(order)
    )
    cluster = parse(f"{n}xh100")
    if ExpertBorders().violated(presets.load("deepseek-v3"), cluster, Work(4096, 64), strategy):
        return
    known, priced = survey(cluster, strategy), spans(cluster, strategy)
    assert set(known) == set(priced)
    for name, kind in known.items():
        lists = kind.ranks()
        assert sorted(lists.ravel().tolist()) == list(range(n)), name
        assert kind.size == int(priced[name].degree), name
        assert kind.local == fewest_together(lists, cluster.scale_up_size), name
        assert (kind.domains > 1) == (int(priced[name].remote) > 1 or kind.crossing > 0), name
    of_stage = stage_of_each(strategy, n)
    for name, stride, degree in (("etp", 1, etp), ("ep", etp, ep), ("edp", etp * ep, stage // (etp * ep))):
        wanted = set()
        for ranks in of_stage.values():
            for i, _ in enumerate(ranks):
                first = i - i // stride % degree * stride
                wanted.add(tuple(ranks[first + k * stride] for k in range(degree)))
        assert {tuple(r) for r in known[name].ranks().tolist()} == wanted, name
    assert known["data"].size == known["shard"].size * known["replica"].size
    assert known["edp"].size == known["expert_shard"].size * known["expert_replica"].size


def fewest_together(lists: np.ndarray, size: int) -> int:
    return min(int(np.unique(row // size, return_counts=True)[1].min()) for row in lists)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.data())
def test_domains_shared_as_the_cost_says(tp: int, cp: int, pp: int, data: st.DataObject) -> None:
    """Where degrees and domains are powers of two nothing straddles a border."""
    dp = 256 // (tp * cp * pp)
    ep = data.draw(st.sampled_from([e for e in (1, 2, 8, 32, 64) if tp * cp * dp % e == 0]))
    strategy = Strategy(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=3, zero_group=dp * cp)
    for text in ("256xh100", "256xgb200"):
        cluster = parse(text)
        priced = spans(cluster, strategy)
        for name, kind in survey(cluster, strategy).items():
            assert kind.local == int(priced[name].local), (text, name)
            assert kind.domains == int(priced[name].remote), (text, name)
            assert kind.crossing in (0, kind.count)


def torus_gather(cluster: Cluster, walk: Walk, kind: Group) -> float:
    """Bandwidth of a gather by looking at coordinates: each used axis gives a link, shared by the gaps."""
    total = 0.0
    along = places(walk, kind.ranks()[0] % cluster.scale_up_size)
    for length, closes, at in zip(cluster.torus, cluster.wraps, along, strict=True):
        axis = np.unique(at)
        if len(axis) > 1:
            gap = int(np.diff(axis).min())
            ring = 2 if closes and len(axis) * gap >= length and length > 2 else 1
            total += ring * cluster.link_bytes_s / gap
    return total or cluster.link_bytes_s


@pytest.mark.parametrize("text", ["tpu-v5p:8x8x8", "2*tpu-v5p:4x8x8", "512xtpu-v6e"])
@pytest.mark.parametrize(
    ("tp", "cp", "pp", "ep"), [(1, 1, 1, 64), (4, 2, 1, 8), (8, 1, 4, 32), (2, 8, 2, 16)]
)
def test_torus_axes_and_bandwidth_are_those_of_the_ranks(
    text: str, tp: int, cp: int, pp: int, ep: int
) -> None:
    cluster = parse(text)
    dp = cluster.n_chips // (tp * cp * pp)
    strategy = Strategy(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=1, zero_group=dp * cp // 2)
    priced: dict[str, Span] = spans(cluster, strategy)
    way = walk(cluster, strategy)
    for name, kind in survey(cluster, strategy).items():
        span = priced[name]
        assert prod(kind.axes) == kind.local == int(span.local), name
        assert kind.domains == int(span.remote), name
        assert float(span.local_bytes_s) == pytest.approx(torus_gather(cluster, way, kind)), name


def test_a_few_ranks_lie_in_squares_where_a_row_would_not_close() -> None:
    """Four on an axis of 8 are 2 x 2, on an axis of 4 a ring; either way all fill the slice once."""
    for text, walked, four in (
        ("tpu-v5p:8x8x8", [[0, 2], [1, 2], [0, 4], [1, 4], [2, 8]], {(0, 0), (1, 0), (0, 1), (1, 1)}),
        ("tpu-v5p:4x8x8", [[0, 4], [1, 8], [2, 8]], {(0, 0), (1, 0), (2, 0), (3, 0)}),
    ):
        cluster = parse(text)
        strategy = Strategy(dp=cluster.n_chips // 4, tp=4, zero=3)
        way = walk(cluster, strategy)
        assert [list(step) for step in way] == walked
        x, y, _ = places(way, np.arange(4))
        assert set(zip(x.tolist(), y.tolist(), strict=True)) == four
        every = list(zip(*(along.tolist() for along in places(way, np.arange(cluster.n_chips))), strict=True))
        assert len(set(every)) == cluster.n_chips


def test_stages_innermost_lie_in_a_row() -> None:
    """They send to a neighbour, so a square would only take links from the groups around them."""
    strategy = Strategy(dp=128, pp=4, zero=1, zero_group=128, placement=("pp", "tp", "cp", "dp"))
    cluster = parse("tpu-v5p:8x8x8")
    assert walk(cluster, strategy) == ((0, 8), (1, 8), (2, 8))
    span = spans(cluster, strategy)["dp"]
    assert span.local_bytes_s == pytest.approx(4.5 * cluster.link_bytes_s)


def test_a_group_that_straddles_is_priced_as_the_worst() -> None:
    cluster = parse("24xh100")
    strategy = Strategy(dp=8, tp=3)
    kind = survey(cluster, strategy)["tp"]
    assert (kind.local, kind.domains, kind.crossing, kind.count) == (1, 2, 2, 8)
    assert links(kind, spans(cluster, strategy)["tp"]) == [("network", 3, cluster.scale_out_bytes_s)]


def test_members_share_all_other_coordinates() -> None:
    strategy = Strategy(dp=4, tp=2, pp=2, cp=2, ep=4, placement=("tp", "pp", "cp", "dp"))
    cluster = parse("32xh100")
    for axis, others in (("tp", "cp dp pp"), ("pp", "tp cp dp"), ("ep", "etp edp pp"), ("edp", "etp ep pp")):
        for rank in range(32):
            at = coordinates(strategy, np.array(members(cluster, strategy, axis, rank)))
            assert at[axis].tolist() == list(range(len(at[axis])))
            assert all(len(set(at[other].tolist())) == 1 for other in others.split())


def test_pieces_and_starts_make_every_rank_once() -> None:
    pieces = ((2, 3), (12, 2))
    firsts = starts(pieces, 48)
    every = (reached(firsts)[:, None] + reached(pieces)[None, :]).ravel()
    assert sorted(every.tolist()) == list(range(48))


def test_stages_lie_where_schedules_put_them() -> None:
    assert virtual_stages(4, 2, "v") == ((0, 7), (1, 6), (2, 5), (3, 4))
    assert virtual_stages(4, 1, "both-ways") == ((0, 3), (1, 2), (2, 1), (3, 0))
    assert virtual_stages(2, 3, "round") == ((0, 2, 4), (1, 3, 5))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([5], "5"),
        ([0, 1, 8, 9], "0-1, 8-9"),
        ([0, 1, 8, 9, 16, 17, 24, 25], "0-1, 8-9, ..., 24-25"),
        ([0, 2, 5, 6, 9], "0, 2, ..., 9 (5 ranks)"),
    ],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert ranges_text(ranks) == text


def test_json_of_few_and_of_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ranks", *MOE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "meshwright.ranks/1"
    assert len(found["ranks"]) == 128
    assert found["ranks"][77] == {
        "rank": 77, "domain": 9, "node": 9, "tp": 0, "cp": 0, "dp": 13, "pp": 2, "etp": 0, "ep": 13, "edp": 0,
    }  # fmt: skip
    by_name = {g["group"]: g for g in found["groups"]}
    assert by_name["ep"]["ranks"][1] == list(range(16, 32))
    assert by_name["edp"]["ranks"][0] == [0, 16]
    assert [link["level"] for link in by_name["ep"]["links"]] == ["domain", "network"]
    assert [s["layers"] for s in found["stages"]] == [[n] for n in json_layers(found["strategy"]["stages"])]
    many = ["llama-3.1-405b", "--on", "16384xh100", "--seq-len", "8k", "--tokens-per-step", "16M"]
    many += ["--tp", "8", "--pp", "16"]
    assert run(["ranks", *many, "--json"]) == 0
    text = capsys.readouterr().out
    assert len(text) < 40_000
    found = json.loads(text)
    assert "ranks" not in found
    for group in found["groups"]:
        assert group["ranks"] is None
        pieces = tuple((p["stride"], p["degree"]) for p in group["pieces"])
        first = [
            reached(pieces) + s for s in reached(tuple((p["stride"], p["degree"]) for p in group["starts"]))
        ]
        assert [f.tolist() for f in first[:4]] == group["first"]
        assert len(first) == group["count"]
    assert run(["ranks", *many, "--json", "--full", "--axis", "tp"]) == 0
    (tp,) = json.loads(capsys.readouterr().out)["groups"]
    assert tp["ranks"][-1] == list(range(16376, 16384))


def json_layers(stages: list[int]) -> list[int]:
    assert sum(stages) == 61
    return stages


def test_text_of_the_map_of_one_kind_and_of_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ranks", *MOE]) == 0
    shown = capsys.readouterr().out
    assert "rank = dp + 32 x pp; domain = rank // 8" in shown
    assert "16-31" not in shown.split("stages")[0]  # only the first and the last group
    assert "0, 16\n" in shown.replace("  ", "") or "0, 16 " in shown
    assert run(["ranks", *MOE, "--axis", "ep"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") >= 8 + 3
    assert "112-127" in shown
    assert run(["ranks", *MOE, "--rank", "77"]) == 0
    shown = capsys.readouterr().out
    assert "rank 77: domain 9" in shown
    assert "pp 2, dp 13, edp 0, ep 13" in shown
    assert "64-79" in shown


def test_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ranks", *MOE, "--rank", "128"]) == 2
    assert "rank 128 is outside 0 to 127" in capsys.readouterr().err
    assert run(["ranks", *MOE, "--axis", "epd"]) == 2
    assert "edp" in capsys.readouterr().err
    assert run(["ranks", *MOE, "--tp", "3"]) == 2
    capsys.readouterr()
    with pytest.raises(InputError):
        api.ranks("llama-3.1-8b", "8xh100", **WORK, tp=2).place(8)


def test_dense_models_have_no_expert_groups_and_every_kind_is_named() -> None:
    dense = api.ranks("llama-3.1-8b", "16xh100", **WORK, zero=0)
    assert list(dense.groups) == ["tp", "cp", "pp", "dp", "data"]
    sparse = api.ranks("mixtral-8x7b", "16xh100", **WORK, ep=8)
    assert set(sparse.groups) == set(CARRIES)
