"""Two halves of a task, the second in a process of its own where there is a processor to spare.

The process is a copy of this one (a fork): it begins with all that is known here and sends back only what it
found. A copy has no threads but the one that made it, so it does nothing but reckon, and ends without
cleaning up. Whoever interrupts this process ends it too; where this one is killed outright the system ends it
as well. A half whose process dies is done here.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from typing import TypeVar

from meshwright.search.orphan import end_with

Mine = TypeVar("Mine")
Other = TypeVar("Other")
_ENDS = (signal.SIGINT, signal.SIGTERM)


def spare_processor() -> bool:
    """Whether a second process would have a processor, and can be a copy of this one: where frameworks of the
    system start threads of their own (macOS) a copy is not safe. One of several workers has none to spare."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and parent_process() is None


def both(mine: Callable[[], Mine], other: Callable[[], Other], *, apart: bool) -> tuple[Mine, Other]:
    """What both return; with `apart` the second runs in a copy of this process."""
    if not apart:
        return mine(), other()
    reader, writer = os.pipe()
    here = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # the copy has no handlers yet of its own
    try:
        child = os.fork()
    except OSError:  # no process or memory to be had: one does both
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reader)
        os.close(writer)
        return mine(), other()
    if child == 0:
        _work(other, here, reader, writer)
    told: bytes | None = None
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)
        with open(reader, "rb") as pipe:
            found = mine()
            told = pipe.read()
    finally:
        if told is None:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        ended_well = _ended_well(child)
    if ended_well:
        with suppress(EOFError, pickle.UnpicklingError):
            return found, pickle.loads(told)
    return found, other()


def _ended_well(child: int) -> bool:
    """Waits for a process to end; whether it did so by itself, as far as this one is told: where a program
    ignores or gathers ended children, only what it left in the pipe says so."""
    try:
        return os.waitpid(child, 0)[1] == 0
    except ChildProcessError:
        return True


def _work(task: Callable[[], object], parent: int, reader: int, writer: int) -> None:
    """Do a task and tell what it returned, as a process that ends here, or with its parent."""
    code = 1
    try:
        end_with(parent)
        for one in _ENDS:
            signal.signal(one, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        os.close(reader)
        with open(writer, "wb") as pipe:
            pickle.dump(task(), pipe, pickle.HIGHEST_PROTOCOL)
        code = 0
    finally:
        os._exit(code)
