"""What virtual stages cost, from the cost model: the durations that a pipeline is simulated with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cost import balance, host_link, schedule
from meshwright.cost.exchange import beside
from meshwright.cost.groups import Groups
from meshwright.cost.host_link import Copies
from meshwright.cost.rows import SUMS, LayerTable, candidates
from meshwright.cost.stages import Layers, Stages, over_ranks, stage_costs
from meshwright.cost.tables import Shared, exchanged, flattened, numbers_over_classes, shared, size_of
from meshwright.cost.times import hop_seconds
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy
from meshwright.work import Work

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Costs:
    """n plans of one pipeline: `pp` ranks, `vpp` chunks each, one set of words; `microbatches` [n].

    `chunks[name]` [stages, n]: a sum over the layers of each virtual stage in model order, one microbatch
    (names of `rows.SUMS`); `waits` [4, stages, n] of the passes in `took` for the host link, `hop` [n] is
    one send, which is waited for where `blocking`. `ranks`: stage costs of each rank, [n, ranks];
    `exchange`, `optimizer`, `counts` (of experts), `counting` (forwards run before for them) [n, ranks]:
    seconds once a step. `groups` as in `step`.
    """

    pp: int
    vpp: int
    microbatches: IntArray
    chunks: dict[str, Array]
    waits: Array
    hop: Array
    blocking: bool
    ranks: Stages
    exchange: Array
    optimizer: Array
    counts: Array
    counting: Array
    groups: Groups

    @property
    def took(self) -> Array:
        """Seconds of a forward, a whole backward, its input part and its weight part, [4, stages, n]."""
        forward, backward, weight = (self.chunks[name] for name in ("forward", "backward", "weight"))
        return np.stack([forward, backward, backward - weight, weight]) + self.waits

    @property
    def worked(self) -> Array:
        """Seconds of a microbatch's passes but for what they wait for, launches included, [stages, n]."""
        return (
            self.chunks["forward"] + self.chunks["backward"] - sum(self.chunks[x] for x in ("tp", "cp", "ep"))
        )

    @property
    def after(self) -> Array:
        """Seconds of each rank once a step besides its passes, [ranks, n]."""
        return (self.exchange + self.optimizer + self.counts + self.counting).T

    @property
    def sends(self) -> Array:
        """Seconds from each virtual stage to the next, [stages, n]; the last is 0."""
        sent = np.repeat(self.hop[None], self.pp * self.vpp, axis=0)
        sent[-1] = 0.0
        return sent

    @property
    def held(self) -> Array:
        """Bytes of activations that one forward leaves on the chip, [stages, n]."""
        return self.chunks["saved"] - self.chunks["offloaded"]


def costs(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    known: Shared | None = None,
) -> Costs:
    """Costs of `strategy`: its degrees are numbers, or arrays [n] that share one pipeline. `known` as in
    `step.evaluate`."""
    outer = size_of(cluster, work, strategy, profile)
    n = int(np.prod(outer)) if outer else 1
    flat, flat_work, cluster = (flattened(one, outer) for one in (strategy, work, cluster))
    by_class = numbers_over_classes(profile)
    many = candidates(flat, n)
    known = known or shared(model, cluster, flat_work, flat, profile, many)
    known = known.laid(model, flat, many)
    plan = schedule.load(strategy.schedule)
    lines = known.lines.held(plan.PARAMETERS_HELD)
    sent = exchanged(model, cluster, flat_work, flat, profile, known, many)
    layers = Layers(lines, known.where, known.layers, known.layers.grid.places)
    classes = stage_costs(model, flat, lines, known.where, layers)
    (place,) = set(known.where.pair.tolist())
    line = lines.lines[place]
    pp, vpp = line.pp, line.vpp
    m = np.broadcast_to(flat_work.global_batch_size / (flat.dp * flat.microbatch_size), (n,))
    at = line.of_ranks(model)
    ranks = over_ranks(classes, at)
    traffic = sent.traffic()
    spread = (n, classes.multiplicity.shape[1])
    fetch = np.broadcast_to(traffic.fetch, spread) / plan.PARAMETERS_HELD
    _, exchange = beside(classes, layers, traffic, m[:, None], flat, by_class, work.options, cluster)
    counts, _ = balance.exchange(
        model, flat, by_class, lines.counts, known.where.pair, sent.spans(), m[:, None]
    )
    counting = balance.counting_forwards(flat.moe_balance, m)
    chunks = _chunk_sums(model, strategy, line.split(model).chunks, known.layers, n)
    on = [rank for rank, _ in plan.route(pp, vpp, 0, 2)]  # of each virtual stage
    copies = host_link.copies(
        chunks["offloaded"], fetch[:, at[on]].T / vpp, strategy, by_class.framework, cluster
    )
    blocking = schedule.sends_block(strategy.schedule, profile.framework, work.options)
    hop = hop_seconds(model, flat_work, flat, by_class, sent.spans()["pp"], waited=blocking)
    return Costs(
        pp=pp,
        vpp=vpp,
        microbatches=np.rint(m).astype(np.int64),
        chunks=chunks,
        waits=_waits(copies, chunks),
        hop=np.broadcast_to(np.asarray(hop, float) * (pp > 1), (n,)),
        blocking=blocking,
        ranks=ranks,
        exchange=np.broadcast_to(exchange, spread)[:, at],
        optimizer=np.broadcast_to(sent.optimizer(), spread)[:, at],
        counts=np.broadcast_to(counts, spread)[:, at],
        counting=np.broadcast_to(counting, (n,))[:, None] * ranks.cost["forward"],
        groups=sent,
    )


def _waits(copies: Copies, chunks: dict[str, Array]) -> Array:
    """Seconds that each pass of `Costs.took` waits for the host link, [4, stages, n]."""
    passes = chunks["forward"], chunks["backward"], chunks["weight"]
    whole, cut = (copies.waits(*passes, splits=splits) for splits in (False, True))
    return np.stack([whole.forward, whole.backward, cut.backward - cut.weight, cut.weight])


def _chunk_sums(
    model: Model, strategy: Strategy, chunks: IntArray, table: LayerTable, n: int
) -> dict[str, Array]:
    """Each sum over the layers and ends of each virtual stage, [stages, n], as the schedule runs them."""
    counts = chunks[:, : len(table.sums["forward"])].astype(float)  # multi-token prediction is in the head's
    found = {}
    for name in SUMS:
        rows = np.stack([np.broadcast_to(table.grid.places.read(c), (n,)) for c in table.sums[name]])
        found[name] = counts @ rows
    pp = int(np.ravel(strategy.pp)[0])
    if schedule.load(strategy.schedule).SPLITS_BACKWARD:
        for name in ("backward", "host"):
            found[name] = found[name] + (pp > 1) * found["split"]
    offload = parse_offload(strategy.offload)
    found["offloaded"] = found["offloaded"] * np.asarray(offload.share(model.n_layers / pp))
    return found
