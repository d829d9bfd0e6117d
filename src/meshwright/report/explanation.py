"""Why a plan takes the time that it takes: sentences with the terms and values that each rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright import units
from meshwright.cost.terms import Term
from meshwright.profiles.records import Provenance
from meshwright.report import as_json
from meshwright.report.records import Estimate
from meshwright.search import probe, why
from meshwright.search.bounds import Request
from meshwright.search.probe import Crossing, Leaning
from meshwright.search.why import Sentence

RESOURCES = {
    "flops": "arithmetic",
    "hbm": "memory bandwidth",
    "scale_up": "links of the fast domain",
    "scale_out": "network between domains",
}
VISIBLE = 0.001  # a share of the step that is told
TENTH = 0.1  # of a part of the step: what rests on less does not tag it
HALF = 0.5  # of a communication: a share that moves so much of it is why it shows
BARE = "_exposed"  # numbers of a profile: shares that nothing hides
WEAKEST: tuple[Provenance, ...] = ("assumed", "fitted", "measured")


@dataclass(frozen=True, slots=True)
class Explanation:
    """An estimate with its reasons. `binds` is the largest part of the step and the resource that most of
    that part scales with (None where none moves it)."""

    estimate: Estimate
    leans_on: dict[str, dict[str, float]]
    numbers: tuple[Leaning, ...]
    crossings: tuple[Crossing, ...]
    binds: tuple[str, str | None]
    sentences: tuple[Sentence, ...]

    def json(
        self, *, path: str | None = None, depth: int | None = None, plain: bool = False
    ) -> dict[str, Any]:
        """The object that `meshwright explain --json` prints (see docs/json.md).

        `path` keeps the term of that name alone, `depth` that many levels; `plain` adds the plain story.
        """
        return explanation_object(self, path=path, depth=depth, plain=plain)


def explained(estimate: Estimate, others: Sequence[Sentence] = ()) -> Explanation:
    """The explanation of an estimate; `others` are sentences about other plans, told last."""
    e = estimate.evaluation
    request = request_of(estimate)
    closed = estimate.closed_form  # a figure moves it as it moves the simulated step, and at once
    leanings = probe.leans_on(request, estimate.strategy, closed)
    numbers = probe.numbers_leant_on(request, estimate.strategy, closed)
    crossings = probe.crossings(request, estimate.strategy, closed, leanings)
    part = max(e.time_s, key=lambda name: float(e.time_s[name]))
    resource = max(leanings, key=lambda name: leanings[name][part])
    binds = (part, resource if leanings[resource][part] > VISIBLE * float(e.time_s[part]) else None)
    sentences = (
        why.binds(e),
        _resources(estimate, binds, leanings),
        why.memory(e),
        _memory_numbers(estimate, numbers),
        *_communications(estimate, crossings, numbers),
        _numbers(estimate, numbers),
        *others,
    )
    if e.terms is not None:
        estimate = replace(estimate, evaluation=replace(e, terms=_tagged(e.terms, numbers)))
    return Explanation(estimate, leanings, numbers, crossings, binds, sentences)


def _tagged(root: Term, numbers: Sequence[Leaning]) -> Term:
    """The tree with each part of the step's time tagged by the weakest numbers that a tenth of it rests on;
    `datasheet` where it is data sheets' figures alone."""

    def tag(part: Term) -> Term:
        seconds = float(part.value)
        for word in WEAKEST if seconds > 0 else ():
            if sum(n.parts[part.name] for n in numbers if n.provenance == word) >= TENTH * seconds:
                return replace(part, provenance=word)
        return part if seconds <= 0 else replace(part, provenance="datasheet")

    times = [
        replace(child, children=tuple(tag(part) for part in child.children))
        if child.name == "time"
        else child
        for child in root.children
    ]
    return replace(root, children=tuple(times))


def by_tag(estimate: Estimate, numbers: Sequence[Leaning]) -> dict[Provenance, float]:
    """Seconds of the step by the weakest numbers that they rest on; what is left rests on data sheets alone.

    They sum to the step. Numbers of several tags may move the same second (what a fitted share of a peak
    multiplies may be hidden to an assumed share): it counts for the weakest of them.
    """
    parts = estimate.evaluation.time_s
    left = {name: float(seconds) for name, seconds in parts.items()}
    found: dict[Provenance, float] = {}
    for word in WEAKEST:
        moved = {k: sum(n.parts[k] for n in numbers if n.provenance == word) for k in parts}
        found[word] = sum(min(max(moved[k], 0.0), left[k]) for k in parts)
        left = {k: left[k] - min(max(moved[k], 0.0), left[k]) for k in parts}
    return found | {"datasheet": sum(left.values())}


def request_of(estimate: Estimate) -> Request:
    """What was planned."""
    return Request(estimate.model, estimate.cluster, estimate.work, estimate.profile)


def _resources(
    estimate: Estimate, binds: tuple[str, str | None], leanings: Mapping[str, Mapping[str, float]]
) -> Sentence:
    """What of the step scales with what, found by changing each speed a little."""
    step = estimate.step_time_s
    part, resource = binds
    shares = sorted(((r, moves["step"] / step) for r, moves in leanings.items()), key=lambda p: -p[1])
    shown = [(r, share) for r, share in shares if share >= VISIBLE]
    listed = [f"{RESOURCES[r]} {units.percent_text(share)}" for r, share in shown]
    left = 1.0 - sum(share for _, share in shown)
    if left >= VISIBLE:
        listed.append(f"none of these {units.percent_text(left)} (start-ups and launches)")
    said = f"Whose speed the step follows: {', '.join(listed)}"
    if resource is not None:
        said += f". What binds, {why.PARTS.get(part, part)}, follows {RESOURCES[resource]} most"
    values: dict[str, Any] = {"step.time": step, f"step.time.{part}": float(estimate.evaluation.time_s[part])}
    values |= {f"scales_with.{r}": moves["step"] for r, moves in leanings.items()}
    moved = {max(moves, key=lambda k: moves[k] if k != "step" else 0.0): None for moves in leanings.values()}
    terms = dict.fromkeys((part, *(k for k in moved if k != "step")))
    return Sentence(f"{said}.", tuple(f"step.time.{k}" for k in terms), values)


def _communications(
    estimate: Estimate, crossings: Sequence[Crossing], numbers: Sequence[Leaning]
) -> list[Sentence]:
    """One sentence for each communication, the one that shows most first; none on one chip."""
    own: dict[str, list[Crossing]] = {}
    for one in crossings:
        own.setdefault(one.communication, []).append(one)
    if not own:
        return []
    parts = sorted(own, key=lambda part: -own[part][0].share)
    means = f"Traffic is called hidden while it shows at most {probe.HIDES:.0%} of the step."
    terms = tuple(f"step.time.{part}" for part in parts)
    return [
        Sentence(means, terms, {"hides": probe.HIDES}),
        *(_communication(estimate, part, own[part], numbers) for part in parts),
    ]


def _communication(
    estimate: Estimate, part: str, found: Sequence[Crossing], numbers: Sequence[Leaning]
) -> Sentence:
    share, seconds = found[0].share, float(estimate.evaluation.time_s[part])
    hides = share <= probe.HIDES
    said = (
        f"{why.capital(why.TRAFFIC[part])} shows {units.seconds_text(seconds)} "
        f"({units.percent_text(seconds / estimate.step_time_s)} of the step) "
        f"and {'is hidden' if hides else 'is not hidden'}"
    )
    turns = [_turn(one) for one in found if one.at is not None]
    always = [_range(one) for one in found if one.always]
    never = [_range(one) for one in found if one.at is None and not one.always]
    told = [
        *([f"it would {'show' if hides else 'hide'} {' or '.join(turns)}"] if turns else []),
        *([f"no {' and no '.join(always)} shows it"] if always else []),
        *([f"no {' and no '.join(never)} hides it"] if never else []),
    ]
    values: dict[str, Any] = {"step.time": estimate.step_time_s, f"step.time.{part}": seconds, "share": share}
    for number in numbers:
        moves = number.parts[part]
        if number.name.endswith(BARE) and moves >= HALF * float(estimate.closed_form.time_s[part]) > 0:
            told.append(
                "a share of it shows whatever it could hide behind, a habit of the framework "
                f"({number.name} {number.value:.3g}, {number.provenance})"
            )
            values[number.name] = number.value
    for one in found:
        values[one.field] = one.now
        values[f"{one.field}.hides_from"] = one.at
    return Sentence(f"{'; '.join([said, *told])}.", (f"step.time.{part}",), values)


# Of each field: its name, its unit, and whether it is a whole number.
_FIELDS = {
    "cluster.scale_up_gbytes_s": ("bandwidth inside the domain", "GB/s a chip inside the domain", False),
    "cluster.scale_out_gbits_s": ("bandwidth between domains", "Gbit/s a chip between domains", False),
    "global_batch_size": ("batch", "sequences a step", True),
    "cluster.scale_up_size": ("domain", "chips a domain", True),
}


def _turn(one: Crossing) -> str:
    """Where it changes, seen from now."""
    assert one.at is not None
    _, unit, _ = _FIELDS[one.field]
    direction = "below" if one.now >= one.at else "from"
    return f"{direction} {_amount(one, one.at)} {unit} (now {_amount(one, one.now)})"


def _range(one: Crossing) -> str:
    name, unit, _ = _FIELDS[one.field]
    return f"{name} from {_amount(one, one.low)} to {_amount(one, one.high)} {unit.partition(' a ')[0]}"


def _amount(one: Crossing, value: float) -> str:
    whole = _FIELDS[one.field][2]
    return f"{value:,.0f}" if whole or value >= 1000 else f"{value:.3g}"


def _numbers(estimate: Estimate, numbers: Sequence[Leaning]) -> Sentence:
    """How much of the step rests on numbers that were assumed, and on the largest of those that were not."""
    step = estimate.step_time_s
    tags = by_tag(estimate, numbers)
    assumed = [n for n in numbers if n.provenance == "assumed" and n.seconds >= VISIBLE * step]
    known = [n for n in numbers if n.provenance != "assumed" and n.seconds >= VISIBLE * step][:3]

    def listed(some: Sequence[Leaning], *, tagged: bool) -> str:
        return ", ".join(
            f"{n.name} ({n.value:.3g}{f', {n.provenance}' if tagged else ''}) "
            f"{units.percent_text(n.seconds / step)}"
            for n in some
        )

    said = (
        f"Assumed numbers move {units.percent_text(tags['assumed'] / step)} of the step: "
        f"{listed(assumed, tagged=False)}"
        if assumed
        else f"No assumed number moves {VISIBLE:.1%} of the step"
    )
    if known:
        said += f"; of the others the step scales most with {listed(known, tagged=True)}"
    shares = ", ".join(f"{word} {units.percent_text(seconds / step)}" for word, seconds in tags.items())
    values: dict[str, Any] = {n.name: n.seconds for n in (*assumed, *known)} | {"step.time": step}
    values |= {f"{n.name}.value": n.value for n in (*assumed, *known)}
    values |= {f"rests_on.{word}": seconds for word, seconds in tags.items()}
    return Sentence(
        f"{said}. By the weakest kind of number each second rests on: {shares}.", ("step.time",), values
    )


def _memory_numbers(estimate: Estimate, numbers: Sequence[Leaning]) -> Sentence:
    """How much of the peak scales with numbers that were assumed, fitted or measured elsewhere."""
    peak = float(estimate.closed_form.peak_bytes)
    shown = sorted((n for n in numbers if n.nbytes >= VISIBLE * peak), key=lambda n: -n.nbytes)
    told = []
    for word in WEAKEST:
        own = [n for n in shown if n.provenance == word]
        listed = ", ".join(f"{n.name} ({n.value:.3g}) {units.percent_text(n.nbytes / peak)}" for n in own)
        if own:
            told.append(
                f"{word} numbers move {units.percent_text(sum(n.nbytes for n in own) / peak)}: {listed}"
            )
    said = (
        f"Of that peak {'; '.join(told)}; the rest is counted from shapes and formats."
        if told
        else "All of that peak is counted from shapes and formats."
    )
    values: dict[str, Any] = {"step.memory": float(estimate.evaluation.peak_bytes)}
    values |= {n.name: n.nbytes for n in shown}
    return Sentence(said, ("step.memory",), values)


def explanation_object(
    found: Explanation, *, path: str | None, depth: int | None, plain: bool
) -> dict[str, Any]:
    """The object of `explain`: an estimate with its tree of terms, and why."""
    from meshwright.report.terminal.tree import chosen

    shown = as_json.estimate_object(found.estimate, verb="explain")
    shown["plan"]["terms"] = as_json.term_json(chosen(found.estimate, path), depth)
    part, resource = found.binds
    body: dict[str, Any] = {
        "binds": {"term": f"step.time.{part}", "resource": resource},
        "sentences": [said.json() for said in found.sentences],
        "scales_with": found.leans_on,
        "numbers": found.numbers,
        "rests_on": by_tag(found.estimate, found.numbers),
        "crossings": found.crossings,
    }
    if plain:
        from meshwright.report.plain import story

        body["plain"] = list(story(found))
    added: dict[str, Any] = as_json.plain(body)
    return shown | added
