"""What acceptance sees is there, an item that does not hold is told, and counts come from options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import script

ROOT = Path(__file__).parent.parent
acceptance = script("acceptance")


def test_what_the_items_run_is_there() -> None:
    for name in (*acceptance.PROPERTIES, *acceptance.ODD_INPUTS):
        text = (ROOT / "tests" / f"test_{name}.py").read_text(encoding="utf-8")
        assert "max_examples" in text, name


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
def test_drawn(n): seen.append(n)
def test_at(moment): pass
def test_after(): assert len(seen) == 17
"""


def test_counts_come_from_options(tmp_path: Path) -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_counted.py").write_text(COUNTED, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    asked = ["--examples=17", "--interrupts=4", str(tmp_path)]
    done = subprocess.run([*command, *asked], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "6 passed" in done.stdout
