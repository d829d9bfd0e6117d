"""What published measurements found that the model does not say, each with what it says and what is missing.

Numbers as in `test_cost_findings`. A test that begins to pass is to be moved to the others. Of nothing here
is a number of the model made to fit: the effect behind it has no source, or sources that disagree.

Not asked at all, since nothing in the model speaks to it: of finding 14, experts slowed by their allocator at
86 % of memory; 32, a comparison that was never published. Lessons of the memory runs: 15 and 16 are of single
releases and of impossible cells.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from published_runs import Run, close, predicted_mfu


@pytest.mark.xfail(strict=True, reason="12.8 GiB: activations of the baseline come out 8 GB too high")
def test_what_recomputing_a_wide_mlp_frees() -> None:
    """Finding 18. 70B in fp8: 58.8 to 55.6 GB.

    The second is said within 5 % (the update is its fullest moment). The first comes out at 67 GB: 42.3 GiB
    of weights, gradients and state leave 12.4 GiB of the printed peak for activations, where 92 layers' worth
    of microbatches in flight keep 20.2 by count; at TP 8 they leave 12.9, where half of 20.2 is counted. So
    what is printed hardly depends on TP, and no sum of what layers keep gives that. Its MLPs run in CUDA
    graphs, whose buffers PyTorch counts as free once captured: not every byte in use is in such a peak.
    """
    plain, again = (
        Run("llama-3.1-70b", "32xh100", 4096, 32, "fp8", release="26.02", tp=4, pp=4, vpp=5, recompute=r).gib
        for r in ("selective:core_attn", "selective:mlp")
    )
    assert close((plain - again) * 2**30 / 1e9, 3.2, 0.33)


def interleaved() -> tuple[Run, Run]:
    """405B on 512 H100, microbatches of four sequences, without and with two chunks a rank."""
    plain, chunked = (
        Run("llama-3.1-405b", "512xh100", 8192, 256, "fp8", framework="torchtitan", tp=8, pp=8, vpp=chunks,
            schedule=schedule, zero=3, microbatch_size=4, recompute="full")
        for chunks, schedule in ((1, "1f1b"), (2, "interleaved-1f1b"))
    )  # fmt: skip
    return plain, chunked


def test_interleaving_gained_a_quarter() -> None:
    """Finding 3, the speed of torchtitan's 405B: 100 to 128 tokens/s."""
    plain, chunked = interleaved()
    assert close(chunked.tokens_per_s / plain.tokens_per_s, 1.28)


@pytest.mark.xfail(strict=True, reason="chunks keep more in flight, so the peak rises")
def test_interleaving_lowered_a_peak() -> None:
    """Finding 3. torchtitan, 405B on 512 H100 at PP 8: 82.5 to 72.7 GiB with interleaving.

    The row's microbatch is the local batch, and into how many microbatches it was cut is not printed. With
    twice as many under interleaving its activations would halve and the peak fall, but then the bubble would
    shrink so far that the gain is a half and not the quarter that is printed.
    """
    plain, chunked = interleaved()
    assert chunked.gib < plain.gib


@pytest.mark.xfail(strict=True, reason="2 %: a ring over 32 slices sends what one over two sends")
def test_many_slices_cost_a_tenth() -> None:
    """Finding 12. 16B on 1 to 32 slices of v5e: 61.1 to 54.65 % MFU.

    All-reduces of a shard over slices grow from one to two shards at most and hide behind the backward pass;
    what else 8,192 chips lose to stragglers is 0.3 % a doubling in the profile.
    """
    one, many = (predicted_mfu(f"maxtext-v5e-16b-{n}x256") for n in (1, 32))
    assert close(many / one, 54.65 / 61.1, 0.05)


# --- where each is asked -----------------------------------------------------------------------------------

UNASKED = {32}
UNASKED_LESSONS = {15, 16}


def asked(word: str) -> set[int]:
    """Numbers after `word` in the docstrings of tests (Finding 3; Findings 3 and 5; lessons 4 and 5)."""
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for match in re.finditer(rf"\b{word}s? (\d+)(?: and (\d+))?", path.read_text(), re.IGNORECASE):
            found |= {int(n) for n in match.groups() if n}
    return found


def test_every_finding_is_asked_somewhere() -> None:
    """The lists are collections of their own; here only that no number is forgotten."""
    assert set(range(1, 33)) - asked("finding") <= UNASKED
    assert set(range(1, 18)) - asked("lesson") <= UNASKED_LESSONS
