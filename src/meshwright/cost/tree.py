"""The estimate as a tree of terms: the same numbers, each with its formula, for a person to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meshwright.cost import detail
from meshwright.cost.detail import Inside, Rows, number
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.layer import LayerCost
from meshwright.cost.stages import Stages
from meshwright.cost.terms import Combine, Term, Unit
from meshwright.strategy.records import Strategy
from meshwright.work import Work

_TIME_FORMULAS = {
    "compute": "microbatches * (forward + backward + recompute) of the slowest stage's operations",
    "tp": "microbatches * layers * exposed share * collectives over tp",
    "cp": "microbatches * layers * exposed part of the context exchange",
    "ep": "microbatches * layers * exposed part of dispatch and combine",
    "dp": "sum of max(share * t, t - hider): gradients behind the last backward, weights behind a forward, "
    "and what each of the microbatches gathers or scatters behind both",
    "pp": "microbatches * 2 sends a chunk * exposed share",
    "bubble": "what the longest path through the pipeline leaves idle on the rank that ends the step",
    "optimizer": "bytes of gradient, state and weights of the shard / HBM rate",
    "other": "host launch and copies beyond device time, and stragglers at scale",
}
_MEMORY_FORMULAS = {
    "params": "weight bytes * parameters of the rank / shard",
    "grads": "gradient bytes * parameters / shard",
    "optimizer": "state bytes * parameters / shard, and step temporaries beyond activations",
    "activations": "saved bytes of a microbatch * microbatches in flight + working set",
    "logits": "bytes a logit * tokens * vocabulary / tp",
    "communication": "weights that ZeRO-3 gathers, and gradients not yet scattered",
    "allocator": "share of what comes and goes that fragmentation makes useless, and what graphs strand",
    "framework": "context, libraries, network buffers",
}


def _layer(name: str, row: LayerCost, operations: Rows) -> Term:
    """One layer kind's seconds by pass and its saved bytes, one microbatch, each by operation."""

    def part(label: str, of: Callable[[LayerCost], Any], formula: str, unit: Unit = "s") -> Term:
        value = number(of(row))
        children = detail.operations(operations, of, value, unit)
        return Term(label, value, unit, formula, "sum" if children else "leaf", children)

    passes = (
        part("forward", lambda c: c.forward, "sum over operations of max(FLOPs / rate, bytes / bandwidth)"),
        part("backward_input", lambda c: c.backward_input, "the same, for input gradients"),
        part("backward_weight", lambda c: c.backward_weight, "the same, for weight gradients"),
        part("recompute", lambda c: c.recompute, "forward of recomputed modules"),
        part("tp", lambda c: c.tp_forward + c.tp_backward, "exposed tensor-parallel collectives"),
        part("cp", lambda c: c.cp_forward + c.cp_backward, "exposed context-parallel exchange"),
        part("ep", lambda c: c.ep_forward + c.ep_backward, "exposed dispatch and combine"),
        Term("host", number(row.host_forward) + number(row.host_backward), "s", "launches beyond the device"),
    )
    seconds = sum(c.value for c in passes)
    time = Term("time", seconds, "s", "sum over the passes of one microbatch", "sum", passes)
    saved = part("saved", lambda c: c.saved, "bytes that one microbatch keeps for backward", "B")
    return Term(name, seconds, "s", "one layer, one microbatch", "leaf", (time, saved))


def tree(
    result: Evaluation,
    stages: Stages,
    microbatches: Any,
    strategy: Strategy,
    work: Work,
    host: Any,
    offload: Any,
    waiting: Any,
    *,
    inside: Inside | None = None,
    rows: Mapping[str, Rows] = MappingProxyType({}),
    formulas: Mapping[str, str] = MappingProxyType({}),
    operands: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> Term:
    """`step` with children `time` (seconds that sum to it) and `memory` (bytes that sum to the peak).

    `inside` are the layers of its stages and `rows` the operations that these are made of, where known.
    `formulas`: of parts that were not worked out by the usual ones; `operands`: of parts whose formula needs
    more than the microbatches.
    """
    of_time, of_memory = _TIME_FORMULAS | dict(formulas), _MEMORY_FORMULAS | dict(formulas)
    m = number(microbatches)
    layers = tuple(
        _layer(name, row, rows.get(name, ()))
        for name, row in stages.rows.items()
        if number(row.time_forward) + number(row.saved)
    )
    times = []
    for name, value in result.time_s.items():
        children: tuple[Term, ...] = ()
        if name == "other":
            launch, waits, slow = number(host), number(offload), number(waiting)
            rest = value - launch - waits - slow
            children = (
                Term("host", launch, "s", "launch seconds beyond device seconds"),
                Term("offload", waits, "s", "microbatches * what copies to and from the host outlast a pass"),
                Term(
                    "slow_rank", slow, "s", "(X - 1) * (compute + host + optimizer) of a rank X times as slow"
                ),
                Term("straggler", rest, "s", "share a doubling of chips beyond 8 * step"),
            )
        elif inside is not None and name in ("compute", "tp", "cp", "ep"):
            children = detail.times(name, value, m, inside)
        inputs = dict(operands.get(name, {}))
        if name in ("compute", "tp", "cp", "ep", "pp") or "gathers_s" in inputs:
            inputs = {"microbatches": m} | inputs
        combine: Combine = "sum" if children else "leaf"
        times.append(Term(name, value, "s", of_time[name], combine, children, inputs))
    time = Term(
        "time", result.step_time_s, "s", "sum of exposed seconds on the slowest rank", "sum", tuple(times)
    )
    held = []
    for name, value in result.memory_bytes.items():
        if value:
            below = (
                detail.activations(value, inside, rows)
                if inside is not None and name == "activations"
                else ()
            )
            held.append(Term(name, value, "B", of_memory.get(name, ""), "sum" if below else "leaf", below))
    memory = Term("memory", result.peak_bytes, "B", "sum on the fullest rank", "sum", tuple(held),
                  {"stage": result.peak_stage})  # fmt: skip
    kinds = Term("layers", 0.0, "s", "what one layer of each kind costs for one microbatch", "leaf", layers)
    return Term(
        "step", result.step_time_s, "s", "time of one optimizer update", "leaf", (time, memory, kinds)
    )
