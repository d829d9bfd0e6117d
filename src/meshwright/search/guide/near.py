"""The computed jobs most like a job, and what the rule's advice lost in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from meshwright.search.guide import rule, table
from meshwright.search.guide.facts import QUESTIONS, Facts
from meshwright.search.guide.practice import Job

Array = npt.NDArray[np.float64]
NONE = 1e-3  # stands for no experts among logarithms


@dataclass(frozen=True, slots=True)
class Near:
    """A computed job, what following the rule lost in it, and how far it is: 0 is the same job, 1 the other
    end of every figure."""

    job: Job
    loss: float
    distance: float


def near(facts: Facts, n: int = 3) -> tuple[Near, ...]:
    """The `n` computed jobs that have a plan and are nearest in the figures that the rule asks for: the mean
    difference of their logarithms over that of the two ends."""
    cases, figures = _known()
    apart = np.abs(figures - _figures(facts)) / np.maximum(np.ptp(figures, axis=0), NONE)
    distance = apart.mean(axis=1)
    shipped = rule.shipped()
    return tuple(
        Near(cases[i].job, cases[i].loss(shipped.mix(cases[i].facts())), float(distance[i]))
        for i in np.argsort(distance, kind="stable")[:n].tolist()
    )


def _figures(facts: Facts) -> Array:
    return np.log([max(question.value(facts), NONE) for question in QUESTIONS])


@cache
def _known() -> tuple[list[table.Case], Array]:
    cases = [case for case in table.shipped() if case.strategy is not None]
    return cases, np.array([_figures(case.facts()) for case in cases])
