"""What a person knows of a job before any search: sizes, ratios, and what the machine is like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from meshwright import units
from meshwright.checks.shapes import moe, query_heads
from meshwright.hardware.records import Cluster
from meshwright.model.params import active_params, total_params
from meshwright.model.records import Model
from meshwright.search.bounds import held
from meshwright.search.guide.practice import practice
from meshwright.strategy.stages import most_virtual_stages
from meshwright.work import Work

_BYTES = practice()["bytes_a_parameter"]
STATE_BYTES = sum(_BYTES[part] for part in ("weight", "gradient", "master", "moments"))
# Under a pipeline that shards only optimizer state: gradients of all microbatches add up whole.
HELD_BYTES = _BYTES["weight"] + _BYTES["summed_gradient"]


@dataclass(frozen=True, slots=True)
class Facts:
    """A job in the numbers that a rule of thumb speaks of. Bytes/s are one way a chip."""

    n_chips: int
    domain: int
    parameters: float
    active: float
    in_experts: float  # of the parameters
    experts: int  # the number that ep may divide; 0 without experts
    heads: int  # the number that tp may divide
    stages: int  # the most that the layers fill
    seq_len: int
    sequences: int  # a step
    usable_bytes: float
    flops: float  # dense bf16 peak of a chip
    network_bytes_s: float  # of the slowest link that gradients cross

    @property
    def cover(self) -> float:
        """How many times the arithmetic of a chip's step (6 FLOPs a parameter in use and token) takes as long
        as it takes to send every weight once (2 bytes) over the slowest link between copies of the model.

        >>> from meshwright.hardware.cluster import parse
        >>> from meshwright.model.presets import load
        >>> job = facts(load("llama-3.1-405b"), parse("16384xh100"), Work(8192, 2048))
        >>> round(3 * 1024 / (989e12 / 50e9), 3) == round(job.cover, 3)
        True
        """
        arithmetic_s = 6.0 * self.active * self.tokens_per_chip / self.flops
        return arithmetic_s / (2.0 * self.parameters / self.network_bytes_s)

    @property
    def tokens_per_chip(self) -> float:
        """Tokens of a step that fall to a chip."""
        return self.seq_len * self.sequences / self.n_chips


def facts(model: Model, cluster: Cluster, work: Work) -> Facts:
    """The facts of a job; where one domain holds all chips, gradients cross only its links."""
    experts = gcd(*(m.n_experts for m in moe(model)))
    inside = cluster.n_chips <= cluster.scale_up_size or cluster.scale_out_bytes_s is None
    return Facts(
        n_chips=cluster.n_chips,
        domain=cluster.scale_up_size,
        parameters=float(total_params(model)),
        active=float(active_params(model)),
        in_experts=float(held(model).expert),
        experts=experts,
        heads=gcd(*query_heads(model)) or 1,
        stages=most_virtual_stages(model),
        seq_len=int(work.seq_len),
        sequences=int(work.global_batch_size),
        usable_bytes=cluster.usable_bytes,
        flops=cluster.chip.peak_flops("bf16"),
        network_bytes_s=cluster.scale_up_bytes_s if inside else float(cluster.scale_out_bytes_s or 0.0),
    )


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask about a job: a number, what it is called, and how it is written."""

    name: str
    words: str
    value: Callable[[Facts], float]
    text: Callable[[float], str] = units.number_text
    none: tuple[str, str] | None = None  # said instead where the threshold is 0: of none, and of some

    def told(self, threshold: float, *, above: bool) -> str:
        """The answer as words: `tokens of a sequence: at most 8k`.

        >>> BY_NAME["seq_len"].told(8, above=True), BY_NAME["experts"].told(0, above=False)
        ('tokens of a sequence: more than 8k', 'no experts')
        """
        if self.none is not None and threshold == 0:
            return self.none[above]
        return f"{self.words}: {'more than' if above else 'at most'} {self.text(threshold)}"


QUESTIONS: tuple[Question, ...] = (
    Question(
        "experts",
        "experts of a layer",
        lambda f: float(f.experts),
        units.count_text,
        ("no experts", "experts"),
    ),
    Question(
        "state",
        f"training state cut over all chips ({STATE_BYTES} bytes a parameter), as a share of a chip's memory",
        lambda f: STATE_BYTES * f.parameters / f.n_chips / f.usable_bytes,
        units.percent_text,
    ),
    Question(
        "weights",
        "chips that the weights alone would fill (2 bytes a parameter)",
        lambda f: 2 * f.parameters / f.usable_bytes,
    ),
    Question("active", "parameters that a token uses", lambda f: f.active, units.count_text),
    Question("domain", "chips of a fast domain", lambda f: float(f.domain), units.count_text),
    Question(
        "network",
        "FLOPs that a chip does while one byte crosses the slowest link between copies",
        lambda f: f.flops / f.network_bytes_s,
        units.count_text,
    ),
    Question("tokens_per_chip", "tokens a chip a step", lambda f: f.tokens_per_chip, units.count_text),
    Question("seq_len", "tokens of a sequence", lambda f: f.seq_len / 1024, lambda v: f"{v:g}k"),
    Question("chips_per_sequence", "chips for each sequence of a step", lambda f: f.n_chips / f.sequences),
    Question(
        "cover",
        "length of a step's arithmetic, in times that it takes to send all weights once",
        lambda f: f.cover,
    ),
)
BY_NAME = {question.name: question for question in QUESTIONS}
