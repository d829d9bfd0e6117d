"""What stands below the sums of one plan, for a person: layers of a stage, and operations of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshwright.cost.columns import columns, shape_on, switches, tokens_of, words_of
from meshwright.cost.layer import NO_OFFLOAD, LayerCost, layer_cost
from meshwright.cost.ops import Core, Matmul, Message, Operation, Stream
from meshwright.cost.stages import Layers
from meshwright.cost.terms import Term
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import spans
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy
from meshwright.work import Work

SAME = 1e-9  # of the whole: less is rounding
_FORMULAS = {
    Matmul: "max(2 m k n groups / (peak * efficiency), bytes / (HBM bandwidth * share)) + a kernel's start",
    Core: "FLOPs * tiled / (peak * attention share) + a kernel's start",
    Stream: "bytes / (HBM bandwidth * share) * passes of the program + a kernel's start",
    Message: "exposed share * collective, each way",
}


Rows = Sequence[tuple[Operation, LayerCost]]


@dataclass(frozen=True, slots=True)
class Inside:
    """Of one plan: layers of each kind on the slowest and on the fullest stage, the sums of a layer of each
    kind (`rows[name]`), layers whose activations the fullest holds, one for each microbatch in flight there,
    and its working set in bytes."""

    names: tuple[str, ...]
    slowest: tuple[float, ...]
    fullest: tuple[float, ...]
    rows: Mapping[str, tuple[float, ...]]
    held: tuple[float, ...]
    live: float


def inside(layers: Layers, slowest: Any, fullest: Any, held: Sequence[float], live: Any) -> Inside:
    """The record of one plan; `slowest` and `fullest` are the classes chosen, [1], `live` is [1, C]."""

    def counts(chosen: Any) -> tuple[float, ...]:
        return tuple(0.0 if on is None else number(on) for on in layers.of(chosen))

    wanted = ("forward", "backward", "tp", "cp", "ep", "host", "saved", "offloaded")
    rows = {name: tuple(number(row) for row in layers.rows(name)) for name in wanted}
    names = tuple(layers.table.rows)[: len(rows["forward"])]
    at = int(np.ravel(fullest)[0])

    flat = np.ravel(live)
    of_fullest = float(flat[at] if len(flat) > 1 else flat[0])
    return Inside(names, counts(slowest), counts(fullest), rows, tuple(held), of_fullest)


def number(value: Any) -> float:
    """A plain number from an array of one."""
    return float(np.asarray(value, float).ravel()[0])


def with_rest(name: str, value: float, parts: Sequence[Term], unit: Any, formula: str) -> tuple[Term, ...]:
    """The parts of a sum and what is left of it, where that is more than rounding."""
    rest = value - sum(part.value for part in parts)
    if not parts or abs(rest) <= SAME * abs(value):
        return tuple(parts)
    return (*parts, Term(name, rest, unit, formula))


def times(part: str, value: float, microbatches: float, found: Inside) -> tuple[Term, ...]:
    """Children of the part `compute`, `tp`, `cp` or `ep` of a step: the layers of the slowest stage."""
    rows = found.rows
    children = []
    for i, name in enumerate(found.names):
        if part == "compute":
            messages = rows["tp"][i] + rows["cp"][i] + rows["ep"][i] + rows["host"][i]
            seconds = rows["forward"][i] + rows["backward"][i] - messages
        else:
            seconds = rows[part][i]
        if found.slowest[i] and seconds:
            inputs = {"microbatches": microbatches, "layers": found.slowest[i], "seconds": seconds}
            total = microbatches * found.slowest[i] * seconds
            children.append(Term(name, total, "s", "microbatches * layers * seconds of one", inputs=inputs))
    return with_rest("balancing", value, children, "s", "what balancing the experts adds")


def activations(value: float, found: Inside, rows: Mapping[str, Rows]) -> tuple[Term, ...]:
    """Children of `memory.activations`: what the layers of the fullest stage keep, by operation where `rows`
    has them, and the working set."""
    children = []
    for i, name in enumerate(found.names):
        saved = found.rows["saved"][i]
        if found.fullest[i] and saved:
            times = found.held[i]
            in_flight = times / found.fullest[i]
            inputs = {"in_flight": in_flight, "layers": found.fullest[i], "saved_bytes": saved}
            total = times * saved
            formula = "microbatches in flight * layers * saved bytes of one"
            below = operations(rows.get(name, ()), lambda c: c.saved, total, "B", times)
            children.append(Term(name, total, "B", formula, "sum" if below else "leaf", below, inputs))
    if found.live:
        formula = "what the largest layer's backward holds while it runs, beyond what is saved"
        children.append(Term("working_set", found.live, "B", formula))
    return with_rest("moved", value, children, "B", "on its way to the host, there already, or of adapters")


def operation_rows(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile
) -> dict[str, Rows]:
    """What each operation adds to its column of the split matrix, of one plan.

    Sums over a layer are asked for single operations, so nothing is worked out twice. What a boundary keeps
    depends on whether it is the layer's first, so the first stands beside every other. Columns of which a
    part is recomputed whole are left out, as their row is a mix of two.
    """
    s = strategy
    recompute = parse(s.recompute)
    if (recompute.every or recompute.layers) and not recompute.is_full:
        return {}
    reach = spans(cluster, s)
    words, options = words_of(work, s, profile), switches(work, s)
    shape, pairs = shape_on(work, s, tokens_of(work, s)), parse_finetune(s.finetune).pairs
    found: dict[str, Rows] = {}
    for name, ops, is_layer, _ in columns(model, shape, words):
        offload = parse_offload(s.offload) if is_layer else NO_OFFLOAD
        word = recompute if is_layer else parse("none")

        def summed(some: Sequence[Operation], word: Any = word, offload: Any = offload) -> LayerCost:
            row = layer_cost(
                tuple(some), words, reach, cluster.chip, profile, word, options, offload, whole=word.is_full
            )
            return row.with_reference() if pairs else row

        found[name] = tuple(_added(ops, summed))
    return found


def _added(
    ops: Sequence[Operation], summed: Callable[[Sequence[Operation]], LayerCost]
) -> Iterator[tuple[Operation, LayerCost]]:
    first: tuple[Operation, ...] = ()
    for op in ops:
        after, before = summed((*first, op)), summed(first)
        gained = {
            f.name: number(getattr(after, f.name)) - number(getattr(before, f.name)) for f in fields(after)
        }
        yield op, LayerCost(**gained)
        if not first and op.module == "boundary":
            first = (op,)


def operations(
    rows: Rows, of: Callable[[LayerCost], Any], total: float, unit: Any, times: float = 1.0
) -> tuple[Term, ...]:
    """Children of `times` one figure of a layer: what each operation adds; none where they do not add up."""
    children = []
    for op, cost in rows:
        value = times * number(of(cost))
        if abs(value) > SAME * max(total, 1e-30):
            formula = _FORMULAS[type(op)] if unit == "s" else "bytes kept from forward to backward"
            children.append(Term(op.name, value, unit, formula, inputs=_inputs(op)))
    adds_up = abs(sum(c.value for c in children) - total) <= 1e-6 * abs(total)
    return tuple(_distinct(children)) if adds_up else ()


def _distinct(terms: Sequence[Term]) -> Iterator[Term]:
    """Operations of one name numbered, so that each can be asked for."""
    seen: dict[str, int] = {}
    for term in terms:
        seen[term.name] = seen.get(term.name, 0) + 1
        yield term if seen[term.name] == 1 else replace(term, name=f"{term.name}_{seen[term.name]}")


def _inputs(op: Operation) -> dict[str, Any]:
    """The operation's own numbers."""
    wanted = {
        Matmul: ("m", "k", "n", "groups"),
        Core: ("flops", "tiled", "backward", "width"),
        Stream: ("forward", "backward"),
        Message: ("axis", "collective", "nbytes"),
    }[type(op)]
    found: dict[str, Any] = {"module": op.module}
    for name in wanted:
        value = getattr(op, name)
        found[name] = value if isinstance(value, str) else number(value)
    return found
