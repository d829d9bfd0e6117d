"""How the layers of candidates are laid over their pipelines: one rule for time, memory, simulation and
report.

A stage is as long as the forward passes of its layers, so layers, embedding and head are weighed by these:
seconds of computing and launching, on the chip as its data sheet has it. By FLOPs a head counts for several
layers that launches or small products make as long as itself. Links and figures that a user changes are left
out, so that no layer moves when one of them does: more of anything stays no slower. So are recomputation and
the schedule, so that strategies which differ in these alone are cut alike.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from meshwright.cost.distinct import Axis, Candidates, Distinct, combined
from meshwright.cost.rows import LayerTable, Sum
from meshwright.errors import InputError
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Layout, Line, balanced, layout_fault, layout_of

Array = npt.NDArray[np.float64]

Weights = tuple[tuple[float, ...], float, float]  # in layers: of each kind, of the embedding, of the head

# Parts of the heaviest layer that kinds and ends are rounded to, so that many candidates share few cuts:
# where all but a few layers are of one kind, and where what is rounded off adds up over many light layers.
_COARSE, _FINE = (20, 10), (100, 50)
_FEW = 4  # layers


def lines(
    model: Model, strategy: Strategy, table: LayerTable, many: Candidates
) -> tuple[Distinct, tuple[Line, ...]]:
    """The distinct pipelines of the candidates that read `table`, whose degrees `many` holds: their `pp` and
    `vpp` with the pipeline of each candidate, and the pipelines.

    `layers_per_stage` of `strategy` is taken as it is; without it stages are balanced by what their layers
    weigh. Raises InputError, with the arithmetic, where layers cannot be laid out so.
    """
    layout, listed = layout_of(strategy.schedule), strategy.layers_per_stage
    weights: list[Weights] = []
    axes = {name: many.axis(name) for name in ("pp", "vpp")}
    if listed is None:
        weights, axes["weights"] = _weights(model, table, many.n)
    pairs = many.distinct("pp", "vpp").values
    for pp, vpp in zip(pairs["pp"].tolist(), pairs["vpp"].tolist()):
        fault = layout_fault(model, pp, vpp, listed)
        if fault:
            raise InputError(fault)
    cases = combined(axes, many.n)
    alike = [_alike(model, one, layout) for one in weights]
    found: dict[Line, int] = {}
    places = []
    for pp, vpp, *w in zip(*(cases.values[name].tolist() for name in axes)):
        layers = listed
        if layers is None:
            weighed = alike[w[0]] if vpp > 1 or len(model.blocks) == 1 else weights[w[0]]
            layers = balanced(model.pattern, pp, vpp, *weighed, layout)
        places.append(found.setdefault(Line(pp, vpp, tuple(layers), layout), len(found)))
    several = tuple(found)
    degrees = {name: np.array([getattr(line, name) for line in several]) for name in ("pp", "vpp")}
    at = np.array(places, np.min_scalar_type(len(several) - 1)).take(cases.at)
    return Distinct(degrees, at, len(several)), several


def _weights(model: Model, table: LayerTable, n: int) -> tuple[list[Weights], Axis]:
    """The distinct weights among n candidates, and which of them each has; the heaviest layer weighs 1."""
    rows = np.broadcast_arrays(*table.over_grid("alone"))
    count = len(model.blocks)
    unit = np.maximum.reduce(rows[:count])
    rest = model.n_layers - max(model.count(kind) for kind in range(count))
    of_kind, of_end = _COARSE if rest <= _FEW else _FINE
    kinds = [np.maximum(np.rint(of_kind * row / unit), 1.0) for row in rows[:count]]
    # An end of more layers than there are is as good as one of all.
    ends = [_rounded(of_end, np.minimum(row / unit, model.n_layers)) for row in rows[count:]]
    columns = {str(i): np.ravel(column).astype(np.int64) for i, column in enumerate(kinds + ends)}
    cases = Candidates(columns, unit.size).distinct(*columns)
    weights: list[Weights] = []
    for *layers, embedding, head in zip(*(cases.values[name].tolist() for name in columns)):
        weights.append((tuple(w / of_kind for w in layers), embedding / of_end, head / of_end))
    on = tuple(i for i, size in enumerate(unit.shape) if size > 1)
    places = table.grid.places.read(Sum(cases.at, on)) if on else np.zeros(n, np.int64)
    return weights, Axis(np.arange(len(weights)), places)


def _rounded(parts: int, layers: Array) -> Array:
    """Layers in so many parts each, rounded, but never up to a whole one: that would cost the end a layer."""
    nearest = np.rint(parts * layers)
    return np.asarray(nearest - ((nearest % parts == 0) & (nearest > parts * layers)))


def _alike(model: Model, weights: Weights, layout: Layout) -> Weights:
    """The same where every layer counts for their mean. Ends compare with whole layers only then, so what is
    between is half-way; in a V they lie on one rank and are compared together."""
    kinds, embedding, head = weights
    mean = sum(kinds[kind] for kind in model.pattern) / model.n_layers
    first, last = (0.0, embedding + head) if layout == "v" else (embedding, head)
    return (1.0,) * len(kinds), _halved(first / mean), _halved(last / mean)


def _halved(layers: float) -> float:
    whole = math.floor(layers)
    return whole + 0.5 * (layers > whole)
