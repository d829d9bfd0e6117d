"""Grids of a sweep solved in several processes. One that dies costs time and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from signal import SIG_IGN, SIGINT, signal

from meshwright.search.orphan import end_with_parent
from meshwright.search.settle import Index
from meshwright.search.sweep import Grid, Solved, solved


def solve_all(
    grids: Sequence[Grid], processes: int = 1, progress: Callable[[int, int], None] = lambda *_: None
) -> list[dict[Index, Solved]]:
    """Every grid, in several processes where more than one is asked for. `progress` takes (done, total)."""
    total = sum(len(grid.requests) for grid in grids)
    many = min(processes, len(grids))
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        progress(done, total)

    found = _in_processes(grids, many, one_more) if many > 1 else {}
    done = sum(len(grids[i].requests) for i in found)
    # What a process that ended early has left is solved here.
    return [found[i] if i in found else solved(grid, one_more) for i, grid in enumerate(grids)]


def _in_processes(
    grids: Sequence[Grid], many: int, one_more: Callable[[], None]
) -> dict[int, dict[Index, Solved]]:
    """The grids by number, solved in `many` processes. Those of a process that dies are missing."""
    context = get_context("spawn")  # a fork would copy the threads of whoever called
    found: dict[int, dict[Index, Solved]] = {}
    workers, open_ends = [], []
    try:
        for k in range(many):
            receiver, sender = context.Pipe(duplex=False)
            own = {i: grids[i] for i in range(k, len(grids), many)}
            workers.append(context.Process(target=_work, args=(own, sender), daemon=True))
            workers[-1].start()
            sender.close()  # the other end is the process's alone, and closes with it
            open_ends.append(receiver)
        while open_ends:
            ready = wait(open_ends)
            for receiver in [one for one in open_ends if one in ready]:
                try:
                    told = receiver.recv()
                except (EOFError, OSError):
                    open_ends.remove(receiver)
                    continue
                if told is None:
                    one_more()
                else:
                    found.update([told])
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    return found


def _work(own: Mapping[int, Grid], sender: Connection) -> None:
    """Solve some grids; tells None for each point, then each grid's number and outcome."""
    signal(SIGINT, SIG_IGN)  # whoever started this process ends it
    end_with_parent()
    with suppress(BrokenPipeError):
        for i, grid in own.items():
            sender.send((i, solved(grid, lambda: sender.send(None))))
