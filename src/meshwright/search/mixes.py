"""The best plan of every mix of axes: which degrees come close to the best, and how close."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.search.bounds import Request
from meshwright.search.ranking import Candidate
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.search.words import recipes
from meshwright.strategy.records import AXES, Strategy

_BITS = 15  # a degree is below 2^15; four of them fill a whole number


@dataclass(frozen=True, slots=True, order=True)
class Mix:
    """Degrees that say how a model is split; dp is what they leave of the chips."""

    tp: int
    pp: int
    cp: int
    ep: int

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp} cp{self.cp} ep{self.ep}"

    @classmethod
    def of(cls, strategy: Strategy) -> Mix:
        """The mix of a strategy of plain numbers."""
        return cls(*(int(getattr(strategy, name)) for name in cls.__slots__))

    def fields(self) -> dict[str, int]:
        """The strategy fields that it fixes."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Mixes:
    """The best plan, and the loss of the best plan of every mix that loses at most what was asked for: step
    time over the best one's, less 1. `best` is None where nothing fits."""

    best: Candidate | None
    losses: dict[Mix, float]


def mixes(request: Request, slack: float) -> Mixes:
    """A search in recipes' words that keeps, beside the best plan, the best one of every mix within `slack`
    of it."""
    space = build(request.model, request.cluster, request.work, recipe_words(request), request.profile)
    found = scan(request, space, top=1, techniques=(), slack=slack, kind=_kind)
    if not found.best:
        return Mixes(None, {})
    best = found.best[0]
    losses = {Mix.of(one.strategy): one.step_time_s / best.step_time_s - 1 for one in found.of_kind.values()}
    return Mixes(best, {mix: loss for mix, loss in sorted(losses.items()) if loss <= slack})


def recipe_words(request: Request) -> dict[str, tuple[str, ...]]:
    """What the framework's recipes recompute, nothing on the host, the usual order of axes: a rule of thumb
    is for plain runs."""
    return {"recompute": recipes(request.model, request.profile), "offload": ("none",), "placement": AXES}


def _kind(strategy: Strategy) -> Any:
    """A number of its own for every mix; broadcasts over degrees."""
    number: Any = np.int64(0)
    for name in Mix.__slots__:
        number = (number << _BITS) + np.asarray(getattr(strategy, name), np.int64)
    return number
