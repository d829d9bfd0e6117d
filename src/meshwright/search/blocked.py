"""Nothing fits: how many chips would hold the state alone, and which of the fixed fields stand in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

from meshwright import units
from meshwright.cost.adapters import state_widths
from meshwright.cost.memory import context_bytes
from meshwright.cost.states import grads_leave
from meshwright.errors import InputError
from meshwright.search.bounds import Request, held
from meshwright.search.given import read_choices, stated
from meshwright.search.largest import ROOMY
from meshwright.search.ranking import spelled
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.search.words import complete_words
from meshwright.strategy.records import Strategy
from meshwright.strategy.targets import Target

# What a search puts on the host unless told otherwise, and the most of the state that can wait there.
_ON_HOST = ("none", "optimizer", "optimizer+params")
Progress = Callable[[float, float], None] | None


def ways_out(
    request: Request, fixed: Mapping[str, Any], target: Target | None = None, progress: Progress = None
) -> tuple[str, ...]:
    """Sentences about a request of which nothing fits with what is `fixed`.

    State is weights, gradients and what the optimizer keeps, spread evenly over all chips; less of it on them
    takes weights or experts on the host, or a leaner optimizer. Each fixed field is then left free alone, and
    all of them together.
    """
    given = {name: value for name, value in fixed.items() if value is not None}
    return tuple(_of_state(request, given)) + tuple(_of_fields(request, given, target, progress))


def _of_state(request: Request, given: Mapping[str, Any]) -> Iterator[str]:
    """How many chips the state alone fills."""
    r, own = request, stated(read_choices(given))
    words = {**complete_words(r.work, r.profile), **own}
    parts = held(r.model)
    parameters = parts.sharded + parts.replicated + parts.expert
    room = r.cluster.usable_bytes - context_bytes(r.profile.framework, r.cluster)
    told = []
    for offload in [words["offload"]] if "offload" in own else _ON_HOST:
        some = Strategy(
            dp=1, zero=3, optimizer=words["optimizer"], finetune=words["finetune"], offload=offload
        )
        width = state_widths(r.model, r.profile, some, r.work.options)
        grad = 0.0 if grads_leave(r.profile.framework, some) else width.grad
        told.append((width.weight + grad + width.optimizer) * parameters)
    n, whole = r.cluster.n_chips, told[0]
    if room <= 0:
        yield (
            f"the framework itself takes {units.bytes_text(r.cluster.usable_bytes - room)} of a chip, more "
            "than there is"
        )
        return
    chips = [ceil(nbytes / room) for nbytes in told]
    said = (
        f"weights, gradients and optimizer state of {units.count_text(parameters)} parameters take "
        f"{units.bytes_text(whole)}: spread evenly they alone fill {units.counted(chips[0], 'chip')} of "
        f"{units.bytes_text(room)} each (what the framework leaves), and there "
        f"{'is' if n == 1 else 'are'} {n:,}"
    )
    if len(chips) > 1:
        said += f"; with the optimizer's state on the host {chips[1]:,}, with weights there too {chips[2]:,}"
        if chips[2] <= n < chips[1]:
            said += ". --offload optimizer+params tries that"
    yield said
    tried = [nbytes for nbytes, filled in zip(told[:2], chips) if filled <= n]
    if tried:
        left = room - min(tried) / n
        yield (
            f"spread so, {units.bytes_text(left)} a chip are left for activations and what passes gather: "
            "shorter sequences, more chips or --offload any make room"
        )


def _of_fields(
    request: Request, given: Mapping[str, Any], target: Target | None, progress: Progress
) -> Iterator[str]:
    """Which of the fields stand in the way."""
    names = [*given, *(["target"] if target is not None else [])]
    if not names:
        return
    trials = len(names) + 1

    def found(freed: list[str], done: int) -> Strategy | str:
        """A strategy that fits with some fields left free, or why there is none."""
        fixed = {name: value for name, value in given.items() if name not in freed}
        answer = _fitting(request, fixed, None if "target" in freed else target)
        if progress is not None:
            progress(done, trials)
        return answer

    free = found(names, 1)
    listed = _listed(names)
    if isinstance(free, str):
        yield f"{free} with {listed} left free either"
        return
    # One field alone is all of them.
    each_of = [(name, found([name], i)) for i, name in enumerate(names, 2)] if len(names) > 1 else []
    alone = each_of or [(listed, free)]
    blocking = [(name, strategy) for name, strategy in alone if isinstance(strategy, Strategy)]
    if blocking:
        each = (f"{name} left free ({_taken(name, strategy)})" for name, strategy in blocking)
        yield f"something fits with {', or with '.join(each)}"
        return
    fitting = ", ".join(_taken(name, free) for name in names)
    unbuilt = [name for name, why in alone if why == _UNBUILT]
    odd = f" (no plan can be built with {_listed(unbuilt)} alone left free)" if unbuilt else ""
    yield f"no single one of {listed} stands in the way{odd}; something fits with all left free ({fitting})"


_NOTHING, _UNBUILT = "nothing fits", "no plan can be built"


def _fitting(r: Request, fixed: Mapping[str, Any], target: Target | None) -> Strategy | str:
    """A strategy that fits with what is fixed; else whether there was any to try."""
    roomy = {name: word for name, word in ROOMY.items() if name not in fixed}
    said = _UNBUILT
    for more in (roomy, {}) if roomy else ({},):  # few searches need a second look
        try:
            space = build(r.model, r.cluster, r.work, {**fixed, **more}, r.profile, target)
        except InputError:
            continue
        said = _NOTHING
        best = scan(r, space, top=1, techniques=()).best
        if best:
            return best[0].strategy
    return said


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _taken(name: str, strategy: Strategy) -> str:
    """What a field is in a strategy that fits."""
    return "another framework" if name == "target" else spelled(strategy, name)
