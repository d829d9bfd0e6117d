"""Placement: where the ranks of each group lie on the machine's network levels.

Ranks are numbered with the first axis of `Strategy.placement` fastest, so a group of degree d whose inner
axes multiply to t holds the ranks r, r + t, ..., r + (d - 1) t. Domains are blocks of consecutive ranks. One
pure function turns that into what collectives need, for one strategy or for arrays of degrees and of orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from meshwright.errors import Diagnostic, InputError
from meshwright.hardware.records import Cluster, LinkKind
from meshwright.strategy import torus
from meshwright.strategy.records import AXES, ORDERS, Num, Strategy

ALONE = len(ORDERS)  # in place of an order: each group as though no other took the best places from it
_POSITIONS = np.array([[order.index(axis) for axis in AXES] for order in ORDERS])  # [orders, axes]
Pieces = tuple[tuple[Any, Any], ...]  # (stride, degree), innermost first


@dataclass(frozen=True, slots=True)
class Span:
    """One group of ranks on the machine: how many share a fast domain, and what reaches whom how fast.

    Numbers are plain or arrays that broadcast over the strategies. Bandwidths are one way, per rank, the
    links that this group can use together; latencies are seconds.
    """

    degree: Any  # ranks of the group
    local: Any  # of them in one fast domain
    remote: Any  # domains the group reaches, degree / local
    local_bytes_s: Any  # for gathers and reductions inside the domain
    exchange_bytes_s: Any  # for all-to-all inside the domain: on a torus messages pass through others
    direct_bytes_s: Any  # between neighbours of the group inside the domain
    local_latency_s: Any  # of one hop
    hops: Any  # that a gather inside the domain takes one after another (1 behind a switch or on a mesh)
    remote_bytes_s: Any
    remote_latency_s: Any
    link_kind: LinkKind = "nvlink"
    in_switch_reduction: bool = False
    least: bool = False  # what is made of it is to be a floor under every order


def spans(cluster: Cluster, strategy: Strategy) -> dict[str, Span]:
    """The groups of `strategy` on `cluster`: tp, cp, dp, pp, ep, etp and those below.

    `edp` are the copies of one expert (dp cp tp / (ep etp)), `data` is dp x cp, `shard` the inner
    `zero_group` ranks of it and `replica` the rest (`expert_shard`, `expert_replica`: of edp). Experts lie
    etp, ep, edp from the inside, in place of the attention axes of one stage. Degrees may be arrays; assumes
    a legal strategy (products that fit). Under `ALONE` no group has less than any order gives it, so what is
    made of that is a floor under all orders.

    On a torus the ranks fill its axes from the shortest on, or rows two wide (`way`).

    >>> from meshwright.hardware.cluster import parse
    >>> s = spans(parse("64xh100"), Strategy(dp=4, tp=4, pp=4))
    >>> [(n, int(s[n].degree), int(s[n].local), int(s[n].remote)) for n in ("tp", "dp", "pp")]
    [('tp', 4, 4, 1), ('dp', 4, 2, 2), ('pp', 4, 1, 4)]
    """
    if strategy.placement is ALONE:
        own = groups(replace(strategy, placement=AXES))
        return {name: _alone(cluster, pieces, _least_stride(name, strategy)) for name, pieces in own.items()}
    found = groups(strategy)
    taken = _way(cluster, found) if cluster.torus else 0
    return {name: _span(cluster, pieces, taken) for name, pieces in found.items()}


def way(cluster: Cluster, strategy: Strategy) -> Any:
    """Which of `torus.walks` the ranks of a strategy take, all groups the same.

    Groups that exchange in every layer choose in the order of `_FIRST`, that of what they send: each leaves
    of the walks those that give it most links. Where no layer exchanges anything the groups of data choose:
    else layers, which are priced without them, would depend on them. Stages send to a neighbour, for which a
    row is as good. Of what is left it is the first.

    **Assumes** that what the other groups lose (a link here, half a link there) weighs less.
    """
    return _way(cluster, groups(strategy))


# Groups that exchange in every layer, those that send most first: (name, which of `torus.rates` counts).
_FIRST = (("tp", 0), ("etp", 0), ("ep", 1), ("cp", 0))


def _way(cluster: Cluster, found: dict[str, Pieces]) -> Any:
    left: list[Any] = [True for _ in torus.walks(cluster)]  # walks that no group so far is worse off with
    silent: Any = True  # no layer exchanges anything
    for name, which in (*_FIRST, ("data", 0)):
        links = [rates[which] for rates in _rates(cluster, _near(cluster, found[name]))]
        most = reduce(np.maximum, map(np.multiply, left, links)) * (1 - 1e-9)
        bound = silent if name == "data" else True
        left = [walk & ((one >= most) | np.logical_not(bound)) for walk, one in zip(left, links, strict=True)]
        silent = silent & (_size(found[name]) == 1)
    return np.argmax(np.broadcast_arrays(*left), axis=0)


def _rates(cluster: Cluster, near: Pieces) -> list[tuple[Any, Any, Any, Any]]:
    """`torus.rates` of a group's ranks in one slice under each walk."""
    slice_ = (cluster.torus, cluster.wraps, cluster.link_bytes_s)
    return [torus.rates(*slice_, near, _size(near), walk) for walk in torus.walks(cluster)]


def _size(pieces: Pieces) -> Any:
    """Ranks of a group."""
    degree: Any = 1
    for _, count in pieces:
        degree = degree * count
    return degree


def walk(cluster: Cluster, strategy: Strategy) -> torus.Walk:
    """How the ranks of a strategy (plain degrees) fill a slice of a torus.

    >>> from meshwright.hardware.cluster import parse
    >>> [walk(parse("tpu-v6e:16x16"), Strategy(dp=256 // tp, tp=tp))[0] for tp in (4, 16)]
    [(0, 2), (0, 16)]
    """
    return torus.walks(cluster)[int(way(cluster, strategy))]


def numbered(placement: Any) -> bool:
    """Whether orders are given as places in `ORDERS`."""
    return not isinstance(placement, tuple)


def stages_outermost(placement: Any) -> bool:
    """Whether the pipeline is the outermost axis of every strategy with this placement."""
    return not numbered(placement) and bool(placement[-1] == "pp")


def groups(strategy: Strategy) -> dict[str, Pieces]:
    """Every group as (stride, degree) pieces, innermost first; a group of two axes has two pieces."""
    at = _positions(strategy.placement)
    degrees = {axis: _whole(getattr(strategy, axis)) for axis in AXES}
    strides: dict[str, Any] = {}
    for axis in AXES:
        strides[axis] = 1
        for other in AXES:
            if other != axis:
                strides[axis] = strides[axis] * _where(at[other] < at[axis], degrees[other], 1)
    attention = {axis: ((strides[axis], degrees[axis]),) for axis in AXES}
    swapped = at["dp"] < at["cp"]
    (inner, within), (outer, beyond) = (
        (_where(swapped, strides[one], strides[other]), _where(swapped, degrees[one], degrees[other]))
        for one, other in (("dp", "cp"), ("cp", "dp"))
    )
    # One run of ranks where they lie side by side, or nothing wider than a rank lies between them.
    beside = abs(at["dp"] - at["cp"]) == 1
    beside = beside if beside is True else beside | (outer == inner * within)
    data: Pieces = ((inner, _where(beside, within * beyond, within)),)
    if beside is not True:
        data = (*data, (outer, _where(beside, 1, beyond)))
    shard, replica = _split(data, _whole(strategy.zero_group))
    experts = _experts(strategy, degrees, strides["pp"])
    # The ranks that share one copy of the optimizer state, counted in copies of an expert.
    copies = (
        _whole(strategy.zero_group)
        * degrees["tp"]
        // np.maximum(_whole(strategy.ep) * _whole(strategy.etp), 1)
    )
    expert_shard, expert_replica = _split(experts["edp"], np.maximum(copies, 1))
    return {
        **attention,
        **experts,
        "expert_shard": expert_shard,
        "expert_replica": expert_replica,
        "data": data,
        "shard": shard,
        "replica": replica,
    }


def _positions(placement: Any) -> dict[str, Any]:
    """How many axes lie inside each axis: plain numbers, or arrays over many orders."""
    if not numbered(placement):
        order = _order(placement)
        return {axis: order.index(axis) for axis in AXES}
    return {axis: _POSITIONS[:, i].take(placement) for i, axis in enumerate(AXES)}


def _where(chosen: Any, one: Any, other: Any) -> Any:
    """`one` where `chosen`, which may be plain, else `other`."""
    if isinstance(chosen, bool):
        return one if chosen else other
    return np.where(chosen, one, other)


def _order(placement: Iterable[str]) -> tuple[str, ...]:
    """The four axes from the inside out; wrong, doubled or forgotten names are told all at once."""
    order = tuple(placement)
    faults = [
        Diagnostic("MW103", f"{axis!r} is not an axis", where="strategy.placement", hint=f"axes: {AXES}")
        for axis in order
        if axis not in AXES
    ]
    for axis in AXES:
        if order.count(axis) != 1:
            message = f"placement {','.join(order)} names {axis} {order.count(axis)} times"
            faults.append(
                Diagnostic("MW103", message, where="strategy.placement", hint="tp,cp,dp,pp in any order")
            )
    if faults:
        raise InputError(*faults)
    return order


def _whole(degree: Num) -> Any:
    return np.asarray(np.rint(degree), dtype=np.int64)


def _split(pieces: Pieces, size: Any) -> tuple[Pieces, Pieces]:
    """The inner `size` ranks of a group, and the group of what remains."""
    inner: list[tuple[Any, Any]] = []
    outer: list[tuple[Any, Any]] = []
    left = size
    for stride, degree in pieces:
        take = np.gcd(left, degree)
        inner.append((stride, take))
        outer.append((stride * take, degree // take))
        left = np.maximum(left // take, 1)
    return tuple(inner), tuple(outer)


def _experts(strategy: Strategy, degrees: dict[str, Any], inside: Any) -> dict[str, Pieces]:
    """etp, ep, edp over the ranks of one stage. Where pp lies among them, what is outside of it strides over
    it, and an axis that begins inside has two pieces: (t, inside / t) and the rest.

    Assumes that `inside`, the ranks of the axes within pp, and each expert axis divide one another.
    """
    etp, ep = _whole(strategy.etp), _whole(strategy.ep)
    stage = degrees["tp"] * degrees["cp"] * degrees["dp"]
    found: dict[str, Pieces] = {}
    stride: Any = np.asarray(1)
    for name, degree in (("etp", etp), ("ep", ep), ("edp", np.maximum(stage // (ep * etp), 1))):
        if stages_outermost(strategy.placement):
            found[name] = ((stride, degree),)
        else:
            near = np.gcd(np.maximum(inside // stride, 1), degree)
            beyond = np.where(stride * near >= inside, stride * near * degrees["pp"], stride * near)
            near = np.where(beyond == stride * near, degree, near)  # nothing lies between: one run
            found[name] = ((stride, near), (beyond, degree // near))
        stride = stride * degree
    return found


def ranks_inside_pipeline(order: Iterable[str], degrees: Mapping[str, Any]) -> Any:
    """Ranks of one stage that lie side by side: the product of the axes placed within pp.

    >>> ranks_inside_pipeline(("tp", "pp", "cp", "dp"), {"tp": 8, "pp": 4, "cp": 1, "dp": 2})
    8
    """
    inside: Any = 1
    for axis in order:
        if axis == "pp":
            break
        inside = inside * degrees[axis]
    return inside


def _local(stride: Any, degree: Any, domain: int) -> Any:
    """Ranks of a group in one domain, the fewest that any of its groups has there.

    gcd(domain / t, d): a group that does not fill whole domains straddles a border somewhere, and a ring
    over it is as slow as the border, which is what counting the smaller share says.
    """
    return np.gcd(np.maximum(domain // stride, 1), degree)


def _near(cluster: Cluster, pieces: Pieces) -> Pieces:
    """Of a group the ranks that lie in one domain."""
    return tuple((stride, _local(stride, count, cluster.scale_up_size)) for stride, count in pieces)


def _span(cluster: Cluster, pieces: Pieces, taken: Any = 0) -> Span:
    """`taken`: which of `torus.walks` the ranks of a torus take."""
    chip = cluster.chip
    near = _near(cluster, pieces)
    degree, local = _size(pieces), _size(near)
    if cluster.torus:
        gather, exchange, direct, hops = (
            each[0] if all(np.array_equal(each[0], one) for one in each) else np.choose(taken, each)[()]
            for each in zip(*_rates(cluster, near), strict=True)
        )
    elif chip.fabric == "mesh":
        # Every peer has its own link, and a group of g reaches g - 1 of them: 2 of 8 GPUs share one link. Of
        # what reaches such a group from other domains too, each link brings a gth and so does the card.
        gather = exchange = np.maximum(local - (degree == local), 1) * cluster.link_bytes_s
        direct, hops = _for_each(local, cluster.link_bytes_s), np.ones(np.shape(local))[()]
    else:
        gather = exchange = direct = _for_each(local, cluster.scale_up_bytes_s)
        hops = np.ones(np.shape(local))[()]
    network = np.inf if cluster.scale_out_bytes_s is None else cluster.scale_out_bytes_s
    return Span(
        degree=degree,
        local=local,
        remote=degree // local,
        local_bytes_s=gather,
        exchange_bytes_s=exchange,
        direct_bytes_s=direct,
        local_latency_s=chip.scale_up_latency_s,
        hops=hops,
        remote_bytes_s=network,
        remote_latency_s=chip.scale_out_latency_s,
        link_kind=chip.link_kind,
        in_switch_reduction=chip.in_switch_reduction,
    )


def _for_each(groups: Any, bytes_s: Any) -> Any:
    """A bandwidth for each of some groups."""
    return np.full(np.broadcast_shapes(np.shape(groups), np.shape(bytes_s)), bytes_s)[()]


def _least_stride(name: str, strategy: Strategy) -> Any:
    """Ranks between two neighbours of a group under any order at least: experts lie outside of etp."""
    etp = _whole(strategy.etp)
    if name == "ep":
        return etp
    return etp * _whole(strategy.ep) if name in ("edp", "expert_shard", "expert_replica") else 1


def _alone(cluster: Cluster, pieces: Pieces, stride: Any) -> Span:
    """The best that any order can give a group: as many ranks in a domain as it holds `stride` apart, and on
    a torus or a mesh all links of a chip."""
    degree = _size(pieces)
    local = np.minimum(degree, np.maximum(cluster.scale_up_size // stride, 1))
    usual = _span(cluster, ((1, degree),))
    link = cluster.link_bytes_s
    most: dict[str, Any] = {}
    if cluster.torus:
        ways = torus.ways(cluster.torus, cluster.wraps)
        most = {
            "local_bytes_s": max(sum(ways), 1) * link,
            "exchange_bytes_s": 4.0 * link,
            "direct_bytes_s": link,
        }
        usual = replace(usual, hops=1.0, **most)
    elif cluster.chip.fabric == "mesh":
        most = dict.fromkeys(("local_bytes_s", "exchange_bytes_s"), cluster.scale_up_size * link)
        usual = replace(usual, **most)
    return replace(usual, local=local, remote=degree / local, least=True)
