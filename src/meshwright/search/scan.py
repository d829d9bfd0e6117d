"""One pass over a space: legality and bounds on its axes, cost of what is left; only the best survive.

First come all strategies with their axes in the first order, then what may be faster in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshwright.cost.flops import model_flops
from meshwright.search.begun import Begun, in_orders
from meshwright.search.bounds import Request, held
from meshwright.search.fork import both, spare_processor
from meshwright.search.found import Keep, Kind, Scan
from meshwright.search.limits import Limits
from meshwright.search.necessity import TECHNIQUES
from meshwright.search.orders import Orders, other_orders
from meshwright.search.ranking import Shortlist, axes_used
from meshwright.search.space import Space, Words
from meshwright.search.stocks import stocks

MOST_NEAR = 2_000  # plans that are kept because they are near the best, or near the best without a technique
Progress = Callable[[float, float], None]


def scan(
    request: Request,
    space: Space,
    *,
    top: int,
    techniques: tuple[str, ...] = TECHNIQUES,
    slack: float | None = None,
    kind: Kind = axes_used,
    keep: Keep | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Rank every legal strategy of `space`. Cuts only what provably changes neither the `top` plans, nor
    the best plan without each of `techniques`, nor the best of each `kind` that is slower by no more than
    `slack`, nor (while nothing fits) the nearest miss, nor what is to be kept (`Scan.pool`)."""
    (found,) = scans(
        [(request, top, techniques)], space, slack=slack, kind=kind, keep=keep, progress=progress
    )
    return found


def _flops(request: Request, space: Space) -> float:
    """Model FLOPs of a step, the fewest of all fine-tuning words."""
    each = [model_flops(request.model, request.work.attended_len, word) for word in space.words["finetune"]]
    return min(float(one) for one in each) * float(request.work.tokens_per_step)


def scans(
    asked: Sequence[tuple[Request, int, tuple[str, ...]]],
    space: Space,
    *,
    slack: float | None = None,
    kind: Kind = axes_used,
    keep: Keep | None = None,
    band: float = 0.0,
    apart: bool = False,
    progress: Progress | None = None,
) -> list[Scan]:
    """`scan` of several (request, top, techniques) that differ in precision alone, so that what is legal
    for the first is so for all. Beyond the plans that are asked for, those are kept that take longer by no
    more than the share `band`: MOST_NEAR of the best, and as many of those without each technique.
    `apart`: the words of layers are searched in two halves, in two processes where there can be two."""
    assert not (apart and keep), "a half that keeps nothing more cannot tell the other to do so"
    limits = [
        Limits(held(r.model), _flops(r, space), techniques, slack, kind, keep) for r, _, techniques in asked
    ]
    found = [_nothing(*one, band=band) for one in asked]
    parts = [_Asked(request, into, limit) for (request, *_), into, limit in zip(asked, found, limits)]
    _pass(parts, space, progress, apart=apart)
    for i, one in enumerate(found):
        if not one.feasible:  # that is known now: what cannot fit may still be the nearest miss
            found[i] = replace(_nothing(*asked[i], band=band), nearest=one.nearest, seeks_nearest=True)
            _pass([_Asked(asked[i][0], found[i], limits[i])], space, progress, apart=apart)
    for one in found:
        one.rejected, one.bounded = +one.rejected, +one.bounded
    return found


def _nothing(request: Request, top: int, techniques: tuple[str, ...], *, band: float) -> Scan:
    """What is found before the first strategy is looked at."""
    most, without = (MOST_NEAR, MOST_NEAR) if band else (top, 1)
    return Scan(
        Shortlist(top, most, band),
        {technique: Shortlist(1, without, band) for technique in techniques},
        capacity_bytes=request.cluster.usable_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, what was found for it, and what must be kept."""

    request: Request
    found: Scan
    limits: Limits


def _pass(asked: Sequence[_Asked], space: Space, progress: Progress | None, *, apart: bool) -> None:
    """Go through the space once, for several requests that the same is legal for.

    Halves begin with what one round of the first words finds, and share nothing more, so that it does not
    matter whether they run at once.
    """
    every = list(space.layer_words())
    orders = other_orders(asked[0].request, space) if space.other_orders else None
    begun = _begun(asked, space, every[0], orders)
    for one, mine in zip(asked, begun):
        mine.once(one.found)
    middle = (len(every) + 1) // 2 if apart else len(every)
    branches = [replace(one, found=one.found.branched()) for one in asked]
    two = apart and spare_processor()

    def first() -> None:
        _half(asked, space, every[:middle], orders, begun, _share(progress, 0.0, 1.0 if two else 0.5))

    def second() -> list[Scan]:
        told = None if two else _share(progress, 0.5, 1.0)  # one process tells
        _half(branches, space, every[middle:], orders, None, told)
        return [one.found for one in branches]

    if middle == len(every):
        _half(asked, space, every, orders, begun, progress)
        return
    found: list[Scan] = both(first, second, apart=two)[1]
    for one, branch in zip(asked, found):
        one.found.merge(branch)


def _share(progress: Progress | None, low: float, high: float) -> Progress | None:
    """Progress through a part of the whole."""
    if progress is None:
        return None
    return lambda done, total: progress(low + (high - low) * done / total, 1.0)


def _begun(asked: Sequence[_Asked], space: Space, words: Words, orders: Orders | None) -> list[Begun]:
    """What some words of layers allow each request; empty where they allow nothing."""
    first = asked[0]
    legal = list(stocks(first.request, space, words, first.found, orders))
    return [Begun(one.request, space, legal, one.limits) for one in asked] if legal else []


def _half(
    asked: Sequence[_Asked],
    space: Space,
    every: Sequence[Words],
    orders: Orders | None,
    begun: list[Begun] | None,
    progress: Progress | None,
) -> None:
    """All strategies under some words of layers, of which the first are begun where they are given."""
    stages, later = len(every) * (1 if orders is None else 2), []
    for i, words in enumerate(every):
        for one, mine in zip(asked, _begun(asked, space, words, orders) if begun is None else begun):
            mine.rest(one.found)
            if orders is not None:
                later.append((one, mine.in_others(one.found, orders)))
        begun = None
        if progress is not None:
            progress(i + 1, stages)
    # Other orders come last, when there is most to beat: few strategies are as fast in another.
    for i, (one, left) in enumerate(later):
        assert orders is not None
        in_orders(one.request, space, left, one.found, one.limits, orders)
        if progress is not None:
            progress(len(every) * (1 + (i + 1) / len(later)), stages)
