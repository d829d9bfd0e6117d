"""The neighbours of a strategy: one field changed, or one degree traded for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import permutations
from typing import Any, Literal

from meshwright.checks.layout import SINGLE_CHUNK, TWO_CHUNKS
from meshwright.checks.shapes import moe
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.schedule import names as schedules
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.profiles.records import Framework
from meshwright.search import shift
from meshwright.search.bounds import Request
from meshwright.search.derive import complete, group_size
from meshwright.search.legal import REASONS
from meshwright.search.plan import Ranked, ranked_plan
from meshwright.search.ranking import SAME
from meshwright.search.rerank import searches
from meshwright.search.space import build
from meshwright.simulate.told import as_run
from meshwright.strategy import targets
from meshwright.strategy.records import Strategy
from meshwright.strategy.targets import Target

TRADED = ("dp", "tp", "pp", "cp")  # their product is the chips: what one gains another gives
Change = dict[str, Any]
Finder = Literal["search", "neighbour", "base"]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One step away: the fields that changed with their old and new values, and what it does.

    `gain` is the share of throughput won (0.1: 10 % more tokens/s); `why` says which terms move; `lacks` is
    what the framework cannot be told of it and can of the strategy that it is a neighbour of.
    """

    changes: dict[str, tuple[Any, Any]]
    strategy: Strategy
    evaluation: Evaluation
    gain: float
    why: str
    lacks: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether its worst rank fits."""
        return bool(self.evaluation.fits)


@dataclass(frozen=True, slots=True)
class Improvement:
    """All legal neighbours, the most helpful first, and how many a rule forbids, by reason. `beyond` are
    those that `framework` cannot be told."""

    neighbours: tuple[Neighbour, ...]
    rejected: dict[str, int]
    framework: str
    beyond: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest plan that is known, what found it, and the step of a whole search's best, which evaluated
    `searched` strategies; None where nothing fits."""

    plan: Ranked | None
    found_by: Finder
    search_s: float | None
    searched: int


def improve(
    request: Request,
    base: Strategy,
    evaluation: Evaluation,
    *,
    target: Target | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Improvement:
    """Every legal strategy one step away from a complete, legal `base` whose `evaluation` is known.

    Those that fit come first, the fastest before the others; what does not fit follows, the smallest first.
    Neighbours that change neither time nor memory are left out. What a `target` cannot be told, or without
    one the profile's framework, stands apart. `progress` is called with (done, total).
    """
    r = request
    rejected: Counter[str] = Counter()
    found: dict[Strategy, Evaluation] = {}
    closed = evaluation.closed_form or evaluation
    changes = list(steps(request, base))
    for done, change in enumerate(changes):
        try:
            strategy = _taken(request, base, change)
        except InputError as error:
            code = error.diagnostics[0].code
            rejected[REASONS.get(code, code)] += 1
            continue
        if strategy != base and strategy not in found:
            other = evaluate(r.model, r.cluster, r.work, strategy, r.profile)
            if not _alike(closed, other):
                found[strategy] = other
        if progress is not None:
            progress(done + 1, len(changes))
    lacks = _lacks(r.profile.framework, target)
    near = [
        _neighbour(base, evaluation, strategy, told, lacks)
        for strategy, told in zip(found, as_run(r.model, r.cluster, r.work, found, r.profile))
    ]
    ordered = sorted(
        near,
        key=lambda n: (not n.fits, -n.gain if n.fits else float(n.evaluation.peak_bytes), len(n.changes)),
    )
    return Improvement(
        tuple(n for n in ordered if not n.lacks),
        dict(rejected.most_common()),
        r.profile.framework.name if target is None else target.name,
        tuple(n for n in ordered if n.lacks),
    )


def _lacks(framework: Framework, target: Target | None) -> Callable[[Strategy], tuple[str, ...]]:
    """What a framework cannot be told of a strategy; without a file of a target its schedules are known."""
    if target is None and framework.name in targets.names():
        target = targets.load(framework.name)
    if target is not None:
        return target.lacks
    return lambda s: () if s.pp == 1 or s.schedule in framework.schedules else (f"schedule {s.schedule}",)


def steps(request: Request, base: Strategy) -> Iterator[Change]:
    """What is changed in each neighbour; some are illegal, and some lead to the same strategy."""
    yield from _degree_steps(base, bool(moe(request.model)))
    yield from _chunk_steps(base)
    yield from _word_steps(request, base)


def _degree_steps(s: Strategy, has_experts: bool) -> Iterator[Change]:
    """A degree times two, or its smallest prime where that is larger, at the cost of another."""
    for gains, gives in permutations(TRADED, 2):
        factor = _prime(int(getattr(s, gives)))
        if factor > 1:
            yield {gains: getattr(s, gains) * factor, gives: getattr(s, gives) // factor}
    for gains, gives in permutations(("ep", "etp"), 2) if has_experts else ():
        yield {gains: getattr(s, gains) * 2}
        factor = _prime(int(getattr(s, gains)))
        if factor > 1:
            yield {gains: getattr(s, gains) // factor}
            yield {gains: getattr(s, gains) // factor, gives: getattr(s, gives) * factor}
    yield {"microbatch_size": s.microbatch_size * 2}
    factor = _prime(int(s.microbatch_size))
    if factor > 1:
        yield {"microbatch_size": s.microbatch_size // factor}


def _chunk_steps(s: Strategy) -> Iterator[Change]:
    """More, fewer or no chunks a rank, with the schedule that runs them; then every other schedule."""
    vpp = int(s.vpp)
    if s.pp == 1:
        return
    for chunks in sorted({1, vpp - 1, vpp + 1, vpp * 2, vpp // 2} - {0, vpp}):
        yield {"vpp": chunks, "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b"}
    for schedule in schedules():
        own = 2 if schedule in TWO_CHUNKS else 1 if schedule in SINGLE_CHUNK else max(vpp, 2)
        if schedule != s.schedule:
            yield {"schedule": schedule, "vpp": own}


def _word_steps(request: Request, s: Strategy) -> Iterator[Change]:
    """Every other word of one field: those that a search tries, and those that any framework has."""
    r = request
    searched = build(r.model, r.cluster, r.work, {}, r.profile).words
    more: dict[str, tuple[Any, ...]] = {
        "recompute": ("none", "full"),
        "zero": (0, 1, 2, 3),
        "zero_group": ("all", "domain", "node"),
        "offload": ("none", "optimizer", "activations"),
        "cp_method": ("ring", "all-to-all"),
    }
    if s.tp > 1:
        more["sp"] = (True, False)
    if moe(r.model) and s.ep > 1:
        more["dispatcher"] = ("all-to-all", "deep-ep", "hybrid-ep", "all-gather")
    for name, words in more.items():
        for word in dict.fromkeys((*searched.get(name, ()), *words)):
            yield {name: word}
    for i in range(len(s.placement) - 1):
        order = list(s.placement)
        order[i], order[i + 1] = order[i + 1], order[i]
        if all(getattr(s, axis) > 1 for axis in order[i : i + 2]):
            yield {"placement": tuple(order)}


def _taken(request: Request, base: Strategy, change: Change) -> Strategy:
    """The complete strategy after a change: what only followed from the old degrees follows the new ones."""
    r = request
    kept: Change = {f.name: getattr(base, f.name) for f in fields(base)}
    if "zero_group" not in change:
        kept["zero_group"] = _group_word(base, request)
    if {"pp", "vpp"} & set(change):
        kept["layers_per_stage"] = None
    values = kept | change
    if values["pp"] == 1 and "schedule" not in change:
        values |= {"vpp": 1, "schedule": "1f1b"}
    if values["tp"] == 1:
        values["sp"] = False
    elif base.tp == 1 and "sp" not in change:
        del values["sp"]  # the framework's habit
    return complete(r.model, r.cluster, r.work, values, r.profile).strategy


def _group_word(base: Strategy, request: Request) -> int | str:
    """The sharding group as a word where it is one, so that it follows the degrees."""
    for word in ("all", "domain"):
        if base.zero_group == group_size(word, base.dp, base.cp, base.tp, request.cluster):
            return word
    return int(base.zero_group)


def _neighbour(
    base: Strategy,
    first: Evaluation,
    strategy: Strategy,
    second: Evaluation,
    lacks: Callable[[Strategy], tuple[str, ...]],
) -> Neighbour:
    known = lacks(base)
    return Neighbour(
        changes=changed(base, strategy),
        strategy=strategy,
        evaluation=second,
        gain=float(first.step_time_s) / float(second.step_time_s) - 1.0,
        why=shift.sentence(first, second),
        lacks=tuple(word for word in lacks(strategy) if word not in known),
    )


# Words that mean nothing where a degree is 1.
IDLE = {
    "schedule": "pp",
    "vpp": "pp",
    "layers_per_stage": "pp",
    "cp_method": "cp",
    "sp": "tp",
    "dispatcher": "ep",
}


def changed(base: Strategy, other: Strategy) -> dict[str, tuple[Any, Any]]:
    """Fields in which `other` differs, old and new value; what changes nothing by itself is no change (a
    schedule without a pipeline, a sharding group that follows dp x cp).

    >>> changed(Strategy(dp=8, zero=1, zero_group=8), Strategy(dp=4, tp=2, zero=1, zero_group=4))
    {'dp': (8, 4), 'tp': (1, 2)}
    """
    pairs = {f.name: (getattr(base, f.name), getattr(other, f.name)) for f in fields(base)}
    found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name, axis in IDLE.items():
        if getattr(base, axis) == getattr(other, axis) == 1:
            found.pop(name, None)
    follows = all(s.zero_group == s.dp * s.cp for s in (base, other)) or other.zero == base.zero == 0
    if follows:
        found.pop("zero_group", None)
    return found


def spelled(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changes in words.

    >>> spelled({"tp": (8, 4), "sp": (True, False)})
    'tp 8 -> 4, sp on -> off'
    """
    return ", ".join(f"{name} {_word(old)} -> {_word(new)}" for name, (old, new) in changes.items())


def _word(value: Any) -> str:
    if value is None:
        return "balanced"  # layers over stages
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value)


def _prime(n: int) -> int:
    """The smallest prime that divides n; 1 for 1."""
    return next((d for d in range(2, n + 1) if n % d == 0), 1)


def _alike(first: Evaluation, second: Evaluation) -> bool:
    pairs = ((first.step_time_s, second.step_time_s), (first.peak_bytes, second.peak_bytes))
    return all(abs(float(a) - float(b)) <= SAME * abs(float(a)) for a, b in pairs)


def best(
    request: Request,
    base: Strategy,
    evaluation: Evaluation,
    near: Improvement,
    *,
    target: Target | None = None,
) -> Best:
    """The fastest plan that fits: of a whole search that trains as `base` does, or a
    neighbour or `base` itself, whose words the search may leave out."""
    r = request
    same = {
        name: getattr(base, name) for name in ("optimizer", "finetune", "moe_balance")
    }  # how it is trained
    (found,) = searches([(r, 1)], build(r.model, r.cluster, r.work, same, r.profile, target))
    plans: list[tuple[Finder, Ranked]] = [("search", ranked_plan(r, c)) for c in found.best[:1]]
    search_s = plans[0][1].seconds if plans else None
    plans += [("base", Ranked(base, evaluation))] if evaluation.fits else []
    plans += [("neighbour", Ranked(n.strategy, n.evaluation)) for n in near.neighbours if n.fits]
    if not plans:
        return Best(None, "search", None, found.searched)
    least = min(plan.seconds for _, plan in plans) * (1.0 + SAME)
    by, fastest = next(known for known in plans if known[1].seconds <= least)
    return Best(fastest, by, search_s, found.searched)
