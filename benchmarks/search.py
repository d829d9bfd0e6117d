"""Seconds and memory that complete searches take, each as a command of its own, in two processes at most.

python benchmarks/search.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from time import perf_counter
from typing import Any

CASES: dict[str, list[str]] = {
    "llama-3.1-405b on 16384xh100": [
        "llama-3.1-405b", "--on", "16384xh100", "--seq-len", "8k", "--tokens-per-step", "16M",
    ],
    "deepseek-v3 on 2048xh800": [
        "deepseek-v3", "--on", "2048xh800", "--seq-len", "4k", "--global-batch", "15360",
    ],
}  # fmt: skip
MOST_MEMORY = 2 * 2**30
PROCESSES = 2 if sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 else 1


def measured(asked: list[str]) -> dict[str, Any]:
    """One `meshwright plan` from start to end."""
    command = [sys.executable, "-m", "meshwright", "plan", *asked, "--json"]
    with tempfile.TemporaryFile() as out:
        began = perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall = perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        out.seek(0)
        found = json.load(out)
    return {
        "evaluated": found["searched"],
        "bounded": sum(found["bounded"].values()),
        "wall_s": round(wall, 2),
        "search_s": round(found["search_seconds"], 2),
        "processor_s": round(used.ru_utime + used.ru_stime, 2),
        "processes": PROCESSES,
        # Of all together no more than so many times the largest, as they share much.
        "peak_memory_mib": round(PROCESSES * used.ru_maxrss / 1024),
        "step_time_s": found["plans"][0]["step_time_s"],
    }


def main() -> dict[str, dict[str, Any]]:
    """Every case."""
    return {name: measured(asked) for name, asked in CASES.items()}


if __name__ == "__main__":
    result = main()
    print(json.dumps(result, indent=2))
    sys.exit(0 if all(one["peak_memory_mib"] * 2**20 <= MOST_MEMORY for one in result.values()) else 1)
