"""Time and memory of what is open in a round, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.cost.step import evaluate
from meshwright.search.bounds import Request
from meshwright.search.families import FloatArray
from meshwright.search.found import Keep, Scan
from meshwright.search.limits import NO_MEMORY, NO_TIME, UNFIT, Limits, hopeless, threshold
from meshwright.search.necessity import does_without
from meshwright.search.pool import Times
from meshwright.search.ranking import Candidate, fastest_of_each
from meshwright.search.savings import NO_NEED, Spared
from meshwright.search.sieve import Open
from meshwright.search.space import IntArray, Mask
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.records import Strategy


@dataclass(frozen=True, slots=True)
class Batch:
    """Strategies of a round, [n]: `part` are their places among the rows of what is open, `which` the
    numbers of their recompute words; `strategy` has the rest. A step takes `floor_s` and `least_bytes` at
    least."""

    strategy: Strategy
    words: Sequence[str]
    which: IntArray
    part: IntArray
    floor_s: FloatArray
    least_bytes: FloatArray

    @classmethod
    def of(cls, some: Open, words: Sequence[str]) -> Batch:
        """All that is open under some recompute words."""
        one, rows, open_ = some.one, some.mine.rows, [some.by_word[word] for word in words]
        part = np.concatenate([part for part, _ in open_])
        return cls(
            replace(one.under(some.mine.at(part)), recompute=words[0]),  # what adapters keep follows from it
            words,
            np.repeat(np.arange(len(words)), [len(part) for part, _ in open_]),
            part,
            np.concatenate([one.floor(word)[rows[part]] for word, (part, _) in zip(words, open_)]),
            np.concatenate([least for _, least in open_]),
        )

    def __len__(self) -> int:
        return len(self.part)

    def take(self, kept: Mask) -> Batch:
        """Some of them."""
        arrays = (self.which[kept], self.part[kept], self.floor_s[kept], self.least_bytes[kept])
        return Batch(self.strategy.take(kept), self.words, *arrays)

    def at(self, i: int) -> Strategy:
        """Number `i`, in plain numbers."""
        return replace(self.strategy.at(i), recompute=self.words[self.which[i]])

    def without(self, technique: str) -> Mask:
        """Which do not use a technique."""
        return self._plain() if technique == "recompute" else does_without(technique, self.strategy)

    def threshold(self, found: Scan, limits: Limits) -> FloatArray:
        """Seconds above which each changes no answer."""
        limit, plain = threshold(found, replace(self.strategy, recompute="full"), limits), self._plain()
        if not plain.any():
            return limit
        return np.where(plain, threshold(found, replace(self.strategy, recompute="none"), limits), limit)

    def of_words(self) -> list[tuple[str, IntArray]]:
        """The words with the places of the strategies that have them."""
        return [(word, np.flatnonzero(self.which == k)) for k, word in enumerate(self.words)]

    def _plain(self) -> Mask:
        """Which recompute nothing."""
        return np.array([word == "none" for word in self.words]).take(self.which)


def absorb(request: Request, some: Open, spared: Spared, found: Scan, limits: Limits) -> None:
    """Evaluate what is open under all recompute words at once, and take what it is good for."""
    frozen = parse_finetune(some.one.strategy.finetune).frozen  # adapters keep more under some words
    words = list(some.by_word)
    for together in [[word] for word in words] if frozen else [words]:
        batch = _wanted(Batch.of(some, together), some, spared, found, limits)
        if not len(batch):
            continue
        r, known = request, some.one.shared(together, batch.which, some.mine.rows[batch.part])
        evaluation = evaluate(r.model, r.cluster, r.work, batch.strategy, r.profile, known=known)
        shape = (len(batch),)
        step = np.broadcast_to(np.asarray(evaluation.step_time_s, float), shape)
        peak = np.broadcast_to(np.asarray(evaluation.peak_bytes, float), shape)
        if limits.keep is None:  # a pool is asked again where less fits
            needed = _needed(batch, some, spared, peak <= evaluation.capacity_bytes)
            found.bounded[NO_NEED] += int((~needed).sum())
            batch, step, peak = batch.take(needed), step[needed], peak[needed]
        _take(batch, Times(step, peak), found, limits)


def _wanted(batch: Batch, some: Open, spared: Spared, found: Scan, limits: Limits) -> Batch:
    """What is needed, fast and light enough by what was found until now; counts the rest."""
    needed = np.concatenate([spared.left(some.mine, word, batch.part[own]) for word, own in batch.of_words()])
    fast = needed & (batch.floor_s <= batch.threshold(found, limits))
    light = fast & ~hopeless(found, batch.least_bytes)
    found.bounded[NO_NEED] += int((~needed).sum())
    found.bounded[NO_TIME] += int((needed & ~fast).sum())
    found.bounded[NO_MEMORY] += int((fast & ~light).sum())
    return batch.take(light)


def _needed(batch: Batch, some: Open, spared: Spared, fits: Mask) -> Mask:
    """What does not fit with less recomputed; takes note of what fits."""
    needed = np.ones(len(batch), bool)
    for word, own in batch.of_words():
        if len(own):
            needed[own] = spared.left(some.mine, word, batch.part[own])
            spared.fit(some.mine, word, batch.part[own[fits[own]]])
    return needed


def _take(batch: Batch, times: Times, found: Scan, limits: Limits) -> None:
    """Take the best plans of a batch, and its best without each technique, into what was found."""
    time, peak = times.step_s, times.peak_bytes
    fits: Mask = peak <= found.capacity_bytes
    found.searched += len(batch)
    found.feasible += int(fits.sum())
    found.rejected[UNFIT] += int((~fits).sum())
    if not fits.any():
        least = int(peak.argmin())
        if found.nearest is None or peak[least] < found.nearest.peak_bytes:
            found.nearest = Candidate(batch.at(least), float(time[least]), float(peak[least]))
        return
    timed = np.where(fits, time, np.inf)

    @cache
    def candidate(i: int) -> Candidate:
        return Candidate(batch.at(i), float(time[i]), float(peak[i]))

    found.shortlist.take(timed, candidate)
    for technique in limits.techniques:
        found.without[technique].take(np.where(batch.without(technique), timed, np.inf), candidate)
    if limits.slack is not None:
        bar = max(found.best[0].step_time_s * (1 + limits.slack), found.shortlist.bar)
        kinds = np.broadcast_to(limits.kind(batch.strategy), time.shape)
        for kind, least in fastest_of_each(kinds, np.where(timed <= bar, timed, np.inf)):
            if kind not in found.of_kind or timed[least] < found.of_kind[kind].step_time_s:
                found.of_kind[kind] = candidate(least)
    if limits.keep is not None:
        _keep(batch, Times(timed, peak), found, limits.keep)


def _keep(batch: Batch, times: Times, found: Scan, keep: Keep) -> None:
    """Take all that is within what is to be kept into the pool."""
    if not keep.wanted(found):
        found.pool.clear()
        return
    within = times.step_s <= keep.bar_s
    for word, own in batch.of_words():
        kept = own[within[own]]
        if len(kept):
            strategy = replace(batch.strategy.take(kept), recompute=word)
            found.pool.append((strategy, Times(times.step_s[kept], times.peak_bytes[kept])))
