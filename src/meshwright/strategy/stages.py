"""How layers fall on pipeline stages, as small integer matrices: stage (or class of stages) x layer kind.

Layers are dealt to virtual stages in order, and a schedule's layout says which rank holds which: round and
round (virtual stage i is chunk i // pp of rank i % pp), in a V (down the ranks in chunk 0 and up again in
chunk 1, so that rank 0 holds both ends of the model), or both ways (rank r holds stages r and pp - 1 - r,
each for half of the microbatches). The columns of every matrix are the model's block kinds, then embedding,
head and multi-token-prediction layers.

Two things are counted where they are used, not where they are stored. A tied embedding has its column on
both ends of a pipeline: the first rank looks it up and the last one multiplies by it, and each holds a copy
when pp > 1. A shared block (Zamba2) is not a layer of the pattern; it is used on whatever stage holds the
layers of `model.shared_at`, which each keep a copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from meshwright.errors import Diagnostic, InputError
from meshwright.model.records import Model
from meshwright.units import counted

IntArray = npt.NDArray[np.int64]
Counts = npt.NDArray[Any]  # whole numbers; halves where stages lie both ways
Layout = Literal["round", "v", "both-ways"]

V_SHAPED = frozenset({"zb-v", "v-half", "v-min", "dualpipev"})
BOTH_WAYS = frozenset({"dualpipe"})

EXTRA_COLUMNS = ("embedding", "head", "mtp")


@dataclass(frozen=True, slots=True)
class Split:
    """`counts` [pp, kinds + 3]: what a microbatch meets on each rank, its chunks summed; `chunks`
    [pp * vpp, kinds + 3] what each virtual stage is. Under a layout that goes both ways half of the
    microbatches meet either of a rank's stages: `counts` is their mean, and the rank holds twice as much."""

    counts: Counts
    chunks: IntArray

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Decoder layers of each virtual stage, in order."""
        return tuple(int(n) for n in self.chunks[:, : -len(EXTRA_COLUMNS)].sum(axis=1))


@dataclass(frozen=True, slots=True)
class Line:
    """One pipeline: the decoder layers of each of its pp * vpp virtual stages, in order, and where these
    lie."""

    pp: int
    vpp: int
    layers: tuple[int, ...]
    layout: Layout

    def split(self, model: Model) -> Split:
        """Its stages."""
        return split(model, self.pp, self.vpp, self.layers, layout=self.layout)

    def of_ranks(self, model: Model) -> IntArray:
        """The stage class of each rank, [pp]: its place in `stage_classes`."""
        return _of_ranks(model, self)


@dataclass(frozen=True, slots=True)
class Classes:
    """Distinct stages of u pipelines, padded to the one with most.

    `counts` [u, C, kinds + 3]; `fullest_rank` [u, C] is the rank of the class with the most activations in
    flight (the earliest, in a V the last); `multiplicity` [u, C] ranks of the class (0: padding, whose counts
    are 0).
    """

    counts: Counts
    fullest_rank: IntArray
    multiplicity: IntArray


def layout_of(schedule: str) -> Layout:
    """How the schedule of that name lays stages over ranks.

    >>> layout_of("zb-v"), layout_of("1f1b")
    ('v', 'round')
    """
    return "v" if schedule in V_SHAPED else "both-ways" if schedule in BOTH_WAYS else "round"


def most_virtual_stages(model: Model) -> int:
    """Virtual stages that a model can fill: one a layer, and the ends may hold embedding or head alone."""
    return model.n_layers + 2


def split(
    model: Model,
    pp: int,
    vpp: int = 1,
    layers_per_stage: tuple[int, ...] | None = None,
    head_weight: float = 0.0,
    embedding_weight: float = 0.0,
    kind_weights: tuple[float, ...] | None = None,
    layout: Layout = "round",
) -> Split:
    """The stages of `model` under `pp` ranks of `vpp` chunks.

    `layers_per_stage` (decoder layers of each virtual stage) is taken as it is. Without it the largest rank
    is made as small as it can be, where a layer of kind k weighs `kind_weights[k]` (or 1), the rank of the
    last virtual stage carries `head_weight` besides its layers (head, loss, multi-token prediction) and the
    first one `embedding_weight`. Layers that remain go to inner ranks first, the later ones (fewer
    activations in flight) before the earlier, and to the rank of the head last of all. Exact where all layers
    weigh the same or vpp = 1 (both ways: the largest stage, not the largest pair); otherwise the layers count
    as equal.

    Raises InputError, with the arithmetic, where the layers cannot be laid out so.
    """
    return _split(
        model,
        int(pp),
        int(vpp),
        None if layers_per_stage is None else tuple(int(n) for n in layers_per_stage),
        float(head_weight),
        float(embedding_weight),
        kind_weights,
        layout,
    )


def stage_classes(model: Model, lines: Sequence[Line]) -> Classes:
    """The distinct stages of each of some pipelines of one layout."""
    each = [_classes_of(model, line) for line in lines]
    u, widest = len(each), max((len(rows) for rows, *_ in each), default=1)
    both_ways = any(line.layout == "both-ways" for line in lines)
    counts = np.zeros((u, widest, len(model.blocks) + len(EXTRA_COLUMNS)), float if both_ways else np.int64)
    fullest_rank, multiplicity = (np.zeros((u, widest), np.int64) for _ in range(2))
    for i, (rows, first, times) in enumerate(each):
        c = len(rows)
        counts[i, :c], fullest_rank[i, :c], multiplicity[i, :c] = rows, first, times
    return Classes(counts, fullest_rank, multiplicity)


def virtual_stages(pp: int, vpp: int, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The virtual stages that each rank of a pipeline holds, in the order of its chunks.

    >>> virtual_stages(2, 2, "round"), virtual_stages(2, 2, "v"), virtual_stages(2, 1, "both-ways")
    (((0, 2), (1, 3)), ((0, 3), (1, 2)), ((0, 1), (1, 0)))
    """
    by_chunk = _by_chunk(np.arange(pp * vpp), pp, layout)
    if layout == "both-ways":
        by_chunk = np.concatenate([by_chunk, by_chunk[:, ::-1]])
    return tuple(tuple(int(stage) for stage in rank) for rank in by_chunk.T)


MOST_TOLD = 12  # numbers of a list of layers that a message shows


def layout_fault(
    model: Model, pp: int, vpp: int, layers_per_stage: Sequence[int] | None
) -> Diagnostic | None:
    """What stops `model` from being laid out over pp * vpp virtual stages, with the arithmetic."""
    stages, n_layers = pp * vpp, model.n_layers
    product = f"pp {pp} x vpp {vpp} = {stages}"
    if layers_per_stage is None:
        most = most_virtual_stages(model) if stages > 1 else n_layers
        if stages <= most:
            return None
        return Diagnostic(
            "MW130",
            f"{product} virtual stages, but {model.name} has {counted(n_layers, 'layer')}: besides "
            "embedding and head, "
            f"which may stand alone, {counted(stages - most, 'stage')} would be empty",
            where="pp, vpp",
            hint=f"lower pp or vpp until pp x vpp <= {most}",
        )
    listed = list(layers_per_stage)
    faults, hints = [], []
    if len(listed) != stages:
        faults.append(f"layers_per_stage lists {counted(len(listed), 'virtual stage')}, but {product}")
        hints.append(f"list {stages} numbers")
    if sum(listed) != n_layers:
        added = f"{' + '.join(map(str, _shortened(listed)))} = " if len(listed) > 1 else ""
        faults.append(
            f"layers_per_stage sums to {added}{sum(listed)}, but "
            f"{model.name} has {counted(n_layers, 'layer')} ({n_layers - sum(listed):+d})"
        )
        hints.append(f"make the numbers sum to {n_layers}")
    if hints and stages <= min(MOST_TOLD, n_layers):
        alike = [n_layers // stages + (i < n_layers % stages) for i in range(stages)]
        hints.append(f"for example {','.join(map(str, alike))}")
    if any(n < 0 for n in listed):
        faults.append(f"layers_per_stage holds a negative number ({min(listed)})")
        hints.append("give each stage 0 or more layers")
    elif any(n == 0 for n in listed[1:-1]):
        empty = 1 + next(i for i, n in enumerate(listed[1:-1]) if n == 0)
        faults.append(f"virtual stage {empty} has no layer; only the first and the last may be without")
        hints.append("give each inner stage a layer")
    if not faults:
        return None
    return Diagnostic("MW131", "; ".join(faults), where="layers_per_stage", hint="; ".join(hints))


def _shortened(numbers: list[int], most: int = MOST_TOLD) -> list[int | str]:
    return [*numbers] if len(numbers) <= most else [*numbers[: most - 1], "..."]


@lru_cache(maxsize=4096)
def _split(
    model: Model,
    pp: int,
    vpp: int,
    layers_per_stage: tuple[int, ...] | None,
    head_weight: float,
    embedding_weight: float,
    kind_weights: tuple[float, ...] | None,
    layout: Layout,
) -> Split:
    if pp < 1 or vpp < 1:
        raise InputError(Diagnostic("MW130", f"pp {pp} and vpp {vpp} must be 1 or more", where="pp, vpp"))
    fault = layout_fault(model, pp, vpp, layers_per_stage)
    if fault:
        raise InputError(fault)
    sizes = layers_per_stage
    if sizes is None:
        weights = kind_weights or (1.0,) * len(model.blocks)
        sizes = balanced(model.pattern, pp, vpp, weights, embedding_weight, head_weight, layout)
    kinds = len(model.blocks)
    chunks = np.zeros((pp * vpp, kinds + len(EXTRA_COLUMNS)), np.int64)
    np.add.at(chunks, (np.repeat(np.arange(pp * vpp), sizes), np.array(model.pattern, np.int64)), 1)
    chunks[0, kinds] = 1
    chunks[-1, kinds + 1] = 1
    chunks[-1, kinds + 2] = model.mtp_layers
    counts: Counts = _by_chunk(chunks, pp, layout).sum(axis=0)
    if layout == "both-ways":
        counts = (counts + counts[::-1]) / 2.0
    # The cache hands the same arrays to every caller.
    chunks.setflags(write=False)
    counts.setflags(write=False)
    return Split(counts, chunks)


@lru_cache(maxsize=65536)
def balanced(
    pattern: tuple[int, ...],
    pp: int,
    vpp: int,
    weights: tuple[float, ...],
    first: float,
    last: float,
    layout: Layout,
) -> tuple[int, ...]:
    """Layers of each virtual stage as `split` balances them: those of `pattern`, where kind k weighs
    `weights[k]`, what is on the `first` stage besides and on the `last`."""
    if vpp == 1 and len({weights[k] for k in pattern}) > 1:
        return _balanced_contiguous(tuple(weights[k] for k in pattern), pp, first, last)
    unit = sum(weights[k] for k in pattern) / len(pattern) or 1.0
    turns = layout == "v" and vpp > 1  # a V of one chunk a rank is a line: the head is on the last
    return _balanced_equal(len(pattern), pp, vpp, first / unit, last / unit, turns)


def _by_chunk(stages: IntArray, pp: int, layout: Layout) -> IntArray:
    """Rows of virtual stages in model order as [chunk, rank, ...]; it is its own inverse on such rows."""
    rows = stages.reshape(-1, pp, *stages.shape[1:]).copy()
    if layout == "v":
        rows[1::2] = rows[1::2, ::-1]
    return rows


@lru_cache(maxsize=4096)
def _balanced_equal(
    n_layers: int, pp: int, vpp: int, first: float, last: float, v_shaped: bool
) -> tuple[int, ...]:
    """Layers of each virtual stage when all weigh 1: each next layer goes to the rank with the least.

    Giving unit items to the least loaded rank, each rank holding at least its minimum, minimises the maximum.
    """
    ranks = np.full(pp, vpp, np.int64)
    end = 0 if v_shaped else pp - 1  # the rank of the head
    ranks[end] -= 1  # the end chunks may hold embedding or head alone
    if pp > 1:
        ranks[0] -= 1
    spare = n_layers - int(ranks.sum())
    load = ranks.astype(float)
    load[0] += first
    load[end] += last
    # Inner ranks from the back, rank 0, the rank of the head.
    preference = [pp, *range(pp - 1, 0, -1)] if v_shaped else [pp - 1, *range(pp - 2, 0, -1), pp][:pp]
    heap = [(float(load[r]), preference[r], r) for r in range(pp)]
    heapify(heap)
    for _ in range(spare):
        weight, order, r = heappop(heap)
        ranks[r] += 1
        heappush(heap, (weight + 1.0, order, r))
    sizes = np.zeros((vpp, pp), np.int64)
    for r in range(pp):
        carried = np.zeros(vpp)
        carried[0] += first if r == 0 else 0.0
        carried[-1] += last if r == end else 0.0
        alone = [c for c, at in ((0, r == 0 and pp > 1), (vpp - 1, r == end)) if at]
        sizes[:, r] = _dealt(int(ranks[r]), carried, alone)
    return tuple(int(n) for n in _by_chunk(sizes.ravel(), pp, "v" if v_shaped else "round").ravel())


def _dealt(layers: int, carried: npt.NDArray[np.float64], alone: list[int]) -> IntArray:
    """A rank's layers over its chunks: one each but for those that may stand `alone` with what they carry,
    then each next layer to the chunk with the least, of equals the latest.

    A turn of a pipeline lasts as long as its longest chunk on any rank. All ranks deal alike, so that their
    longer chunks stand in the same turns.
    """
    chunks = np.ones(len(carried), np.int64)
    chunks[alone] = 0
    for _ in range(layers - int(chunks.sum())):
        load = chunks + carried
        chunks[np.flatnonzero(load <= load.min() + 1e-9)[-1]] += 1
    return chunks


@lru_cache(maxsize=4096)
def _balanced_contiguous(weights: tuple[float, ...], pp: int, first: float, last: float) -> tuple[int, ...]:
    """Contiguous cut of `weights` [L] into pp parts with the smallest largest part (ends carry more). Of such
    cuts the one filled from the back: the first stage has most in flight, and its exchange comes last.

    The optimum is the weight of some run of layers (with an end's extra), so bisect over those candidates. It
    is no less than an even share, nor than the heaviest piece, and no more than a layer above both: parts
    that are filled to that each hold an even share.
    """
    weights, first, last = weights[::-1], last, first  # what follows fills from the front
    n, heaviest = len(weights), max(weights)
    prefix = [0.0, *accumulate(weights)]
    least = max((first + last + prefix[-1]) / pp, heaviest, first, last)
    at = np.array(prefix)
    ends = (first + at, last + at[-1] - at, np.array([first + last + at[-1]]))
    sums = np.concatenate([(at[None, :] - at[:, None]).ravel(), *ends])
    near = (sums >= least * (1 - 1e-12)) & (sums <= (least + heaviest) * (1 + 1e-12))
    candidates = np.unique(sums[near]).tolist()

    def cut(limit: float) -> list[int] | None:
        """Sizes under `limit`, filled from the front; None where the limit is too small."""
        sizes: list[int] = []
        start, slack = 0, limit * (1 + 1e-12)
        for stage in range(pp):
            room = slack - (first if stage == 0 else 0.0) - (last if stage == pp - 1 else 0.0)
            if room < 0:
                return None
            end = bisect_right(prefix, prefix[start] + room) - 1
            # Leave a layer for each inner stage still to come; the last one may hold the head alone.
            end = min(end, n - max(pp - 2 - stage, 0))
            if end <= start and 0 < stage < pp - 1:
                return None
            sizes.append(max(end - start, 0))
            start += sizes[-1]
        return sizes if start == n else None

    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        if cut(candidates[middle]) is None:
            low = middle + 1
        else:
            high = middle
    best = cut(candidates[low])
    assert best is not None  # see above
    return tuple(best[::-1])


@lru_cache(maxsize=4096)
def _classes_of(model: Model, line: Line) -> tuple[Counts, IntArray, IntArray]:
    """Distinct rows of a split, their fullest rank, and how many ranks share them."""
    counts = line.split(model).counts
    counts = counts[::-1] if line.layout == "v" else counts
    rows, first, times = np.unique(counts, axis=0, return_index=True, return_counts=True)
    return rows, line.pp - 1 - first if line.layout == "v" else first, times


@lru_cache(maxsize=4096)
def _of_ranks(model: Model, line: Line) -> IntArray:
    rows, classes = line.split(model).counts, _classes_of(model, line)[0]
    found = np.asarray((rows[:, None] == classes[None]).all(-1).argmax(1), np.int64)
    found.setflags(write=False)  # the cache hands the same array to every caller
    return found
