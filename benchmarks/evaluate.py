"""Evaluations of random legal DeepSeek-V3 strategies a second, given as arrays, on one core.

    python benchmarks/evaluate.py [COUNT [COMPARED]]

Degrees, microbatch sizes and sharding groups are drawn at random on 2048 H800 and kept where every rule
allows them; words (schedule, recompute, ZeRO, sequence parallelism, context exchange) are looped over. What
is timed is `cost.step.evaluate` alone: step time with all its parts and peak memory with all its categories.
Each array is evaluated three times and the quickest counts. COMPARED of the strategies (1,000) are evaluated
again one at a time and must agree to 1e-9.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core

import json
import resource
import sys
from dataclasses import fields, replace
from time import process_time
from typing import Any

import numpy as np

from meshwright.checks import illegal
from meshwright.checks.rule import divisors
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.profiles.load import load
from meshwright.strategy.records import Strategy
from meshwright.work import Work

MODEL = presets.load("deepseek-v3")
CLUSTER = parse("2048xh800")
WORK = Work(4096, 15360)
PROFILE = load("megatron-core", CLUSTER.chip)
WORDS = [
    {"schedule": "interleaved-1f1b", "recompute": "none", "zero": 1, "sp": True, "cp_method": "ring"},
    {"schedule": "1f1b", "recompute": "full", "zero": 0, "sp": False, "cp_method": "all-to-all"},
    {"schedule": "interleaved-1f1b", "recompute": "full", "zero": 3, "sp": True, "cp_method": "all-to-all"},
    {"schedule": "interleaved-1f1b", "recompute": "selective:norm+moe_act", "zero": 2, "sp": False,
     "cp_method": "ring"},
]  # fmt: skip
REPEATS = 3  # of each array, of which the quickest counts: others may use the machine


def drawn(words: dict[str, Any], n: int, rng: np.random.Generator) -> Strategy:
    """n random legal strategies under the words, degrees as arrays."""
    chips = CLUSTER.n_chips
    powers = np.array(divisors(chips))
    kept: list[dict[str, Any]] = []
    found = 0
    while found < n:
        size = 4 * n
        tp, pp, cp, etp = (rng.choice(powers[powers <= most], size) for most in (128, 32, 32, 64))
        ep = rng.choice(divisors(256), size)
        interleaved = words["schedule"] == "interleaved-1f1b"
        vpp = rng.integers(2, 32, size) if interleaved else np.ones(size, np.int64)
        microbatch = rng.choice([d for d in divisors(WORK.global_batch_size) if d <= 64], size)
        dp = chips // np.minimum(tp * pp * cp, chips)
        group = np.maximum(dp * cp // rng.choice([1, 1, 2, 4, 8], size), 1)
        every = Strategy(dp=dp, tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, microbatch_size=microbatch,
                         zero_group=group, dispatcher="deep-ep", **words)  # fmt: skip
        legal = np.ones(size, bool)
        for broken in illegal(MODEL, CLUSTER, WORK, every).values():
            legal &= ~broken
        rows = np.flatnonzero(legal)
        kept.append({name: getattr(every, name)[rows] for name in arrays(every)})
        found += len(rows)
    whole = {name: np.concatenate([k[name] for k in kept])[:n] for name in kept[0]}
    return replace(every, **whole)


def arrays(strategy: Strategy) -> list[str]:
    """Fields that are arrays."""
    return [f.name for f in fields(strategy) if isinstance(getattr(strategy, f.name), np.ndarray)]


def difference(one: Evaluation, many: Evaluation, i: int) -> float:
    """The largest relative difference of any number between a strategy alone and as one of many."""
    pairs = [(getattr(one, k), getattr(many, k)[i]) for k in ("step_time_s", "peak_bytes", "hardware_flops")]
    pairs += [(one.time_s[k], many.time_s[k][i]) for k in TIME_KEYS]
    pairs += [(one.memory_bytes[k], many.memory_bytes[k][i]) for k in MEMORY_KEYS]
    step, peak = one.step_time_s, one.peak_bytes
    return max(abs(a - b) / max(abs(a), 1e-6 * (peak if abs(a) > 1e6 else step)) for a, b in pairs)


def main(count: int = 2_000_000, compare: int = 1000) -> dict[str, Any]:
    """Draw, time and compare."""
    rng = np.random.default_rng(0)
    each = count // len(WORDS)
    busy = worst = 0.0
    compared, fitting = 0, 0
    for words in WORDS:
        strategy = drawn(words, each, rng)
        seconds = []
        for _ in range(REPEATS):
            began = process_time()
            found = evaluate(MODEL, CLUSTER, WORK, strategy, PROFILE)
            seconds.append(process_time() - began)
        busy += min(seconds)
        fitting += int(np.count_nonzero(found.fits))
        for i in rng.choice(each, -(-compare // len(WORDS)), replace=False):
            alone = evaluate(MODEL, CLUSTER, WORK, strategy.at(int(i)), PROFILE)
            worst = max(worst, difference(alone, found, int(i)))
            compared += 1
    return {
        "strategies": each * len(WORDS),
        "fit": fitting,
        "core_seconds": round(busy, 3),
        "evaluations_per_s_and_core": round(each * len(WORDS) / busy),
        "compared_one_by_one": compared,
        "largest_relative_difference": float(worst),
        "agree_to_1e-9": bool(worst < 1e-9),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    result = main(*map(int, sys.argv[1:3]))
    print(json.dumps(result, indent=2))
    sys.exit(0 if result["agree_to_1e-9"] else 1)
