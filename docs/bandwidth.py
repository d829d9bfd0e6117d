"""Write `docs/bandwidth-buys-simplicity.md`: where pipelines stop being needed, with computed figures.

`python docs/bandwidth.py` searches every point (some minutes of one core; an interrupted run is taken up
where it stopped), writes the figures to `docs/bandwidth.json` and the page from them. `--page` writes the
page alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import cells

from meshwright import units
from meshwright.cost import balance, schedule
from meshwright.hardware import chips, slices
from meshwright.hardware.cluster import build
from meshwright.model import presets
from meshwright.profiles import load as profiles
from meshwright.report.as_json import strategy_line
from meshwright.search.balance import balanced
from meshwright.search.bounds import Request
from meshwright.search.guide import practice
from meshwright.search.ranking import Candidate
from meshwright.search.scan import scan
from meshwright.search.space import build as build_space
from meshwright.work import Work

DATA = Path(__file__).parent / "bandwidth.json"
PAGE = Path(__file__).parent / "bandwidth-buys-simplicity.md"
MODELS = ("Llama-3.1-405B", "DeepSeek-V3", "Kimi-K2")
SLACK = 0.03  # a loss that nobody would notice
LARGE = 0.1  # from which on losses fall at every step
SEQ_LEN = 4096


@dataclass(frozen=True, slots=True)
class Fabric:
    """A kind of cluster and what is varied of it: chips of a fast domain, and Gbit/s a chip between domains
    of `at` chips. `sheet_domain` and `sheet_gbits` are what it comes with (None: it depends on the chips)."""

    name: str
    chip: str
    domains: tuple[int, ...]
    gbits: tuple[float, ...]
    at: int
    sheet_domain: int | None
    sheet_gbits: float

    def point(self, model: str, **varied: Any) -> Point:
        """A job; what is as it comes is left out, so that no job has two names."""
        sheet = {"domain": self.sheet_domain, "gbits": self.sheet_gbits}
        return Point(model, self.name, **{k: None if v == sheet.get(k) else v for k, v in varied.items()})


SWITCHED = (8, 16, 32, 64, 128, 256)
NETWORKS = (100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0)
FABRICS = (
    Fabric("H100", "H100-SXM", SWITCHED, NETWORKS, 8, 8, 400.0),
    Fabric("GB200 NVL72", "GB200-NVL72", SWITCHED, NETWORKS, 64, 64, 400.0),
    Fabric("TPU v5p", "TPU-v5p", (64, 256, 1024, 4096), (12.5, 25, 50, 100, 200), 256, None, 50.0),
    Fabric("TPU v7", "TPU-v7-Ironwood", (64, 256, 512, 1024), (25, 50, 100, 200, 400), 256, None, 100.0),
)
BY_NAME = {fabric.name: fabric for fabric in FABRICS}
BATCHES = (0.25, 1, 4)
FEW = 0.125  # times the usual tokens: one microbatch of a sequence a chip
ONE_MICROBATCH = (("DeepSeek-V3", "TPU v5p"), ("Kimi-K2", "TPU v5p"))
LENGTHS = (4096, 32768, 262144)
ASKED_MORE = ("H100", "GB200 NVL72")  # where batch and length are varied too


@dataclass(frozen=True, slots=True)
class Point:
    """A job: None is what the fabric has today; `batch` times the usual tokens a step."""

    model: str
    fabric: str
    domain: int | None = None
    gbits: float | None = None
    batch: float = 1
    seq_len: int = SEQ_LEN

    def request(self) -> Request:
        """What is planned."""
        chip, model = chips.load(BY_NAME[self.fabric].chip), presets.load(self.model)
        n = practice.n_chips(model, chip)
        figures = {} if self.gbits is None else {"scale_out_gbits_s": self.gbits}
        if self.domain is None:
            cluster = build(chip, n, figures)
        elif chip.fabric == "torus":
            axes = slices.rules()[chip.name].most_cubic(self.domain)
            cluster = build(chip, n, figures, torus=axes, n_slices=n // self.domain)
        else:
            cluster = build(chip, n, figures | {"scale_up_size": self.domain})
        tokens = practice.tokens_per_step(model) * self.batch
        work = Work(self.seq_len, int(tokens) // self.seq_len)
        return Request(model, cluster, work, profiles.load(None, chip, "", None))


def points() -> list[Point]:
    """Every job of the page, none twice."""
    found = [Point(model, fabric.name) for model in MODELS for fabric in FABRICS]
    for model in MODELS:
        for fabric in FABRICS:
            n = Point(model, fabric.name).request().cluster.n_chips
            found += [fabric.point(model, domain=d) for d in fabric.domains if d <= n]
            found += [fabric.point(model, domain=fabric.at, gbits=g) for g in fabric.gbits]
    for model in MODELS:
        for name in ASKED_MORE:
            found += [Point(model, name, batch=b) for b in BATCHES]
            found += [Point(model, name, seq_len=s) for s in LENGTHS]
    found += [Point(*job, batch=FEW) for job in ONE_MICROBATCH]
    return list(dict.fromkeys(found))


def solved(point: Point) -> dict[str, Any]:
    """The best plan of a job, and the best without a pipeline."""
    request = point.request()
    space = build_space(request.model, request.cluster, request.work, {}, request.profile)
    found = scan(request, space, top=1, techniques=("pp",))
    best = found.best[0] if found.best else None
    without = (
        best if best is not None and best.strategy.pp == 1 else next(iter(found.without["pp"].plans), None)
    )
    told = {"best": _told(request, best), "without": _told(request, without)}
    return {"chips": request.cluster.n_chips, "tokens": int(request.work.tokens_per_step)} | told


def _told(request: Request, plan: Candidate | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    s, r = plan.strategy, request
    microbatches = int(r.work.global_batch_size) // (int(s.dp) * int(s.microbatch_size))
    ways = balanced(r.model, r.cluster, r.work, s, r.profile)
    costs = {
        word: None if way.time_s is None else [round(way.time_s, 6), round(float(way.memory_bytes or 0))]
        for word, way in ways.items()
    }
    return {
        "step_time_s": float(f"{plan.step_time_s:.6g}"),
        "plan": strategy_line(s),
        "pp": int(s.pp),
        "microbatches": microbatches,
        "room": round(r.cluster.usable_bytes - plan.peak_bytes),
        "balance": costs,
    }


Figures = dict[Point, dict[str, Any]]


def loss(found: dict[str, Any]) -> float | None:
    """What doing without a pipeline costs: step time over the best one's, less 1; None: nothing fits."""
    if found["without"] is None or found["best"] is None:
        return None
    return float(found["without"]["step_time_s"] / found["best"]["step_time_s"] - 1)


def loss_text(value: float | None) -> str:
    """A loss, or that no plan fits without a pipeline."""
    return "nothing fits" if value is None else units.percent_text(value)


def crossing(values: Sequence[float], losses: Sequence[float | None]) -> str:
    """Where the loss falls under `SLACK` for good: the first value from which on it stays there, and between
    which it crossed (on a line over the logarithm)."""
    good = [x is not None and x < SLACK for x in losses]
    if not good[-1]:
        return f"above {values[-1]:,g}"
    first = len(good) - next((i for i, g in enumerate(reversed(good)) if not g), len(good))
    if first == 0:
        return f"at {values[0]:,g} or less"
    before, after = losses[first - 1], losses[first]
    if before is None or after is None:
        return f"{values[first]:,g}"
    share = (before - SLACK) / (before - after)
    at = exp(log(values[first - 1]) + share * log(values[first] / values[first - 1]))
    return f"{values[first]:,g} (about {units.number_text(at, 2)})"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    out = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return "\n".join([*out, *("| " + " | ".join(line) + " |" for line in lines)])


def today(figures: Figures) -> str:
    """Plans with and without a pipeline on each machine as it is."""
    head = ("model", "machine", "chips", "best plan", "without a pipeline", "loss")
    lines = []
    for model in MODELS:
        for fabric in FABRICS:
            found = figures[Point(model, fabric.name)]
            plans = [f"`{p['plan']}`" if p else "nothing fits" for p in (found["best"], found["without"])]
            if found["best"] and found["best"]["pp"] == 1:
                plans[1] = "the same"
            lines.append((model, fabric.name, f"{found['chips']:,}", *plans, loss_text(loss(found))))
    return table(head, lines)


def curve(figures: Figures, fabric: Fabric, field: str) -> str:
    """Losses of each model along domain sizes or bandwidths, and where they fall under the slack."""
    values: tuple[float, ...] = fabric.domains if field == "domain" else fabric.gbits
    unit = "chips" if field == "domain" else "Gbit/s"
    lines = []
    for model in MODELS:
        at = [fabric.point(model, **{"domain": fabric.at, field: value}) for value in values]
        there = [(v, loss(figures[p])) for v, p in zip(values, at) if p in figures]
        texts = [loss_text(dict(there)[v]) if v in dict(there) else "" for v in values]
        lines.append((model, *texts, crossing(*zip(*there))))
    return table(
        ("model", *(f"{v:,g} {unit}" for v in values), f"under {units.percent_text(SLACK, 0)} from"), lines
    )


def along(figures: Figures, field: str, values: Sequence[Any], heads: Sequence[str]) -> str:
    """Losses of each model on some machines along batch or length."""
    lines = []
    for model in MODELS:
        for name in ASKED_MORE:
            losses = [loss(figures[Point(model, name, **{field: value})]) for value in values]
            lines.append((model, name, *(loss_text(x) for x in losses)))
    return table(("model", "machine", *heads), lines)


def held_rows() -> Iterator[tuple[str, ...]]:
    """Activations of the first stage under an exact loss over those without it, from the closed forms."""
    for word, p, v, m in (
        ("1f1b", 16, 1, 64), ("interleaved-1f1b", 16, 2, 64), ("gpipe", 16, 1, 64), ("1f1b", 16, 1, 1),
    ):  # fmt: skip
        own = float(schedule.load(word).in_flight(0, p, v, m))
        every = float(balance.in_flight(balance.HOLDS_ALL, own, m))
        yield (word, str(p), str(v), str(m), units.number_text(own), units.number_text(every),
               f"{every / own:.1f} x")  # fmt: skip


def balance_rows(figures: Figures) -> Iterator[tuple[str, ...]]:
    """What an exact loss costs plans with and without a pipeline, and those of few tokens a step."""
    jobs = [(f"{m}, {f.name}", Point(m, f.name)) for m in MODELS for f in FABRICS]
    few = [(f"{m}, {f}, {FEW:g} x the tokens", Point(m, f, batch=FEW)) for m, f in ONE_MICROBATCH]
    for job, point in [*jobs, *few]:
        found = figures[point]
        plans = [("best plan", found["best"]), ("without a pipeline", found["without"])]
        if found["best"] and found["best"]["pp"] == 1:
            plans = plans[:1]
        for name, plan in plans:
            if plan and plan["balance"]:
                costs = [_cost(plan, word) for word in ("global", "global-counted", "bias")]
                yield (job, name, str(plan["pp"]), str(plan["microbatches"]), *costs)


def _cost(plan: dict[str, Any], word: str) -> str:
    """What a way of balancing adds to a plan's memory and step; empty where a rule forbids it."""
    cost = plan["balance"].get(word)
    if cost is None:
        return ""
    seconds, more = cost
    said = f"+{units.bytes_text(max(more, 0))}, +{units.percent_text(seconds / plan['step_time_s'])}"
    return said if more <= plan["room"] else f"{said} (does not fit)"


def sentences(figures: Figures) -> Iterator[str]:
    """What the figures say, machine by machine."""
    for fabric in FABRICS:
        losses = {m: loss(figures[Point(m, fabric.name)]) for m in MODELS}
        free = [m for m, x in losses.items() if x is not None and x < SLACK]
        dear = [f"{m} ({loss_text(x)})" for m, x in losses.items() if m not in free]
        said = f"**{fabric.name}**: "
        if free:
            said += f"{_listed(free)} lose less than {units.percent_text(SLACK, 0)} without a pipeline"
        if dear:
            said += f"{'; ' if free else ''}a pipeline pays for {_listed(dear)}"
        yield f"* {said}."


OPENING = """A pipeline is what one builds when the exchange of weights and gradients does not hide behind
the arithmetic, or when a model does not fit without it. It is paid for with stages to balance, bubbles,
and losses that must be known before the first backward. Where links are wide enough, none of that is
needed.

Each figure is the loss of the best plan without a pipeline against the best plan of all, both searched
in the whole space of `meshwright plan` (every order of the axes, all that may be recomputed or kept on the
host) and timed by closed forms, in bf16, at {length} tokens a sequence. Chips: {chips}.
Tokens a step: {tokens}.
`plan` ranks by simulated pipelines, so its losses differ from these by a point or two.
Both plans are predictions; the [accuracy page](accuracy.md) says how good those are."""

FABRIC = """The network between domains is as on the data sheet. A wider switch makes neither plan slower,
and a loss above {large} falls with it at every step. A small one stays small but need not fall: what is left
comes from memory that a pipeline shares out (it recomputes and gathers less) and from exchange inside the
domain, and the plan with a pipeline may be the one that gains. The same holds of bandwidth between domains.

Slices of a torus are the most cubic ones, and there both plans may be slower in a larger one: what filled a
small slice with closed rings, experts above all, is a part of the next. From 1,024 to 4,096 TPU v5p a slice
the best plan of DeepSeek-V3 takes {slower} times as long, so a loss of 0 there is no praise of larger
slices.

The last column says from which size on the loss stays under {slack}, and in brackets where it crossed, on a
line over the logarithm."""

BATCH = """More tokens a step are more arithmetic for one exchange of weights, and more microbatches in
which a pipeline's bubble is lost, so the loss may go either way. Times the usual tokens a step:"""

LENGTH = """At the same tokens a step. Longer sequences add arithmetic (attention) and take chips for
context parallelism."""

BALANCE = """A loss that balances experts over the whole global batch needs every forward before the first
backward. Held, that is the activations of all m microbatches on each stage, where the schedule alone
holds as many as are in flight (p stages, v chunks of each; here on the first stage):"""

ONE = """With one microbatch (m = 1) nothing extra is held or counted, and that is what wide links allow:
without a pipeline a step may be one microbatch. Gradient accumulation without a pipeline (m > 1) holds
all m as well.

On the plans above, the exact loss with all forwards held, the exact loss counted by a forward of its own,
and a bias on the router, which needs neither (bytes on the fullest rank, change of the step):"""


def slower(figures: Figures) -> str:
    """How many times as long the best plan of DeepSeek-V3 takes on the largest slices of TPU v5p."""
    fabric = BY_NAME["TPU v5p"]
    small, large = (
        figures[fabric.point("DeepSeek-V3", domain=domain)]["best"]["step_time_s"]
        for domain in fabric.domains[-2:]
    )
    return units.number_text(large / small, 3)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def page(figures: Figures) -> str:
    """The whole page, from the figures alone."""
    listed = practice.practice()
    rules = {"chips": listed["chips"]["rule"], "tokens": listed["tokens_per_step"]["rule"]}
    parts = [
        "# Bandwidth buys simplicity",
        "Written by `make bandwidth`.",
        OPENING.format(length=units.length_text(SEQ_LEN), **rules),
        "## As machines are today",
        "\n".join(sentences(figures)),
        today(figures),
        "## Chips of the fast domain",
        FABRIC.format(
            slack=units.percent_text(SLACK, 0), large=units.percent_text(LARGE, 0), slower=slower(figures)
        ),
    ]
    for fabric in FABRICS:
        parts += [f"### {fabric.name}", curve(figures, fabric, "domain")]
    parts += ["## Bandwidth between domains"]
    for fabric in FABRICS:
        parts += [f"### {fabric.name}, domains of {fabric.at} chips", curve(figures, fabric, "gbits")]
    parts += [
        "## Tokens of a step",
        BATCH,
        along(figures, "batch", BATCHES, [f"{b:g} x" for b in BATCHES]),
        "## Tokens of a sequence",
        LENGTH,
        along(figures, "seq_len", LENGTHS, [units.length_text(s) for s in LENGTHS]),
        "## What a pipeline does to balancing",
        BALANCE,
        table(("schedule", "p", "v", "m", "in flight", "with an exact loss", "activations"), held_rows()),
        ONE,
        table(
            ("job", "plan", "pp", "m", "all forwards held", "counted first", "bias"), balance_rows(figures)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def written(figures: Figures) -> str:
    """The figures as JSON, a line a point."""
    lines = [json.dumps({"point": asdict(point), "found": found}) for point, found in figures.items()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def read(text: str) -> Figures:
    """The figures that `written` wrote."""
    return {Point(**one["point"]): one["found"] for one in json.loads(text)}


def main(arguments: list[str]) -> None:
    """Compute what is missing and write figures and page."""
    if "--page" not in arguments:
        found = dict(cells.computed("bandwidth", points(), solved, cells.processes(arguments)))
        DATA.write_text(written(found), encoding="utf-8")
    PAGE.write_text(page(read(DATA.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
