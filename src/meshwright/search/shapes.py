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
from meshwright.search.bounds import FloatArray, Request, busy_at_peak, busy_seconds
from meshwright.search.families import Stock
from meshwright.search.legal import Lattice
from meshwright.search.limits import Bars
from meshwright.search.space import IntArray, Space, Words
from meshwright.strategy.records import Strategy


class Shapes:
    """The distinct shapes (tp, cp, microbatch_size) and pairs (ep, etp) among some rows of a space; a cell is
    one of each."""

    def __init__(self, request: Request, space: Space, several: Sequence[Lattice]) -> None:
        self.request, self.space = request, space
        sizes = len(space.sizes)
        used = _present([one.block * sizes + one.size for one in several], len(space.blocks["tp"]) * sizes)
        self.used = pairs = np.flatnonzero(np.logical_or.reduce([one.able.any(0) for one in several]))
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
        if hides not in self._prices:
            self._prices[hides] = layer_prices(
                r.model, r.cluster, r.work, strategy, r.profile, self.many, every=True, kept=True
            )
        return busy_seconds(self._prices[hides].under(cluster or r.cluster, placement), strategy)

    def at_peak(self, flops: float) -> FloatArray:
        """Seconds that one microbatch takes where all its arithmetic runs at the chip's peak, [cells]."""
        r, shapes = self.request, self.many.distinct("tp", "cp", "microbatch_size")
        degrees: dict[str, Any] = dict(shapes.values)
        seconds = busy_at_peak(flops, r.cluster, r.work, Strategy(dp=1, **degrees))
        return np.repeat(np.asarray(seconds, float), self.pairs)

    def below(self, stock: Stock, busy: FloatArray, limit: Bars) -> tuple[IntArray, FloatArray]:
        """Places of strategies whose steps take no longer than the limit where a microbatch takes `busy`
        [cells], and seconds that these take at least."""
        lattice, used = stock.lattice, self.used
        of_shape = busy.reshape(-1, self.pairs)[:, self.pair]
        shape = self.shape.take(lattice.block * len(self.space.sizes) + lattice.size)
        by_pair, near = limit.by_pair.take(stock.pair), np.zeros(len(shape), bool)
        for bar in np.unique(limit.by_experts[used]):  # few: only degrees of 1 are told apart
            least = of_shape[:, used[limit.by_experts[used] == bar]].min(1)
            near |= stock.times * least.take(shape) <= np.maximum(by_pair, bar)
        t = np.flatnonzero(near)
        floors = stock.times[t, None] * of_shape[shape[t]]
        able = lattice.able[t] & (floors <= np.maximum(by_pair[t, None], limit.by_experts))
        row, experts = np.nonzero(able)
        return t[row] * len(self.pair) + experts, floors[able]


def _present(places: list[IntArray], size: int) -> IntArray:
    """Which of so many places occur, rising."""
    seen = np.zeros(size, bool)
    for some in places:
        seen[some] = True
    return np.flatnonzero(seen)
