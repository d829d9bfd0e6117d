"""What a step exchanges and updates once, on the layouts of ranks that the candidates share.

Dense parameters lie over (dp, cp, tp), experts over (ep, etp) and the rest of a stage: two tables of distinct
layouts, each with its groups of ranks. Times add over the two kinds of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import data_parallel
from meshwright.cost.data_parallel import Traffic
from meshwright.cost.distinct import Candidates, Distinct, lookup
from meshwright.cost.ops import stream_seconds
from meshwright.cost.rows import numbers_vary
from meshwright.cost.stages import Pipelines, Stages, Where, over_classes
from meshwright.hardware.records import Cluster
from meshwright.profiles.records import Profile
from meshwright.strategy.placement import Span, spans
from meshwright.strategy.records import Strategy
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]
DENSE = frozenset({"tp", "cp", "dp", "pp", "data", "shard", "replica"})


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of parameters: its distinct layouts, their spans, and seconds of each [layouts, C]."""

    layouts: Distinct
    spans: dict[str, Span]
    traffic: Traffic
    optimizer: Any


@dataclass(frozen=True, slots=True)
class Groups:
    """Both kinds of parameters, and where each candidate reads them."""

    dense: Side
    expert: Side
    dense_at: IntArray
    expert_at: IntArray
    classes: int | None = None  # how many of the stage classes these candidates have; None: all

    def cut(self, part: IntArray, classes: int) -> Groups:
        """For some of the candidates, which have no more than so many classes."""
        return replace(self, dense_at=self.dense_at[part], expert_at=self.expert_at[part], classes=classes)

    def added(self, pick: Callable[[Side], Any]) -> Any:
        """A time of both sides together, [n, C]."""
        return self._spread(pick(self.dense), self.dense_at) + self._spread(pick(self.expert), self.expert_at)

    def _spread(self, values: Any, at: IntArray) -> Any:
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
        )

    def optimizer(self) -> Any:
        """Seconds of the optimizer step, [n, C]."""
        return self.added(lambda side: side.optimizer)

    def spans(self) -> dict[str, Span]:
        """The groups of ranks of each candidate; a group is spread over the candidates when asked for."""
        return _Spread(self)


class _Spread(dict[str, Span]):
    """Spans by name, each made on first use."""

    def __init__(self, groups: Groups) -> None:
        super().__init__()
        self.groups = groups

    def __missing__(self, name: str) -> Span:
        g = self.groups
        side, at = (g.dense, g.dense_at) if name in DENSE else (g.expert, g.expert_at)
        span = side.spans[name]
        numbers = {f.name: getattr(span, f.name) for f in fields(span) if np.ndim(getattr(span, f.name))}
        moved: dict[str, Any] = {k: v.take(at) for k, v in numbers.items()}
        self[name] = replace(span, **moved)
        return self[name]


def optimizer_seconds(
    per_rank: Stages, strategy: Strategy, reach: dict[str, Span], cluster: Cluster, profile: Profile
) -> Any:
    """Seconds of the optimizer step, [n, C]: gradients, master weights and moments through HBM.

    Adam reads gradient, master and two moments and writes master, moments and the compute copy: with fp32
    moments 4 + 12 + 12 + 2 bytes a parameter of the shard; norms and clipping read the gradients once more.
    """
    whole = strategy.zero == 0
    shard = 1.0 if whole else over_classes(reach["shard"].degree)
    expert_shard = 1.0 if whole else over_classes(reach["expert_shard"].degree)
    owned = per_rank.dense / shard + per_rank.expert / expert_shard
    nbytes = 34.0 if strategy.optimizer == "adamw" else 26.0
    return stream_seconds(nbytes * owned, cluster.chip, profile)


def groups(
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    lines: Pipelines,
    where: Where,
    many: Candidates,
) -> Groups:
    """The exchanges of the candidates of `strategy`; arrays of `profile` have an axis for classes."""
    s = strategy
    many.add("pair", where.pair)
    find = many.all if numbers_vary(profile) else many.distinct
    if s.placement[-1] == "pp":
        # Experts lie over all ranks of a stage, whatever tp, cp and dp are; so do the copies of their state.
        many.add("ranks", np.asarray(s.dp) * s.cp * s.tp)
        many.add("copies", np.asarray(s.zero_group) * s.tp)
        dense = find("pair", "dp", "tp", "cp", "zero_group")
        expert = find("pair", "ep", "etp", "ranks", "copies")
        moved: dict[str, Any] = {
            "dp": expert.values["ranks"],
            "zero_group": expert.values["copies"],
            "tp": 1,
            "cp": 1,
        }
        dense_degrees: dict[str, Any] = {k: v for k, v in dense.values.items() if k != "pair"}
        dense_degrees |= {"ep": 1, "etp": 1}
        expert_degrees = moved | {k: expert.values[k] for k in ("ep", "etp")}
    else:
        dense = expert = find("pair", "dp", "tp", "cp", "zero_group", "ep", "etp")
        dense_degrees = expert_degrees = {k: v for k, v in dense.values.items() if k != "pair"}

    def few(layouts: Distinct, degrees: dict[str, Any]) -> Strategy:
        pair = layouts.values["pair"]
        return replace(s, pp=lines.pairs.values["pp"][pair], vpp=lines.pairs.values["vpp"][pair], **degrees)

    at = dense.values["pair"] * len(lines.tp) + lookup(lines.tp, dense.values["tp"], len(dense))
    held = Stages(dense=lines.dense.take(at, axis=1).T, expert=0.0)
    side = _side(cluster, work, few(dense, dense_degrees), profile, held, dense, is_dense=True)
    pairs = {name: expert.values[name] for name in ("ep", "etp")}
    at = expert.values["pair"] * len(lines.experts) + _which(lines.experts, pairs, len(expert))
    held = Stages(dense=0.0, expert=lines.expert.take(at, axis=1).T)
    other = _side(cluster, work, few(expert, expert_degrees), profile, held, expert, is_dense=False)
    return Groups(side, other, dense.at, expert.at)


def _side(
    cluster: Cluster,
    work: Work,
    few: Strategy,
    profile: Profile,
    held: Stages,
    layouts: Distinct,
    *,
    is_dense: bool,
) -> Side:
    """One kind of parameters on its layouts; of the other kind nothing is held, so it adds nothing."""
    alone = spans(cluster, Strategy(dp=1, placement=few.placement))
    reach = {name: span for name, span in spans(cluster, few).items() if (name in DENSE) == is_dense}
    sent = data_parallel.traffic(held, few, alone | reach, profile, work.precision)
    traffic = Traffic(_nothing_once(sent.gradients), _nothing_once(sent.weights), _nothing_once(sent.gathers))
    return Side(layouts, reach, traffic, optimizer_seconds(held, few, alone | reach, cluster, profile))


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
