"""Cells of a page that take long to compute: computed once, kept under `build/`, taken up where they stopped.

What is kept is worth nothing once the model has changed, so it stands under a fingerprint of the rooms that
the figures come from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from time import monotonic
from typing import Any

import meshwright

ROOMS = ("cost", "hardware", "model", "profiles", "strategy", "search", "checks", "work.py", "units.py")
KEPT = Path(__file__).parent.parent / "build" / "pages"
SOURCES = (".py", ".csv", ".json")
# What pages write themselves, and what only reads their figures.
NO_FIGURES = tuple(
    f"search/guide/{name}"
    for name in ("table.csv", "rule.json", "rule.py", "tree.py", "recipes.py", "facts.py")
)


def fingerprint() -> str:
    """Of every file that decides a figure."""
    found = sha256()
    top = Path(meshwright.__file__).parent
    for room in ROOMS:
        for path in sorted([top / room] if room.endswith(".py") else (top / room).rglob("*")):
            name = path.relative_to(top).as_posix()
            if path.suffix in SOURCES and name not in NO_FIGURES:
                found.update(name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def computed(
    name: str, jobs: Sequence[Any], solve: Callable[[Any], Any], processes: int
) -> Iterator[tuple[Any, Any]]:
    """Each of `jobs` with what `solve` (a function of a module; its result is JSON) makes of it, in order.

    Progress goes to stderr.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{name}-{fingerprint()}.jsonl"
    known: dict[str, Any] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            known[one["job"]] = one["found"]
    missing = [job for job in jobs if str(job) not in known]
    began = monotonic()
    with path.open("a", encoding="utf-8") as kept:
        for done, (job, found) in enumerate(_solved(missing, solve, processes), 1):
            known[str(job)] = found
            kept.write(json.dumps({"job": str(job), "found": found}) + "\n")
            kept.flush()
            seconds = (monotonic() - began) / done * (len(missing) - done)
            print(
                f"{name}: {len(jobs) - len(missing) + done} of {len(jobs)}, {seconds:.0f} s left: {job}",
                file=sys.stderr,
            )
    for job in jobs:
        yield job, known[str(job)]


def _solved(jobs: Sequence[Any], solve: Callable[[Any], Any], processes: int) -> Iterator[tuple[Any, Any]]:
    if processes <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield job, solve(job)
        return
    with get_context("spawn").Pool(min(processes, len(jobs))) as pool:
        yield from zip(jobs, pool.imap(solve, jobs))


def processes(arguments: Sequence[str]) -> int:
    """The N of `--jobs N`, 2 where it is not said."""
    return int(arguments[arguments.index("--jobs") + 1]) if "--jobs" in arguments else 2
