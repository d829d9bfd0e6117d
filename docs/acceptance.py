"""Everything that is promised with a count, at full size or a share of it: `docs/acceptance.md`.

    python docs/acceptance.py [--share 0.1] [--only NAME]

Without a share the page is written; with one, its table goes to stdout. What is exact (equality, bounds, an
exit code) decides whether an item holds; times are told. Ends with 1 where an item does not hold.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from meshwright import units
from meshwright.calibrate import rows

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "acceptance.md"
EVALUATIONS, COMPARED = 2_000_000, 1_000
POINTS, FRESH = 1_000, 20
EXAMPLES = 350  # of each property at least
NOISE = 1_000  # odd inputs of each kind
INTERRUPTS = 20
PROPERTIES = (
    "cost_properties",
    "cost_ops",
    "stages",
    "placement",
    "ranks",
    "derive",
    "search_brute",
    "checks_rules",
)
ODD_INPUTS = ("cli_fuzz", "files_faults", "model_readers_faults", "calibrate_rows")
PATHS = ["simulate_pipeline.py::test_a_step_is_the_longest_path"]
COUNTS = ["model_presets.py::test_counts_equal_the_published_classes"]
INTERRUPTED = [
    "cli_main.py::test_a_signal_interrupts_a_search",
    "sweep.py::test_a_process_that_is_killed_costs_no_point",
]


@dataclass(frozen=True, slots=True)
class Result:
    """What an item came to: whether it holds, how many of what, and its figures."""

    holds: bool
    count: str
    figures: str


@dataclass(frozen=True, slots=True)
class Item:
    """Something promised, and how it is seen; `see` takes the share of the full size."""

    name: str
    promise: str
    see: Callable[[float], Result]


def some(full: int, share: float) -> int:
    """A share of a count, at least one.

    >>> some(200, 0.1), some(5, 0.1)
    (20, 1)
    """
    return max(round(full * share), 1)


def benchmark(name: str, *arguments: object) -> tuple[bool, Any]:
    """Whether a benchmark ends well, and the object that it prints."""
    command = [sys.executable, f"benchmarks/{name}.py", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return done.returncode == 0, json.loads(done.stdout)


def evaluations(share: float) -> Result:
    """Strategies evaluated as arrays, and some of them one by one."""
    fine, found = benchmark("evaluate", some(EVALUATIONS, share), some(COMPARED, share))
    return Result(
        fine,
        f"{found['strategies']:,} strategies, {found['compared_one_by_one']:,} compared",
        f"{found['evaluations_per_s_and_core']:,} a second and core, largest relative difference "
        f"{found['largest_relative_difference']:.1e}, {found['peak_memory_mib']:,} MiB",
    )


def searches(share: float) -> Result:
    """Complete searches, at full size whatever the share."""
    fine, found = benchmark("search")
    told = [
        f"{name}: {one['wall_s']} s ({one['processor_s']} s of processor), {one['peak_memory_mib']:,} MiB, "
        f"{one['evaluated']:,} evaluated, {one['bounded']:,} bounded"
        for name, one in found.items()
    ]
    return Result(fine, f"{len(found)} searches", "; ".join(told))


def sweeps(share: float) -> Result:
    """Points of a sweep, and some of them searched on their own."""
    fine, found = benchmark("sweep", some(POINTS, share), some(FRESH, share))
    (one,) = found.values()
    return Result(
        fine,
        f"{one['points']:,} points, {one['searched_again']} searched again",
        f"{one['wall_s']} s ({one['processor_s']} s of processor in {one['processes']} processes), "
        f"{one['agree']} of {one['searched_again']} equal a search of their own",
    )


def script(name: str) -> ModuleType:
    """A module beside this one."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def layouts(share: float) -> Result:
    """Expert layouts searched again; of a share those on the fewest chips."""
    experts = script("experts")
    chosen = sorted(experts.chosen(rows.shipped("training")), key=lambda one: one[1].cluster.n_chips)
    found = [experts.studied(*one) for one in chosen[: some(experts.LAYOUTS, share)]]
    large = [one for one in found if one.gain > experts.EXPLAIN]
    fine = all(one.gain >= 0 and "broken:" not in experts.checked(one.best) for one in found)
    fine &= all("`step.time." in experts.explanation(one) for one in large)
    gains = ", ".join(units.percent_text(one.gain) for one in sorted(found, key=lambda one: one.gain))
    return Result(fine, f"{len(found)} layouts", f"gains {gains}; {len(large)} told term by term")


def suite(what: str, paths: Sequence[str], share: float, *options: str, examples: int = 0) -> Result:
    """Tests of the suite, each property with at least so many examples, where there are as many."""
    many = some(examples, share) if examples else 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider",
                   f"--junitxml={report}", *options, *(f"tests/test_{path}" for path in paths)]  # fmt: skip
        command += [f"--examples={many}", "-m", "hypothesis"] if many else []
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(done.stdout + done.stderr)
        root = ET.parse(report).getroot()
    found = root[0].attrib
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    bad = int(found["failures"]) + int(found["errors"])
    ran = int(found["tests"]) - int(found["skipped"])
    count = f"{examples_seen(root):,} {what} in {ran} tests" if many else f"{ran:,} {what}"
    return Result(done.returncode == 0 and ran > 0, count, f"{bad} failed" if bad else "all hold")


def examples_seen(report: ET.Element) -> int:
    """Examples that ran to their end in all tests of a report, as `tests/conftest.py` counted them."""
    return sum(
        int(one.attrib["value"]) for one in report.iter("property") if one.attrib["name"] == "examples"
    )


def interrupts(share: float) -> Result:
    """Searches interrupted at different moments, and a sweep of which a process is killed."""
    return suite("interrupts and kills", INTERRUPTED, share, f"--interrupts={some(INTERRUPTS, share)}")


ITEMS = (
    Item("evaluations", "arrays equal single evaluations to 1e-9", evaluations),
    Item("searches", "complete, each in 2 GiB", searches),
    Item("sweep", "points equal a search of their own", sweeps),
    Item("layouts", "no expert is ahead of the best plan, which breaks no rule", layouts),
    Item("stage times", "the simulated step is the longest path of random stage times and sends",
         partial(suite, "stage-time vectors", PATHS)),
    Item("schedules", "simulated pipelines equal closed forms and published bubbles",
         partial(suite, "tests", ["simulate_exact.py", "simulate_published.py", "simulate_many.py"])),
    Item("brute force", "a search equals an enumeration of its own",
         partial(suite, "tests", ["search_brute.py"])),
    Item("properties", "hold of drawn plans, shapes, placements and splits",
         partial(suite, "examples", [f"{name}.py" for name in PROPERTIES], examples=EXAMPLES)),
    Item("odd inputs", "are read or refused with a reason, never with a traceback",
         partial(suite, "inputs", [f"{name}.py" for name in ODD_INPUTS], examples=NOISE)),
    Item("interrupts", "end a search with exit code 130 and no traceback; a killed process costs no point",
         interrupts),
    Item("parameters", "of every preset count exactly",
         partial(suite, "counts", COUNTS)),
    Item("bounds", "no published run is predicted faster than physics",
         partial(suite, "tests", ["bounds_on_runs.py"])),
)  # fmt: skip


def machine() -> str:
    """Cores and versions."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}"


def commit() -> str:
    """The commit that is seen, marked where files differ from it (this page apart)."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return (git("rev-parse", "--short", "HEAD") or "none") + (", changed" if changed else "")


def lines(items: Sequence[Item], share: float, told: list[bool]) -> Iterator[str]:
    """The table, a line an item as it is seen; whether each holds goes into `told`."""
    yield "| what | promise | count | holds | figures | took |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for item in items:
        began = perf_counter()
        found = item.see(share)
        told.append(found.holds)
        took = units.seconds_text(perf_counter() - began)
        holds = "yes" if found.holds else "**no**"
        yield f"| {item.name} | {item.promise} | {found.count} | {holds} | {found.figures} | {took} |"


def head() -> str:
    """What stands above the table."""
    return "\n\n".join([
        "# Acceptance",
        "Written by `make acceptance`: everything that is promised with a count, at full size. `.ci/run` "
        "sees a tenth of it. Whether an item holds is a matter of equality and bounds; times are those of "
        "the machine below, with whatever else it did.",
        f"Commit {commit()}, {datetime.now(UTC):%Y-%m-%d}, {machine()}.",
    ])  # fmt: skip


def main() -> int:
    """See every item; write the page, or print a share of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--share", type=float, default=1.0, help="of the full size; the page is not written")
    parser.add_argument("--only", action="append", choices=[item.name for item in ITEMS], help="some items")
    asked = parser.parse_args()
    items = [item for item in ITEMS if not asked.only or item.name in asked.only]
    told: list[bool] = []
    whole = asked.share == 1.0 and not asked.only
    shown = [head(), ""] if whole else []
    for line in lines(items, asked.share, told):
        print(line, flush=True)
        shown.append(line)
    if whole:
        PAGE.write_text("\n".join(shown) + "\n", encoding="utf-8")
    return 0 if all(told) else 1


if __name__ == "__main__":
    sys.exit(main())
