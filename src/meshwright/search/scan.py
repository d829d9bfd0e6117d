"""One pass over a space: legality and bounds on its axes, cost of what is left; only the best survive.

First come all strategies with their axes in the first order, then what may be faster in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.checks.layout import ShardGroup
from meshwright.cost.flops import model_flops
from meshwright.cost.rows import candidates, layer_table
from meshwright.cost.schedule import load as load_schedule
from meshwright.search.bounds import Request, busy_at_peak, held, seconds_of, time_floor
from meshwright.search.found import Keep, Kind, Scan
from meshwright.search.legal import REASONS, legal, rows
from meshwright.search.necessity import TECHNIQUES
from meshwright.search.orders import (
    BORDERS,
    NO_NEARER,
    Orders,
    needed,
    other_orders,
    where_nearer_is_quicker,
)
from meshwright.search.ranking import Shortlist, axes_used
from meshwright.search.rounds import (
    NO_MEMORY,
    NO_TIME,
    ROUNDS,
    Family,
    FloatArray,
    Limits,
    Shard,
    bars,
    in_rounds,
)
from meshwright.search.shapes import Shapes
from meshwright.search.space import IntArray, Space, Words
from meshwright.strategy.placement import ALONE

SHARD_GROUP = ShardGroup()
MOST_NEAR = 400  # plans that are kept because they are near the best, in several orders of their axes
MOST_WITHOUT = 8  # the same of those without a technique


def scan(
    request: Request,
    space: Space,
    *,
    top: int,
    techniques: tuple[str, ...] = TECHNIQUES,
    slack: float | None = None,
    kind: Kind = axes_used,
    keep: Keep | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Scan:
    """Rank every legal strategy of `space`. Cuts only what provably changes neither the `top` plans, nor
    the best plan without each of `techniques`, nor the best of each `kind` that is slower by no more than
    `slack`, nor (while nothing fits) the nearest miss, nor what is to be kept (`Scan.pool`)."""
    (found,) = scans(
        [(request, top, techniques)], space, slack=slack, kind=kind, keep=keep, progress=progress
    )
    return found


def _flops(request: Request, space: Space) -> float:
    """Model FLOPs of a step, the fewest of all fine-tuning words."""
    each = [model_flops(request.model, request.work.attended_len, word) for word in space.words["finetune"]]
    return min(float(one) for one in each) * float(request.work.tokens_per_step)


def scans(
    asked: Sequence[tuple[Request, int, tuple[str, ...]]],
    space: Space,
    *,
    slack: float | None = None,
    kind: Kind = axes_used,
    keep: Keep | None = None,
    band: float = 0.0,
    progress: Callable[[float, float], None] | None = None,
) -> list[Scan]:
    """`scan` of several (request, top, techniques) that differ in precision alone, so that what is legal
    for the first is so for all. Beyond the plans that are asked for, those are kept that take longer by no
    more than the share `band`: MOST_NEAR of the best, and MOST_WITHOUT of those without each technique."""
    found = [
        Scan(
            Shortlist(top, MOST_NEAR if band else top, band),
            {technique: Shortlist(1, MOST_WITHOUT if band else 1, band) for technique in techniques},
            capacity_bytes=request.cluster.usable_bytes,
        )
        for request, top, techniques in asked
    ]
    limits = [
        Limits(held(r.model), _flops(r, space), techniques, slack, kind, keep) for r, _, techniques in asked
    ]
    every = list(space.layer_words())
    orders = other_orders(asked[0][0], space) if space.other_orders else None
    stages, later = len(every) * (1 if orders is None else 2), []
    for i, words in enumerate(every):
        families = list(_families(asked[0][0], space, words, found[0], orders))
        if families:
            for (request, _, _), into, limit in zip(asked, found, limits):
                left = _scan_families(request, space, families, into, limit, orders)
                later.append((request, left, into, limit))
        if progress is not None:
            progress(i + 1, stages)
    # Other orders come last, when there is most to beat: few strategies are as fast in another.
    for i, (request, left, into, limit) in enumerate(later):
        if orders is not None:
            _scan_orders(request, space, left, into, limit, orders)
            if progress is not None:
                progress(len(every) * (1 + (i + 1) / len(later)), stages)
    for one in found:
        one.rejected, one.bounded = +one.rejected, +one.bounded
    return found


def _families(
    request: Request, space: Space, words: Words, found: Scan, orders: Orders | None
) -> Iterator[Family]:
    """The legal strategies under each schedule, in the first order; counts what rules forbid in any."""
    many = len(space.words["recompute"])
    several = np.ones(1, np.int64) if orders is None else 1 + orders.different
    for schedule in space.words["schedule"]:
        of_family = [replace(shard, schedule=schedule) for shard in space.shards(words)]
        allowed = legal(request, space, of_family[0])
        shards = []
        for w in of_family:
            spelled = space.spelled(w)
            for reason, refused in allowed.refused:
                found.rejected[reason] += int((spelled * refused * several[:, None]).sum()) * many
            groups, double = space.group_sizes(w, request.cluster)
            mine = spelled & ~double[:, None]
            if w.zero and not isinstance(w.group, str):  # a number may not divide dp x cp
                plain = space.strategy(w, space.blocks | {"vpp": 1}, groups)
                unequal = SHARD_GROUP.violated(request.model, request.cluster, request.work, plain)
                refused = (mine & unequal[:, None]) * allowed.count() * several[:, None]
                found.rejected[REASONS[SHARD_GROUP.code]] += int(refused.sum()) * many
                mine &= ~unequal[:, None]
            shards.append(Shard(w, groups, mine))
        some = rows(space, allowed, np.logical_or.reduce([shard.spelled for shard in shards]))
        if len(some):
            times = _times(request, space, of_family[0]).take(
                (some.block * len(space.vpp) + some.vpp) * len(space.sizes) + some.size
            )
            weight = np.sum([shard.spelled for shard in shards], axis=0, dtype=np.int64).ravel()
            pair = some.block * len(space.vpp) + some.vpp
            if orders is not None:
                broken = orders.different.take(some.block) - orders.count(some.block, some.experts)
                found.rejected[REASONS[BORDERS.code]] += int((broken * weight.take(pair)).sum()) * many
            yield Family(of_family[0], some, pair, times, tuple(shards), weight)


def _times(request: Request, space: Space, words: Words) -> FloatArray:
    """`Family.times` of every block, vpp and size, [b, v, m]."""
    degrees = {name: column[:, None, None] for name, column in space.blocks.items()}
    degrees |= {"vpp": space.vpp[None, :, None], "microbatch_size": space.sizes[None, None, :]}
    times = time_floor(1.0, request.work, space.strategy(words, degrees, 1))
    shape = (len(space.blocks["tp"]), len(space.vpp), len(space.sizes))
    return np.ascontiguousarray(np.broadcast_to(times, shape))


def _floors(
    request: Request,
    space: Space,
    families: list[Family],
    limits: Limits,
    busy: FloatArray | None,
    shapes: Shapes,
) -> list[FloatArray]:
    """Seconds that a step of each family's rows takes at least, nothing recomputed, so under any word: `busy`
    a microbatch by cells of `shapes`; None: all arithmetic at the chip's peak."""
    if busy is not None:
        return [family.times * busy.take(shapes.cells(family.rows)) for family in families]
    r = request
    return [
        family.times
        * busy_at_peak(
            limits.flops, r.cluster, r.work, space.strategy(family.words, family.rows.degrees(space), 1)
        )
        for family in families
    ]


def _scan_families(
    request: Request,
    space: Space,
    families: list[Family],
    found: Scan,
    limits: Limits,
    orders: Orders | None,
) -> list[tuple[Family, FloatArray]]:
    """The strategies of some families with axes in the first order; what is left in all others: rows in the
    first one, with what a step takes at least under any."""
    # Layers are quickest under a schedule that hides expert traffic, where there is one.
    words = max(families, key=lambda family: load_schedule(family.words.schedule).JOINED).words
    shapes = Shapes(request, space, [family.rows for family in families])
    first = shapes.seconds(words, dict(words.constant)["placement"])
    floors = _floors(request, space, families, limits, first, shapes)
    in_rounds(request, space, families, floors, found, limits)
    if orders is None:
        return []
    eased = where_nearer_is_quicker(request.cluster, request.profile, words)
    alone = None if eased is None else shapes.seconds(words, ALONE, eased)
    share = 0.0 if alone is None or first is None else float((alone / first).min())
    left = []
    for family, floor in zip(families, floors):
        able = np.flatnonzero(share * floor <= bars(found, space, family, limits).highest)
        some = family.at(able)
        (least,) = _floors(request, space, [some], limits, alone, shapes)
        near = _near(found, space, some, least, limits)
        _count_orders(found, space, family, orders, able[near])
        left.append((some.at(near), least[near]))
    return left


def _near(found: Scan, space: Space, family: Family, floor: FloatArray, limits: Limits) -> IntArray:
    """Which rows are fast enough for something."""
    limit = bars(found, space, family, limits)
    near = np.flatnonzero(floor <= limit.highest)
    return near[floor[near] <= limit.of(family, near)]


def _count_orders(found: Scan, space: Space, family: Family, orders: Orders, kept: IntArray) -> None:
    """Count the strategies in other orders of rows that are not kept."""
    many = orders.count(family.rows.block, family.rows.experts) * family.weight.take(family.pair)
    found.bounded[NO_TIME] += int(many.sum() - many[kept].sum()) * len(space.words["recompute"])


def _scan_orders(
    request: Request,
    space: Space,
    left: list[tuple[Family, FloatArray]],
    found: Scan,
    limits: Limits,
    orders: Orders,
) -> None:
    """What is left of some families in all orders but the first."""
    several = len(space.words["recompute"])
    placed = []
    for rather, floor in left:
        near = _near(found, space, rather, floor, limits)
        _count_orders(found, space, rather, orders, near)
        family = rather.at(near)
        rows = family.rows
        legal = orders.count(rows.block, rows.experts) * family.weight.take(family.pair)
        # What does not fit in one order fits in none; within a bar that is given not all are tried in it.
        if not found.feasible and limits.keep is None:
            found.bounded[NO_MEMORY] += int(legal.sum()) * several
            continue
        if not legal.any():
            continue
        cells, at = np.unique(rows.block * len(space.ep) + rows.experts, return_inverse=True)
        block, experts = np.divmod(cells, len(space.ep))
        groups = list({shard.groups.tobytes(): shard.groups for shard in family.shards}.values())
        useful = needed(request, space, family.words, orders, groups, block, experts)
        row, order = np.nonzero(useful[:, at].T)
        own = family.at(row)
        own = replace(own, rows=replace(own.rows, order=orders.numbers[order]))
        found.bounded[NO_NEARER] += int(legal.sum() - own.weight.take(own.pair).sum()) * several
        if len(row):
            placed.append(own)
    if placed:
        floors = [_floor(request, space, family) for family in placed]
        in_rounds(request, space, placed, floors, found, limits, ROUNDS[-1:])


def _floor(request: Request, space: Space, family: Family) -> FloatArray:
    """Seconds that a step of rows in orders of their own takes at least."""
    words = replace(family.words, recompute="none")
    r, strategy = request, space.strategy(words, family.rows.degrees(space), 1)
    many = candidates(strategy, len(family.rows))
    table = layer_table(r.model, r.cluster, r.work, strategy, r.profile, many)
    return np.asarray(family.times * seconds_of(table), float)
