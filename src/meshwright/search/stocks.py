"""The legal strategies of a space under each schedule, counted by what forbids the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.checks.layout import ShardGroup
from meshwright.search.bounds import Request, time_floor
from meshwright.search.families import FloatArray, Shard, Stock
from meshwright.search.found import Scan
from meshwright.search.legal import REASONS, lattice, legal
from meshwright.search.orders import BORDERS, Orders
from meshwright.search.space import Space, Words

SHARD_GROUP = ShardGroup()


def stocks(
    request: Request, space: Space, words: Words, found: Scan, orders: Orders | None
) -> Iterator[Stock]:
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
        some = lattice(allowed, np.logical_or.reduce([shard.spelled for shard in shards]))
        if some.able.any():
            pair = some.block * len(space.vpp) + some.vpp
            times = _times(request, space, of_family[0]).take(pair * len(space.sizes) + some.size)
            weight = np.sum([shard.spelled for shard in shards], axis=0, dtype=np.int64).ravel()
            stock = Stock(of_family[0], some, pair, times, tuple(shards), weight)
            if orders is not None:
                broken = orders.different[:, None] - orders.each()
                found.rejected[REASONS[BORDERS.code]] += stock.count(broken) * many
            yield stock


def _times(request: Request, space: Space, words: Words) -> FloatArray:
    """`Family.times` of every block, vpp and size, [b, v, m]."""
    degrees = {name: column[:, None, None] for name, column in space.blocks.items()}
    degrees |= {"vpp": space.vpp[None, :, None], "microbatch_size": space.sizes[None, None, :]}
    times = time_floor(1.0, request.work, space.strategy(words, degrees, 1))
    shape = (len(space.blocks["tp"]), len(space.vpp), len(space.sizes))
    return np.ascontiguousarray(np.broadcast_to(times, shape))
