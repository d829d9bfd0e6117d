"""Which rank sits where: the map of a strategy's ranks, whole or of one rank, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.checks.shapes import moe
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.report import as_json
from meshwright.report.records import Because
from meshwright.strategy import stages
from meshwright.strategy.placement import Span, spans, walk
from meshwright.strategy.ranks import COORDINATES, Group, coordinates, members, survey
from meshwright.strategy.records import AXES, Strategy
from meshwright.strategy.torus import Walk, places
from meshwright.work import Work

IN_FULL = 256  # ranks up to which the object lists every rank and every group by itself
FIRST = 4  # groups of a kind that are listed otherwise

CARRIES = {
    "tp": "activations of every layer",
    "cp": "the sequence: keys and values, heads or states",
    "etp": "activations inside an expert",
    "ep": "tokens to their experts and back",
    "pp": "activations from stage to stage",
    "dp": "replicas of the model",
    "data": "gradients of dense parameters (dp x cp)",
    "shard": "one sharded copy of the dense state",
    "replica": "the same shard of every copy",
    "edp": "gradients of the same experts",
    "expert_shard": "one sharded copy of the experts' state",
    "expert_replica": "the same expert shard of every copy",
}


@dataclass(frozen=True, slots=True)
class Place:
    """One rank: where it sits, its coordinates, its virtual stages and the ranks of its groups."""

    rank: int
    node: int | None
    domain: int
    torus: tuple[int, ...]
    coordinates: dict[str, int]
    virtual_stages: tuple[int, ...]
    groups: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RankMap:
    """The ranks of a strategy on a cluster: kinds of groups, what each crosses, and the stages.

    `groups` holds the kinds that the strategy uses; `links` what the cost model prices each with. `layers`
    are the decoder layers of each virtual stage, `held` the virtual stages of each rank along pp.
    """

    model: Model
    cluster: Cluster
    work: Work
    strategy: Strategy
    derived: dict[str, Because]
    groups: dict[str, Group]
    links: dict[str, Span]
    layers: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]

    @property
    def node_size(self) -> int | None:
        """Ranks of one host, where the data sheet says it; a host of a torus holds no row of ranks."""
        return None if self.cluster.torus else self.cluster.chip.chips_per_node

    @property
    def walk(self) -> Walk:
        """How ranks fill a slice of a torus, (axis, length) from the fastest on; elsewhere empty."""
        return walk(self.cluster, self.strategy) if self.cluster.torus else ()

    @property
    def strides(self) -> dict[str, int]:
        """Stride of each axis, fastest first: a rank is the sum of coordinate times stride."""
        found, stride = {}, 1
        for axis in self.strategy.placement:
            found[axis] = stride
            stride *= int(getattr(self.strategy, axis))
        return found

    def place(self, rank: int) -> Place:
        """Everything about one rank; InputError where there is no such rank."""
        if not 0 <= rank < self.cluster.n_chips:
            said = f"rank {rank} is outside 0 to {self.cluster.n_chips - 1:,}"
            raise InputError(Diagnostic("MW909", said, where="--rank", hint="ranks count from 0"))
        at = {axis: int(x) for axis, x in coordinates(self.strategy, rank).items()}
        return Place(
            rank=rank,
            node=None if self.node_size is None else rank // self.node_size,
            domain=rank // self.cluster.scale_up_size,
            torus=tuple(places(self.walk, rank % self.cluster.scale_up_size)),
            coordinates=at,
            virtual_stages=self.held[at["pp"]],
            groups={name: members(self.cluster, self.strategy, name, rank) for name in self.groups},
        )

    def kind(self, name: str) -> Group:
        """The groups of one kind; InputError where the strategy has no such kind."""
        if name not in self.groups:
            known = tuple(self.groups)
            hint = did_you_mean(name, known) or f"this strategy has {', '.join(known)}"
            raise InputError(Diagnostic("MW909", f"no groups {name!r} here", where="--axis", hint=hint))
        return self.groups[name]

    def first_layer(self, stage: int) -> int:
        """Number (from 0) of the first decoder layer of a virtual stage."""
        return sum(self.layers[:stage])

    def json(self, *, axis: str | None = None, rank: int | None = None, full: bool = False) -> dict[str, Any]:
        """The object that `meshwright ranks --json` prints (see docs/json.md)."""
        kinds = {axis: self.kind(axis)} if axis is not None else self.groups
        shown: dict[str, Any] = {
            "strategy": as_json.strategy_json(self.strategy, self.layers),
            "derived": {k: {"value": d.value, "because": d.because} for k, d in self.derived.items()},
            "numbering": {
                "placement": self.strategy.placement,
                "strides": self.strides,
                "domain_size": self.cluster.scale_up_size,
                "node_size": self.node_size,
                "walk": self.walk,
            },
            "groups": [self._kind_json(kind, full) for kind in kinds.values()],
            "stages": [
                {"pp": p, "virtual_stages": list(chunks), "layers": [self.layers[s] for s in chunks]}
                for p, chunks in enumerate(self.held)
            ],
        }
        if rank is not None:
            shown["rank"] = self.place(rank)
        elif axis is None and (full or self.cluster.n_chips <= IN_FULL):
            shown["ranks"] = self._ranks_json()
        whole: dict[str, Any] = as_json.plain(shown)
        return as_json.envelope("ranks", self.model, self.cluster, self.work) | whole

    def _kind_json(self, kind: Group, full: bool) -> dict[str, Any]:
        span = self.links[kind.name]
        complete = full or self.cluster.n_chips <= IN_FULL
        lists = kind.ranks()
        shown = {
            "group": kind.name,
            "carries": CARRIES[kind.name],
            "size": kind.size,
            "count": kind.count,
            "pieces": _pieces_json(kind.pieces),
            "starts": _pieces_json(kind.starts),
            "local": kind.local,
            "domains": kind.domains,
            "crossing": kind.crossing,
            "torus_axes": kind.axes,
            "links": [
                {"level": level, "ranks": n, "gbytes_s": rate / 1e9} for level, n, rate in links(kind, span)
            ],
            "ranks": lists if complete else None,
        }
        return shown if complete else shown | {"first": lists[:FIRST]}

    def _ranks_json(self) -> list[dict[str, Any]]:
        ranks = np.arange(self.cluster.n_chips)
        columns = {"rank": ranks, "domain": ranks // self.cluster.scale_up_size}
        if self.node_size is not None:
            columns["node"] = ranks // self.node_size
        columns |= coordinates(self.strategy, ranks)
        listed = [column.tolist() for column in columns.values()]
        return [dict(zip(columns, row)) for row in zip(*listed)]


def rank_map(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    layers: tuple[int, ...],
    derived: dict[str, Because],
) -> RankMap:
    """The map of a complete, legal strategy with so many `layers` on each virtual stage."""
    known = survey(cluster, strategy)
    pp, vpp = int(strategy.pp), int(strategy.vpp)
    return RankMap(
        model=model,
        cluster=cluster,
        work=work,
        strategy=strategy,
        derived=derived,
        groups={name: known[name] for name in used(model, strategy)},
        links=spans(cluster, strategy),
        layers=tuple(layers),
        held=stages.virtual_stages(pp, vpp, stages.layout_of(strategy.schedule)),
    )


def used(model: Model, strategy: Strategy) -> tuple[str, ...]:
    """Kinds of groups that the strategy exchanges anything in: of axes, of experts and of sharded state."""
    names = [axis for axis in AXES if axis != "dp"]
    experts = bool(moe(model))
    names += ["etp", "ep"] if experts else []
    names += ["dp", "data"]
    names += ["shard", "replica"] if strategy.zero else []
    if experts:
        names += ["edp", *(("expert_shard", "expert_replica") if strategy.zero else ())]
    return tuple(names)


def links(kind: Group, span: Span) -> list[tuple[str, int, float]]:
    """(level, ranks that meet there, bytes/s one way): inside a fast domain, then across domains.

    Where some groups of a kind straddle a border the fewest ranks of a domain count, as they do in the cost.
    """
    found = []
    if kind.local > 1:
        found.append(("domain", kind.local, float(span.local_bytes_s)))
    if kind.domains > 1:
        found.append(("network", kind.size // kind.local, float(span.remote_bytes_s)))
    return found


def axes_of(known: tuple[str, ...] = COORDINATES) -> tuple[str, ...]:
    """Coordinates in the order in which a person reads them."""
    return tuple(axis for axis in ("pp", "dp", "cp", "tp", "edp", "ep", "etp") if axis in known)


def _pieces_json(pieces: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{"stride": stride, "degree": degree} for stride, degree in pieces]
