"""The rule of thumb: a decision tree over facts that a person knows, fitted to the computed table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.search.guide import recipes, tree
from meshwright.search.guide.facts import BY_NAME, QUESTIONS, Facts, Question
from meshwright.search.guide.recipes import Recipe
from meshwright.search.guide.table import SLACK, Case
from meshwright.search.mixes import Mix

NAME = "rule.json"
DEPTH = 6
LEAST = 6  # cases on each side of a question
GAIN = 0.06  # of one step time that a further question must save, summed over all cases
AXIS = 0.002  # what an axis more must save, so that of equal recipes the plainest is told
ROUNDED = 1e-5  # ranges are written with six digits
GOOD = 0.03  # a loss that nobody would notice: plans this close are tied

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Losses:
    """What a rule loses against the computed plans of several cases; a case counts for `SLACK` where the
    recipe loses more or does not fit (share `beyond`)."""

    cases: int
    median: float
    mean: float
    good: float  # share of the cases that lose at most GOOD
    beyond: float

    @classmethod
    def of(cls, losses: Array | Sequence[float]) -> Losses:
        """Of single losses."""
        each = np.asarray(losses, float)
        shares = (float(x.mean()) for x in (each, each <= GOOD, each >= SLACK))
        return cls(len(each), float(np.median(each)), *shares)


@dataclass(frozen=True, slots=True)
class Advice:
    """A leaf: the recipe and what it lost in the cases that came to it."""

    recipe: Recipe
    losses: Losses
    experts: bool  # whether a model with experts came to it


@dataclass(frozen=True, slots=True)
class Ask:
    """A node: facts with at most `threshold` of the question go to `below`, others to `above`."""

    question: Question
    threshold: float
    below: Node
    above: Node


Node = Ask | Advice


@dataclass(frozen=True, slots=True)
class Rule:
    """The tree with what it loses: on the cases it was fitted to, and on those of a model when fitted to all
    others (`unseen`)."""

    root: Node
    losses: Losses
    unseen: Losses
    by_model: dict[str, Losses] = field(default_factory=dict)  # of `unseen`
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # of each question in its jobs

    def path(self, job: Facts) -> tuple[tuple[Ask, ...], Advice]:
        """The questions that lead to the advice for a job, and the advice."""
        asked, node = [], self.root
        while isinstance(node, Ask):
            asked.append(node)
            node = node.below if node.question.value(job) <= node.threshold else node.above
        return tuple(asked), node

    def outside(self, job: Facts) -> Iterator[tuple[Question, float]]:
        """The figures of a job that none of the jobs had which the rule was fitted to."""
        for name, (low, high) in self.ranges.items():
            question = BY_NAME[name]
            value = question.value(job)
            if not low * (1 - ROUNDED) <= value <= high * (1 + ROUNDED):
                yield question, value

    def mix(self, job: Facts) -> Mix:
        """The degrees that the rule gives a job."""
        return self.path(job)[1].recipe.mix(job)

    def leaves(self) -> Iterator[Advice]:
        """Every advice, the lower sides first."""
        yield from _leaves(self.root)

    @property
    def depth(self) -> int:
        """Questions on the longest path."""
        return _depth(self.root)


def _leaves(node: Node) -> Iterator[Advice]:
    if isinstance(node, Advice):
        yield node
    else:
        yield from _leaves(node.below)
        yield from _leaves(node.above)


def _depth(node: Node) -> int:
    return 0 if isinstance(node, Advice) else 1 + max(_depth(node.below), _depth(node.above))


def fitted(cases: Sequence[Case]) -> Rule:
    """The rule that loses least in the cases that have a plan, found greedily."""
    cases = [case for case in cases if case.strategy is not None]
    jobs = [case.facts() for case in cases]
    choices = list(recipes.every())
    asked = np.array([[q.value(job) for q in QUESTIONS] for job in jobs])
    losses = np.array([_priced(case, job, choices) for case, job in zip(cases, jobs)])
    names = np.array([case.job.model for case in cases])
    experts = np.array([job.experts > 0 for job in jobs])
    found = _fit(asked, losses, choices)
    unseen = np.empty(len(cases))
    for name in dict.fromkeys(names.tolist()):
        others = names != name
        without = _fit(asked[others], losses[others], choices)
        unseen[~others] = _lost(without, asked[~others], losses[~others])
    by_model = {name: Losses.of(unseen[names == name]) for name in dict.fromkeys(names.tolist())}
    root = _named(found, asked, losses, experts, choices)
    ends = zip(QUESTIONS, asked.min(axis=0).tolist(), asked.max(axis=0).tolist())
    ranges = {q.name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for q, low, high in ends}
    return Rule(root, Losses.of(_lost(found, asked, losses)), Losses.of(unseen), by_model, ranges)


def _priced(case: Case, job: Facts, choices: Sequence[Recipe]) -> list[float]:
    """What each recipe loses in a case; without experts those that differ in ep are one."""
    if job.experts:
        return [case.loss(recipe.mix(job)) for recipe in choices]
    plain = {r: case.loss(r.mix(job)) for r in choices if r.ep == 1}
    return [plain[replace(recipe, ep=1)] for recipe in choices]


def _fit(asked: Array, losses: Array, choices: Sequence[Recipe]) -> tree.Tree:
    plain = np.array([AXIS * recipe.axes for recipe in choices])
    return tree.fit(asked, losses + plain, depth=DEPTH, least=LEAST, gain=GAIN)


def _lost(found: tree.Tree, asked: Array, losses: Array) -> Array:
    return np.array([row[tree.answer(found, of)] for row, of in zip(losses, asked)])


def _named(
    node: tree.Tree, asked: Array, losses: Array, experts: npt.NDArray[np.bool_], choices: Sequence[Recipe]
) -> Node:
    """The tree in questions and recipes, with the losses of the cases that come to each leaf."""
    if isinstance(node, tree.Leaf):
        return Advice(choices[node.answer], Losses.of(losses[:, node.answer]), bool(experts.any()))
    low = asked[:, node.feature] <= node.threshold
    below = _named(node.below, asked[low], losses[low], experts[low], choices)
    above = _named(node.above, asked[~low], losses[~low], experts[~low], choices)
    return Ask(QUESTIONS[node.feature], node.threshold, below, above)


@cache
def shipped() -> Rule:
    """The rule that comes with the program."""
    return read(files(__package__).joinpath(NAME).read_text(encoding="utf-8"))


def written(rule: Rule) -> str:
    """The rule as JSON."""
    by_model = {name: _rounded(losses) for name, losses in rule.by_model.items()}
    body = {"losses": _rounded(rule.losses), "unseen": _rounded(rule.unseen), "by_model": by_model}
    return json.dumps(body | {"ranges": rule.ranges, "tree": node_json(rule.root)}, indent=1) + "\n"


def node_json(node: Node) -> dict[str, Any]:
    """A node and all below it."""
    if isinstance(node, Advice):
        return {"recipe": asdict(node.recipe), "losses": _rounded(node.losses), "experts": node.experts}
    asked = {"question": node.question.name, "at_most": node.threshold}
    return asked | {"yes": node_json(node.below), "no": node_json(node.above)}


def _rounded(losses: Losses) -> dict[str, Any]:
    return {name: round(value, 4) for name, value in asdict(losses).items()}


def read(text: str) -> Rule:
    """The rule that `written` wrote."""
    body = json.loads(text)
    by_model = {name: Losses(**losses) for name, losses in body["by_model"].items()}
    ranges = {name: (low, high) for name, (low, high) in body["ranges"].items()}
    losses, unseen = (Losses(**body[name]) for name in ("losses", "unseen"))
    return Rule(_node(body["tree"]), losses, unseen, by_model, ranges)


def _node(body: dict[str, Any]) -> Node:
    if "recipe" in body:
        return Advice(Recipe(**body["recipe"]), Losses(**body["losses"]), body["experts"])
    return Ask(BY_NAME[body["question"]], body["at_most"], _node(body["yes"]), _node(body["no"]))
