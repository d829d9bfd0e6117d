"""The estimate as a tree of terms: the same numbers, each with its formula, for a person to read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.layer import LayerCost
from meshwright.cost.stages import Stages
from meshwright.cost.terms import Combine, Term
from meshwright.strategy.records import Strategy
from meshwright.work import Work

_TIME_FORMULAS = {
    "compute": "microbatches * (forward + backward + recompute) of the slowest stage's operations",
    "tp": "microbatches * layers * exposed share * collectives over tp",
    "cp": "microbatches * layers * exposed part of the context exchange",
    "ep": "microbatches * layers * exposed part of dispatch and combine",
    "dp": "max(share * t, t - hider) of gradients, weights and ZeRO-3 gathers",
    "pp": "microbatches * 2 sends a chunk * exposed share",
    "bubble": "(sum of other stages) / vpp, and waiting for a slower stage",
    "optimizer": "bytes of gradient, state and weights of the shard / HBM rate",
    "other": "host launch and copies beyond device time, and stragglers at scale",
}
_MEMORY_FORMULAS = {
    "params": "weight bytes * parameters of the rank / shard",
    "grads": "gradient bytes * parameters / shard",
    "optimizer": "state bytes * parameters / shard, and step temporaries beyond activations",
    "activations": "saved bytes of a microbatch * microbatches in flight + working set",
    "logits": "bytes a logit * tokens * vocabulary / tp",
    "communication": "gathered weights of ZeRO-3",
    "allocator": "share of what comes and goes that fragmentation makes useless",
    "framework": "context, libraries, network buffers",
}


def _layer(name: str, row: LayerCost) -> Term:
    """One layer kind's seconds by pass, one microbatch."""

    def leaf(label: str, value: Any, formula: str) -> Term:
        return Term(label, _number(value), "s", formula)

    children = (
        leaf("forward", row.forward, "sum over operations of max(FLOPs / rate, bytes / bandwidth)"),
        leaf("backward_input", row.backward_input, "the same, for input gradients"),
        leaf("backward_weight", row.backward_weight, "the same, for weight gradients"),
        leaf("recompute", row.recompute, "forward of recomputed modules"),
        leaf("tp", np.asarray(row.tp_forward) + row.tp_backward, "exposed tensor-parallel collectives"),
        leaf("cp", np.asarray(row.cp_forward) + row.cp_backward, "exposed context-parallel exchange"),
        leaf("ep", np.asarray(row.ep_forward) + row.ep_backward, "exposed dispatch and combine"),
        leaf("host", np.asarray(row.host_forward) + row.host_backward, "launch time beyond device time"),
    )
    total = sum(c.value for c in children)
    return Term(name, total, "s", "one microbatch", "sum", children, {"saved_bytes": _number(row.saved)})


def _number(value: Any) -> float:
    return float(np.asarray(value, float).ravel()[0])


def tree(
    result: Evaluation,
    stages: Stages,
    microbatches: Any,
    strategy: Strategy,
    work: Work,
    host: Any,
    offload: Any,
    waiting: Any,
    formulas: Mapping[str, str] = MappingProxyType({}),
) -> Term:
    """`step` with children `time` (seconds that sum to it) and `memory` (bytes that sum to the peak).

    `formulas`: of parts that were not worked out by the usual ones.
    """
    said = _TIME_FORMULAS | _MEMORY_FORMULAS | dict(formulas)
    m = _number(microbatches)
    layers = tuple(
        _layer(name, row)
        for name, row in stages.rows.items()
        if _number(row.time_forward) + _number(row.saved)
    )
    times = []
    for name, value in result.time_s.items():
        children: tuple[Term, ...] = ()
        if name == "other":
            launch, waits, slow = _number(host), _number(offload), _number(waiting)
            rest = value - launch - waits - slow
            children = (
                Term("host", launch, "s", "launch seconds beyond device seconds"),
                Term("offload", waits, "s", "microbatches * what copies to the host and back outlast a pass"),
                Term(
                    "slow_rank", slow, "s", "(X - 1) * (compute + host + optimizer) of a rank X times as slow"
                ),
                Term("straggler", rest, "s", "share a doubling of chips beyond 8 * step"),
            )
        inputs = {"microbatches": m} if name in ("compute", "tp", "cp", "ep", "pp") else {}
        combine: Combine = "sum" if children else "leaf"
        times.append(Term(name, value, "s", said[name], combine, children, inputs))
    time = Term(
        "time", result.step_time_s, "s", "sum of exposed seconds on the slowest rank", "sum", tuple(times)
    )
    held = tuple(
        Term(name, value, "B", said.get(name, "")) for name, value in result.memory_bytes.items() if value
    )
    memory = Term("memory", result.peak_bytes, "B", "sum on the fullest rank", "sum", held,
                  {"stage": result.peak_stage})  # fmt: skip
    rows = Term("layers", 0.0, "s", "what one layer of each kind costs for one microbatch", "leaf", layers)
    return Term("step", result.step_time_s, "s", "time of one optimizer update", "leaf", (time, memory, rows))
