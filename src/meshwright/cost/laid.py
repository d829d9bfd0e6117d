"""How the layers of candidates are laid over their pipelines: one rule for time, memory, simulation and
report.

A stage is as long as the forward passes of its layers, so layers, embedding and head are weighed by these:
seconds of computing and launching, on the chip as its data sheet has it. By FLOPs a head counts for several
layers that launches or small products make as long as itself. Links and figures that a user changes are left
out, so that no layer moves when one of them does: more of anything stays no slower. So are recomputation and
the schedule, so that strategies which differ in these alone are cut alike.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshwright.cost.distinct import Axis, Candidates, Distinct
from meshwright.cost.rows import LayerTable, Sum
from meshwright.errors import InputError
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import Line, balanced, layout_fault, layout_of

Array = npt.NDArray[np.float64]

Weights = tuple[tuple[float, ...], float, float]  # of each kind of layer, of embedding and head

# Parts of a layer that kinds and ends are rounded to: finer differences do not move whole layers.
_KINDS, _ENDS = 20, 10


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
    if listed is None:
        weights, which = _weights(model, table, many.n)
        many.put("weights", which)
    else:
        many.add("weights", 0)
    pairs = many.distinct("pp", "vpp").values
    for pp, vpp in zip(pairs["pp"].tolist(), pairs["vpp"].tolist()):
        fault = layout_fault(model, pp, vpp, listed)
        if fault:
            raise InputError(fault)
    cases = many.distinct("pp", "vpp", "weights")
    found: dict[Line, int] = {}
    places = []
    alike = [_alike(model, one) for one in weights]
    for pp, vpp, w in zip(*(cases.values[name].tolist() for name in ("pp", "vpp", "weights"))):
        weighed = () if listed else alike[w] if vpp > 1 else weights[w]
        layers = listed or balanced(model.pattern, pp, vpp, *weighed, layout)
        places.append(found.setdefault(Line(pp, vpp, tuple(layers), layout), len(found)))
    several = tuple(found)
    degrees = {name: np.array([getattr(line, name) for line in several]) for name in ("pp", "vpp")}
    at = np.array(places, np.min_scalar_type(len(several) - 1)).take(cases.at)
    return Distinct(degrees, at, len(several)), several


def _weights(model: Model, table: LayerTable, n: int) -> tuple[list[Weights], Axis]:
    """The distinct weights of the candidates' layers, embedding and head; the heaviest layer weighs 1."""
    rows = np.broadcast_arrays(*table.over_grid("alone"))
    kinds = len(model.blocks)
    unit = np.maximum.reduce(rows[:kinds])
    layers = [np.maximum(np.rint(_KINDS * row / unit), 1.0) for row in rows[:kinds]]
    same = np.logical_and.reduce([layer == _KINDS for layer in layers])
    shares = [np.minimum(row / unit, model.n_layers) for row in rows[kinds:]]
    ends = [np.rint(_ENDS * np.where(same, _halved(share), share)) for share in shares]
    columns = {str(i): np.ravel(column).astype(np.int64) for i, column in enumerate(layers + ends)}
    cases = Candidates(columns, unit.size).distinct(*columns)
    weights: list[Weights] = []
    for *of_kinds, embedding, head in zip(*(cases.values[name].tolist() for name in columns)):
        weights.append((tuple(w / _KINDS for w in of_kinds), embedding / _ENDS, head / _ENDS))
    on = tuple(i for i, size in enumerate(unit.shape) if size > 1)
    places = table.grid.places.read(Sum(cases.at, on)) if on else np.zeros(n, np.int64)
    return weights, Axis(np.arange(len(weights)), places)


def _alike(model: Model, weights: Weights) -> Weights:
    """The same where chunks are dealt out, which takes all layers for their mean."""
    kinds, *ends = weights
    mean = sum(kinds[kind] for kind in model.pattern) / model.n_layers
    embedding, head = (float(_halved(np.array(end / mean))) for end in ends)
    return (1.0,) * len(kinds), embedding, head


def _halved(layers: Array) -> Array:
    """Ends beside layers that all weigh 1 compare with whole numbers only: what is between is half-way."""
    whole = np.floor(layers)
    return np.asarray(whole + 0.5 * (layers - whole > 0.5 / _ENDS))
