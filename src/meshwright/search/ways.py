"""Degrees that multiply to the chips, each way tried before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from math import log2
from typing import Any

from meshwright.checks.rule import divisors, nearest_divisors

Change = dict[str, Any]
NAMED = 2  # ways that a hint names
MOST_TRIED = 100  # a fault is no reason to search


def ways(
    given: Mapping[str, Any], degrees: Mapping[str, int], chips: int, works: Callable[[Change], bool]
) -> list[Change]:
    """Changes of what was `given` after which the `degrees` (dp, tp, pp, cp; a dp that was not given follows)
    multiply to the chips: the first NAMED that work."""
    found: list[Change] = []
    for change in _changes(given, degrees, chips):
        if change and change not in found and works(change):
            found.append(change)
            if len(found) == NAMED:
                break
    return found


def spelled(changes: list[Change]) -> str:
    """Changes as a hint.

    >>> spelled([{"dp": 8}, {"tp": 4, "dp": 2}])
    'try dp 8, or tp 4 with dp 2'
    """
    each = (", ".join(f"{name} {value}" for name, value in change.items()) for change in changes)
    return f"try {', or '.join(text.replace(', ', ' with ', 1) for text in each)}"


def _changes(given: Mapping[str, Any], degrees: Mapping[str, int], chips: int) -> Iterator[Change]:
    """One degree, dp first; then one or several and dp."""
    fixed = [name for name in ("pp", "tp", "cp") if name in given]
    inner = _inner(degrees)
    for name in ("dp", *fixed) if "dp" in given else ():
        others = inner * degrees["dp"] // degrees[name]
        if chips % others == 0:
            yield _followed({name: chips // others}, given, degrees, chips)
    single = [
        {name: value}
        for name in fixed
        if chips % (inner // degrees[name]) == 0
        for value in nearest_divisors(chips * degrees[name] // inner, degrees[name])
    ]
    near = ([(name, d) for d in divisors(chips)] for name in fixed)
    several = sorted(map(dict, product(*near)), key=lambda change: _distance(change, degrees))
    whole = (change for change in [*single, *several] if chips % _inner({**degrees, **change}) == 0)
    for change in islice(whole, MOST_TRIED):
        yield _followed(change, given, degrees, chips)


def _inner(degrees: Mapping[str, int]) -> int:
    """Chips of one replica."""
    return degrees["tp"] * degrees["pp"] * degrees["cp"]


def _distance(change: Change, degrees: Mapping[str, int]) -> float:
    """How far a change goes: doublings, all degrees together."""
    return sum(abs(log2(value / degrees[name])) for name, value in change.items())


def _followed(change: Change, given: Mapping[str, Any], degrees: Mapping[str, int], chips: int) -> Change:
    """The change without what it leaves as it is, with a dp and a sharding group that were given as they
    must follow."""
    after = {**degrees, **change}
    dp = chips // _inner(after)
    changed = {name: value for name, value in change.items() if value != degrees[name]}
    if "dp" in given and dp != degrees["dp"]:
        changed["dp"] = dp
    group, ranks = given.get("zero_group"), dp * after["cp"]
    if isinstance(group, int) and ranks % group:
        changed["zero_group"] = nearest_divisors(ranks, group)[0]
    return changed
