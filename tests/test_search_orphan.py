"""A process that works for another ends with it, whatever it is doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="the system ends processes so on Linux alone")
GOES_ON_S = 20  # how long a process would sleep before it says that nobody ended it

HALVES = f"""
import time
from meshwright.search.fork import both

def other():
    print("begun", flush=True)
    time.sleep({GOES_ON_S})
    print("went on", flush=True)

both(lambda: time.sleep(3 * {GOES_ON_S}), other, apart=True)
"""
WORKER = f"""
import time
from multiprocessing import get_context

def works():
    from meshwright.search import orphan
    orphan._prctl = ASKED
    orphan.end_with_parent()
    print("begun", flush=True)
    time.sleep({GOES_ON_S})
    print("went on", flush=True)

if __name__ == "__main__":
    worker = get_context("spawn").Process(target=works)
    worker.start()
    worker.join()
"""


@linux
@pytest.mark.parametrize(
    "script", [HALVES, WORKER.replace("ASKED", "orphan._prctl"), WORKER.replace("ASKED", "None")]
)
def test_a_process_ends_with_the_one_that_is_killed(tmp_path: Path, script: str) -> None:
    """Both write to one pipe, which closes when neither is left. Where the system is not asked a process of a
    sweep looks after its parent itself."""
    file = tmp_path / "parent.py"
    file.write_text(script)
    process = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == "begun\n"
        process.kill()
        assert said.read() == ""
    process.wait()


@linux
def test_a_process_whose_parent_is_gone_already_ends() -> None:
    """The system tells nobody of what happened before it was asked; no process has the number 0."""
    code = "from meshwright.search.orphan import end_with; end_with(0); print('went on')"
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")


@linux
def test_a_system_that_cannot_be_asked_says_so() -> None:
    code = "from meshwright.search import orphan; orphan._prctl = None; print(orphan.end_with(0))"
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert ended.stdout == "False\n"
