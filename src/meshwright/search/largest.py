"""The largest length, microbatch, depth or batch that fits, over every strategy that is left free.

Memory of one strategy only grows with each of these, so a strategy that fits at a value fits below it. Few
searches are needed: the roomiest strategy seen (the nearest miss of a value that does not fit) is
followed down to where it fits, and a whole search just above either ends the question or finds a roomier one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, get_args

from meshwright import checks
from meshwright.checks.rule import divisors
from meshwright.cost.step import evaluate
from meshwright.errors import Diagnostic, InputError
from meshwright.search import why
from meshwright.search.bounds import Request
from meshwright.search.found import Scan
from meshwright.search.given import read_choices
from meshwright.search.plan import Ranked, ranked_plan
from meshwright.search.ranking import Candidate
from meshwright.search.rerank import searches
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.strategy.records import AXES, Strategy

Quantity = Literal["seq_len", "microbatch_size", "n_layers", "global_batch"]
QUANTITIES: tuple[str, ...] = get_args(Quantity)
Bound = Literal["memory", "rules", "range"]

STEPS = 64  # values between one power of two and the next
LEAST_LENGTH = 1024  # tokens; also the step of short lengths
MOST_LENGTH = 2**27
MOST_LAYERS = 16_384
# The largest batch of a published run, tokens a step (MiniMax-01, arXiv:2501.08313, January 2025: 16 M,
# doubled to 128 M on the way). Where memory does not bind, a larger one is no question of fitting.
MOST_BATCH_TOKENS = 128 * 2**20
# Where something fits, it mostly fits with these; what fits in one order of the axes fits in all.
ROOMY = {"recompute": "full", "vpp": 1, "placement": AXES}


@dataclass(frozen=True, slots=True)
class Tried:
    """A whole search at one value: its fastest plan that fits, or the nearest miss (None: no legal one)."""

    value: int
    fits: bool
    ranked: Ranked | None
    request: Request


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest `value` that fits (None: none does) and the fastest plan there.

    `bound` says what stops it: memory, rules (no legal strategy above) or range (`up_to` fits). `above` is
    the next value that was tried, with its nearest miss, and `needs` what that lacks.
    """

    quantity: Quantity
    value: int | None
    best: Ranked | None
    bound: Bound
    above: Tried | None
    needs: str
    tried: tuple[Tried, ...]
    searched: int
    seconds: float


@dataclass(slots=True)
class _Question:
    """What is asked, as a request for each value, and what has been found out so far."""

    quantity: Quantity
    request: Request
    fixed: dict[str, Any]
    values: Sequence[int]
    tokens_per_step: int | None
    progress: Callable[[float], None] | None
    scans: dict[int, Scan] = field(default_factory=dict)
    roomy: list[Strategy] = field(default_factory=list)
    searches: int = 0
    searched: int = 0

    def at(self, i: int) -> Request:
        """The request with value number `i`."""
        r, value = self.request, self.values[i]
        if self.quantity == "n_layers":
            return replace(r, model=r.model.with_layers(value))
        if self.quantity == "global_batch":
            return replace(r, work=replace(r.work, global_batch_size=value))
        if self.quantity == "microbatch_size":
            return r
        batch = r.work.global_batch_size
        if self.tokens_per_step is not None:
            batch = self.tokens_per_step // value
        return replace(r, work=replace(r.work, seq_len=value, global_batch_size=batch))

    def scan(self, i: int) -> Scan:
        """A whole search at value number `i`."""
        if i not in self.scans:
            self.scans[i] = self._search(i, self.fixed, whole=True)
        return self.scans[i]

    def glance(self, i: int) -> bool:
        """Whether a search of the words that take least memory finds something that fits."""
        few = {name: word for name, word in ROOMY.items() if name not in self.fixed}
        return bool(few) and i not in self.scans and bool(self._search(i, self.fixed | few).best)

    def _search(self, i: int, fixed: dict[str, Any], *, whole: bool = False) -> Scan:
        request = self.at(i)
        if self.quantity == "microbatch_size":
            fixed = fixed | {"microbatch_size": self.values[i]}
        space = build(request.model, request.cluster, request.work, fixed, request.profile)
        found = searches([(request, 1)], space)[0] if whole else scan(request, space, top=1, techniques=())
        seen = found.best[0] if found.best else found.nearest
        if seen is not None and seen.strategy not in self.roomy:
            self.roomy.append(seen.strategy)
        self.searches += 1
        self.searched += found.searched
        if self.progress is not None:
            self.progress(self.searches)
        return found

    def holds(self, strategy: Strategy, i: int) -> bool:
        """Whether this one strategy is legal and fits at value number `i`."""
        r = self.at(i)
        if self.quantity == "microbatch_size":
            strategy = replace(strategy, microbatch_size=self.values[i])
        found = checks.run(r.model, r.cluster, r.work, strategy, profile=r.profile)
        if any(d.severity == "error" for d in found):
            return False
        return bool(evaluate(r.model, r.cluster, r.work, strategy, r.profile).fits)

    def likely(self, i: int) -> bool:
        """Whether a strategy already seen or one of a glance fits at value number `i`; a no is no proof."""
        return any(self.holds(s, i) for s in reversed(self.roomy)) or self.glance(i)

    def fits(self, i: int) -> bool:
        """Whether anything fits at value number `i`: a strategy already seen, else by a whole search."""
        return any(self.holds(s, i) for s in reversed(self.roomy)) or bool(self.scan(i).best)

    def climb(self, low: int, high: int) -> int:
        """The last value number below `high` that a strategy already seen fits at; `low` at the least."""
        for strategy in self.roomy:
            bottom, top = low, high  # bottom is known to fit, top is not asked
            while top - bottom > 1:
                middle = (bottom + top) // 2
                bottom, top = (middle, top) if self.holds(strategy, middle) else (bottom, middle)
            low = bottom
        return low


def largest(
    quantity: Quantity,
    request: Request,
    fixed: Mapping[str, Any],
    *,
    up_to: int | None = None,
    tokens_per_step: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Largest:
    """The largest `quantity` that fits over every strategy field that `fixed` leaves free.

    Lengths (and batches) are tried in steps of a 64th of the power of two below, no finer than 1,024 tokens
    (1 sequence), depths one by one, microbatches among the divisors of the batch. With `tokens_per_step` a
    longer sequence makes a smaller batch, and lengths that divide it are tried. `progress` is called with the
    number of searches done. Raises InputError as a search does.
    """
    began = perf_counter()
    values = _values(quantity, request, fixed, up_to, tokens_per_step)
    asked = _Question(quantity, request, dict(fixed), values, tokens_per_step, progress)
    low, high = _largest(asked, _start(quantity, request, values))
    for i in (low, high):
        if i is not None:
            asked.scan(i)
    return _told(asked, low, high, perf_counter() - began)


def _largest(asked: _Question, start: int) -> tuple[int | None, int | None]:
    """The last value number that fits and the next one, proved by a whole search not to (None: no such)."""
    low = _some(asked, start)
    if low is None:
        return None, 0
    high = _gallop(asked, low)
    step = 1
    while high is not None:
        low = asked.climb(low, high)
        if high - low == 1 and high in asked.scans and not asked.scans[high].best:
            return low, high
        above = min(low + step, high)
        if not asked.fits(above):
            high, step = above, 1
        elif above < high:
            low, step = above, 2 * step
        else:
            low, high, step = above, _gallop(asked, above), 1
    return len(asked.values) - 1, None


def _some(asked: _Question, start: int) -> int | None:
    """A value number that fits, `start` or below; None where not even the first does."""
    low = start
    while not asked.likely(low):
        if low == 0:
            return 0 if asked.fits(0) else _first_legal(asked)
        low = min(bisect_left(asked.values, asked.values[low] // 2), low - 1)
    return low


def _first_legal(asked: _Question) -> int | None:
    """Where the first value breaks a rule whatever the strategy, the first of its doublings that fits."""
    above = 0
    while asked.scan(0).searched == 0 and above < len(asked.values) - 1:
        above = min(max(bisect_left(asked.values, 2 * asked.values[above]), above + 1), len(asked.values) - 1)
        if asked.likely(above):
            return above
    return None


def _gallop(asked: _Question, low: int) -> int | None:
    """From a value number that fits, in doublings, to one where a glance finds nothing; None: all fit."""
    values, last = asked.values, len(asked.values) - 1
    while low < last:
        above = min(max(bisect_left(values, 2 * values[low]), low + 1), last)
        if not asked.likely(above):
            return above
        low = above
    return None


def _told(asked: _Question, low: int | None, high: int | None, seconds: float) -> Largest:
    tried = {i: _tried(asked, i, found) for i, found in sorted(asked.scans.items())}
    above = None if high is None else tried[high]
    needs = ""
    if above is not None:
        needs = (
            why.needs(above.ranked.evaluation, asked.request.cluster.n_chips)
            if above.ranked is not None
            else "no strategy is legal there: every one breaks a rule"
        )
    bound: Bound = "range" if above is None else "memory" if above.ranked is not None else "rules"
    return Largest(
        quantity=asked.quantity,
        value=None if low is None else asked.values[low],
        best=None if low is None else tried[low].ranked,
        bound=bound,
        above=above,
        needs=needs,
        tried=tuple(tried.values()),
        searched=asked.searched,
        seconds=seconds,
    )


def _tried(asked: _Question, i: int, found: Scan) -> Tried:
    seen: Candidate | None = found.best[0] if found.best else found.nearest
    r, ranked = asked.at(i), None
    if seen is not None:
        ranked = ranked_plan(r, seen)
    return Tried(asked.values[i], bool(found.best), ranked, r)


def _start(quantity: Quantity, request: Request, values: Sequence[int]) -> int:
    """Where to begin: the model's own depth, 8k tokens, the smallest batch or microbatch."""
    first = {"n_layers": request.model.n_layers, "seq_len": 8192}.get(quantity, values[0])
    return min(bisect_left(values, first), len(values) - 1)


def _values(
    quantity: Quantity,
    request: Request,
    fixed: Mapping[str, Any],
    up_to: int | None,
    tokens_per_step: int | None,
) -> Sequence[int]:
    """The values that are tried, rising; `up_to` is one of them where the quantity may be anything."""
    work = request.work
    if quantity == "n_layers":
        return range(1, (up_to or MOST_LAYERS) + 1)
    if quantity == "microbatch_size":
        batch = int(work.global_batch_size)
        return [d for d in divisors(batch) if d <= (up_to or batch)]
    if quantity == "global_batch":
        most = up_to or max(MOST_BATCH_TOKENS // int(work.seq_len), 1)
        unit = _together(fixed)
        return _lattice(unit, max(most // unit, 1) * unit)
    found = _lattice(LEAST_LENGTH, up_to or MOST_LENGTH)
    if tokens_per_step is None:
        return found
    whole = [length for length in found if tokens_per_step % length == 0]
    if not whole:
        said = f"no length from {LEAST_LENGTH:,} to {found[-1]:,} tokens divides {tokens_per_step:,} a step"
        raise InputError(
            Diagnostic("MW903", said, where="--tokens-per-step", hint="give --global-batch SEQUENCES")
        )
    return whole


def _together(fixed: Mapping[str, Any]) -> int:
    """Sequences that all replicas take at once, as far as they are fixed: dp x microbatch_size."""
    together = 1
    for name in ("dp", "microbatch_size"):
        values = read_choices(fixed).get(name, ())
        if len(values) == 1 and isinstance(values[0], int):  # a list or a range fixes none
            together *= values[0]
    return together


def _lattice(unit: int, most: int) -> list[int]:
    """Multiples of `unit` up to `most`, above 2 STEPS of them ever coarser; `most` itself is the last.

    >>> _lattice(1, 300)[-3:], len(_lattice(1, 256))
    ([292, 296, 300], 192)
    """
    found, step, value = [], unit, unit
    while value < most:
        found.append(value)
        if value >= 2 * STEPS * step:
            step *= 2
        value += step
    return [*found, most]
