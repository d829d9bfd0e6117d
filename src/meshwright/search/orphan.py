"""A process that works for another ends when that one is gone, however it ended: nobody waits for what it
does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_prctl: Any = None  # looked up here: a copy of a process with threads may find the loader locked
if sys.platform == "linux":
    with suppress(OSError, AttributeError):  # a libc that cannot be asked
        _prctl = ctypes.CDLL(None).prctl


def end_with(parent: int) -> bool:
    """Have the system end this process with its parent, of that number; false where it cannot. What the
    system looks at is the thread that started this process, so that one must wait for it.

    Ends the process if the parent is gone already.
    """
    if _prctl is None or _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        return False
    if os.getppid() != parent:  # it ended before the system was asked, and nothing will come of that
        os._exit(1)
    return True


def end_with_parent() -> None:
    """Have this process, which `multiprocessing` started, end with the one that it works for: at once where
    the system does it, else when a thread of its own next runs."""
    parent = parent_process()
    if parent is None or (parent.pid is not None and end_with(parent.pid)):
        return
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])  # closes with the process at its other end
        os._exit(1)

    Thread(target=watch, daemon=True).start()
