"""What a verb returns: an estimate, a plan, findings, each with all that a reader needs to judge it.

The records hold other rooms' results untouched; quantities that people quote (tokens/s, MFU, chip-hours) are
properties here, so that the terminal, the JSON and the plan file cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshwright import units
from meshwright.checks.capacity import narrow_bytes, room_bytes
from meshwright.cost.evaluation import Evaluation
from meshwright.errors import Diagnostic
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search.ranking import TIED
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.records import Strategy
from meshwright.work import Work

if TYPE_CHECKING:
    from meshwright.calibrate.nearest import Near
    from meshwright.search.balance import Balanced
    from meshwright.search.plan import Necessity
    from meshwright.search.why import Sentence
    from meshwright.simulate.exact import Exact


@dataclass(frozen=True, slots=True)
class Because:
    """A value that was derived, and why it is what it is."""

    value: Any
    because: str


@dataclass(frozen=True, slots=True)
class Run:
    """What a whole training run takes. `price_per_chip_hour` is None where nobody said it."""

    total_tokens: float
    n_steps: float
    days: float
    chip_hours: float
    price_per_chip_hour: float | None
    tdp_w: float | None

    @property
    def cost_usd(self) -> float | None:
        """Chip-hours times the price of one."""
        return None if self.price_per_chip_hour is None else self.chip_hours * self.price_per_chip_hour

    @property
    def energy_j(self) -> float | None:
        """Energy (J) of the chips alone, each drawing its thermal design power the whole time."""
        return None if self.tdp_w is None else self.chip_hours * 3600.0 * self.tdp_w


@dataclass(frozen=True, slots=True)
class Given:
    """How model, cluster and framework were spelled, for the plan file."""

    model: str | dict[str, Any]
    cluster: str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """One strategy and what the cost model says of it."""

    model: Model
    cluster: Cluster
    work: Work
    strategy: Strategy
    profile: Profile
    evaluation: Evaluation
    derived: dict[str, Because]
    given: Given
    diagnostics: tuple[Diagnostic, ...] = ()
    nearest: tuple[Near, ...] = ()
    interval_s: tuple[float, float] | None = None
    interval_because: str = ""  # what no measured run has of the job, where that makes the interval wider
    interval_bytes: tuple[float, float] | None = None  # of the peak
    price_per_chip_hour: float | None = None
    moe_balance: dict[str, Balanced] = field(default_factory=dict)  # of a plan with experts, if asked for
    simulated: Exact | None = None  # then `evaluation` is its own

    @property
    def fits(self) -> bool:
        """Whether the worst rank's peak is within what one process can allocate."""
        return bool(self.evaluation.fits)

    @property
    def fits_narrowly(self) -> bool:
        """Whether it fits so close to the limit that runs of one layout both fit and fail."""
        return self.fits and float(self.evaluation.peak_bytes) > narrow_bytes(room_bytes(self.cluster))

    @property
    def may_not_fit(self) -> bool:
        """Whether it fits and the interval of the peak passes what a process can allocate."""
        reach = None if self.interval_bytes is None else self.interval_bytes[1]
        return self.fits and reach is not None and reach > room_bytes(self.cluster)

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step on the slowest rank, its pipeline simulated where it has one."""
        return float(self.evaluation.step_time_s)

    @property
    def closed_form(self) -> Evaluation:
        """The array result: what `evaluation` is but for the simulation."""
        return self.evaluation.closed_form or self.evaluation

    @property
    def simulated_step_time_s(self) -> float | None:
        """`step_time_s`; None where the pipeline has too many passes to be simulated."""
        simulated = int(self.strategy.pp) == 1 or self.evaluation.closed_form is not None
        return self.step_time_s if simulated else None

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a step trains on; both answers of a preference pair count."""
        return float(self.work.tokens_per_step) * parse_finetune(self.strategy.finetune).rows

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Training throughput of one chip."""
        return self.tokens_per_step / self.step_time_s / self.cluster.n_chips

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model FLOP/s of one chip (recompute not counted, causal attention half)."""
        return float(self.evaluation.model_flops) / self.step_time_s / self.cluster.n_chips

    @property
    def peak_flops(self) -> float:
        """Dense peak (FLOP/s) of the stated precision that the MFU is a share of."""
        return self.cluster.chip.peak_flops(self.work.precision)

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the dense peak of the stated precision, a fraction."""
        return self.model_flops_per_s_per_chip / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOP/s (recompute counted) over the same peak, a fraction."""
        done = float(self.evaluation.hardware_flops) / self.step_time_s / self.cluster.n_chips
        return done / self.peak_flops

    @property
    def run(self) -> Run | None:
        """The whole run, where `total_tokens` says how long it is."""
        tokens = self.work.total_tokens
        if tokens is None:
            return None
        n_steps = tokens / self.tokens_per_step
        seconds = n_steps * self.step_time_s
        return Run(
            total_tokens=tokens,
            n_steps=n_steps,
            days=seconds / units.SECONDS_PER_DAY,
            chip_hours=seconds / 3600.0 * self.cluster.n_chips,
            price_per_chip_hour=self.price_per_chip_hour,
            tdp_w=self.cluster.chip.tdp_w,
        )

    def json(self, *, terms: bool = False) -> dict[str, Any]:
        """The object that `meshwright estimate --json` prints (see docs/json.md)."""
        from meshwright.report import as_json

        return as_json.estimate_object(self, terms=terms)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the searches behind a plan: so many chips, such a batch, and the best of it (None: nothing
    fits). `meets`: within the deadline, where there is one."""

    n_chips: int
    global_batch_size: int
    best: Estimate | None
    meets: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A plan by what it needs: a point of the Pareto front."""

    n_chips: int
    global_batch_size: int
    step_time_s: float
    seconds_per_token: float
    peak_bytes: float
    strategy: Strategy
    simulated_step_time_s: float | None = None

    def goods(self) -> tuple[float, float, float, float]:
        """What is better when less: seconds a token, bytes on the fullest rank, chips, chip-seconds a token
        (which cost and energy go by)."""
        return (
            self.seconds_per_token,
            self.peak_bytes,
            float(self.n_chips),
            self.n_chips * self.seconds_per_token,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search found, best first; `plans` is empty when nothing fits."""

    model: Model
    cluster: Cluster
    work: Work
    profile: Profile
    plans: tuple[Estimate, ...]
    searched: int
    feasible: int
    rejected: dict[str, int]
    bounded: dict[str, int]
    search_seconds: float
    necessity: tuple[Necessity, ...]
    why: tuple[Sentence, ...]
    nearest: Estimate | None = None
    needs: str = ""
    ways_out: tuple[str, ...] = ()  # sentences, where nothing fits
    space: dict[str, tuple[Any, ...]] | None = None
    left: dict[str, str] | None = None  # what was not tried of a field, and why
    untried: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # words of layouts that were not
    choices: tuple[Choice, ...] = ()
    pareto: tuple[Point, ...] = ()
    asked_pareto: bool = False
    objective: str = "time"
    target: str | None = None
    reranked: int = 0  # plans near the best that were simulated and put in order by that

    def tied(self, plan: Estimate) -> bool:
        """Whether the model cannot tell the step time of `plan` from that of the fastest."""
        fastest = min(p.step_time_s for p in self.plans)
        return plan.step_time_s <= fastest * (1.0 + TIED)

    @property
    def best(self) -> Estimate | None:
        """The plan that the objective prefers."""
        return self.plans[0] if self.plans else None

    def json(self, *, terms: bool = False) -> dict[str, Any]:
        """The object that `meshwright plan --json` prints (see docs/json.md)."""
        from meshwright.report import as_json

        return as_json.plan_object(self, terms=terms)


@dataclass(frozen=True, slots=True)
class Checked:
    """A plan and everything the checks found in it."""

    model: Model
    cluster: Cluster
    work: Work
    strategy: Strategy | None  # None where it could not be completed to a legal one
    given: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    stages: tuple[int, ...] = ()  # decoder layers of each virtual stage of the strategy

    @property
    def ok(self) -> bool:
        """Whether no finding is an error."""
        return all(d.severity != "error" for d in self.diagnostics)

    def json(self) -> dict[str, Any]:
        """The object that `meshwright check --json` prints (see docs/json.md)."""
        from meshwright.report import as_json

        return as_json.check_object(self)
