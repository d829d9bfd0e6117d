"""The strategies under some words of layers: first with axes in the usual order, then in all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshwright.cost.rows import candidates, layer_table
from meshwright.cost.schedule import load as load_schedule
from meshwright.hardware.records import Cluster
from meshwright.search.bounds import Request, seconds_of
from meshwright.search.families import Family, FloatArray, Stock
from meshwright.search.found import Scan
from meshwright.search.limits import NO_MEMORY, NO_TIME, Limits, bars
from meshwright.search.orders import NO_NEARER, Orders, needed, where_nearer_is_quicker
from meshwright.search.rounds import FEW, Left, in_rounds, one_round
from meshwright.search.shapes import Shapes
from meshwright.search.sieve import Open, sieved
from meshwright.search.space import IntArray, Mask, Space
from meshwright.strategy.placement import ALONE
from meshwright.strategy.recompute import in_order


class Begun:
    """What some words allow one request: `left` of it with axes in the first order, then in others."""

    def __init__(self, request: Request, space: Space, stocks: Sequence[Stock], limits: Limits) -> None:
        self.request, self.space, self.stocks, self.limits = request, space, stocks, limits
        # Layers are quickest under a schedule that hides expert traffic, where there is one.
        self.words = max(stocks, key=lambda stock: load_schedule(stock.words.schedule).JOINED).words
        self.shapes = Shapes(request, space, [stock.lattice for stock in stocks])
        self.left = self._left(dict(self.words.constant)["placement"])

    def once(self, found: Scan) -> None:
        """One round, after which there mostly is something to beat."""
        one_round(self.request, self.space, self.left, found, self.limits, FEW)

    def rest(self, found: Scan) -> None:
        """All that is left in the first order."""
        in_rounds(self.request, self.space, self.left, found, self.limits)

    def in_others(self, found: Scan, orders: Orders) -> list[Left]:
        """Rows that may be fast enough in other orders, with what a step takes at least under any."""
        eased = where_nearer_is_quicker(self.request.cluster, self.request.profile, self.words)
        several = []
        for stock, left in zip(self.stocks, self._left(None if eased is None else ALONE, eased)):
            left.below(bars(found, self.space, stock.words, self.limits))
            family, floors = left.spelled()
            cut = stock.count(orders.each()) - int(_many(family, orders).sum())
            found.bounded[NO_TIME] += cut * len(self.space.words["recompute"])
            several.append(Left.rows(family, floors))
        return several

    def _left(self, placement: Any, cluster: Cluster | None = None) -> list[Left]:
        """All strategies with what a step of each takes at least, nothing recomputed, so under any word, with
        axes placed so on the cluster (None: that of the request); no placement: all arithmetic at the chip's
        peak."""
        busy = None if placement is None else self.shapes.seconds(self.words, placement, cluster)
        if busy is None:
            busy = self.shapes.at_peak(self.limits.flops)
        return [Left(stock, partial(self.shapes.below, stock, busy)) for stock in self.stocks]


def _many(family: Family, orders: Orders) -> IntArray:
    """How many strategies the rows of a family stand for in other orders, [n]."""
    return orders.count(family.rows.block, family.rows.experts) * family.weight.take(family.pair)


def in_orders(
    request: Request,
    space: Space,
    several: Sequence[Left],
    found: Scan,
    limits: Limits,
    orders: Orders,
) -> None:
    """What is left of some families (`Begun.in_others`) in all orders but the first."""
    words = len(space.words["recompute"])
    near = []
    for left in several:
        assert isinstance(left.of, Family)
        before = int(_many(left.of, orders).sum())
        left.below(bars(found, space, left.of.words, limits))
        near.append(left.spelled())
        found.bounded[NO_TIME] += (before - int(_many(near[-1][0], orders).sum())) * words
    placed = []
    for family, floors, part in _able(request, space, near, found, limits, orders):
        some = family.at(part)
        many = int(_many(some, orders).sum())
        if many:
            row, order = _useful(request, space, some, orders)
            own = some.at(row)
            own = replace(own, rows=replace(own.rows, order=orders.numbers[order]))
            found.bounded[NO_NEARER] += (many - own.count()) * words
            if len(row):
                least = floors[part][row]
                if len(row) > FEW:  # it pays to know more
                    least = np.maximum(least, _floor(request, space, own))
                placed.append(Left.rows(own, least))
    in_rounds(request, space, placed, found, limits)


def _able(
    request: Request,
    space: Space,
    several: Sequence[tuple[Family, FloatArray]],
    found: Scan,
    limits: Limits,
    orders: Orders,
) -> Iterator[tuple[Family, FloatArray, IntArray]]:
    """Families with their floors and which of their rows may be fast and light enough in some order under
    some words: fast with each group as though it were alone, light as in any order. Counts the rest."""
    words = len(space.words["recompute"])
    # What does not fit in one order fits in none; within a bar that is given not all are tried in it.
    if not found.feasible and not found.best and limits.keep is None:
        found.bounded[NO_MEMORY] += sum(int(_many(one, orders).sum()) for one, _ in several) * words
        return
    alone = [family.placed(ALONE) for family, _ in several if len(family.rows)]
    open_: list[Open] | None = None
    eased = where_nearer_is_quicker(request.cluster, request.profile, alone[0].words) if alone else None
    if eased is not None:
        on_eased, uncounted = replace(request, cluster=eased), replace(found, bounded=Counter())
        open_ = sieved(on_eased, space, alone, in_order(space.words["recompute"]), uncounted, limits)
    for family, floors in several:
        many = _many(family, orders)
        kept, slow = np.ones(len(many), bool), np.zeros(len(many), bool)
        if open_ is not None:
            kept, slow = _verdict(family, open_, space)
        found.bounded[NO_TIME] += int(many[slow].sum()) * words
        found.bounded[NO_MEMORY] += int(many[~kept & ~slow].sum()) * words
        yield family, floors, np.flatnonzero(kept)


def _verdict(family: Family, open_: Sequence[Open], space: Space) -> tuple[Mask, Mask]:
    """Which rows of a family are open under some words, and which are none the less too slow under all."""
    mine = [some for some in open_ if some.one.family.words.schedule == family.words.schedule]
    keys, none = family.rows.keys(space), np.zeros(0, np.int64)
    own = [some.one.family.rows.keys(space) for some in mine]

    def among(parts: list[IntArray]) -> Mask:
        return np.isin(keys, np.concatenate([none, *(k[part] for k, part in zip(own, parts))]))

    parts = [[part for part, _ in some.by_word.values()] for some in mine]
    kept = among([some.mine.rows[np.concatenate(part)] for some, part in zip(mine, parts)])
    quick = among([some.mine.rows[some.quick] for some in mine])
    return kept, among([some.mine.rows for some in mine]) & ~quick


def _floor(request: Request, space: Space, family: Family) -> FloatArray:
    """Seconds that a step of rows in orders of their own takes at least, nothing recomputed."""
    words = replace(family.words, recompute="none")
    r, strategy = request, space.strategy(words, family.rows.degrees(space), 1)
    table = layer_table(
        r.model, r.cluster, r.work, strategy, r.profile, candidates(strategy, len(family.rows))
    )
    return np.asarray(family.times * seconds_of(table), float)


def _useful(request: Request, space: Space, family: Family, orders: Orders) -> tuple[IntArray, IntArray]:
    """Rows of a family with orders that no other makes needless, [k] each."""
    pairs = len(space.ep)
    cells, at = np.unique(family.rows.block * pairs + family.rows.experts, return_inverse=True)
    block, experts = np.divmod(cells, pairs)
    groups = list({shard.groups.tobytes(): shard.groups for shard in family.shards}.values())
    useful = needed(request, space, family.words, orders, groups, block, experts)
    row, order = np.nonzero(useful[:, at].T)
    return row, order
