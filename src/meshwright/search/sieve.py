"""Rows of a round that may be fast enough and light enough under each recompute word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.search.bounds import Request, of_rows
from meshwright.search.families import Chosen, Family, FloatArray, that_may_fit
from meshwright.search.found import Scan
from meshwright.search.limits import NO_MEMORY, NO_TIME, Limits, hopeless
from meshwright.search.priced import Priced, Thresholds, priced
from meshwright.search.space import IntArray, Mask, Space

Some = tuple[Family, list[Chosen]]


@dataclass(frozen=True, slots=True)
class Open:
    """Strategies under a ZeRO and an offload word that may be fast and light enough: for each recompute word
    places among the rows of `mine`, and the bytes that the fullest rank of each holds at least. `quick` [n]
    says which are fast enough under some word."""

    one: Priced
    mine: Chosen
    by_word: dict[str, tuple[IntArray, FloatArray]]
    quick: Mask


def sieved(
    request: Request,
    space: Space,
    families: Sequence[Family],
    recomputes: Sequence[str],
    found: Scan,
    limits: Limits,
) -> list[Open]:
    """What of some families may be fast and light enough under some recompute words; counts the rest."""
    able = [(one, list(that_may_fit(request, space, one, found, limits))) for one in families]
    able = [_met(one, chosen) for one, chosen in able if chosen]
    left = []
    for one in priced(request, space, able, recomputes):
        bars = Thresholds(one, found, limits)
        left += [_passing(one, mine, recomputes, bars, found) for mine in one.chosen]
    return left


def _passing(one: Priced, mine: Chosen, recomputes: Sequence[str], bars: Thresholds, found: Scan) -> Open:
    """What of `mine` may be fast and light enough under each recompute word; counts the rest."""
    states, quick, by_word = one.states(mine), np.zeros(len(mine.rows), bool), {}
    for word in recomputes:
        limit, saved = bars.of(mine, plain=word == "none"), one.saved(word)
        able = (one.floor(word) <= limit).take(mine.rows)
        fast = np.flatnonzero(able)
        kept = of_rows(saved, mine.rows[fast]) if isinstance(saved, np.ndarray) else saved
        least = states.at(fast).least(kept)
        light = ~hopeless(found, least)
        found.bounded[NO_TIME] += len(able) - len(fast)
        found.bounded[NO_MEMORY] += len(fast) - int(light.sum())
        by_word[word] = fast[light], least[light]
        quick |= able
    return Open(one, mine, by_word, quick)


def _met(family: Family, chosen: list[Chosen]) -> Some:
    """The rows of a family that some words want, and where they stand among these."""
    kept = np.zeros(len(family.rows), bool)
    for mine in chosen:
        kept[mine.rows] = True
    if kept.all():
        return family, chosen
    place = np.cumsum(kept) - 1
    return family.at(np.flatnonzero(kept)), [replace(mine, rows=place[mine.rows]) for mine in chosen]
