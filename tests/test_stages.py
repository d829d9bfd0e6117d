"""Stages: every layer lands once, the largest stage is as small as it can be, and faults show arithmetic."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.cost.stages import layers_per_stage
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.strategy.recompute import parse
from meshwright.strategy.stages import Line, layout_of, split, stage_classes

ATTENTION = Attention(n_heads=8, n_kv_heads=8, head_dim=16)
DENSE = Block(ATTENTION, Mlp(512))
SPARSE = Block(ATTENTION, Moe(8, 2, 128))


def model(pattern: tuple[int, ...], mtp: int = 0) -> Model:
    return Model("toy", 128, 1000, (DENSE, SPARSE), pattern, mtp_layers=mtp)


def cuts(n: int, parts: int):
    for inner in combinations(range(n + 1), parts - 1):
        edges = (0, *inner, n)
        yield [b - a for a, b in pairwise(edges)]


@given(
    n=st.integers(1, 40), pp=st.integers(1, 8), vpp=st.integers(1, 5),
    head=st.floats(0, 4), first=st.floats(0, 2), data=st.data(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_layer_lands_once(n, pp, vpp, head, first, data):
    pattern = tuple(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)))
    if pp * vpp > n:
        return
    laid = split(model(pattern, mtp=1), pp, vpp, None, head, first)
    assert laid.counts[:, :2].sum(axis=0).tolist() == [pattern.count(0), pattern.count(1)]
    assert laid.counts.sum(axis=0)[2:].tolist() == [1, 1, 1]
    assert (laid.chunks.reshape(vpp, pp, -1).sum(axis=0) == laid.counts).all()
    assert all(size > 0 for size in laid.layers_per_stage[1:-1])
    # Chunks are dealt in order: replaying the sizes over the pattern gives the same kinds.
    start = 0
    for row, size in zip(laid.chunks, laid.layers_per_stage):
        assert row[0] == pattern[start : start + size].count(0)
        start += size


@given(
    n=st.integers(2, 11), pp=st.integers(2, 5),
    head=st.floats(0, 4), first=st.floats(0, 2), heavy=st.floats(0.2, 5),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_largest_stage_is_the_smallest_possible(n, pp, head, first, heavy):
    if pp > n:
        return
    pattern = tuple(int(i % 3 == 2) for i in range(n))
    weights = (1.0, heavy)

    def largest(sizes):
        edges = np.cumsum([0, *sizes])
        loads = [sum(weights[k] for k in pattern[a:b]) for a, b in pairwise(edges)]
        loads[0] += first
        loads[-1] += head
        return max(loads)

    best = min(largest(c) for c in cuts(n, pp) if all(s > 0 for s in c[1:-1]))
    found = split(model(pattern), pp, 1, None, head, first, weights)
    assert largest(found.layers_per_stage) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "pp", "vpp", "expected"),
    [
        (8, 4, 1, (2, 2, 2, 2)),
        (10, 4, 1, (2, 3, 3, 2)),
        (126, 16, 1, (7, *[8] * 14, 7)),
        (11, 4, 1, (3, 3, 3, 2)),
        (9, 4, 1, (2, 2, 3, 2)),
        (8, 2, 2, (2, 2, 2, 2)),
    ],
)
def test_remainders_go_to_inner_stages(n, pp, vpp, expected):
    assert split(model((0,) * n), pp, vpp).layers_per_stage == expected


def test_a_heavy_head_takes_layers_from_the_last_stage():
    assert split(model((0,) * 16), 4, 1, None, head_weight=2.0).layers_per_stage == (4, 5, 5, 2)


def test_embedding_and_head_may_stand_alone():
    laid = split(model((0,) * 126), 16, 8)
    assert laid.layers_per_stage == (0, *[1] * 126, 0)
    assert laid.counts[:, 0].tolist() == [7, *[8] * 14, 7]


def test_given_layers_are_kept():
    assert split(model((0,) * 7), 2, 2, (1, 2, 3, 1)).counts[:, 0].tolist() == [4, 3]


@pytest.mark.parametrize(
    ("pp", "vpp", "listed", "said"),
    [
        (2, 1, (3, 3, 2), "lists 3 virtual stages, but pp 2 x vpp 1 = 2"),
        (2, 1, (3, 4), "sums to 3 + 4 = 7, but toy has 8 layers (+1)"),
        (3, 1, (4, 0, 4), "virtual stage 1 has no layer"),
        (2, 1, (9, -1), "negative"),
        (4, 4, None, "pp 4 x vpp 4 = 16 virtual stages, but toy has 8 layers"),
        (0, 1, None, "must be 1 or more"),
    ],
)
def test_faults_show_the_arithmetic(pp, vpp, listed, said):
    with pytest.raises(InputError) as raised:
        split(model((0,) * 8), pp, vpp, listed)
    assert said in str(raised.value)


def test_classes_gather_back_to_the_splits():
    toy = model((0, 0, *[1] * 14), mtp=1)
    pipelines = ((1, 1), (2, 2), (4, 1), (4, 2), (2, 2), (8, 1))
    lines = [Line(p, v, split(toy, p, v).layers_per_stage, "round") for p, v in pipelines]
    found = stage_classes(toy, lines)
    for row, line in enumerate(lines):
        laid = line.split(toy)
        assert found.multiplicity[row].sum() == line.pp
        held = (found.counts[row] * found.multiplicity[row][:, None]).sum(axis=0)
        assert held.tolist() == laid.counts.sum(axis=0).tolist()
        for c in np.flatnonzero(found.multiplicity[row]):
            rank = found.fullest_rank[row, c]
            assert (laid.counts[rank] == found.counts[row, c]).all()
            assert not any((laid.counts[r] == found.counts[row, c]).all() for r in range(rank))
        assert [found.counts[row, c].tolist() for c in line.of_ranks(toy)] == laid.counts.tolist()
    assert (found.counts[found.multiplicity == 0] == 0).all()


@pytest.mark.parametrize(
    "word",
    ["none", "full", "minimal", "selective:norm+mlp", "every:2", "layers:3", "products:2", "selective"],
)
def test_recompute_words_round_trip(word):
    assert parse(parse(word).word) == parse(word)


def test_recompute_shares():
    assert parse("full").full_share(np.array([1, 7])).tolist() == [1, 1]
    assert parse("none").full_share(7) == 0
    assert parse("layers:3").full_share(np.array([2, 6])).tolist() == [1, 0.5]
    assert parse("every:2").full_share(np.array([1, 4])).tolist() == [1, 0.5]


@pytest.mark.parametrize(
    ("word", "said", "hint"),
    [
        ("selective:core_atn", "core_atn is not among", "core_attn"),
        ("selective:nrm+mpl", "nrm, mpl are not among", "norm"),
        ("ful", "the words are", "full"),
        ("every:0", "whole number", "every:2"),
        ("layers:x", "whole number", "layers:2"),
        ("products:", "whole number", "products:2"),
        ("layers:" + "9" * 5000, "whole number", "layers:2"),
        ("norm+mlp", "without saying selective", "selective:norm+mlp"),
        ("selective:", "names no module", "core_attn"),
    ],
)
def test_recompute_faults(word, said, hint):
    with pytest.raises(InputError) as raised:
        parse(word)
    assert said in str(raised.value)
    assert hint in raised.value.diagnostics[0].hint


@pytest.mark.parametrize(("pp", "vpp", "head"), [(8, 11, 0.5), (4, 21, 0.5), (16, 5, 0.0), (8, 5, 3.0)])
def test_ranks_have_their_longer_chunks_in_the_same_turns(pp: int, vpp: int, head: float) -> None:
    """But for the ends, and one turn in which some ranks have a layer more."""
    found = np.array(split(model((0,) * 126), pp, vpp, head_weight=head).layers_per_stage).reshape(vpp, pp)
    inner = found[:, 1:-1]
    assert (inner.min(1) != inner.max(1)).sum() <= 1
    assert found[-1, -1] <= found[-2, -1]  # the chunk with the head is no longer than the one before


@pytest.mark.parametrize(("n", "pp"), [(4, 4), (32, 32), (6, 8), (9, 4)])
def test_a_v_of_one_chunk_a_rank_is_a_line(n: int, pp: int) -> None:
    """Strategies of several schedules share tables, whichever schedule they are made for."""
    dense, ends = model((0,) * n), {"head_weight": 3.0, "embedding_weight": 0.5}
    line, v = (split(dense, pp, layout=layout, **ends) for layout in ("round", "v"))
    assert line.layers_per_stage == v.layers_per_stage
    assert (line.counts == v.counts).all()


def test_of_cuts_with_equal_largest_stages_the_first_stage_holds_least():
    deep = model((0, 0, 0, *[1] * 58))
    cut = split(deep, 16, head_weight=2.3, kind_weights=(0.65, 1.0)).layers_per_stage
    assert cut == (*[4] * 15, 1)


CUT = [
    # What a stage is long by: launches of experts, of a hybrid's small layers, products, and sends besides.
    ("qwen3-30b-a3b", "64xb200", 8192, {"tp": 8, "pp": 8, "ep": 8}),
    ("qwen3-next-80b-a3b", "256xb200", 2048, {"tp": 2, "pp": 16, "ep": 16, "microbatch_size": 2}),
    ("gpt-oss-120b", "512xh800", 4096, {"tp": 8, "pp": 2, "ep": 4}),
    ("nemotron-h-8b", "128xgb200", 2048, {"tp": 4, "pp": 8}),
    ("llama-3.1-8b", "128xgb200", 2048, {"tp": 8, "pp": 8, "microbatch_size": 2}),
    ("llama-3.1-70b", "64xh100", 4096, {"tp": 2, "pp": 16}),
    ("deepseek-v2-lite", "64xh100", 8192, {"tp": 1, "pp": 4, "ep": 16}),
    ("gemma-3-27b", "256xh100", 131072, {"tp": 4, "pp": 8, "cp": 4}),
    ("llama-3.2-1b", "64xb200", 4096, {"tp": 8, "pp": 4, "schedule": "zb-v"}),
    ("llama-3.1-8b", "16xb200", 4096, {"tp": 2, "pp": 4, "vpp": 2}),
    ("qwen3-30b-a3b", "64xb200", 4096, {"tp": 4, "pp": 8, "ep": 8, "schedule": "dualpipe"}),
]


@pytest.mark.parametrize(("name", "on", "length", "degrees"), CUT, ids=[f"{c[0]} on {c[1]}" for c in CUT])
def test_no_other_weight_of_the_head_cuts_stages_much_better(name, on, length, degrees):
    found = api.estimate(name, on, seq_len=length, global_batch_size=256, nearest=0, **degrees)
    toy, asked = found.model, found.strategy
    layout, rows = layout_of(asked.schedule), (asked.pp, asked.vpp)
    others = {
        split(toy, *rows, head_weight=w, layout=layout).layers_per_stage for w in (0, 0.5, *range(1, 9))
    }
    words = (found.cluster, found.work, found.strategy, found.profile)
    seconds = evaluate(toy, *words).step_time_s
    for layers in others:
        listed = replace(found.strategy, layers_per_stage=layers)
        assert seconds <= 1.03 * evaluate(toy, found.cluster, found.work, listed, found.profile).step_time_s
    assert sum(layers_per_stage(toy, *words)) == toy.n_layers


@pytest.mark.parametrize(("name", "on", "length", "degrees"), CUT, ids=[f"{c[0]} on {c[1]}" for c in CUT])
def test_no_layer_moves_when_a_figure_does(name, on, length, degrees):
    """Or a faster link or chip could make a step slower."""
    found = api.estimate(name, on, seq_len=length, global_batch_size=256, nearest=0, **degrees)
    at, chip = found.cluster, found.cluster.chip
    faster = replace(chip, bf16_flops=4 * chip.bf16_flops, hbm_bytes_s=3 * chip.hbm_bytes_s)
    places = (
        at, replace(at, chip=faster), replace(at, chip=replace(faster, name="ours", sheet=chip.name)),
        replace(at, scale_up_bytes_s=9 * at.scale_up_bytes_s),
        replace(at, scale_out_bytes_s=0.1 * at.scale_out_bytes_s),
    )  # fmt: skip
    several = {
        layers_per_stage(found.model, place, found.work, found.strategy, found.profile) for place in places
    }
    assert len(several) == 1
