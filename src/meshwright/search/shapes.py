"""Layers of all shapes among some strategies of a space, whatever else differs in these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.cost.distinct import Candidates
from meshwright.cost.rows import LayerPrices, layer_prices, stage_blind
from meshwright.cost.schedule import load as load_schedule
from meshwright.hardware.records import Cluster
from meshwright.search.bounds import FloatArray, Request, busy_seconds
from meshwright.search.legal import Rows
from meshwright.search.space import IntArray, Space, Words


class Shapes:
    """The distinct shapes (tp, cp, microbatch_size) and pairs (ep, etp) among some rows of a space; a cell is
    one of each."""

    def __init__(self, request: Request, space: Space, several: Sequence[Rows]) -> None:
        self.request, self.space = request, space
        sizes = len(space.sizes)
        used = _present([rows.block * sizes + rows.size for rows in several], len(space.blocks["tp"]) * sizes)
        pairs = _present([rows.experts for rows in several], len(space.ep))
        block = used // sizes
        columns = {name: space.blocks[name][block] for name in ("tp", "cp")}
        columns |= {"microbatch_size": space.sizes[used % sizes]}
        columns |= {"ep": space.ep[pairs], "etp": space.etp[pairs]}
        n = max(len(used), len(pairs))
        filled = {k: np.concatenate([v, np.full(n - len(v), v[0])]) for k, v in columns.items()}
        self.many = Candidates(filled | {"dp": 1, "pp": 1}, n)
        self.shape = np.zeros(len(space.blocks["tp"]) * sizes, np.int64)
        self.shape[used] = self.many.distinct("tp", "cp", "microbatch_size").at[: len(used)]
        experts = self.many.distinct("ep", "etp")
        self.pair, self.pairs = np.zeros(len(space.ep), np.int64), len(experts)
        self.pair[pairs] = experts.at[: len(pairs)]

        self._prices: dict[bool, LayerPrices] = {}

    def seconds(self, words: Words, placement: Any, cluster: Cluster | None = None) -> FloatArray | None:
        """Seconds that one microbatch takes through the whole model at least (`busy_seconds`), nothing
        recomputed, [cells]; None where dp and pp move axes that layers send over. `cluster` stands in for
        that of the request."""
        r = self.request
        ones = dict.fromkeys(("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatch_size"), 1)
        strategy = replace(self.space.strategy(words, ones, 1), placement=placement, recompute="none")
        if not stage_blind(strategy):
            return None
        hides = load_schedule(words.schedule).JOINED
        if hides in self._prices:
            return busy_seconds(self._prices[hides].under(cluster or r.cluster, placement), strategy)
        self._prices[hides] = layer_prices(
            r.model,
            r.cluster,
            r.work,
            strategy,
            r.profile,
            self.many,
            recomputes=("none", "none"),
            every=True,
        )
        return busy_seconds(self._prices[hides], strategy)

    def cells(self, rows: Rows) -> IntArray:
        """Place of each row in an array [shapes * pairs]."""
        return self._shape(rows) * self.pairs + self.pair.take(rows.experts)

    def _shape(self, rows: Rows) -> IntArray:
        return self.shape.take(rows.block * len(self.space.sizes) + rows.size)


def _present(places: list[IntArray], size: int) -> IntArray:
    """Which of so many places occur, rising."""
    seen = np.zeros(size, bool)
    for some in places:
        seen[some] = True
    return np.flatnonzero(seen)
