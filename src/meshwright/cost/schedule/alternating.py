"""Warm-up, then one forward and one backward in turn, then the rest: the frame of the 1F1B family."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cost.schedule.actions import Action, Order


def alternate(forward: Sequence[Action], backward: Sequence[Action], warm_up: int) -> tuple[Action, ...]:
    """`warm_up` forwards (or all there are), then a forward and a backward in turn, then backwards.

    `forward` and `backward` are the rank's passes in their own order, equally many.
    """
    ahead = min(warm_up, len(forward))
    order = list(forward[:ahead])
    for f, b in zip(forward[ahead:], backward):
        order += (f, b)
    return (*order, *backward[len(forward) - ahead :])


def split_backward(pp: int, microbatches: int, step: int) -> Order:
    """1F1B with the backward cut in two: each stage nearer the loss starts `step` forwards less early.

    Rank r begins with 1 + step (p - 1 - r) forwards, then takes an input part and a weight part with each
    forward; the weight parts lag step r microbatches behind, so that every rank holds 1 + step (p - 1)
    microbatches and has as many weight parts left to fill the drain with as it needs.
    **Source**: zero-bubble paper (arXiv 2401.10241), section 3: ZB-H1 (step 1) and ZB-H2 (step 2).
    """
    order = []
    for rank in range(pp):
        ahead, lag = step * (pp - 1 - rank), step * rank
        passes: list[Action] = []
        forward = iter(range(microbatches))
        passes += [Action("F", 0, i) for _, i in zip(range(ahead), forward)]
        for i in range(microbatches):
            passes += [Action("F", 0, f) for _, f in zip(range(1), forward)]
            passes.append(Action("I", 0, i))
            if i >= lag:
                passes.append(Action("W", 0, i - lag))
        passes += [Action("W", 0, i) for i in range(max(microbatches - lag, 0), microbatches)]
        order.append(tuple(passes))
    return tuple(order)
