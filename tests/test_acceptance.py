"""The page of acceptance holds at full size; what it sees is there; an item that does not hold is told."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from scripts import script

ROOT = Path(__file__).parent.parent
acceptance = script("acceptance")


def test_every_item_of_the_page_holds_at_full_size() -> None:
    page = (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8")
    assert re.search(r"^Commit [0-9a-f]{7,}, \d{4}-\d\d-\d\d, \d+ cores, Python", page, re.MULTILINE)
    rows = {cells[0]: cells[1:] for line in page.splitlines()
            if line.startswith("| ") and len(cells := line.strip("| ").split(" | ")) == 6}  # fmt: skip
    for item in acceptance.ITEMS:
        promise, _, holds, *_ = rows[item.name]
        assert promise == item.promise
        assert holds == "yes", item.name
    count = {item.name: int(rows[item.name][1].split()[0].replace(",", "")) for item in acceptance.ITEMS}
    assert count["evaluations"] >= acceptance.EVALUATIONS
    assert count["sweep"] >= acceptance.POINTS
    assert count["stage times"] >= 200
    assert count["layouts"] >= 10
    assert count["properties"] >= 10_000
    assert count["odd inputs"] >= 5_000


def test_what_the_items_run_is_there() -> None:
    for name in (*acceptance.PROPERTIES, *acceptance.ODD_INPUTS):
        text = (ROOT / "tests" / f"test_{name}.py").read_text(encoding="utf-8")
        assert "max_examples" in text, name


def test_the_nodes_of_the_items_are_there() -> None:
    nodes = [f"tests/test_{n}" for n in (*acceptance.PATHS, *acceptance.COUNTS, *acceptance.INTERRUPTED)]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *nodes], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for node in nodes:
        assert node in done.stdout


def test_a_machine_is_told_without_its_make() -> None:
    told = acceptance.machine()
    assert re.fullmatch(r"\d+ cores, Python [\w.+]+, NumPy [\w.+]+", told), told


def test_an_item_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bad = acceptance.Item("a", "b", lambda share: acceptance.Result(share == 1.0, "1 thing", "none"))
    told: list[bool] = []
    shown = list(acceptance.lines([bad], 0.5, told))
    assert told == [False]
    assert "**no**" in shown[-1]


COUNTED = """
from hypothesis import given, settings, strategies as st
seen = []
@settings(max_examples=3)
@given(st.integers())
def test_few(n): seen.append(n)
@settings(max_examples=30)
@given(st.integers())
def test_many(n): seen.append(n)
@given(st.booleans())
def test_all(b): seen.append(b)
def test_at(moment): pass
def test_after(): assert len(seen) == 17 + 30 + 2
"""


def test_counts_come_from_options(tmp_path: Path) -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_counted.py").write_text(COUNTED, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    report = tmp_path / "report.xml"
    asked = ["--examples=17", "--interrupts=4", f"--junitxml={report}", str(tmp_path)]
    done = subprocess.run([*command, *asked], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "8 passed" in done.stdout
    assert acceptance.examples_seen(ET.parse(report).getroot()) == 17 + 30 + 2
