"""What saves memory and costs time is tried where memory is short: rows that fit without it need no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshwright.search.bounds import Request, offload_is_slower
from meshwright.search.families import Chosen
from meshwright.search.space import IntArray, Mask
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.recompute import Recompute
from meshwright.strategy.recompute import parse as parse_recompute
from meshwright.strategy.records import Strategy

NO_NEED = "fits with less recomputed or offloaded"


@dataclass(slots=True)
class Spared:
    """Which rows of a round fit under words that recompute and offload little: the same with more recomputed
    or offloaded is slower, and room is all that it would bring."""

    request: Request
    known: dict[tuple[Any, ...], list[tuple[Recompute, str, Mask]]] = field(default_factory=dict)
    _slower: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def fit(self, mine: Chosen, recompute: str, rows: IntArray) -> None:
        """Take note that some rows of `mine` fit."""
        fitting = np.zeros(mine.many, bool)
        fitting[mine.places[rows]] = True
        known = self.known.setdefault(self._key(mine), [])
        known.append((parse_recompute(recompute), mine.words.offload, fitting))

    def left(self, mine: Chosen, recompute: str, rows: IntArray) -> Mask:
        """Which of some rows of `mine` do not fit under any words that recompute and offload no more, [n].

        Where activations go to the host, what is recomputed does not go there: more of it may be faster.
        """
        found, places = np.ones(len(rows), bool), mine.places[rows]
        word, own = parse_recompute(recompute), mine.words.offload
        alike = None if parse_offload(own).any else own
        for less, offload, fitting in self.known.get(self._key(mine), ()):
            if word.redoes(less) and (offload == alike or (offload == "none" and self._is_slower(mine))):
                found &= ~fitting[places]
        return found

    def _is_slower(self, mine: Chosen) -> bool:
        """Whether states on the host make a step longer."""
        key = mine.words.zero, mine.words.constant
        if key not in self._slower:
            strategy = Strategy(dp=1, zero=mine.words.zero, **dict(mine.words.constant))
            self._slower[key] = offload_is_slower(self.request, strategy)
        return self._slower[key]

    def _key(self, mine: Chosen) -> tuple[Any, ...]:
        return mine.words.schedule, mine.words.zero
