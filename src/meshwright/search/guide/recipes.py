"""Recipes: rules that turn the facts of a job into degrees, without a search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from meshwright import units
from meshwright.checks.rule import divisors
from meshwright.search.guide.facts import HELD_BYTES, Facts
from meshwright.search.mixes import Mix

TP = (1, 2, 4, 8, 16)
PP = (1, 2, 4, 8, 16, 32, 64)
COVER = (1.0, 2.0, 4.0)
FILL = (0.25, 0.5)
EP = (1, 4, 8, 16, 64, 256)
TOKENS = (2048, 4096, 8192, 16384, 32768, 2**20)
ANY_LENGTH = TOKENS[-1]


@dataclass(frozen=True, slots=True, order=True)
class Recipe:
    """Tensor parallelism of `tp`, experts over `ep` chips, sequences split (cp) until a chip holds at most
    `tokens` of one and until every chip has one to work on, and stages: `pp` of them, or as many as it takes
    until a step's arithmetic outlasts its exchange of weights `cover` times, or until weights and gradients
    take at most the share `fill` of a chip's memory."""

    pp: int = 1
    cover: float = 0.0
    fill: float = 0.0
    tp: int = 1
    ep: int = 1
    tokens: int = ANY_LENGTH

    def mix(self, facts: Facts) -> Mix:
        """The degrees: tp, pp and ep the nearest below that divide heads, chips and experts (`cover` and
        `fill` the nearest above), cp the nearest above.

        >>> job = Facts(n_chips=1024, domain=8, parameters=7e10, active=7e10, in_experts=0.0, experts=0,
        ...             heads=64, stages=82, seq_len=32768, sequences=512, usable_bytes=8e10, flops=1e15,
        ...             network_bytes_s=5e10)
        >>> str(Recipe(tp=8, pp=4, tokens=2048).mix(job)), str(Recipe().mix(job))
        ('tp8 pp4 cp2 ep1', 'tp1 pp1 cp2 ep1')
        >>> str(Recipe(fill=0.5).mix(job))  # 420 GB of weights and gradients in 40 GB a chip
        'tp1 pp16 cp1 ep1'
        """
        chips = facts.n_chips
        tp = _below(facts.heads, self.tp, chips)
        ep = _below(facts.experts, self.ep, chips) if facts.experts else 1
        pp = self._stages(facts, tp, ep)
        rest = chips // (tp * pp)
        wide = max(facts.seq_len / (tp * self.tokens), rest / facts.sequences)
        able = (d for d in _divisors(rest) if d >= wide and facts.sequences % (rest // d) == 0)
        ranks = chips // pp
        return Mix(tp, pp, next(able, rest), _below(facts.experts, ep, ranks) if facts.experts else 1)

    def _stages(self, facts: Facts, tp: int, ep: int) -> int:
        able = [d for d in _divisors(facts.n_chips // tp) if d <= facts.stages]
        if not self.cover and not self.fill:
            return max(d for d in able if d <= self.pp)
        wanted = 1.0
        if self.cover:
            wanted = self.cover / (facts.cover * tp)
        else:
            dense = facts.parameters - facts.in_experts
            held = HELD_BYTES * (dense / tp + facts.in_experts / ep)
            wanted = held / (self.fill * facts.usable_bytes)
        return min((d for d in able if d >= wanted), default=able[-1])

    def words(self, *, experts: bool) -> str:
        """The recipe as a person would say it."""
        said = []
        if self.pp > 1:
            said.append(f"{self.pp} pipeline stages")
        if self.cover:
            times = {1.0: "", 2.0: " twice"}.get(self.cover, f" {self.cover:g} times")
            said.append(
                f"pipeline stages until a step's arithmetic outlasts sending a stage's weights{times}"
            )
        if self.fill:
            share = units.percent_text(self.fill, 0)
            said.append(
                f"pipeline stages until weights and gradients take at most {share} of a chip's memory"
            )
        if self.tp > 1:
            said.append(f"tensor parallelism over {self.tp} chips")
        if experts and self.ep > 1:
            most = self.ep >= EP[-1]
            said.append(
                "experts over as many chips as there are" if most else f"experts over {self.ep} chips"
            )
        if self.tokens < ANY_LENGTH:
            said.append(f"sequences split to {units.length_text(self.tokens)} tokens a chip")
        if not said:
            return "data parallelism alone, its state sharded"
        return f"{', '.join(said)}; the rest data-parallel"

    @property
    def axes(self) -> int:
        """How many axes beside data parallelism it names."""
        stages = self.pp > 1 or self.cover > 0 or self.fill > 0
        return stages + (self.tp > 1) + (self.ep > 1) + (self.tokens < ANY_LENGTH)


def every() -> Iterator[Recipe]:
    """All recipes, the plainest first."""
    staged = [
        *(Recipe(pp=n) for n in PP),
        *(Recipe(cover=times) for times in COVER),
        *(Recipe(fill=share) for share in FILL),
    ]
    found = (replace(one, tp=tp, ep=ep, tokens=t) for one, tp, ep, t in product(staged, TP, EP, TOKENS))
    return iter(sorted(found, key=lambda r: (r.axes, r)))


@cache
def _divisors(n: int) -> tuple[int, ...]:
    return tuple(divisors(n))


def _below(n: int, wanted: int, of: int) -> int:
    """The largest divisor of both `n` and `of` that is at most `wanted`."""
    return max(d for d in _divisors(n) if d <= wanted and of % d == 0)
