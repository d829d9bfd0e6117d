"""Rates on a torus against messages routed link by link: an oracle that shares no formula with the code.

Every rank gets its coordinates and its groups by counting digits, every message goes axis by axis the shorter
way (both ways by halves where they are as long), and the fullest link says what all groups of a kind reach
when they exchange at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise, permutations
from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.hardware.slices import spell
from meshwright.model.presets import load as load_model
from meshwright.profiles.load import load as load_profile
from meshwright.strategy.placement import ALONE, spans, walk, way
from meshwright.strategy.records import AXES, Strategy
from meshwright.work import Work

Place = tuple[int, ...]
Message = tuple[Place, Place, float]  # from, to, bytes
ROW, SQUARE = range(2)  # walks
SLICES = (
    "tpu-v5e:8x8", "tpu-v5e:4x8", "tpu-v5e:8x16", "tpu-v6e:4x4",
    "tpu-v5p:4x4x4", "tpu-v5p:4x4x8", "tpu-v5p:2x2x4", "tpu-v4:2x4x4",
)  # fmt: skip


def digits(number: int, radix: Iterable[int]) -> tuple[int, ...]:
    """Digits of a number, the fastest first."""
    found = []
    for n in radix:
        found.append(number % n)
        number //= n
    return tuple(found)


def place(steps: tuple[tuple[int, int], ...], rank: int) -> Place:
    """Coordinates of a rank that walks a slice so."""
    at, step = defaultdict(int), defaultdict(lambda: 1)
    for (axis, length), digit in zip(steps, digits(rank, (n for _, n in steps)), strict=True):
        at[axis] += digit * step[axis]
        step[axis] *= length
    return tuple(at[axis] for axis in sorted(at))


def members(s: Strategy, n_chips: int, name: str) -> list[list[int]]:
    """Ranks of every group of one kind: those that differ in its own coordinate alone."""
    order = s.placement
    degrees = [int(getattr(s, axis)) for axis in order]
    stage = [n for axis, n in zip(order, degrees, strict=True) if axis != "pp"]
    found: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    for rank in range(n_chips):
        at = dict(zip(order, digits(rank, degrees), strict=True))
        if name not in AXES:  # experts lie over the ranks of a stage, etp, ep, edp
            inside, step = 0, 1
            for axis, n in zip((a for a in order if a != "pp"), stage, strict=True):
                inside, step = inside + at[axis] * step, step * n
            etp, ep = int(s.etp), int(s.ep)
            own = digits(inside, (etp, ep, prod(stage) // etp // ep))
            at = dict(zip(("etp", "ep", "edp"), own, strict=True)) | {"pp": at["pp"]}
        found[tuple(at[axis] for axis in at if axis != name)].append((at[name], rank))
    return [[rank for _, rank in sorted(one)] for one in found.values()]


def fullest(cluster: Cluster, messages: Iterable[Message], *, split: bool = True) -> float:
    """Bytes over the link that most messages take; `split`: messages may go both ways round by halves."""
    load: Counter[tuple[int, Place, int]] = Counter()
    for start, end, nbytes in messages:
        at = list(start)
        for axis, (length, closes) in enumerate(zip(cluster.torus, cluster.wraps, strict=True)):
            steps = end[axis] - at[axis]
            ways = {steps: nbytes}
            if closes and length > 2:
                up = steps % length
                ways = {up: nbytes} if 2 * up < length else {up - length: nbytes}
                if 2 * up == length:
                    ways = {up: nbytes / 2, up - length: nbytes / 2} if split else {up: nbytes}
            for distance, part in ways.items():
                here, sign = at[axis], 1 if distance > 0 else -1
                for _ in range(abs(distance)):
                    load[axis, (*at[:axis], here, *at[axis + 1 :]), sign] += part
                    here = (here + sign) % length
            at[axis] = end[axis]
    return max(load.values(), default=0.0)


def rings(cluster: Cluster, placed: list[list[Place]]) -> float:
    """Links that an all-gather uses: along each axis rows of a group pass their shares on both ways round."""
    links = 0.0
    for axis in range(len(cluster.torus)):
        messages, m = [], 1
        for group in placed:
            rows = defaultdict(list)
            for at in group:
                rows[at[:axis] + at[axis + 1 :]].append(at)
            for row in rows.values():
                row.sort()
                m = len(row)
                for one, following in zip(row, row[1:] + row[:1], strict=True):
                    messages += [(one, following, 0.5), (following, one, 0.5)] if m > 1 else []
        if messages:
            links += 1 / fullest(cluster, messages)
    return links


def farthest(cluster: Cluster, placed: list[list[Place]]) -> int:
    """Links from a rank to the farthest of its group, along each axis by itself."""
    hops = 0
    for axis, (length, closes) in enumerate(zip(cluster.torus, cluster.wraps, strict=True)):
        at = {place[axis] for place in placed[0]}
        ways = [abs(a - b) for a in at for b in at]
        hops += max(min(way, length - way) if closes else way for way in ways)
    return hops


def exchanged(cluster: Cluster, placed: list[list[Place]]) -> float:
    """Links that an all-to-all uses of which every rank sends one byte, a share to each."""
    n = len(placed[0])
    every = ((a, b, 1 / n) for group in placed for a in group for b in group if a != b)
    return (n - 1) / n / fullest(cluster, every)


def sent_on(cluster: Cluster, placed: list[list[Place]]) -> float:
    """Links that a message from each rank to the next of its group uses."""
    return 1 / fullest(cluster, ((a, b, 1.0) for group in placed for a, b in pairwise(group)), split=False)


def fewest_neighbours(length: int, closes: bool) -> int:
    """Chips beside one of an axis, for the one that has fewest."""
    beside = [{at + step for step in (1, -1)} for at in range(length)]
    if closes:
        beside = [{at % length for at in some} for some in beside]
    return min(len(some & set(range(length)) - {at}) for at, some in enumerate(beside))


@st.composite
def laid(draw: st.DrawFn, slices: tuple[str, ...] = SLICES) -> tuple[Cluster, Strategy]:
    """Any axes and experts on one slice."""
    cluster = parse(draw(st.sampled_from(slices)))
    left, degrees = cluster.n_chips, {}
    for axis in draw(st.permutations(AXES))[:3]:
        degrees[axis] = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        left //= degrees[axis]
    degrees |= {axis: left for axis in AXES if axis not in degrees}
    stage = cluster.n_chips // degrees["pp"]
    etp = draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    ep = draw(st.sampled_from([d for d in range(1, stage // etp + 1) if stage // etp % d == 0]))
    state = degrees["dp"] * degrees["cp"]
    zero_group = draw(st.sampled_from([d for d in range(1, state + 1) if state % d == 0]))
    order = tuple(draw(st.permutations(AXES)))
    return cluster, Strategy(**degrees, etp=etp, ep=ep, zero_group=zero_group, placement=order)


SQUARES = (  # where rows two wide gain: tensor groups, experts alone, experts within tensor groups, two axes
    (parse("tpu-v5e:8x8"), Strategy(dp=16, tp=4, zero_group=16)),
    (parse("tpu-v5e:8x8"), Strategy(dp=64, ep=4, zero_group=64)),
    (parse("tpu-v5e:8x16"), Strategy(dp=16, tp=8, ep=8, etp=4, zero_group=16)),
    (parse("tpu-v5e:8x8"), Strategy(dp=16, tp=2, cp=2, zero_group=32)),
)
# Experts around stages lie in two runs of one axis: 0, 1 and 4, 5 of its eight chips.
AROUND_STAGES = Strategy(dp=2, tp=32, pp=2, ep=64, zero_group=2, placement=("tp", "pp", "cp", "dp"))


@settings(max_examples=100, deadline=None)
@given(laid())
@example(SQUARES[0])
@example(SQUARES[1])
@example(SQUARES[2])
@example(SQUARES[3])
@example((parse("tpu-v5p:4x4x8"), AROUND_STAGES))
def test_rates_are_those_of_routed_messages(one: tuple[Cluster, Strategy]) -> None:
    cluster, strategy = one
    priced, steps, link = spans(cluster, strategy), walk(cluster, strategy), cluster.link_bytes_s
    for name in ("tp", "cp", "dp", "pp", "etp", "ep", "edp"):
        placed = [
            [place(steps, rank) for rank in group] for group in members(strategy, cluster.n_chips, name)
        ]
        span = priced[name]
        assert len(placed[0]) == int(span.local) == int(span.degree), name
        if len(placed[0]) > 1:
            assert float(span.local_bytes_s) == pytest.approx(rings(cluster, placed) * link), name
            assert span.hops == farthest(cluster, placed), name
            assert float(span.exchange_bytes_s) == pytest.approx(exchanged(cluster, placed) * link), name
        if len(placed[0]) > 1 and name in AXES:  # others send nothing to a neighbour
            assert float(span.direct_bytes_s) == pytest.approx(sent_on(cluster, placed) * link), name


def test_a_ring_around_a_square_takes_no_link_twice() -> None:
    """Ranks 1 and 2 of four lie two links apart, and still every message has links of its own."""
    cluster = parse("tpu-v5e:8x8")
    strategy = Strategy(dp=16, cp=4)
    steps = walk(cluster, strategy)
    assert [place(steps, rank) for rank in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    placed = [[place(steps, rank) for rank in group] for group in members(strategy, 64, "cp")]
    around = [(a, b, 1.0) for group in placed for a, b in zip(group, group[1:] + group[:1], strict=True)]
    assert fullest(cluster, around) == 1.0
    assert spans(cluster, strategy)["cp"].direct_bytes_s == cluster.link_bytes_s


@pytest.mark.parametrize(
    ("text", "tp", "cp", "etp", "ep", "walk_of"),
    [
        ("tpu-v5p:8x8x8", 2, 1, 1, 1, ROW),
        ("tpu-v5p:8x8x8", 4, 1, 1, 1, SQUARE),  # a line of four on an axis of 8 would have one link
        ("tpu-v5p:8x8x8", 8, 1, 1, 1, ROW),  # a ring either way: groups around it keep more links
        ("tpu-v5p:8x8x8", 8, 1, 1, 4, SQUARE),  # but experts gain
        ("tpu-v5p:8x8x8", 64, 1, 1, 1, ROW),
        ("tpu-v5p:8x8x8", 16, 1, 1, 4, SQUARE),  # the tensor group does not mind
        ("tpu-v5p:8x8x8", 1, 1, 1, 4, SQUARE),
        ("tpu-v5p:8x8x8", 1, 1, 1, 8, ROW),
        ("tpu-v5p:8x8x8", 1, 1, 1, 64, ROW),
        ("tpu-v5p:8x8x8", 2, 2, 1, 1, SQUARE),  # the second axis goes beside the first
        ("tpu-v5p:8x8x8", 1, 1, 2, 2, SQUARE),
        ("tpu-v5p:4x8x8", 4, 1, 1, 1, ROW),  # a ring
        ("tpu-v5p:4x8x8", 1, 1, 1, 8, ROW),  # 4 x 2
        ("tpu-v6e:16x16", 16, 1, 1, 1, ROW),  # 8 x 2 would be no better for it and worse for data
        ("tpu-v6e:16x16", 8, 1, 1, 1, SQUARE),
        ("tpu-v6e:16x16", 1, 4, 8, 1, SQUARE),  # tensor groups send more than context groups, which lose
        ("tpu-v6e:16x16", 8, 4, 1, 1, SQUARE),
    ],
)
def test_the_group_that_sends_most_says_how_ranks_lie(
    text: str, tp: int, cp: int, etp: int, ep: int, walk_of: int
) -> None:
    cluster = parse(text)
    dp = cluster.n_chips // (tp * cp)
    assert way(cluster, Strategy(dp=dp, tp=tp, cp=cp, etp=etp, ep=ep, zero_group=dp)) == walk_of


def test_data_groups_say_how_ranks_lie_where_no_layer_exchanges() -> None:
    cluster = parse("tpu-v5p:8x8x8")
    assert way(cluster, Strategy(dp=4, pp=128)) == SQUARE
    assert way(cluster, Strategy(dp=512)) == ROW
    assert way(cluster, Strategy(dp=2, tp=2, pp=128)) == ROW  # a tensor group chooses, and does not mind
    assert way(cluster, Strategy(dp=128, pp=4, placement=("pp", "tp", "cp", "dp"))) == ROW


@settings(max_examples=60, deadline=None)
@given(laid(("tpu-v5p:2x2x4", "tpu-v5p:4x4x8", "tpu-v5p:4x8x8", "tpu-v6e:8x16", "tpu-v4:2x4x4")))
def test_axes_in_any_order_are_the_same_links(one: tuple[Cluster, Strategy]) -> None:
    cluster, strategy = one
    first = spans(cluster, strategy)
    for axes in set(permutations(cluster.torus)):
        again = parse(f"{cluster.chip.name}:{spell(axes)}")
        assert again.torus == axes
        assert spans(again, strategy) == first


@settings(max_examples=100, deadline=None)
@given(laid((*SLICES, "2*tpu-v5e:4x8", "4*tpu-v5p:2x2x4", "tpu-v6e:16x16")))
def test_no_group_is_quicker_than_its_floor(one: tuple[Cluster, Strategy]) -> None:
    """Groups of experts and of sharded state too: the floor under all orders, and the links of a chip."""
    cluster, strategy = one
    links = sum(fewest_neighbours(*axis) for axis in zip(cluster.torus, cluster.wraps, strict=True))
    floors = spans(cluster, replace(strategy, placement=ALONE))
    for name, span in spans(cluster, strategy).items():
        floor = floors[name]
        for least in (floor.local_bytes_s, links * cluster.link_bytes_s):
            assert float(span.local_bytes_s) <= least * (1 + 1e-12), name
        assert float(span.exchange_bytes_s) <= floor.exchange_bytes_s, name
        assert float(span.direct_bytes_s) <= floor.direct_bytes_s == cluster.link_bytes_s, name
        assert float(span.hops) >= floor.hops, name
        assert float(span.local) <= floor.local, name


def test_many_strategies_at_once_lie_as_each_by_itself() -> None:
    """More than one table of layouts holds: experts and tensor groups still walk the slice together."""
    cluster, model, work = parse("tpu-v5e:8x8"), load_model("mixtral-8x7b"), Work(4096, 64)
    profile = load_profile(None, cluster.chip)
    few = [
        {"dp": 64 // (tp * cp * pp), "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
        for tp in (1, 2, 4, 8) for cp in (1, 2) for pp in (1, 4) for ep in (1, 2, 4, 8) for etp in (1, 2)
        if ep * etp <= 64 // pp
    ]  # fmt: skip
    columns = {name: np.resize([one[name] for one in few], 4200) for name in few[0]}
    together = evaluate(model, cluster, work, Strategy(**columns, zero=1, zero_group=2), profile)
    for i, one in enumerate(few):
        alone = evaluate(model, cluster, work, Strategy(**one, zero=1, zero_group=2), profile)
        assert float(together.step_time_s[i]) == pytest.approx(float(alone.step_time_s), rel=1e-9), one
