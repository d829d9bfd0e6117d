"""What a step exchanges and updates once, on the layouts of ranks that the candidates share.

Dense parameters lie over (dp, cp, tp), experts over (ep, etp) and the rest of a stage: two tables of distinct
layouts, each with its groups of ranks. Times add over the two kinds of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import data_parallel
from meshwright.cost.arrays import with_arrays
from meshwright.cost.data_parallel import Traffic
from meshwright.cost.distinct import Candidates, Distinct, Picked, Short, lookup
from meshwright.cost.ops import stream_seconds
from meshwright.cost.rows import numbers_vary
from meshwright.cost.stages import Pipelines, Stages, Where, over_classes
from meshwright.cost.states import host_step_seconds, state_copies, update_bytes
from meshwright.hardware.records import Cluster
from meshwright.profiles.records import Profile
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import Span, spans, stages_outermost
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]
_FEW = 4096  # candidates up to which one table of layouts is quicker than two
DENSE = frozenset({"tp", "cp", "dp", "pp", "data", "shard", "replica"})


@dataclass(frozen=True, slots=True)
class Side:
    """Some parameters on distinct layouts of ranks: their groups, and seconds of each exchange [layouts, C].

    `at` [n] is the layout of each candidate.
    """

    spans: dict[str, Span]
    traffic: Traffic
    optimizer: Any
    at: Short


@dataclass(frozen=True, slots=True)
class Groups:
    """All parameters of the candidates: one side, or dense and expert ones apart."""

    sides: tuple[Side, ...]
    classes: int | None = None  # how many of the stage classes these candidates have; None: all

    def cut(self, part: Picked, classes: int | None = None) -> Groups:
        """For some of the candidates, which have no more than so many classes."""
        return Groups(tuple(replace(side, at=part(side.at)) for side in self.sides), classes)

    def added(self, pick: Callable[[Side], Any]) -> Any:
        """A time of all sides together, [n, C]."""
        total = self._spread(pick(self.sides[0]), self.sides[0].at)
        for side in self.sides[1:]:
            total = total + self._spread(pick(side), side.at)
        return total

    def _spread(self, values: Any, at: Short) -> Any:
        """[layouts, C] seconds for each candidate [n, C]; a number stays one."""
        if np.ndim(values) < 2:
            return values
        by_class = values.T[: self.classes]
        return by_class.T if by_class.shape[1] == 1 else by_class.take(at, axis=1).T

    def traffic(self) -> Traffic:
        """Seconds of each exchange, nothing hidden, [n, C]."""
        return Traffic(
            gradients=self.added(lambda side: side.traffic.gradients),
            weights=self.added(lambda side: side.traffic.weights),
            gathers=self.added(lambda side: side.traffic.gathers),
            fetch=self.added(lambda side: side.traffic.fetch),
        )

    def optimizer(self) -> Any:
        """Seconds of the optimizer step, [n, C]."""
        return self.added(lambda side: side.optimizer)

    def spans(self) -> dict[str, Span]:
        """The groups of ranks of each candidate; a group is spread over the candidates when asked for."""
        return _Spread(self.sides)


class _Spread(dict[str, Span]):
    """Spans by name, each made on first use."""

    def __init__(self, sides: tuple[Side, ...]) -> None:
        super().__init__()
        self.sides = sides

    def __missing__(self, name: str) -> Span:
        side = next(side for side in self.sides if name in side.spans)
        self[name] = with_arrays(side.spans[name], lambda values: values.take(side.at))
        return self[name]


def optimizer_seconds(
    per_rank: Stages,
    strategy: Strategy,
    reach: dict[str, Span],
    cluster: Cluster,
    profile: Profile,
    options: frozenset[str],
) -> Any:
    """Seconds of the optimizer step, [n, C]: gradients, state and weights of the shard through HBM, or where
    the state waits on the host through the host's memory and the link to it."""
    shard, expert_shard = map(over_classes, state_copies(strategy, reach, options))
    owned = per_rank.dense / shard + per_rank.expert / expert_shard
    if parse_offload(strategy.offload).optimizer:
        return owned * host_step_seconds(profile.framework, strategy, options, cluster.chip)
    nbytes = update_bytes(profile.framework, strategy, options)
    return stream_seconds(nbytes * owned, cluster.chip, profile)


def groups(
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    lines: Pipelines,
    where: Where,
    many: Candidates,
    trained: float = 1.0,
) -> Groups:
    """The exchanges of the candidates of `strategy`; arrays of `profile` have an axis for classes."""
    s = strategy
    many.add("pair", where.pair.astype(np.int64, copy=False))  # short numbers overflow in products
    each = numbers_vary(profile, cluster)
    together = not stages_outermost(s.placement) or bool(cluster.torus)  # one kind moves the ranks of another
    if each or many.n <= _FEW or together:
        find = many.all if each else many.distinct
        layouts = find("pair", "dp", "tp", "cp", "zero_group", "ep", "etp", *many.orders)
        held = Stages(dense=_dense(lines, layouts), expert=_expert(lines, layouts))
        return Groups(
            (_side(cluster, work, _strategy(s, lines, layouts), profile, held, layouts, {}, trained),)
        )
    # Experts lie over all ranks of a stage, whatever tp, cp and dp are; so do the copies of their state. Of
    # the parameters of the other side nothing is held, on groups of one, so they add nothing.
    alone = spans(cluster, Strategy(dp=1, placement=s.placement))
    layouts = many.distinct("pair", "dp", "tp", "cp", "zero_group")
    few = _strategy(s, lines, layouts, ep=1, etp=1)
    held = Stages(dense=_dense(lines, layouts), expert=0.0)
    others = {name: span for name, span in alone.items() if name not in DENSE}
    dense = _side(cluster, work, few, profile, held, layouts, others, trained)
    of = layouts.values
    many.derive("ranks", of["dp"] * of["cp"] * of["tp"], layouts)
    many.derive("copies", of["zero_group"] * of["tp"], layouts)
    layouts = many.distinct("pair", "ep", "etp", "ranks", "copies")
    ranks, copies = layouts.values["ranks"], layouts.values["copies"]
    few = _strategy(s, lines, layouts, dp=ranks, zero_group=copies, tp=1, cp=1)
    held = Stages(dense=0.0, expert=_expert(lines, layouts))
    others = {name: span for name, span in alone.items() if name in DENSE}
    return Groups((dense, _side(cluster, work, few, profile, held, layouts, others, trained)))


def _side(
    cluster: Cluster,
    work: Work,
    few: Strategy,
    profile: Profile,
    held: Stages,
    layouts: Distinct,
    others: dict[str, Span],
    trained: float,
) -> Side:
    """The parameters `held` on their layouts; `others` are groups that they do not use."""
    reach = {name: span for name, span in spans(cluster, few).items() if name not in others}
    sent = data_parallel.traffic(
        held, few, reach | others, profile, work.precision, cluster.chip.host_bytes_s, trained
    )
    traffic = Traffic(
        *(_nothing_once(seconds) for seconds in (sent.gradients, sent.weights, sent.gathers, sent.fetch))
    )
    updated = trained * optimizer_seconds(held, few, reach | others, cluster, profile, work.options)
    return Side({name: _plain(span) for name, span in reach.items()}, traffic, updated, layouts.at)


def _plain(span: Span) -> Span:
    """The span with arrays that hold one value as that number, so that nothing is spread for them."""
    return with_arrays(span, lambda x: x.flat[0].item() if len(x) > 1 and x.min() == x.max() else x)


def _strategy(strategy: Strategy, lines: Pipelines, layouts: Distinct, **others: Any) -> Strategy:
    """The strategy on some layouts, with `others` in place of degrees that these do not hold."""
    pair = layouts.values["pair"]
    degrees: dict[str, Any] = {name: lines.pairs.values[name][pair] for name in ("pp", "vpp")}
    degrees |= {k: v for k, v in layouts.values.items() if k not in ("pair", "ranks", "copies")} | others
    if len(layouts) == 1:  # plain numbers are quicker
        degrees = {name: np.ravel(value)[0].item() for name, value in degrees.items()}
    return replace(strategy, **degrees)


def _dense(lines: Pipelines, layouts: Distinct) -> Array:
    """Dense parameters of a rank of each class on each layout, [layouts, C]."""
    tp = lookup(lines.tp, layouts.values["tp"], len(layouts))
    return lines.dense.take(layouts.values["pair"] * len(lines.tp) + tp, axis=1).T


def _expert(lines: Pipelines, layouts: Distinct) -> Array:
    """Expert parameters of a rank of each class on each layout, [layouts, C]."""
    which = _which(lines.experts, layouts.values, len(layouts))
    return lines.expert.take(layouts.values["pair"] * len(lines.experts) + which, axis=1).T


def _which(pairs: Distinct, wanted: dict[str, Any], n: int) -> IntArray:
    """Place of each of n (ep, etp) among distinct pairs; assumes that all are there."""
    radix = int(max(pairs.values["etp"].max(), np.max(wanted["etp"]))) + 1
    known = pairs.values["ep"].astype(np.int64) * radix + pairs.values["etp"].astype(np.int64)
    order = np.argsort(known)
    code = np.broadcast_to(np.asarray(wanted["ep"]) * radix + wanted["etp"], (n,))
    return order[np.searchsorted(known[order], code)]


def _nothing_once(values: Any) -> Any:
    """An exchange that takes no time on any layout as the number 0, so that nothing is spread for it."""
    return values if np.any(values) else 0.0
