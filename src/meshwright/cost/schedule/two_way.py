"""The eight phases of DualPipe and DualPipeV, which differ only in where the two streams of a rank come from.

**Source**: DeepSeek-V3 report (arXiv 2412.19437), section 3.2.1, and the published DualPipe schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.cost.schedule.actions import Action

Stream = tuple[int, int]  # chunk, first microbatch


def eight_phases(inward: int, depth: int, count: int, near: Stream, far: Stream) -> tuple[Action, ...]:
    """Passes of the rank that is `inward` ranks away from the end where its `near` stream enters.

    `depth`: ranks between that end and the turn (both included); each stream has `count` microbatches, at
    least 2 depth. A forward of one stream runs joined with a backward of the other, except the innermost
    rank's first, whose backward needs that very forward.
    """
    waiting: deque[Action] = deque()  # input parts whose weight parts are still to come
    passes: list[Action] = []
    forwards = [_microbatches(near, count), _microbatches(far, count)]
    backwards = [_microbatches(near, count), _microbatches(far, count)]

    def forward(stream: int, *, joined: bool = False) -> None:
        chunk = (near, far)[stream][0]
        passes.append(Action("F", chunk, next(forwards[stream]), joined))

    def backward(stream: int, *, split: bool = False) -> None:
        chunk = (near, far)[stream][0]
        passes.append(Action("I" if split else "B", chunk, next(backwards[stream])))
        if split:
            waiting.append(passes[-1])

    def weight() -> None:
        of = waiting.popleft()
        passes.append(Action("W", of.chunk, of.microbatch))

    outward = depth - inward - 1
    for _ in range(2 * outward):  # 1: the near stream fills the pipeline
        forward(0)
    for _ in range(inward + 1):  # 2: the far stream has arrived
        forward(0)
        forward(1)
    for _ in range(outward):  # 3: so have its gradients
        backward(1, split=True)
        weight()
        forward(1)
    for i in range(count - 2 * depth + inward + 1):  # 4: the steady state
        forward(0, joined=not (i == 0 and outward == 0))
        backward(1)
        forward(1, joined=True)
        backward(0)
    for _ in range(outward):  # 5: the near stream has no forwards left
        backward(1)
        forward(1, joined=True)
        backward(0)
    for i in range(inward + 1):  # 6: nor has the far one; the later half keep their weight parts back
        middle = (inward + 1) // 2
        backward(1, split=i > middle or (i == middle and inward % 2 == 1))
        backward(0, split=i >= middle)
    for _ in range(outward):  # 7: the near stream's gradients drain, weight parts between
        weight()
        backward(0, split=True)
    for _ in range(inward + 1):  # 8
        weight()
    return tuple(passes)


def joined_bubble(others: Any, less_one: Any, forward: Any, backward_input: Any, weight: Any) -> Any:
    """max(2 q F, (q - 1) F + q I) + q max(I - W, 0); `others` and `less_one` are q and q - 1, `weight` are a
    rank's own weight parts.

    Twice through the ranks before the turn: a forward out and either a forward or a gradient back; input
    parts longer than the weight parts meant to fill the drain leave the rest open. Worked out from the list
    that `eight_phases` makes.
    """
    there_and_back = np.maximum(2.0 * others * forward, less_one * forward + others * backward_input)
    return there_and_back + others * np.maximum(backward_input - weight, 0.0)


def _microbatches(stream: Stream, count: int) -> Iterator[int]:
    return iter(range(stream[1], stream[1] + count))
