"""Seconds that sweeps of DeepSeek-V3 take with about so many points, and some of their points searched anew.

    python benchmarks/sweep.py [POINTS [FRESH [FIELDS...]]]

FIELDS name what is swept: one of CASES, several for several sweeps (default: the first). Every sweep uses two
processes; processor seconds count both. FRESH random points of each are searched on their own and must agree
in the strategy, and in the step time of the best and the simplest plan to 1e-12.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import random
import resource
import sys
from time import perf_counter
from typing import Any

from meshwright import api
from meshwright.report.sweep import Point, Sweep
from meshwright.search.bounds import Request
from meshwright.search.space import build
from meshwright.search.sweep import fresh

ASKED: dict[str, Any] = {"model": "deepseek-v3", "cluster": "2048xh800"}
LENGTH, BATCH, TOKENS = {"seq_len": 4096}, {"global_batch_size": 15360}, {"tokens_per_step": 15360 * 4096}
# What is swept, with {n} points of the bandwidth, and what is fixed beside ASKED.
CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "scale_out": ({"cluster.scale_out_gbits_s": "100:3200:{n}"}, LENGTH | BATCH),
    "seq_len+scale_out": (
        {"seq_len": "4k,8k,16k,32k,64k,128k", "cluster.scale_out_gbits_s": "100:3200:{n}"}, TOKENS,
    ),
    "tokens_per_step+scale_out": (
        {"tokens_per_step": "7864320,15728640,31457280", "cluster.scale_out_gbits_s": "100:3200:{n}"},
        LENGTH,
    ),
    "n_chips+scale_out": (
        {"n_chips": "512,1024,2048,4096", "cluster.scale_out_gbits_s": "100:3200:{n}"}, LENGTH | BATCH,
    ),
    "scale_up_size+scale_out": (
        {"cluster.scale_up_size": "8,16,32,72,144,576", "cluster.scale_out_gbits_s": "100:3200:{n}"},
        LENGTH | BATCH,
    ),
    "seq_len": ({"seq_len": "4k:1M:{n}"}, TOKENS),
}  # fmt: skip
PROCESSES = 2
SLACK = 0.03


def processor_seconds() -> float:
    """Of this process and of those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def swept(case: str, points: int) -> Sweep:
    """The sweep of a case with about so many points."""
    over, fixed = CASES[case]
    others = 1
    for values in over.values():
        others *= 1 if "{n}" in values else len(values.split(","))
    fields = {name: values.format(n=max(points // others, 2)) for name, values in over.items()}
    return api.sweep(**ASKED, **fixed, over=fields, slack=SLACK, processes=PROCESSES)


def agrees(point: Point, *, simulated: bool) -> bool:
    """Whether a search of its own finds the same for a point."""
    e = point.best or point.nearest
    if e is None:
        return True
    space = build(e.model, e.cluster, e.work, {}, e.profile)
    alone = fresh(Request(e.model, e.cluster, e.work, e.profile), space, SLACK, simulated=simulated)
    simplest = alone.simplest(SLACK)
    if alone.best is None or simplest is None or point.best is None or point.simplest is None:
        return alone.best is None and point.best is None
    pairs = ((alone.best, point.best), (simplest, point.simplest))
    close = all(abs(a.seconds - b.step_time_s) <= 1e-12 * b.step_time_s for a, b in pairs)
    return close and alone.best.strategy == point.best.strategy


def measured(case: str, points: int, again: int) -> dict[str, Any]:
    """One sweep: its times, and how many of some points agree with a search of their own."""
    busy, began = processor_seconds(), perf_counter()
    found = swept(case, points)
    wall, busy = perf_counter() - began, processor_seconds() - busy
    chosen = random.Random(0).sample(found.points, min(again, len(found.points)))
    return {
        "points": len(found.points),
        "searched": found.searched,
        "wall_s": round(wall, 1),
        "processor_s": round(busy, 1),
        "processes": PROCESSES,
        "searched_again": len(chosen),
        "agree": sum(agrees(point, simulated=found.simulated) for point in chosen),
    }


def main(points: int = 1000, again: int = 20, *cases: str) -> dict[str, dict[str, Any]]:
    """Every case asked for."""
    return {case: measured(case, points, again) for case in cases or tuple(CASES)[:1]}


if __name__ == "__main__":
    result = main(*map(int, sys.argv[1:3]), *sys.argv[3:])
    print(json.dumps(result, indent=2))
    sys.exit(0 if all(one["agree"] == one["searched_again"] for one in result.values()) else 1)
