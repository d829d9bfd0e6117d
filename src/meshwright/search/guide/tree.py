"""A decision tree that is fitted to losses, not to classes: a wrong answer that costs nothing is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
APART = 1.1  # cases on both sides of a threshold differ by more, or it would tell them apart by chance


@dataclass(frozen=True, slots=True)
class Leaf:
    """An answer (a column of the losses) and how many cases came to it."""

    answer: int
    cases: int


@dataclass(frozen=True, slots=True)
class Split:
    """A question: at most `threshold` of a feature goes `below`, more goes `above`."""

    feature: int
    threshold: float
    below: Tree
    above: Tree


Tree = Leaf | Split


def fit(features: Array, losses: Array, *, depth: int, least: int, gain: float) -> Tree:
    """The tree of at most `depth` questions on a path whose answers lose least, found greedily.

    `features` [n, f], `losses` [n, k] of each answer in each case. No side of a split has fewer than `least`
    cases, and a split takes at least `gain` off the summed loss. Of answers that lose the same the first is
    taken, so put the plainest first. Thresholds are the roundest numbers between two cases.
    """
    best = losses.sum(axis=0)
    leaf = Leaf(int(best.argmin()), len(losses))
    if depth == 0 or len(losses) < 2 * least:
        return leaf
    found = _split(features, losses, least)
    if found is None:
        return leaf
    feature, threshold, _ = found
    low = features[:, feature] <= threshold
    rest = {"depth": depth - 1, "least": least, "gain": gain}
    below = fit(features[low], losses[low], **rest)  # type: ignore[arg-type]
    above = fit(features[~low], losses[~low], **rest)  # type: ignore[arg-type]
    split = Split(feature, threshold, below, above)
    saved = float(best.min()) - _lost(split, features, losses)
    leaves = sum(1 for _ in answers(split)) - 1
    return split if saved >= gain * leaves else leaf


def _split(features: Array, losses: Array, least: int) -> tuple[int, float, float] | None:
    """The question (feature, threshold, summed loss) after which two answers lose least."""
    found: tuple[int, float, float] | None = None
    for feature in range(features.shape[1]):
        order = np.argsort(features[:, feature], kind="stable")
        values, sums = features[order, feature], np.cumsum(losses[order], axis=0)
        at = np.flatnonzero(APART * values[:-1] < values[1:]) + 1  # cases on the lower side
        at = at[(at >= least) & (len(values) - at >= least)]
        if not len(at):
            continue
        lost = sums[at - 1].min(axis=1) + (sums[-1] - sums[at - 1]).min(axis=1)
        i = int(lost.argmin())
        if found is None or lost[i] < found[2] - 1e-12:
            found = (feature, roundest(values[at[i] - 1], values[at[i]]), float(lost[i]))
    return found


def _lost(tree: Tree, features: Array, losses: Array) -> float:
    rows = np.arange(len(losses))
    return float(losses[rows, [answer(tree, row) for row in features]].sum())


def roundest(low: float, high: float) -> float:
    """The number in [low, high) with the fewest digits, nearest to the (geometric) middle; 0 where it can be.

    >>> roundest(0.0312, 0.19), roundest(4096, 16384), roundest(0.0, 128.0)
    (0.1, 10000.0, 0.0)
    """
    if low <= 0:
        return low
    middle = (low * high) ** 0.5
    for digits in range(1, 17):
        unit = 10.0 ** (floor(log10(high)) - digits + 1)
        steps = np.arange(np.ceil(low / unit), np.ceil(high / unit)) * unit
        steps = steps[(steps >= low) & (steps < high)]
        if len(steps):
            return float(f"{steps[np.abs(np.log(steps / middle)).argmin()]:.{digits + 1}g}")
    return low


def answer(tree: Tree, row: Sequence[float] | Array) -> int:
    """The answer for one case's features."""
    return path(tree, row)[-1].answer  # type: ignore[union-attr]


def path(tree: Tree, row: Sequence[float] | Array) -> list[Tree]:
    """The nodes from the root to the leaf of one case."""
    nodes = [tree]
    while isinstance(tree, Split):
        tree = tree.below if row[tree.feature] <= tree.threshold else tree.above
        nodes.append(tree)
    return nodes


def answers(tree: Tree) -> Iterator[Leaf]:
    """All leaves, the lower sides first."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from answers(tree.below)
        yield from answers(tree.above)


def depth(tree: Tree) -> int:
    """Questions on the longest path."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.below), depth(tree.above))
