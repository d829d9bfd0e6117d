"""Placement: closed forms against groups counted rank by rank, and the rules of each fabric."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.hardware.cluster import parse
from meshwright.strategy.placement import Span, groups, spans
from meshwright.strategy.ranks import coordinates, members
from meshwright.strategy.records import Strategy

powers = st.sampled_from([1, 2, 4, 8])


def counted_local(text: str, strategy: Strategy, group: str) -> set[int]:
    """Ranks that each group of that name has in each domain it touches, by looking at every rank."""
    cluster = parse(text)
    sizes = set()
    for rank in range(cluster.n_chips):
        domains: dict[int, int] = {}
        for member in members(cluster, strategy, group, rank):
            domain = member // cluster.scale_up_size
            domains[domain] = domains.get(domain, 0) + 1
        sizes |= set(domains.values())
    return sizes


@settings(max_examples=60, deadline=None)
@given(powers, powers, powers, powers, st.permutations(["tp", "cp", "dp", "pp"]), st.data())
def test_local_and_remote_are_those_of_the_ranks(
    tp: int, cp: int, dp: int, pp: int, order: list[str], data: st.DataObject
) -> None:
    n_chips = tp * cp * dp * pp
    zero_group = data.draw(st.sampled_from([z for z in (1, 2, 4, 8, 16, 32, 64) if dp * cp % z == 0]))
    strategy = Strategy(dp=dp, tp=tp, pp=pp, cp=cp, zero_group=zero_group, placement=tuple(order))
    text = f"{n_chips}xh100"
    placed = spans(parse(text), strategy)
    names = ["tp", "cp", "dp", "pp", "data", "shard", "replica"]
    for name in names if n_chips <= 256 else names[:1]:
        span = placed[name]
        assert span.local * span.remote == span.degree
        assert counted_local(text, strategy, name) == {int(span.local)}
    assert placed["shard"].degree == zero_group
    assert placed["shard"].degree * placed["replica"].degree == dp * cp == placed["data"].degree


@settings(max_examples=40, deadline=None)
@given(powers, powers, powers, st.sampled_from([1, 2]), st.data())
def test_experts_lie_over_the_ranks_of_a_stage(
    tp: int, cp: int, dp: int, pp: int, data: st.DataObject
) -> None:
    stage = tp * cp * dp
    etp = data.draw(st.sampled_from([e for e in (1, 2, 4) if stage % e == 0]))
    ep = data.draw(st.sampled_from([e for e in (1, 2, 4, 8, 16, 32) if stage // etp % e == 0]))
    strategy = Strategy(dp=dp, tp=tp, cp=cp, pp=pp, ep=ep, etp=etp)
    text = f"{stage * pp}xh100"
    placed = spans(parse(text), strategy)
    assert placed["edp"].degree == stage // (ep * etp)
    for name in ("etp", "ep", "edp"):
        if stage * pp <= 256:
            assert counted_local(text, strategy, name) == {int(placed[name].local)}


@pytest.mark.parametrize(
    ("text", "strategy", "group", "local", "remote"),
    [
        ("16xh100", Strategy(dp=1, tp=16), "tp", 8, 2),  # crosses the border: both sides count
        ("2xgb200-nvl72", Strategy(dp=9, tp=16), "tp", 8, 2),  # 72 = 4.5 groups of 16
        ("256xgb200", Strategy(dp=4, tp=64), "tp", 64, 1),
        ("64xh100", Strategy(dp=8, tp=8), "dp", 1, 8),
        ("64xh100", Strategy(dp=8, tp=2, pp=4), "dp", 4, 2),
        ("24xh100", Strategy(dp=8, tp=3), "tp", 1, 3),  # 8 is no multiple of 3: some group crosses
        ("512xh100", Strategy(dp=64, tp=8, ep=64), "ep", 8, 8),
        ("512xh100", Strategy(dp=64, tp=8, ep=8), "ep", 8, 1),
        ("512xh100", Strategy(dp=64, tp=8, ep=8), "edp", 1, 64),
        ("64xh100", Strategy(dp=16, tp=2, pp=2, zero_group=4), "shard", 4, 1),
        ("64xh100", Strategy(dp=16, tp=2, pp=2, zero_group=4), "replica", 1, 4),
    ],
)
def test_known_layouts(text: str, strategy: Strategy, group: str, local: int, remote: int) -> None:
    span = spans(parse(text), strategy)[group]
    assert (int(span.local), int(span.remote)) == (local, remote)


def test_pipeline_inside_changes_who_is_near() -> None:
    inside = Strategy(dp=8, tp=2, pp=4, placement=("tp", "pp", "dp", "cp"))
    placed = spans(parse("64xh100"), inside)
    assert int(placed["pp"].local) == 4
    assert int(placed["dp"].local) == 1


def numbers(span: Span, i: int, n: int) -> dict[str, float]:
    keys = ("degree", "local", "remote", "local_bytes_s", "exchange_bytes_s", "direct_bytes_s", "hops")
    return {k: float(np.broadcast_to(getattr(span, k), (n,))[i]) for k in keys}


@pytest.mark.parametrize("text", ["64xh100", "64xmi300x", "tpu-v5p:4x4x4", "4*tpu-v5e:4x4", "64xgb200"])
def test_arrays_say_what_plain_numbers_say(text: str) -> None:
    layouts = [
        (64, 1, 1, 1),
        (32, 2, 1, 1),
        (8, 4, 2, 1),
        (4, 8, 1, 2),
        (2, 2, 4, 4),
        (1, 64, 1, 1),
        (1, 1, 1, 64),
    ]
    dp, tp, pp, cp = (np.array(column) for column in zip(*layouts, strict=True))
    zero_group = dp * cp
    ep = np.minimum(dp * cp * tp, 16)
    together = spans(parse(text), Strategy(dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, zero=1, zero_group=zero_group))
    for i in range(len(layouts)):
        alone = Strategy(
            dp=int(dp[i]),
            tp=int(tp[i]),
            pp=int(pp[i]),
            cp=int(cp[i]),
            ep=int(ep[i]),
            zero_group=int(zero_group[i]),
        )
        for name, span in spans(parse(text), alone).items():
            assert numbers(span, 0, 1) == numbers(together[name], i, len(layouts)), (name, layouts[i])


def test_a_small_group_on_a_mesh_has_only_its_own_links() -> None:
    for tp, links in [(2, 1), (4, 3), (8, 7)]:
        span = spans(parse("64xmi300x"), Strategy(dp=64 // tp, tp=tp))["tp"]
        assert span.local_bytes_s == pytest.approx(links * 64e9)
        assert span.direct_bytes_s == pytest.approx(64e9)
    assert spans(parse("2xmi300x"), Strategy(dp=2))["dp"].local_bytes_s == pytest.approx(64e9)
    assert spans(parse("64xh100"), Strategy(dp=32, tp=2))["tp"].local_bytes_s == pytest.approx(450e9)


@pytest.mark.parametrize(
    ("text", "strategy", "group", "links", "hops"),
    [
        ("tpu-v6e:16x16", Strategy(dp=16, tp=16), "tp", 2, 8),  # one closed axis: both ways round
        ("tpu-v5p:8x8x8", Strategy(dp=64, tp=8), "tp", 2, 4),
        ("tpu-v5p:4x8x8", Strategy(dp=32, tp=8), "tp", 3, 3),  # 4 x 2, closed along the four
        ("tpu-v5p:8x8x8", Strategy(dp=128, tp=4), "tp", 2, 2),  # half an axis would be a line: a square
        ("tpu-v5p:8x8x8", Strategy(dp=128, tp=4), "dp", 4, 12),  # every second chip of two axes, all of one
        ("tpu-v5p:8x8x8", Strategy(dp=8, tp=64), "tp", 4, 8),  # two axes add up
        ("tpu-v5p:8x8x8", Strategy(dp=64, tp=8), "dp", 4, 8),
        ("tpu-v6e:16x16", Strategy(dp=16, tp=16), "dp", 2, 8),
        ("tpu-v5p:8x8x8", Strategy(dp=512), "dp", 6, 12),
        ("tpu-v5e:8x16", Strategy(dp=16, tp=8), "tp", 2, 4),  # an axis of 8 does not close on v5e: 4 x 2
        ("tpu-v5e:8x16", Strategy(dp=128), "dp", 3, 15),
        ("tpu-v5p:8x8x8", Strategy(dp=256, tp=2), "tp", 1, 1),
        ("tpu-v5p:2x2x2", Strategy(dp=1, tp=8), "tp", 3, 3),
    ],
)
def test_torus_bandwidth_in_links(text: str, strategy: Strategy, group: str, links: int, hops: int) -> None:
    cluster = parse(text)
    span = spans(cluster, strategy)[group]
    assert span.local_bytes_s == pytest.approx(links * cluster.link_bytes_s)
    assert span.hops == hops


def test_interleaved_groups_share_a_torus_axis() -> None:
    cluster = parse("tpu-v5p:8x8x8")
    span = spans(cluster, Strategy(dp=256, tp=2))[
        "dp"
    ]  # every second chip of the first axis, all of the others
    assert span.local_bytes_s == pytest.approx((2 / 2 + 4) * cluster.link_bytes_s)


def test_all_to_all_on_a_ring_takes_a_fourth_of_a_gather() -> None:
    cluster = parse("tpu-v6e:16x16")
    span = spans(cluster, Strategy(dp=16, tp=16))["tp"]
    each = 1e9
    gather = 16 * each * 15 / 16 / span.local_bytes_s  # of all sixteen buffers
    exchange = each * 15 / 16 / span.exchange_bytes_s
    assert exchange == pytest.approx(gather * 16 / 15 / 4)  # B / 2W against B / 8W, B = 16 buffers


def test_slices_meet_on_the_data_centre_network() -> None:
    cluster = parse("4*tpu-v5e:16x16")
    span = spans(cluster, Strategy(dp=1024))["dp"]
    assert (int(span.local), int(span.remote)) == (256, 4)
    assert span.remote_bytes_s == cluster.scale_out_bytes_s


def test_every_rank_has_a_coordinate_of_its_own() -> None:
    strategy = Strategy(dp=4, tp=2, pp=2, cp=2, ep=4)
    at = coordinates(strategy, np.arange(32))
    for axes in (("tp", "cp", "dp", "pp"), ("etp", "ep", "edp", "pp")):
        assert len(set(zip(*(at[axis].tolist() for axis in axes), strict=True))) == 32
    for name in groups(strategy):
        whole = {members(parse("32xh100"), strategy, name, r) for r in range(32)}
        assert sorted(r for group in whole for r in group) == list(range(32))
        for group in whole:
            assert all(a < b for a, b in pairwise(group))


def test_faults_are_told_together() -> None:
    with pytest.raises(InputError) as caught:
        spans(parse("8xh100"), Strategy(dp=8, placement=("tp", "tp", "zp")))
    assert len(caught.value.diagnostics) == 5  # zp unknown; tp twice; cp, dp, pp missing
    with pytest.raises(InputError):
        members(parse("8xh100"), Strategy(dp=8), "shards", 0)
    with pytest.raises(InputError):
        members(parse("8xh100"), Strategy(dp=8), "dp", 8)


PLACES = ["64xtpu-v5e", "tpu-v5p:4x4x4", "2*tpu-v5p:2x4x4", "256xtpu-v6e", "48xmi300x", "72xgb200", "96xh100"]


@pytest.mark.parametrize("on", PLACES)
@settings(max_examples=60, deadline=None)
@given(st.permutations(["tp", "cp", "dp", "pp"]), st.permutations(["tp", "cp", "dp", "pp"]), st.data())
def test_orders_that_lay_the_same_ranks_cost_the_same(
    on: str, one: list[str], other: list[str], data: st.DataObject
) -> None:
    """Where an axis has one rank, its place in the order says nothing."""
    cluster = parse(on)
    left, degrees = cluster.n_chips, {}
    for axis in data.draw(st.permutations(["tp", "cp", "dp", "pp"])):
        degrees[axis] = data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        left //= degrees[axis]
    degrees["dp"] *= left
    stage = cluster.n_chips // degrees["pp"]
    ep = data.draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    wide = [axis for axis in one if degrees[axis] > 1]
    again = iter(wide)
    order = [axis if degrees[axis] == 1 else next(again) for axis in other]
    first, second = (
        spans(cluster, Strategy(**degrees, ep=ep, zero_group=degrees["dp"], placement=tuple(placed)))
        for placed in (one, order)
    )
    for name, span in first.items():
        assert span == second[name], name


@pytest.mark.parametrize("on", [place for place in PLACES if "tpu" in place])
@settings(max_examples=60, deadline=None)
@given(st.permutations(["tp", "cp", "dp", "pp"]), st.data())
def test_no_gather_is_quicker_than_the_links_of_a_chip(
    on: str, order: list[str], data: st.DataObject
) -> None:
    """Two pieces of a group on one axis of a torus use its links once."""
    cluster = parse(on)
    left, degrees = cluster.n_chips, {}
    for axis in ("tp", "cp", "pp"):
        degrees[axis] = data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        left //= degrees[axis]
    strategy = Strategy(dp=left, **degrees, zero_group=left, placement=tuple(order))
    ways = sum(2 if closes and n > 2 else 1 for n, closes in zip(cluster.torus, cluster.wraps) if n > 1)
    for name, span in spans(cluster, strategy).items():
        assert float(span.local_bytes_s) <= ways * cluster.link_bytes_s * (1 + 1e-12), name
        assert float(span.direct_bytes_s) <= cluster.link_bytes_s, name
