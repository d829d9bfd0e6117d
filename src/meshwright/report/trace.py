"""A simulated step as a Chrome trace, which Perfetto opens too.

One process a rank with a track for its passes (then gradients, weights and the update), one for what it
sends, and a counter of its memory.
**Source**: Trace Event Format (Google), events X (complete), M (metadata), C (counter), s and f (flow).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshwright.simulate.network import KINDS
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.simulate.exact import Exact

_NAMES = {"F": "forward", "I": "backward input", "W": "backward weight"}
_PASSES, _SENDS = 0, 1
Event = dict[str, Any]


def trace(exact: Exact, title: str) -> dict[str, Any]:
    """The object of a trace file; times in microseconds."""
    return {
        "displayTimeUnit": "ms",
        "otherData": {"title": title},
        "traceEvents": [
            event
            for events in (_tracks(exact), _passes(exact), _after(exact), _sends(exact), _memory(exact))
            for event in events
        ],
    }


def _tracks(exact: Exact) -> Iterator[Event]:
    for rank in range(exact.timeline.network.n_ranks):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for track, name in ((_PASSES, "passes"), (_SENDS, "sends")):
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": name}}


def _span(rank: int, track: int, name: str, kind: str, start_s: float, seconds: float, **args: Any) -> Event:
    return {
        "ph": "X", "pid": rank, "tid": track, "name": name, "cat": kind,
        "ts": 1e6 * start_s, "dur": 1e6 * seconds, "args": args,
    }  # fmt: skip


def _passes(exact: Exact) -> Iterator[Event]:
    """Forward, backward input and backward weight; a whole backward is its two parts. Joined passes share
    their time in proportion."""
    took = {kind: row.tolist() for kind, row in zip(KINDS, exact.timeline.took)}
    for row in exact.timeline.passes:
        at = 0
        while at < len(row):
            here = row[at : at + 1 + row[at].action.joined]
            parts = [(p, kind) for p in here for kind in ("IW" if p.action.kind == "B" else p.action.kind)]
            whole = sum(took[kind][p.stage] for p, kind in parts) or 1.0
            scale, start = (here[0].end_s - here[0].start_s) / whole, here[0].start_s
            for p, kind in parts:
                seconds = took[kind][p.stage] * scale
                i = p.action.microbatch
                yield _span(
                    p.rank, _PASSES, f"{kind}{i}", _NAMES[kind], start, seconds,
                    microbatch=i, stage=p.stage, chunk=p.action.chunk, joined=len(here) > 1,
                )  # fmt: skip
                start += seconds
            at += len(here)


def _after(exact: Exact) -> Iterator[Event]:
    """What ranks do after their last pass."""
    for rank, end in enumerate(exact.timeline.last_s.tolist()):
        exchange, update = float(exact.exchange_s[rank]), float(exact.optimizer_s[rank])
        if exchange > 0:
            yield _span(rank, _PASSES, "gradients and weights", "collective", end, exchange)
        yield _span(rank, _PASSES, "optimizer", "optimizer", end + exchange, update)


def _sends(exact: Exact) -> Iterator[Event]:
    """Activations down and gradients up, from the end of the pass that makes them until they arrive."""
    way = {(p.stage, p.action.microbatch): p.rank for row in exact.timeline.passes for p in row}
    sends = exact.timeline.sends.tolist()
    flow = 0
    for row in exact.timeline.passes:
        for p in row:
            forward = p.action.kind == "F"
            to = p.stage + 1 if forward else p.stage - 1
            there = way.get((to, p.action.microbatch))
            if p.action.kind == "W" or there is None or there == p.rank:
                continue
            seconds = sends[min(p.stage, to)]
            name = f"{'activations' if forward else 'gradient'} {p.action.microbatch} to rank {there}"
            yield _span(p.rank, _SENDS, name, "send", p.end_s, seconds, microbatch=p.action.microbatch)
            ends = {"cat": "send", "name": "send", "id": flow}
            yield {"ph": "s", "pid": p.rank, "tid": _SENDS, "ts": 1e6 * p.end_s, **ends}
            arrival = 1e6 * (p.end_s + seconds)
            yield {"ph": "f", "bp": "e", "pid": there, "tid": _PASSES, "ts": arrival, **ends}
            flow += 1


def _memory(exact: Exact) -> Iterator[Event]:
    for rank in range(exact.timeline.network.n_ranks):
        seconds, held = exact.memory_over_time(rank)
        for at, nbytes in zip(seconds.tolist(), held.tolist()):
            yield {
                "ph": "C", "pid": rank, "name": "memory", "ts": 1e6 * at, "args": {"GiB": nbytes / GIB},
            }  # fmt: skip
