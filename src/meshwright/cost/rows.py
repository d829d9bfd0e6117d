"""What one layer of each kind costs, on the shapes that the candidates share.

A layer's cost depends on tp, the tokens of a microbatch on a rank, cp and, where it has experts, on ep and
etp. These are named axes of a grid, so that what looks at some of them is computed along those only, and
candidates read each sum by index. One plan is a grid of one point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.cost.columns import columns, shape_on, switches, tokens_of, words_of
from meshwright.cost.distinct import Axis, Candidates, Distinct, Picked, Short, Values, axis
from meshwright.cost.layer import NO_OFFLOAD, Common, LayerCost, Price, priced, sent_anew, summed
from meshwright.cost.ops import Operation
from meshwright.hardware.chips import as_listed
from meshwright.hardware.records import Chip, Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Number, Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import Offload
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import ALONE, Span, numbered, spans, stages_outermost
from meshwright.strategy.recompute import Recompute, parse
from meshwright.strategy.records import Strategy
from meshwright.work import Work

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Sums of a layer row that are wanted, from its fields.
SUMS: dict[str, tuple[str, ...]] = {
    "forward": ("forward", "tp_forward", "cp_forward", "ep_forward", "host_forward"),
    "backward": ("backward_input", "backward_weight", "recompute",
                 "tp_backward", "cp_backward", "ep_backward", "host_backward"),
    "weight": ("backward_weight", "host_weight"),
    "alone": ("alone",),  # what stages are balanced by
    "split": ("host_split",),  # more, where a schedule runs the two parts of backward by themselves
    "recompute": ("recompute",),
    "tp": ("tp_forward", "tp_backward"),
    "cp": ("cp_forward", "cp_backward"),
    "ep": ("ep_forward", "ep_backward"),
    "host": ("host_forward", "host_backward"),
    "saved": ("saved",),
    "offloaded": ("offloaded",),
    "live": ("live",),
    "flops": ("flops_forward", "flops_backward", "flops_recompute"),
    "flops_forward": ("flops_forward",),
    "floor": ("floor",),
}  # fmt: skip

WHOLE = (
    "forward",
    "backward",
    "weight",
    "split",
    "flops",
    "flops_forward",
)  # sums that are wanted over the whole model


# Axes of the grid, in the order of the dimensions of every array over it. `pp` is there for words whose share
# of recomputed layers depends on the length of a stage.
AXES = ("tp", "tokens", "cp", "pp", "experts")
_OPERATIONS = 12  # operations of a layer take so many times what its sums take; measured


@dataclass(frozen=True, slots=True)
class Sum:
    """One sum of a layer row: `values` along the dimensions `on` of the grid, or a number if it has none."""

    values: Any
    on: tuple[int, ...]


class Places:
    """Where n candidates read a grid of `size` points along each of its dimensions."""

    def __init__(self, size: tuple[int, ...], at: tuple[Short | None, ...]) -> None:
        self.size, self.at = size, at
        self._known: dict[tuple[int, ...], IntArray] = {}

    def cut(self, part: Picked) -> Places:
        """Those of some of the candidates."""
        return Places(self.size, tuple(None if a is None else part(a) for a in self.at))

    def read(self, cost: Sum) -> Any:
        """The sum for each candidate, [n], or a number."""
        return cost.values.take(self.index(cost.on)) if cost.on else cost.values

    def index(self, on: tuple[int, ...]) -> IntArray:
        """Index of each candidate into an array along the dimensions `on`, [n]."""
        if on not in self._known:
            *outer, last = on
            at = self.at[last]
            assert at is not None  # nothing varies along a dimension of one value
            at = at.astype(np.int64, copy=False)
            self._known[on] = self.index(tuple(outer)) * self.size[last] + at if outer else at
        return self._known[on]


@dataclass(frozen=True, slots=True)
class Grid:
    """The points that candidates share: values of `tp`, `tokens`, `cp` and `pp`, and pairs (ep, etp).

    Where candidates fill too little of such a grid, or differ in more than these, each distinct candidate is
    a point of its own along the first dimension.
    """

    values: dict[str, Any]  # degrees, and tokens where there are axes, each along its dimension
    size: tuple[int, ...]
    places: Places  # of the candidates that it was made for


@dataclass(frozen=True, slots=True)
class LayerTable:
    """`sums[name]` holds a `Sum` for a layer of each kind, the embedding, and the head with its multi-token
    prediction, of one microbatch.

    `whole[name]` is the sum over all layers and ends of the model. `rows` are the layers' own records, by
    name, for a person to read.
    """

    grid: Grid
    sums: dict[str, tuple[Sum, ...]]
    whole: dict[str, Sum]
    rows: dict[str, LayerCost]

    def over_grid(self, name: str) -> list[Any]:
        """The sum `name` of a layer of each kind on the whole grid, each with an axis for every dimension."""
        size = self.grid.size
        return [
            np.reshape(cost.values, [size[d] if d in cost.on else 1 for d in range(len(size))])
            for cost in self.sums[name]
        ]

    def cut(self, part: IntArray) -> LayerTable:
        """The same table for some of the candidates."""
        return replace(self, grid=replace(self.grid, places=self.grid.places.cut(Picked(part))))


@dataclass(frozen=True, slots=True)
class LayerPrices:
    """What the operations of all layers take on a grid: a table under any recompute and offload word is sums
    of it. `columns` are (name, its priced operations, whether words speak of it, how many the model has).
    Each table is made once, whoever asks and for whatever candidates. `listed`: the same on the chip as its
    data sheet has it, where figures of it were changed; stages are balanced by that one's passes.
    """

    grid: Grid
    on_grid: Strategy
    columns: tuple[tuple[str, Callable[[], Iterable[Price]], bool, int], ...]
    n_layers: int
    chip: Chip
    profile: Profile  # with the axes of the grid
    options: frozenset[str]
    listed: LayerPrices | None = None
    _made: dict[tuple[str, str], LayerTable] = field(default_factory=dict)
    _ends: dict[str, tuple[LayerCost, dict[str, Any]]] = field(default_factory=dict)
    _common: dict[str, Common] = field(default_factory=dict)

    def placed(self, places: Places) -> LayerPrices:
        """The same for candidates in other places of the grid."""
        return replace(self, grid=replace(self.grid, places=places))

    def under(self, cluster: Cluster, placement: Any) -> LayerPrices:
        """The same with ranks in another order, along the same dimensions."""
        on_grid = replace(self.on_grid, placement=placement)
        reach, others = _reach(cluster, on_grid), (self.chip, self.profile, self.options)
        columns = tuple(
            (name, partial(sent_anew, tuple(prices()), reach, *others), is_layer, times)
            for name, prices, is_layer, times in self.columns
        )
        return replace(self, on_grid=on_grid, columns=columns, _made={}, _ends={}, _common={})

    def table(self, strategy: Strategy) -> LayerTable:
        """The layers under the recompute and offload words of `strategy`."""
        words = strategy.recompute, strategy.offload
        if words not in self._made:
            self._made[words] = self._table(strategy)
        return replace(self._made[words], grid=self.grid)

    def _table(self, strategy: Strategy) -> LayerTable:
        size = self.grid.size
        rows: dict[str, LayerCost] = {}
        sums: dict[str, list[Any]] = {name: [] for name in SUMS}
        whole: dict[str, Any] = dict.fromkeys(WHOLE, 0.0)
        for name, prices, is_layer, times in self.columns:
            if is_layer:
                words = parse(strategy.recompute), parse_offload(strategy.offload)
                rows[name], totals = self._column(name, prices, *words)
            else:  # no word speaks of these
                if name not in self._ends:
                    self._ends[name] = self._column(name, prices, parse("none"), NO_OFFLOAD)
                rows[name], totals = self._ends[name]
            for key, total in totals.items():
                if key in whole:
                    whole[key] = whole[key] + times * total
                if name != "mtp":
                    sums[key].append(total)
                elif times:  # these layers always stand beside the head: one column for both
                    head = sums[key][-1]
                    sums[key][-1] = np.maximum(head, total) if key == "live" else head + times * total
        every_layer = {key: _sum(total, size) for key, total in whole.items()}
        columns_of = {key: tuple(_sum(total, size) for total in totals) for key, totals in sums.items()}
        if self.listed is not None:
            columns_of["alone"] = self.listed.table(strategy).sums["alone"]
        return LayerTable(self.grid, columns_of, every_layer, rows)

    def _column(
        self, name: str, prices: Callable[[], Iterable[Price]], word: Recompute, offload: Offload
    ) -> tuple[LayerCost, dict[str, Any]]:
        """The record of a layer, as it is where only some are recomputed whole, and all `SUMS` of it."""
        again = _whole_share(self.n_layers, word, self.on_grid)
        common = self._common.setdefault(name, Common())
        parts = [
            (part, self._row(prices(), word, offload, common, whole=is_whole))
            for part, is_whole in ((1.0 - again, False), (again, True))
            if np.ndim(part) or part > 0.0
        ]
        totals = {
            key: added(part * added(getattr(row, field) for field in fields) for part, row in parts)
            for key, fields in SUMS.items()
        }
        return parts[0][1], totals

    def _row(
        self, prices: Iterable[Price], word: Recompute, offload: Offload, common: Common, *, whole: bool
    ) -> LayerCost:
        others = self.chip, self.profile, word, self.options, offload
        row = summed(prices, *others, whole=whole, common=common)
        return row.with_reference() if parse_finetune(self.on_grid.finetune).pairs else row


def layer_table(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    many: Candidates,
) -> LayerTable:
    """The layers of all candidates of `strategy` under its words; `many` holds its degrees."""
    return layer_prices(model, cluster, work, strategy, profile, many).table(strategy)


def layer_prices(
    model: Model,
    cluster: Cluster,
    work: Work,
    strategy: Strategy,
    profile: Profile,
    many: Candidates,
    *,
    recomputes: Sequence[str] = (),
    every: bool = False,
    kept: bool = False,
) -> LayerPrices:
    """What the operations of the candidates of `strategy` take. They are priced once and kept where tables
    under several `recomputes` are wanted, or under several orders of the axes (`kept`: `LayerPrices.under`
    sends the same operations anew), else as they are summed, which needs less memory. `every`: on each of the
    candidates' shapes (tp, cp, microbatch_size) with each of their pairs (ep, etp), along the first and the
    last dimension of the grid; assumes `stage_blind`."""
    asked = [parse(word) for word in recomputes or (strategy.recompute,)]
    by_stage = any(not word.is_full and bool(word.every or word.layers) for word in asked)
    own = numbers_vary(profile, cluster) or bool(np.ndim(work.seq_len))
    grid = _grid(work, strategy, many, apart=own, by_stage=by_stage, every=every)
    on_grid = replace(strategy, **{k: v for k, v in grid.values.items() if k != "tokens"})
    reach = _reach(cluster.with_axes(len(AXES) - 1), on_grid)
    if np.ndim(work.seq_len):
        work = replace(work, seq_len=_first_axis(work.seq_len))
    profile = with_axes(profile, len(AXES) - 1)
    words, options = words_of(work, strategy, profile), switches(work, strategy)
    shape = shape_on(work, on_grid, grid.values.get("tokens", tokens_of(work, on_grid)))

    again = not kept and len(asked) == 1

    def on(chip: Chip) -> LayerPrices:
        def prices(ops: tuple[Operation, ...]) -> Callable[[], Iterable[Price]]:
            pricing = partial(priced, ops, words, reach, chip, profile, options)
            if again:
                return pricing
            every_one = tuple(pricing())
            return lambda: every_one

        each = columns(model, shape, words)
        found = tuple((name, prices(ops), is_layer, times) for name, ops, is_layer, times in each)
        return LayerPrices(grid, on_grid, found, model.n_layers, chip, profile, options)

    listed = as_listed(cluster.chip)
    return replace(on(cluster.chip), listed=None if listed is cluster.chip else on(listed))


def over_classes(value: Any) -> Any:
    """A per-candidate number with an axis for stage classes."""
    return np.asarray(value, float)[..., None] if np.ndim(value) else value


def added(values: Iterable[Any]) -> Any:
    """The sum of numbers and arrays; numbers that are 0 cost no pass over the arrays.

    >>> added([0.0, 2.0, np.array([1.0, 3.0])])
    array([3., 5.])
    """
    some = [value for value in values if isinstance(value, np.ndarray) or value != 0.0]
    return sum(some[1:], some[0]) if some else 0.0


def with_axes(profile: Profile, count: int) -> Profile:
    """The profile with so many axes more on numbers that are arrays [n]."""
    if not any(isinstance(x.value, np.ndarray) for x in profile.numbers.values()):
        return profile
    moved: dict[str, Number] = {
        name: replace(number, value=np.asarray(number.value, float).reshape(-1, *(1,) * count))
        for name, number in profile.numbers.items()
        if np.ndim(number.value)
    }
    return replace(profile, numbers=profile.numbers | moved)


def numbers_vary(profile: Profile, cluster: Cluster) -> bool:
    """Whether a number of the profile is an array (while it is fitted), or a figure of the cluster."""
    return cluster.varies or any(isinstance(x.value, np.ndarray) for x in profile.numbers.values())


def candidates(strategy: Strategy, n: int) -> Candidates:
    """The degrees of the n candidates of `strategy`."""
    names = ["dp", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_group", "microbatch_size"]
    if isinstance(strategy.placement, np.ndarray):
        names.append("placement")
    return Candidates({name: getattr(strategy, name) for name in names}, n)


def _grid(
    work: Work, strategy: Strategy, many: Candidates, *, apart: bool, by_stage: bool, every: bool
) -> Grid:
    """The grid of the candidates' axes, or their own points: one of each of them, `apart`."""
    own = ("tp", "cp", "ep", "etp", "microbatch_size", "dp", "pp")
    if apart:
        return _points(many.all(*own, *many.orders))
    if not stage_blind(strategy):
        return _points(many.distinct(*own, *many.orders))
    experts = many.distinct("ep", "etp")
    pp = many.axis("pp") if by_stage else Axis(np.ones(1, np.int64), np.zeros(0, np.int64))
    if every:
        return _points(many.distinct("tp", "cp", "microbatch_size"), experts, pp)
    shape = ("tp", "cp", "microbatch_size", *(("pp",) if by_stage else ()))
    shapes = many.distinct(*shape)
    tokens = axis(shapes.values["microbatch_size"] * work.seq_len / shapes.values["cp"], len(shapes))
    along = (many.axis("tp"), tokens, many.axis("cp"), pp)
    size = (*(len(one) for one in along), len(experts))
    points = int(np.prod(size))
    # Most operations do not look at cp; messages over cp and what the host adds do.
    on_axes = _OPERATIONS * points // size[2] + points
    each = _OPERATIONS + 1
    if each * len(shapes) * len(experts) <= min(on_axes, each * many.n):
        return _points(shapes, experts)
    if each * many.n <= on_axes:
        return _points(many.distinct(*shape, "ep", "etp"))
    values = {name: _along(one.values, i) for i, (name, one) in enumerate(zip(AXES, along))}
    values |= {name: _along(column, 4) for name, column in experts.values.items()}
    values["microbatch_size"] = values["tokens"] * values["cp"] / work.seq_len
    at = [one.at if len(one) > 1 else None for one in along]
    at[1] = tokens.at.take(shapes.at) if len(tokens) > 1 else None
    return Grid(values, size, Places(size, (*at, experts.at if len(experts) > 1 else None)))


def _points(rows: Distinct, experts: Distinct | None = None, pp: Axis | None = None) -> Grid:
    """Each row as a point along the first dimension, with each pair of expert degrees or with its own, and
    with each length of a pipeline where that is asked for."""
    many, stages = 1 if experts is None else len(experts), 1 if pp is None else len(pp)
    size = (len(rows), 1, 1, stages, many)
    values = {name: _first_axis(column) for name, column in rows.values.items()}
    inner = None
    if experts is not None:
        values |= {name: _along(column, 4) for name, column in experts.values.items()}
        inner = experts.at if many > 1 else None
    if pp is not None:
        values["pp"] = _along(pp.values, 3)
    along = pp.at if pp is not None and stages > 1 else None
    return Grid(values, size, Places(size, (rows.at if len(rows) > 1 else None, None, None, along, inner)))


def _along(column: Values, dimension: int) -> Any:
    """A column along one dimension of the grid; a single value as a plain number, which is quicker."""
    if len(column) == 1:
        return column[0].item()
    return column.reshape(tuple(-1 if i == dimension else 1 for i in range(len(AXES))))


def _first_axis(column: Values) -> Any:
    return _along(np.ravel(column), 0)


def stage_blind(strategy: Strategy) -> bool:
    """Whether dp and pp move no axis that a layer sends over: tp and cp innermost, stages outermost, or each
    as though it were alone."""
    order = strategy.placement
    if numbered(order):
        return order is ALONE
    return bool(order[:2] == ("tp", "cp")) and stages_outermost(order)


def _reach(cluster: Cluster, on_grid: Strategy) -> dict[str, Span]:
    """Spans of the axes that layers send over, each along the dimensions that it looks at."""
    if not stage_blind(on_grid):
        return spans(cluster, replace(on_grid, zero_group=1))
    if cluster.torus:  # the ways in which ranks fill it look at all groups of a layer
        return spans(cluster, replace(on_grid, dp=1, pp=1, zero_group=1))
    attention = spans(cluster, replace(on_grid, dp=1, pp=1, ep=1, etp=1, zero_group=1))
    # Experts lie from the first rank of a stage outwards, whatever tp and cp are.
    experts = spans(cluster, replace(on_grid, dp=1, pp=1, tp=1, cp=1, zero_group=1))
    return attention | {name: experts[name] for name in ("ep", "etp")}


def _whole_share(n_layers: int, recompute: Recompute, on_grid: Strategy) -> Any:
    """Share of layers that is recomputed whole (between 0 and 1 only under every:N and layers:N)."""
    if recompute.is_full:
        return 1.0
    if recompute.every or recompute.layers:
        return recompute.full_share(n_layers / np.asarray(on_grid.pp))
    return 0.0


def _sum(total: Any, size: tuple[int, ...]) -> Sum:
    """`total` kept along the dimensions that it has."""
    array = np.asarray(total, float)
    if array.size == 1:
        return Sum(float(array.ravel()[0]), ())
    if not array.any():
        return Sum(0.0, ())
    return Sum(np.ascontiguousarray(array).ravel(), tuple(i for i, n in enumerate(array.shape) if n > 1))
