"""What a rank keeps for backward at its fullest moment: layers of its chunks, each for the microbatches that
are in flight there.

A rank's chunks differ (one has the head, or the dense first layers) and so do the microbatches in flight on
each, so that their means do not multiply. Which moment is the fullest depends on what the chunks weigh; the
few that may be are known from the schedule alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost import balance, schedule
from meshwright.cost.choice import Choice
from meshwright.cost.stages import Layers, Pipelines, of_pairs, on_classes, totals
from meshwright.model.records import Model
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Line, virtual_stages

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Times pp microbatches; of more no more are in flight at any moment. The last moment of interleaved 1F1B
# comes after (2 v + 1) pp forwards of one chunk, which (2 + 1/v) pp microbatches have; other schedules
# hold 2 pp or fewer.
_SETTLED = 3


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of which one is the fullest of the ranks of a stage class, for several pipelines and
    microbatches (cases).

    `layers` [moments, kinds, C, cases]: layers of each kind and ends whose activations are held, one for each
    microbatch in flight there; `ranks` [moments, C, cases]: the rank that holds them. Classes with fewer
    moments hold nothing in the others. The cases of a pipeline follow each other from `first` [u] on, for
    `least` microbatches to `most`, `apart` from each other.
    """

    layers: Array
    ranks: IntArray
    first: Array
    least: Array
    most: Array
    apart: Array

    def cut(self, classes: int) -> Moments:
        """For pipelines with no more than so many classes."""
        return replace(self, layers=self.layers[:, :, :classes], ranks=self.ranks[:, :classes])

    def only(self, pair: int, classes: int) -> Moments:
        """Of the one pipeline, which has so many classes."""
        first, least, most, apart = (
            x[pair : pair + 1] for x in (self.first, self.least, self.most, self.apart)
        )
        begin, count = int(first.item()), int(((most - least) / apart).item()) + 1
        cases = slice(begin, begin + count)
        return Moments(
            self.layers[:, :, :classes, cases], self.ranks[:, :classes, cases], 0 * first, least, most, apart
        )

    def at(self, pair: IntArray, microbatches: Any) -> IntArray:
        """The case of each candidate, [n]."""
        if self.layers.shape[-1] == 1:
            return np.zeros(len(pair), np.int64)
        of_pair = (self.first, self.least, self.most, self.apart)
        first, least, most, apart = (x.item() if len(x) == 1 else x.take(pair) for x in of_pair)
        past = (np.minimum(np.maximum(microbatches, least), most) - least) / apart
        return np.asarray((past + first).astype(np.int64))

    def one(self) -> Moments:
        """One of them, with most layers: no fuller than the fullest."""
        return replace(self, layers=self.layers[:1], ranks=self.ranks[:1])

    def that_may_be(self, rows: Sequence[Any]) -> Moments:
        """Without those that are never the fullest, whichever of these bytes (which
        broadcast) a layer of each kind keeps; the likeliest is first."""
        extremes = _relative(rows) if len(self.layers) > 1 else None
        if extremes is None:
            return self
        low, high = (bound[:, None, None] for bound in extremes)
        likely = (self.layers * (low + high)).sum(1).argmax(0)[None]
        first = np.take_along_axis(self.layers, likely[:, None], 0)
        more = self.layers - first
        may_be = np.maximum(more * low, more * high).sum(1) > 0.0
        order = np.argsort(~may_be, axis=0, kind="stable")[: may_be.sum(0).max()]
        others = np.take_along_axis(self.layers * may_be[:, None], order[:, None], 0)
        ranks = [np.take_along_axis(self.ranks, which, 0) for which in (likely, order)]
        return replace(self, layers=np.concatenate([first, others]), ranks=np.concatenate(ranks))


def _relative(rows: Sequence[Any]) -> tuple[Array, Array] | None:
    """The least and the most that a layer of each kind keeps beside one of a kind that always keeps some."""
    of = next((row for row in rows if np.min(row) > 0.0), None)
    if of is None:
        return None
    beside = [row / of if np.any(row) else np.zeros(1) for row in rows]
    return np.array([x.min() for x in beside]), np.array([x.max() for x in beside])


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes kept for backward by a rank of each stage class, [n, C], the fullest of the class.

    `in_flight` [n, C]: as many microbatches of all that it computes; 0 where nobody asked. `fullest_rank`
    [n, C] where every rank has one chunk; else `moment` [n, C] of `moments` is the fullest, of candidates
    whose case is `at`.
    """

    nbytes: Any
    in_flight: Any
    fullest_rank: Any = 0.0
    moments: Moments | None = None
    moment: Any = 0
    at: IntArray | None = None

    def rank(self, chosen: Choice) -> Any:
        """The fullest rank of the chosen class, [n]."""
        if self.moments is None:
            return chosen.of(self.fullest_rank)
        ranks = self.moments.ranks
        case, moment = self.at if ranks.shape[-1] > 1 else 0, chosen.of(self.moment)
        return ranks.take((moment * ranks.shape[1] + chosen.chosen) * ranks.shape[2] + case)

    def layers(self, chosen: Choice, layers: Layers) -> list[float]:
        """Of one plan, layers of each kind on the chosen class, one for each microbatch in flight there."""
        here = int(chosen.chosen[0])
        if self.moments is None or self.at is None:
            times = float(np.ravel(chosen.of(self.in_flight))[0])
            return [times * float(np.ravel(0.0 if on is None else on)[0]) for on in layers.of(chosen.chosen)]
        moment = int(np.ravel(chosen.of(self.moment))[0])
        return [float(x) for x in self.moments.layers[moment, :, here, self.at[0]]]


def activations(
    strategy: Strategy,
    layers: Layers,
    n_layers: int,
    moments: Moments | None,
    microbatches: Any,
    ranks: IntArray | None = None,
    *,
    counted: bool = False,
) -> Activations:
    """What n candidates keep of the microbatches in flight, but for what is offloaded.

    `moments` as the function of that name gives them; `ranks`: the class of each rank of one pipeline, to
    stand in place of classes (`moments` are then by rank too); `counted`: microbatches are asked for.
    """
    rows, n = _rows(strategy, layers, n_layers), len(layers.pair)
    if moments is None or counted:
        of_one = totals(layers.on, rows, n)
        of_one = of_one if ranks is None else of_one[ranks]
    if moments is None:
        rank = of_pairs(layers.fullest_rank, layers.pair) if ranks is None else np.arange(len(ranks))[None]
        in_flight = np.maximum(_in_flight(strategy, rank, microbatches), 1.0)
        return Activations(of_one.T * in_flight, in_flight, rank)
    at = moments.at(layers.pair, microbatches)
    first, *others = moments.layers
    most, moment = totals(on_classes(first, at), rows, n), np.zeros((), np.int64)
    if others:
        moment = np.zeros(most.shape, np.int8)
    for i, held in enumerate(others, 1):
        for c in np.flatnonzero(held.any((0, 2))):
            (here,) = totals(on_classes(held[:, c : c + 1], at), rows, n)
            np.maximum(moment[c], (here > most[c]) * np.int8(i), out=moment[c])  # quicker than a choice
            np.maximum(most[c], here, out=most[c])
    in_flight = most / np.maximum(of_one, 1.0) if counted else np.zeros(())
    return Activations(most.T, in_flight.T, moments=moments, moment=moment.T, at=at)


def _rows(strategy: Strategy, layers: Layers, n_layers: int) -> list[Any]:
    """Bytes that a layer of each kind keeps on the chip, [n] or a number."""
    offload = parse_offload(strategy.offload)
    rows = layers.rows("saved")
    if not offload.any:
        return rows
    share = offload.share(n_layers / np.asarray(strategy.pp, float))
    return [saved - share * gone for saved, gone in zip(rows, layers.rows("offloaded"))]


def _in_flight(strategy: Strategy, rank: Any, microbatches: Any) -> Any:
    """Microbatches in flight on ranks with one chunk, or of all chunks alike."""
    m = np.asarray(microbatches)[None]  # classes first: candidates lie side by side
    held = schedule.load(strategy.schedule).in_flight(rank.T, strategy.pp, strategy.vpp, m)
    return np.transpose(balance.in_flight(strategy.moe_balance, held, m))


def moments(
    model: Model,
    strategy: Strategy,
    lines: Pipelines,
    *,
    by_rank: bool = False,
) -> Moments | None:
    """The moments of the pipelines `lines` under the schedule of `strategy`, by stage class or by rank.

    None where a rank has one chunk, or all microbatches in flight on every chunk.
    """
    several = schedule.load(strategy.schedule).chunks_in_flight is not None
    if not several or strategy.moe_balance == balance.HOLDS_ALL:
        return None
    return _of_pipelines(model, strategy.schedule, lines.lines, by_rank)


@lru_cache(maxsize=64)
def _of_pipelines(model: Model, word: str, lines: tuple[Line, ...], by_rank: bool) -> Moments:
    needs = schedule.load(word).NEEDS
    cases = [_cases(word, line.pp) for line in lines]
    found = [_of_pipeline(model, word, line, by_rank) for line in lines]
    count, classes = (max(layers.shape[axis] for layers, _ in found) for axis in (0, 2))
    ends = np.cumsum([len(m) for m in cases])
    layers = np.zeros((count, found[0][0].shape[1], classes, ends[-1]))
    ranks = np.zeros((count, classes, ends[-1]), np.int64)
    for (held, of), end in zip(found, ends):
        p, _, c, own = held.shape
        layers[:p, :, :c, end - own : end] = held
        ranks[:p, :c, end - own : end] = of
    apart = [int(needs.group(line.pp)) for line in lines]
    least, most = ([m[i] for m in cases] for i in (0, -1))
    first = ends - [len(m) for m in cases]
    return Moments(layers, ranks, *(np.array(x, float) for x in (first, least, most, apart)))


def _cases(word: str, pp: int) -> range:
    """Numbers of microbatches that a pipeline of `pp` ranks differs by."""
    needs = schedule.load(word).NEEDS
    return range(needs.enough(pp, 1), needs.enough(pp, _SETTLED * pp) + 1, int(needs.group(pp)))


@lru_cache(maxsize=4096)
def _of_pipeline(model: Model, word: str, line: Line, by_rank: bool) -> tuple[Array, IntArray]:
    """`layers` and `ranks` of the cases of one pipeline."""
    several = schedule.load(word).chunks_in_flight
    assert several is not None
    pp, vpp = line.pp, line.vpp
    at = np.arange(pp) if by_rank else line.of_ranks(model)
    # Multi-token prediction is part of the head's column.
    on_ranks = np.array(virtual_stages(pp, vpp, line.layout))
    chunks = line.split(model).chunks[on_ranks, :-1].astype(float)
    in_flight = several(np.arange(pp), pp, vpp, np.array(_cases(word, pp))[:, None])
    if in_flight.shape[1] != chunks.shape[1]:  # of another schedule in the same table: no candidate reads it
        in_flight = np.repeat(in_flight.mean(1, keepdims=True), chunks.shape[1], axis=1)
    held = np.einsum("ujmr,rjk->mruk", in_flight, chunks)
    found = [
        [_undominated(held[m, at == c], np.flatnonzero(at == c)) for c in range(at.max() + 1)]
        for m in range(len(held))
    ]
    count = max(len(ranks) for of_case in found for _, ranks in of_case)
    layers = np.zeros((count, held.shape[-1], len(found[0]), len(found)))
    ranks = np.zeros((count, len(found[0]), len(found)), np.int64)
    for m, of_case in enumerate(found):
        for c, (rows, its) in enumerate(of_case):
            layers[: len(rows), :, c, m] = rows
            ranks[: len(rows), c, m] = its
    return layers, ranks


def _undominated(held: Array, ranks: IntArray) -> tuple[Array, IntArray]:
    """Of moments `held` [ranks, moments, kinds] those than which none has as much of every kind, most layers
    first, and the rank of each."""
    rows = held.reshape(-1, held.shape[-1])
    of = np.repeat(ranks, held.shape[1])
    order = np.lexsort((-rows.sum(-1), -rows[:, :-2].sum(-1)))
    rows, of = rows[order], of[order]
    chosen: list[int] = []
    left = np.arange(len(rows))
    while len(left):
        chosen.append(left[0])
        left = left[(rows[left] > rows[left[0]]).any(-1)]
    return rows[chosen], of[chosen]
