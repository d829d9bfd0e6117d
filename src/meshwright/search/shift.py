"""What moves between two evaluations of the same work: parts of the step, parts of the memory, in words."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright import units
from meshwright.cost.evaluation import Evaluation
from meshwright.units import GIB

TINY = 5e-4  # of the whole: a part that moves less is not told


def time_shift(first: Evaluation, second: Evaluation) -> list[tuple[str, float]]:
    """Parts of the step with the seconds that `second` spends more on each, the largest change first.

    Recompute is told apart from the rest of compute. Together they are the difference of the steps.
    """
    moved = {k: float(second.time_s[k]) - float(first.time_s[k]) for k in first.time_s}
    again = float(second.recompute_s) - float(first.recompute_s)
    moved["recompute"], moved["compute"] = again, moved["compute"] - again
    return _largest(moved, TINY * float(first.step_time_s))


def memory_shift(first: Evaluation, second: Evaluation) -> list[tuple[str, float]]:
    """Parts of the fullest rank's memory with the bytes that `second` holds more, the largest first."""
    names = {*first.memory_bytes, *second.memory_bytes}
    moved = {
        k: float(second.memory_bytes.get(k, 0.0)) - float(first.memory_bytes.get(k, 0.0))
        for k in sorted(names)
    }
    return _largest(moved, TINY * float(first.peak_bytes))


def _largest(moved: dict[str, float], least: float) -> list[tuple[str, float]]:
    return sorted(((k, v) for k, v in moved.items() if abs(v) > least), key=lambda p: -abs(p[1]))


def time_text(moved: Sequence[tuple[str, float]], most: int = 3) -> str:
    """Parts of the step that moved, signed.

    >>> time_text([("bubble", -0.3), ("tp", 0.12)])
    'bubble -300 ms, tp +120 ms'
    """
    return ", ".join(
        f"{name} {'+' if seconds > 0 else '-'}{units.seconds_text(abs(seconds))}"
        for name, seconds in moved[:most]
    )


def memory_text(moved: Sequence[tuple[str, float]], most: int = 2) -> str:
    """Parts of the memory that moved, in GiB, signed."""
    return ", ".join(f"{name} {nbytes / GIB:+.2f} GiB" for name, nbytes in moved[:most])


def sentence(first: Evaluation, second: Evaluation) -> str:
    """Why `second` is faster or slower than `first`, and where its memory differs, in one sentence."""
    gap = float(second.step_time_s) - float(first.step_time_s)
    held = float(second.peak_bytes) - float(first.peak_bytes)
    time, memory = time_shift(first, second), memory_shift(first, second)
    if abs(gap) <= TINY * float(first.step_time_s):
        said = "The step takes as long"
    else:
        word = "more" if gap > 0 else "less"
        said = f"The step takes {units.seconds_text(abs(gap))} {word}"
    said += f" ({time_text(time)})" if time else ""
    if abs(held) <= TINY * float(first.peak_bytes):
        return f"{said}; memory is as before."
    word = "more" if held > 0 else "less"
    stages = (int(first.peak_stage), int(second.peak_stage))
    fullest = f"the fullest rank (stage {stages[1]} instead of {stages[0]})"
    fullest = fullest if stages[0] != stages[1] else "the fullest rank"
    return f"{said}; {fullest} holds {abs(held) / GIB:.2f} GiB {word} ({memory_text(memory)})."
