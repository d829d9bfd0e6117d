"""The rule of thumb as records: the whole tree in sentences, and the way through it for one job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.report import as_json
from meshwright.report.error_json import diagnostics_json
from meshwright.report.sweep import summary
from meshwright.search.guide.facts import BY_NAME, Facts, Question
from meshwright.search.guide.near import Near
from meshwright.search.guide.rule import Advice, Ask, Losses, Node, Rule, node_json
from meshwright.search.guide.table import SLACK
from meshwright.search.mixes import Mix
from meshwright.search.ranking import TIED

if TYPE_CHECKING:
    from meshwright.errors import Diagnostic
    from meshwright.hardware.records import Cluster
    from meshwright.model.records import Model
    from meshwright.report.records import Because, Estimate
    from meshwright.work import Work

FAR = 0.05  # a loss of a computed job that a person is warned of
UNLIKE = 0.1  # mean distance of figures from which jobs are not alike
ELSE = (
    "The rule takes the plainest split that loses little over many jobs, plan the fastest for this one: "
    f"where splits are tied (within {TIED:.0%}) the two may differ"
)
LEFT = "microbatch, recompute, ZeRO stage, chunks of a stage and schedule are what fits best: plan finds them"


@dataclass(frozen=True, slots=True)
class Compared:
    """The best plan of a whole search, and the best one with the degrees of the rule. None where nothing
    fits; `faults` say where those degrees are not legal."""

    best: Estimate | None
    followed: Estimate | None
    faults: tuple[Diagnostic, ...] = ()

    @property
    def loss(self) -> float | None:
        """What following the rule costs: its step time over the best one's, less 1."""
        if self.best is None or self.followed is None:
            return None
        return self.followed.step_time_s / self.best.step_time_s - 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the rule says of a job: the questions on the way, the advice and the degrees that it means."""

    model: Model
    cluster: Cluster
    work: Work
    derived: dict[str, Because]
    facts: Facts
    asked: tuple[Ask, ...]
    advice: Advice
    mix: Mix
    outside: tuple[tuple[Question, float], ...] = ()  # figures that none of the rule's jobs had
    compared: Compared | None = None
    near: tuple[Near, ...] = ()  # computed jobs like it

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know before following the advice: that nothing can fit, or that the rule never saw such a
        job."""
        told = []
        state = BY_NAME["state"]
        share = state.value(self.facts)
        if share > 1:
            least = ceil(share * self.facts.n_chips)
            told.append(
                f"{state.words}: {state.text(share)}; with Adam it takes {units.counted(least, 'chip')} "
                "at the least, "
                f"and there are {self.facts.n_chips:,}"
            )
        doubts = list(self._doubts())
        if doubts:
            told += [*doubts[:-1], f"{doubts[-1]}; let plan search"]
        return tuple(told)

    def _doubts(self) -> Iterator[str]:
        """Where the rule is known to be off, or knows nothing."""
        meant, ranks = min(self.advice.recipe.ep, self.facts.experts), self.facts.n_chips // self.mix.pp
        if self.mix.ep < meant:
            yield (
                f"the rule means experts over {units.counted(meant, 'chip')}; of what divides both "
                f"{self.facts.experts:,} "
                f"experts and the {units.counted(ranks, 'chip')} of a stage the nearest below is "
                f"{self.mix.ep}, which may "
                "cost much"
            )
        worst = max((one.loss for one in self.near if one.distance < UNLIKE), default=0.0)
        if worst >= FAR:
            least = "or more " if worst >= SLACK else ""
            yield (
                f"in jobs like this one the rule lost up to {units.percent_text(worst, 0)} {least}against "
                "the computed plan"
            )
        if self.outside:
            figures = "; ".join(f"{one.words} {one.text(value)}" for one, value in self.outside)
            yield f"none of the jobs behind the rule had such figures: {figures}"
        elif all(one.distance >= UNLIKE for one in self.near):
            yield "no computed job is much like this one"

    @property
    def words(self) -> str:
        """The advice as a person would say it."""
        return self.advice.recipe.words(experts=self.facts.experts > 0)

    @property
    def split(self) -> str:
        """The degrees as a person would say them."""
        m = self.mix
        parts = [
            (m.pp, "{} pipeline stages"),
            (m.tp, "each layer cut over {} chips (tensor parallel)"),
            (m.cp, "each sequence cut over {} chips (context parallel)"),
            (m.ep, "experts dealt out over {} chips"),
        ]
        said = [text.format(degree) for degree, text in parts if degree > 1]
        copies = f"{self.dp:,} copies of the model" if self.dp > 1 else "one copy of the model"
        return ", ".join([copies, *said])

    def path(self) -> list[tuple[str, str]]:
        """Each question's answer in words, and the job's own figure."""
        told = []
        for ask in self.asked:
            value = ask.question.value(self.facts)
            told.append(
                (ask.question.told(ask.threshold, above=value > ask.threshold), ask.question.text(value))
            )
        return told

    @property
    def dp(self) -> int:
        """Replicas that the degrees leave."""
        return self.facts.n_chips // (self.mix.tp * self.mix.pp * self.mix.cp)


@dataclass(frozen=True, slots=True)
class Guide:
    """The rule, and what it says of a job where one was named."""

    rule: Rule
    answer: Answer | None = None

    def json(self) -> dict[str, Any]:
        """The object that `meshwright guide --json` prints (see docs/json.md)."""
        a = self.answer
        head = (
            as_json.envelope("guide") if a is None else as_json.envelope("guide", a.model, a.cluster, a.work)
        )
        body = {
            "losses": asdict(self.rule.losses),
            "unseen": asdict(self.rule.unseen),
            "tree": node_json(self.rule.root),
            "sentences": [text for _, text in sentences(self.rule.root)],
            "answer": None if a is None else _answer(a),
        }
        shown: dict[str, Any] = as_json.plain(body)
        return head | shown


def _answer(a: Answer) -> dict[str, Any]:
    body: dict[str, Any] = {
        "says": a.words,
        "strategy": {"dp": a.dp, **a.mix.fields()},
        "path": [
            {
                "question": ask.question.name,
                "words": words,
                "value": ask.question.value(a.facts),
                "at_most": ask.threshold,
            }
            for ask, (words, _) in zip(a.asked, a.path())
        ],
        "losses": asdict(a.advice.losses),
        "split": a.split,
        "near": [
            {"job": str(one.job), "loss_percent": 100 * one.loss, "distance": one.distance} for one in a.near
        ],
        "remarks": list(a.remarks),
        "derived": {name: {"value": b.value, "because": b.because} for name, b in a.derived.items()},
        "compared": None,
    }
    if a.compared is not None:
        c = a.compared
        body["compared"] = {
            "best": summary(c.best),
            "followed": summary(c.followed),
            "loss_percent": None if c.loss is None else 100 * c.loss,
            "diagnostics": diagnostics_json(c.faults),
        }
    return body


def sentences(node: Node, level: int = 0) -> Iterator[tuple[int, str]]:
    """The tree as lines (indentation, text): each side of a question, then what lies behind it."""
    if isinstance(node, Advice):
        yield level, advised(node)
        return
    for above, side in ((False, node.below), (True, node.above)):
        said = node.question.told(node.threshold, above=above)
        if isinstance(side, Advice):
            yield level, f"{said} → {advised(side)}"
        else:
            yield level, f"{said}:"
            yield from sentences(side, level + 1)


def advised(leaf: Advice) -> str:
    """A recipe and what it lost where it was needed."""
    return f"{leaf.recipe.words(experts=leaf.experts)} ({lost(leaf.losses)})"


def lost(losses: Losses) -> str:
    """Losses in a few words."""
    cases = f"{units.counted(losses.cases, 'job')}"
    said = f"{cases}, median loss {units.percent_text(losses.median)}"
    if losses.beyond:
        said += f", {units.percent_text(losses.beyond, 0)} lose {units.percent_text(SLACK, 0)} or more"
    return said
