"""Two halves of a search: in one process or two they find the same, and nothing is left of a second one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshwright.hardware.cluster import parse
from meshwright.model.presets import load as load_model
from meshwright.profiles.load import load
from meshwright.search import scan as module
from meshwright.search.bounds import Request
from meshwright.search.fork import both, spare_processor
from meshwright.search.found import Scan
from meshwright.search.necessity import TECHNIQUES
from meshwright.search.scan import scans
from meshwright.search.space import build
from meshwright.work import Work

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="a copy of a process is safe on Linux alone")


def said(found: Scan) -> dict[str, Any]:
    """All that a search says."""
    lists = {"best": found.shortlist, **found.without}
    plans = {name: [(p.strategy, p.step_time_s, p.tied) for p in some.plans] for name, some in lists.items()}
    counts = (found.searched, found.feasible, found.rejected, found.bounded)
    return plans | {"counts": counts, "nearest": found.nearest, "kinds": found.of_kind}


def searched(usable_gib: float, *, apart: bool = True) -> Scan:
    place = parse("8xh100", {"usable_gib": usable_gib})
    profile = load(None, place.chip)
    model, work = load_model("mixtral-8x7b"), Work(4096, 64)
    words = {"recompute": ["none", "full"], "zero": [1, 3], "zero_group": ["all"], "vpp": [1]}
    space = build(model, place, work, words, profile)
    request = Request(model, place, work, profile)
    return scans([(request, 3, TECHNIQUES)], space, slack=0.03, band=0.05, apart=apart)[0]


@needs_fork
@pytest.mark.parametrize("usable_gib", [72.0, 8.0])
def test_halves_find_the_same_in_one_process_and_in_two(
    monkeypatch: pytest.MonkeyPatch, usable_gib: float
) -> None:
    monkeypatch.setattr(module, "spare_processor", lambda: True)
    two = said(searched(usable_gib))
    monkeypatch.setattr(module, "spare_processor", lambda: False)
    one = said(searched(usable_gib))
    assert one == two
    whole = said(searched(usable_gib, apart=False))
    looked, bounded = one["counts"][0], one["counts"][3]
    assert looked + sum(bounded.values()) == whole["counts"][0] + sum(whole["counts"][3].values())
    assert {**one, "counts": ()} == {**whole, "counts": ()}
    assert bool(one["best"]) == (usable_gib > 8)


@needs_fork
def test_the_second_half_runs_elsewhere() -> None:
    mine, other = both(os.getpid, os.getpid, apart=True)
    assert mine == os.getpid() != other
    assert both(os.getpid, os.getpid, apart=False) == (mine, mine)


@needs_fork
def test_a_half_whose_process_dies_is_done_here() -> None:
    here = os.getpid()

    def dies() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    assert both(lambda: 1, dies, apart=True) == (1, here)


@needs_fork
def test_children_that_nobody_may_wait_for_tell_what_they_found_all_the_same() -> None:
    here, before = os.getpid(), signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def dies() -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    try:
        assert both(os.getpid, os.getpid, apart=True)[1] != here
        assert both(os.getpid, dies, apart=True) == (here, here)
    finally:
        signal.signal(signal.SIGCHLD, before)


@needs_fork
def test_what_ends_the_first_half_ends_the_second(tmp_path: Path) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    ended = tmp_path / "ended"

    def long() -> None:
        time.sleep(60)
        ended.touch()

    with pytest.raises(KeyboardInterrupt):
        both(interrupted, long, apart=True)
    assert not ended.exists()  # it was not waited for
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@needs_fork
def test_where_no_process_can_be_made_one_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refused)
    held = len(os.listdir("/proc/self/fd"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert both(os.getpid, os.getpid, apart=True) == (os.getpid(), os.getpid())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert len(os.listdir("/proc/self/fd")) == held


@needs_fork
@pytest.mark.skipif(not spare_processor(), reason="one processor has one process")
def test_an_interrupted_command_leaves_no_process() -> None:
    command = [sys.executable, "-m", "meshwright", "plan", "deepseek-v3", "--on", "2048xh800", "--json"]
    process = subprocess.Popen(
        [*command, "--seq-len", "4k", "--global-batch", "15360"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a parent may ignore it
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not children.read_text():
        time.sleep(0.01)
    assert process.poll() is None, "it ended without a second process"
    process.send_signal(signal.SIGINT)  # to the first process alone
    assert process.wait(timeout=120) == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
