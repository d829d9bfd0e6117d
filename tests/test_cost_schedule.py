"""Closed forms of pipeline schedules against a small event simulation written here.

The simulation knows only each rank's order of passes and that a pass waits for the one it depends on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from meshwright.checks.layout import SINGLE_CHUNK, TWO_CHUNKS
from meshwright.cost import schedule
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.rows import candidates
from meshwright.cost.stages import layers_per_stage
from meshwright.cost.step import evaluate
from meshwright.cost.tables import shared
from meshwright.errors import InputError
from meshwright.hardware.cluster import parse
from meshwright.model.params import block_params
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.profiles.load import load
from meshwright.profiles.records import Profile
from meshwright.search.plan import search
from meshwright.simulate import pipeline
from meshwright.simulate.costs import costs
from meshwright.simulate.exact import exact
from meshwright.strategy import records
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import layout_of, split
from meshwright.work import Work

F, B = 1.0, 2.0  # seconds of a whole stage's forward and backward of one microbatch
Pass = tuple[str, int, int]  # forward or backward, microbatch, chunk of the rank


def gpipe(rank: int, p: int, v: int, m: int) -> list[Pass]:
    if p == 1:  # a rank alone waits for no one
        return [(kind, i, 0) for i in range(m) for kind in ("F", "B")]
    return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]


def one_forward_one_backward(rank: int, p: int, v: int, m: int) -> list[Pass]:
    warm = min(m, p - rank - 1)
    order: list[Pass] = [("F", i, 0) for i in range(warm)]
    for i in range(m - warm):
        order += [("F", warm + i, 0), ("B", i, 0)]
    return order + [("B", i, 0) for i in range(m - warm, m)]


def interleaved(rank: int, p: int, v: int, m: int) -> list[Pass]:
    """Groups of p microbatches run through chunk 0, then the same p through chunk 1, ... (m a multiple of
    p).
    """
    forward = [(i, c) for first in range(0, m, p) for c in range(v) for i in range(first, first + p)]
    backward = [(i, v - 1 - c) for i, c in forward]
    warm = min(m * v, 2 * (p - rank - 1) + (v - 1) * p)
    order: list[Pass] = [("F", *x) for x in forward[:warm]]
    for f, b in zip(forward[warm:], backward):
        order += [("F", *f), ("B", *b)]
    return order + [("B", *x) for x in backward[m * v - warm :]]


ORDERS = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "interleaved-1f1b": interleaved}


@cache
def simulate(word: str, p: int, v: int, m: int) -> tuple[float, tuple[float, ...]]:
    """Seconds until the last pass ends, and the most chunk-microbatches (in whole stages) each rank holds."""
    orders = [ORDERS[word](rank, p, v, m) for rank in range(p)]
    ends: dict[tuple[str, int, int], float] = {}  # pass of (microbatch, virtual stage)
    clock, position = [0.0] * p, [0] * p
    while any(position[r] < len(orders[r]) for r in range(p)):
        moved = False
        for r in range(p):
            while position[r] < len(orders[r]):
                kind, i, c = orders[r][position[r]]
                stage = c * p + r
                if kind == "F":
                    needs = [("F", i, stage - 1)] if stage else []
                else:
                    needs = [("B", i, stage + 1)] if stage < p * v - 1 else [("F", i, stage)]
                if any(n not in ends for n in needs):
                    break
                start = max([clock[r], *(ends[n] for n in needs)])
                clock[r] = start + (F if kind == "F" else B) / v
                ends[kind, i, stage] = clock[r]
                position[r] += 1
                moved = True
        assert moved, "the order of passes deadlocks"
    held = []
    for order in orders:
        steps = np.cumsum([1 if kind == "F" else -1 for kind, _, _ in order])
        held.append(float(steps.max()) / v)
    return max(clock), tuple(held)


PLAIN = [(word, p, 1, m) for word, p, m in product(("gpipe", "1f1b"), (1, 2, 3, 4, 8), (1, 2, 4, 8, 13))]
CHUNKED = [("interleaved-1f1b", p, v, k * p) for p, v, k in product((2, 3, 4, 8), (2, 3, 4), (1, 2, 4))]


@pytest.mark.parametrize(("word", "p", "v", "m"), PLAIN + CHUNKED)
def test_bubble_is_that_of_the_simulation(word: str, p: int, v: int, m: int) -> None:
    """The step of the slowest rank is m (F + B) and the bubble of the other p - 1 equal stages."""
    seconds, _ = simulate(word, p, v, m)
    bubble = schedule.load(word).bubble((p - 1) * F, (p - 1) * B, (p - 1) * B / 2, v)
    assert m * (F + B) + bubble == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(("word", "p", "v", "m"), PLAIN + CHUNKED)
def test_in_flight_is_that_of_the_simulation(word: str, p: int, v: int, m: int) -> None:
    _, held = simulate(word, p, v, m)
    form = schedule.load(word).in_flight(np.arange(p), p, v, m)
    np.testing.assert_allclose(np.broadcast_to(form, (p,)), held, rtol=1e-12)


def test_rank_0_of_interleaved_holds_more_than_1f1b() -> None:
    """1 + (p - 1) / (p v) times as much (Narayanan et al. 2021)."""
    p, v, m = 8, 4, 64
    plain, chunked = (
        float(schedule.load(w).in_flight(0, p, n, m)) for w, n in (("1f1b", 1), ("interleaved-1f1b", v))
    )
    assert chunked / plain == pytest.approx(1 + (p - 1) / (p * v))


@pytest.mark.parametrize("framework", ["megatron-lm@2021", "megatron-lm@2023", "megatron-zb"])
def test_some_programs_wait_for_sends_that_could_hide(framework: str) -> None:
    """Interleaved chunks of Megatron-LM until 2023 do unless told otherwise; its other schedules as ever."""
    cluster = parse("8xa100")
    profile = load(framework, cluster.chip)
    profile = replace(profile, framework=replace(profile.framework, synchronises_sends=False))
    hidden = replace(profile, framework=replace(profile.framework, waits_for_sends=()))
    strategy = Strategy(dp=1, pp=8, vpp=4, schedule="interleaved-1f1b", zero=0)

    def run(profile: Profile, *options: str) -> tuple[float, float]:
        work = Work(4096, 32, options=frozenset(options))
        found = evaluate(TOY, cluster, work, strategy, profile)
        simulated = exact(TOY, cluster, work, strategy, profile).evaluation
        assert found.step_time_s == pytest.approx(simulated.step_time_s, rel=0.05)
        return found.time_s["pp"], simulated.time_s["pp"]

    waited, beside = run(profile), run(hidden)
    assert waited[0] == pytest.approx(beside[0] / schedule.shown_of_sends(schedule.load("interleaved-1f1b")))
    assert waited[0] == pytest.approx(waited[1], rel=0.2)
    assert waited[1] > 2 * beside[1]
    assert run(profile, "p2p-overlap") == beside
    assert schedule.sends_block("1f1b", hidden.framework, frozenset({"p2p-overlap"}))
    assert not schedule.sends_block("zb-1p", profile.framework, frozenset())
    assert schedule.sends_block("zb-1p", profile.framework, frozenset({"no-overlap"}))


def test_a_host_that_waits_for_a_send_has_launched_nothing_ahead() -> None:
    """2 m sends and those of the fill wait one launch longer, unless a graph holds the launches, the program
    leaves waiting to the device, or nothing is sent."""
    cluster = parse("8xa100")
    profile = load("megatron-lm@2021", cluster.chip)
    apart = replace(profile, framework=replace(profile.framework, synchronises_sends=False))
    work = Work(4096, 32)

    def step(profile: Profile, *options: str, **given: Any) -> Evaluation:
        strategy = Strategy(**({"dp": 1, "pp": 8, "zero": 0} | given))
        return evaluate(TOY, cluster, replace(work, options=frozenset(options)), strategy, profile)

    waits = step(profile).time_s["pp"] - step(apart).time_s["pp"]
    assert waits == pytest.approx(2 * 32 * profile["host"])
    filled = step(profile).time_s["bubble"] - step(apart).time_s["bubble"]
    assert filled == pytest.approx(2 * 7 * profile["host"])
    assert step(profile, "cuda-graphs-full").step_time_s == step(apart, "cuda-graphs-full").step_time_s
    hidden = {"schedule": "zb-1p"}
    assert step(profile, **hidden).step_time_s == step(apart, **hidden).step_time_s
    alone = {"dp": 8, "pp": 1}
    assert step(profile, **alone).step_time_s == step(apart, **alone).step_time_s


def test_closed_forms_broadcast() -> None:
    pp, vpp = np.array([[2], [4], [8]]), np.array([2, 4])
    for word in schedule.names():
        plan = schedule.load(word)
        assert np.shape(plan.bubble(pp * 1.0, pp * 2.0, pp * 1.0, vpp)) in {(3, 2), (3, 1)}
        # A schedule that holds every microbatch need not look at the rest.
        assert np.shape(plan.in_flight(pp * 0, pp, vpp, np.full((3, 2), 16))) == (3, 2)
        assert 0.0 < schedule.shown_of_sends(plan) <= 1.0


def test_scalars_and_arrays_agree() -> None:
    """One plan at a time or a grid of them, with the depth and the microbatches given."""
    pp, m = np.array([[2], [4], [8]]), np.array([4, 16, 64])
    for word in schedule.names():
        plan, v = schedule.load(word), 2 if word in TWO_CHUNKS or word.startswith("inter") else 1
        bubbles = np.broadcast_to(plan.bubble((pp - 1.0), (pp - 1) * 2.1, (pp - 1) * 0.9, v, pp, m), (3, 3))
        held = np.broadcast_to(plan.in_flight(0 * pp, pp, v, m), (3, 3))
        for i, j in product(range(3), range(3)):
            p, n = int(pp[i, 0]), int(m[j])
            one = plan.bubble(p - 1.0, (p - 1) * 2.1, (p - 1) * 0.9, v, p, n)
            assert float(one) == pytest.approx(bubbles[i, j], rel=1e-12)
            assert float(plan.in_flight(0, p, v, n)) == pytest.approx(held[i, j], rel=1e-12)
            assert bubbles[i, j] >= 0
            assert 0 < held[i, j] <= n


@pytest.mark.parametrize("word", sorted(schedule.names()))
def test_more_microbatches_never_enlarge_the_pipelines_idle_share(word: str) -> None:
    """Of a pipeline of equal stages, whatever its passes: F, I and W of which none is over twice another."""
    plan, v = schedule.load(word), 2 if word in TWO_CHUNKS else 1
    pp, m = np.arange(2, 17)[:, None, None], np.array([32, 33, 48, 64, 65, 128, 1024])[:, None]
    forward, gradient, weight = np.array(list(product((1.0, 1.4, 2.0), repeat=3))).T
    n = pp - 1
    idle = plan.bubble(n * forward, n * (gradient + weight), n * weight, v, pp, m)
    share = np.broadcast_to(idle, (15, 7, 27)) / (m * (forward + gradient + weight))
    assert (np.diff(share, axis=1) <= 1e-12).all()


@pytest.mark.parametrize("word", sorted(schedule.names()))
def test_depth_and_microbatches_left_out_mean_a_deep_pipeline(word: str) -> None:
    """What a caller without them gets is the limit, not another formula."""
    plan, n = schedule.load(word), 1e6
    v = 2 if word in TWO_CHUNKS or word.startswith("inter") else 1
    seconds = (n, 2.1 * n, 0.9 * n, v)
    deep = float(plan.bubble(*seconds, n + 1, 2 * n + 1))
    assert float(plan.bubble(*seconds)) == pytest.approx(deep, rel=1e-5)


def test_two_stages_on_a_rank_are_counted() -> None:
    held = {word: schedule.load(word).PARAMETERS_HELD for word in schedule.names()}
    assert held.pop("dualpipe") == 2.0
    assert set(held.values()) == {1.0}


def test_names_are_words_of_the_strategy() -> None:
    assert set(schedule.names()) == set(get_args(records.Schedule))
    assert set(schedule.names()) == SINGLE_CHUNK | TWO_CHUNKS | {"interleaved-1f1b"}
    with pytest.raises(InputError) as caught:
        schedule.load("2f2b")
    (found,) = caught.value.diagnostics
    assert "2f2b" in found.message
    assert "1f1b" in found.hint


# Without ends and on a cluster where sending is free, all stages are equal and the step is the simulation's.
TOY = Model("toy", 2048, 256, (Block(Attention(16, 16, 128), Mlp(8192)),), (0,) * 128)


@pytest.mark.parametrize(
    ("word", "v"), [("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2), ("interleaved-1f1b", 4)]
)
@pytest.mark.parametrize("m", [8, 16, 64])
def test_steps_stretch_as_the_simulation_does(word: str, v: int, m: int) -> None:
    """(bubble + busy) / busy of a whole step equals the simulated ratio, whatever a stage takes."""
    cluster = parse("8xh100")
    profile = load("megatron-core", cluster.chip)
    strategy = Strategy(dp=1, pp=8, vpp=v, schedule=word, zero=0)  # type: ignore[arg-type]
    found = evaluate(TOY, cluster, Work(4096, m), strategy, profile)
    busy = found.step_time_s - found.time_s["bubble"] - found.time_s["optimizer"] - found.time_s["dp"]
    seconds, _ = simulate(word, 8, v, m)
    # The head of 256 words (a fifth of a layer, beside 16) makes the last stage a little longer.
    assert found.time_s["bubble"] / busy == pytest.approx(seconds / (m * (F + B)) - 1, rel=0.03)


# A head that weighs three layers, and rows of layers that no schedule cuts evenly.
HEADED = replace(TOY, vocab=128_000, pattern=(0,) * 62)


@pytest.mark.parametrize("word", schedule.names())
@pytest.mark.parametrize("pp", [4, 8])
def test_stages_lie_where_the_route_of_a_microbatch_finds_them(word: str, pp: int) -> None:
    """The split's layout and the schedule's route are written apart; rank by rank they hold the same."""
    plan = schedule.load(word)
    vpp, m = plan.NEEDS.chunks or 3, 2 * pp
    laid = split(HEADED, pp, vpp, head_weight=2.0, layout=layout_of(word))
    met = np.zeros_like(laid.counts, dtype=float)
    for i in range(m):
        for stage, (rank, _) in enumerate(plan.route(pp, vpp, i, m)):
            met[rank] += laid.chunks[stage] / m
    assert met.tolist() == laid.counts.tolist()


@pytest.mark.parametrize("word", schedule.names())
@pytest.mark.parametrize("m", [16, 64])
def test_steps_of_unequal_stages_are_those_of_the_event_simulation(word: str, m: int) -> None:
    """Embedding, head and a remainder of layers where each schedule puts them, every pass of every chunk, and
    each rank's update after its last."""
    pp, cluster = 8, parse("8xh100")
    vpp = schedule.load(word).NEEDS.chunks or 2
    strategy = Strategy(dp=1, pp=pp, vpp=vpp, schedule=word, zero=0)  # type: ignore[arg-type]
    profile = load("megatron-core", cluster.chip)
    work = Work(4096, m)
    found = evaluate(HEADED, cluster, work, strategy, profile, detail=True)
    assert found.terms is not None
    laid = split(
        HEADED, pp, vpp, layers_per_stage(HEADED, cluster, work, strategy, profile), layout=layout_of(word)
    )
    seconds = {"forward": 0.0, "backward_input": 0.0, "backward_weight": 0.0}
    rows = {row.name: row for row in found.terms.children[2].children}
    for column, name in enumerate(("layer_0", "embedding", "head")):
        if name in rows:
            passes = {leaf.name: leaf.value for leaf in rows[name].children[0].children}
            seconds = {k: v + laid.chunks[:, column] * passes[k] for k, v in seconds.items()}
    durations = pipeline.Durations(**seconds)  # type: ignore[arg-type]
    graph = pipeline.network(word, pp, vpp, m)
    update = costs(HEADED, cluster, work, strategy, profile).after[:, 0]
    if word in ("zb-2p", "zb-v"):  # their ranks do not wait for each other between steps
        simulated, _ = pipeline.steady(graph, durations, update)
    else:
        simulated = (pipeline.ran(graph, durations).last_s + update).max()
    beside = found.time_s["pp"] + found.time_s["other"]
    assert found.step_time_s - beside == pytest.approx(simulated, rel=0.05)


def test_both_ends_of_a_v_stand_on_one_rank() -> None:
    """Embedding, head and logits on rank 0, whose layers make room for them; a tied embedding once."""
    cluster = parse("4xh100")
    profile = load("megatron-core", cluster.chip)
    tied = replace(HEADED, tied_embeddings=True, pattern=(0,) * 32)

    def fullest(model: Model, word: str, vpp: int) -> Evaluation:
        strategy = Strategy(
            dp=1, pp=4, vpp=vpp, schedule=word, zero=0, layers_per_stage=(32 // 4 // vpp,) * 4 * vpp
        )  # type: ignore[arg-type]
        return evaluate(model, cluster, Work(4096, 16), strategy, profile)

    ends = HEADED.vocab * HEADED.d_model * 2.0
    untied = fullest(replace(tied, tied_embeddings=False), "zb-v", 2)
    once = fullest(tied, "zb-v", 2)
    assert untied.peak_stage == once.peak_stage == 0
    assert untied.memory_bytes["params"] - once.memory_bytes["params"] == pytest.approx(ends, rel=1e-6)
    assert once.memory_bytes["logits"] > 0
    inner = fullest(tied, "1f1b", 1)  # the two ends on two ranks, each with a copy
    assert once.memory_bytes["params"] == pytest.approx(inner.memory_bytes["params"], rel=1e-3)
    both = fullest(tied, "dualpipe", 1)  # two stages, of which one has an end
    layers = sum(block_params(tied.blocks[0], tied).per_rank(1, 1, 1) for _ in range(16)) * 2.0
    assert both.memory_bytes["params"] == pytest.approx(layers + ends, rel=1e-3)


def test_an_uneven_last_stage_is_waited_for() -> None:
    """Unequal stages: m times the slowest and the sum of the others, as 1F1B's critical path has it."""
    cluster = parse("8xh100")
    profile = load("megatron-core", cluster.chip)
    work = Work(4096, 32)
    even = Strategy(dp=1, pp=8, zero=0, layers_per_stage=(16,) * 8)
    last = replace(even, layers_per_stage=(12,) * 7 + (44,))

    def step(one: Strategy) -> float:
        found = evaluate(TOY, cluster, work, one, profile)
        return float(found.step_time_s - found.time_s["optimizer"])

    assert step(last) / step(even) == pytest.approx((32 * 44 + 7 * 12) / (32 * 16 + 7 * 16), rel=0.03)


@pytest.mark.parametrize(("zero", "shards"), [(0, 1), (1, 2)])
def test_ranks_with_the_same_stages_add_up_their_gradients(zero: int, shards: int) -> None:
    """Rank r and rank p - 1 - r of DualPipe: both stages' gradients each way, or their shards."""
    cluster = parse("8xh100")
    profile = load("megatron-core", cluster.chip)
    work = Work(4096, 16 * shards, options=frozenset({"no-overlap"}))
    strategy = Strategy(dp=shards, pp=8 // shards, zero=zero, zero_group=shards, schedule="dualpipe")
    once, twice = (
        evaluate(TOY, cluster, work, replace(strategy, schedule=word), profile).time_s["dp"]
        for word in ("1f1b", "dualpipe")
    )
    per_stage = 16 * shards * block_params(TOY.blocks[0], TOY).per_rank(1, 1, 1)
    sent = 2 * per_stage * profile.framework.grad_sent_bytes / shards
    at_best = sent / cluster.scale_up_bytes_s  # either half of an all-reduce of two ranks sends half of it
    assert at_best < twice - 2 * once < 3 * at_best


def test_dualpipe_hides_expert_traffic_behind_the_other_stream() -> None:
    """As the switch for it does under another schedule; alone and among many, and in what a search cuts."""
    model = replace(HEADED, blocks=(Block(Attention(16, 16, 128), Moe(64, 8, 1024)),), pattern=(0,) * 32)
    cluster = parse("64xh100")
    profile = load("megatron-core", cluster.chip)
    plain = Strategy(dp=16, pp=4, ep=16, zero_group=16)
    joined = replace(plain, schedule="dualpipe")
    work = Work(4096, 256)
    shown, hidden = (evaluate(model, cluster, work, s, profile).time_s["ep"] for s in (plain, joined))
    switched = evaluate(model, cluster, replace(work, options=frozenset({"ep-overlap"})), plain, profile)
    assert hidden == pytest.approx(switched.time_s["ep"], rel=0.02)
    beside = float(profile["ep_overlapped"]) / min(float(profile["ep_exposed"]), 1.0)
    assert hidden == pytest.approx(beside * shown, rel=0.05)
    together = shared(model, cluster, work, plain, profile, candidates(plain, 1))
    assert evaluate(model, cluster, work, joined, profile, known=together).time_s["ep"] == hidden
    words = {"schedule": ("1f1b", "dualpipe"), "pp": 4, "tp": 1, "ep": 16, "zero": 1, "recompute": "none"}
    found = search(model, cluster, work, words | {"microbatch_size": 1, "cp": 1}, profile)
    assert found.plans[0].strategy.schedule == "dualpipe"
