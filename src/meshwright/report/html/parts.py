"""What a plan is, section by section: verdict, time, memory, the pipeline and what travels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from meshwright import units
from meshwright.calibrate import bands
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS
from meshwright.report.document import Report, moments, telling_ranks
from meshwright.report.html import svg
from meshwright.report.html.shown import Shown, count, gib, number, seconds, share
from meshwright.report.ranks import CARRIES
from meshwright.report.simulated import CAUSES, bubble_json
from meshwright.report.terminal.estimate import TIME_MEANS
from meshwright.report.terminal.ranks import crossed
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.simulate.exact import Exact

MOST_SPANS = 3000  # of a timeline that is drawn whole; of longer ones begin and end are
MOST_ROWS = 32  # ranks of a timeline
PASSES = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
AFTER = {"exchange": "gradients and weights", "optimizer": "update"}


def verdict(report: Report) -> dict[str, Any]:
    """Whether it fits and the figures that people quote."""
    e = report.estimate
    such = f" in {units.percent_text(bands.INSIDE, 0)} of such runs"
    low_high, held = "", ""
    if e.interval_s is not None:
        low_high = " to ".join(units.seconds_text(s) for s in e.interval_s) + such
        low_high += f" ({e.interval_because})" if e.interval_because else ""
    if e.interval_bytes is not None:
        held = "; " + " to ".join(units.bytes_text(b) for b in e.interval_bytes) + such
    peak, room = float(e.evaluation.peak_bytes) / GIB, float(e.evaluation.capacity_bytes) / GIB
    figures: list[tuple[str, Shown, str]] = [
        ("step time", seconds(e.step_time_s), low_high),
        ("tokens a second and chip", number(e.tokens_per_s_per_chip), ""),
        ("MFU", share(e.mfu), "recompute not counted, causal attention half"),
        ("memory of the fullest chip", gib(peak), f"of {units.bytes_text(room * GIB)}{held}"),
    ]
    run = e.run
    if run is not None:
        figures.append(("days", number(run.days), f"for {units.count_text(run.total_tokens)} tokens"))
        figures.append(("chip-hours", count(round(run.chip_hours)), ""))
        if run.cost_usd is not None:
            figures.append(("cost", Shown(run.cost_usd, units.money_text(run.cost_usd)), ""))
    return {"fits": e.fits, "needs": report.search.needs if not e.fits else "", "figures": figures,
            "room": svg.bar([("over" if not e.fits else "held", peak / max(peak, room))],
                            min(room / max(peak, room), 0.99))}  # fmt: skip


def time(report: Report) -> dict[str, Any]:
    """Where the step goes, the largest part first."""
    e = report.estimate.evaluation
    step = float(e.step_time_s)
    spent = sorted(((float(e.time_s[k]), k) for k in TIME_KEYS if float(e.time_s[k]) > 0), reverse=True)
    return {
        "bar": svg.bar([(f"t-{key}", s / step) for s, key in spent]),
        "rows": [
            (f"t-{key}", key, TIME_MEANS[key], seconds(s), units.percent_text(s / step)) for s, key in spent
        ],
        "floor": seconds(float(e.floor_time_s)),
        "recompute": seconds(float(e.recompute_s)) if float(e.recompute_s) > 0 else None,
    }


def memory(report: Report) -> dict[str, Any]:
    """Every stage at its own fullest moment by category, and some ranks over the step."""
    e = report.estimate.evaluation
    capacity = float(e.capacity_bytes)
    used = [k for k in MEMORY_KEYS if any(one.memory_bytes.get(k, 0.0) > 0 for one in e.by_stage)]
    wide = max(capacity, *(one.peak_bytes for one in e.by_stage))
    rows = [
        {
            "stage": one.stage,
            "moment": one.moment,
            "bar": svg.bar([(f"m-{k}", one.memory_bytes.get(k, 0.0) / wide) for k in used], capacity / wide),
            "peak": gib(one.peak_bytes / GIB),
            "by": [gib(one.memory_bytes.get(k, 0.0) / GIB) for k in used],
        }
        for one in e.by_stage
    ]
    return {"keys": used, "rows": rows, "capacity": gib(capacity / GIB), "chart": _over_time(report)}


def _over_time(report: Report) -> Markup | None:
    exact = report.simulated
    if exact is None:
        return None
    lines = [
        svg.Line(f"rank {rank}", f"line-{i}", list(zip(at.tolist(), (held / GIB).tolist())), steps=True)
        for i, rank in enumerate(telling_ranks(exact))
        for at, held in [moments(exact, rank)]
    ]
    capacity = float(report.estimate.evaluation.capacity_bytes) / GIB
    told = ", ".join(line.name for line in lines)
    drawn = svg.chart(
        f"Memory over the step of {told}", lines, units.seconds_text,
        lambda held: units.bytes_text(held * GIB),
        marks=(("can be allocated", capacity),),
    )  # fmt: skip
    legend = Markup("").join(
        Markup('<span class="key {}">{}</span> ').format(line.style, line.name) for line in lines
    )
    return Markup('<p class="legend">{}</p>{}').format(legend, drawn)


def pipeline(report: Report) -> dict[str, Any]:
    """The step pass by pass, drawn and as a table of ranks."""
    exact = report.simulated
    if exact is None:
        return {"why_not": [d.message for d in report.unsimulated]}
    ranks, span = range(exact.timeline.network.n_ranks), list(_spans(exact))
    shown = ranks if len(ranks) <= MOST_ROWS else range(0, len(ranks), -(-len(ranks) // MOST_ROWS))
    row_of = {rank: i for i, rank in enumerate(shown)}
    own = [svg.Span(row_of[s.rank], s.style, s.start, s.end, s.lane) for s in span if s.rank in row_of]
    drawn = [
        (said, svg.timeline(said, [f"rank {r}" for r in shown], own, a, b, units.seconds_text))
        for said, a, b in _windows(own)
    ]
    kinds = [k for k in (*PASSES, *AFTER) if any(s.style == f"p-{k}" for s in own)]
    return {
        "why_not": [],
        "legend": [(f"p-{k}", {**PASSES, **AFTER}[k]) for k in kinds],
        "drawings": drawn,
        "step": seconds(float(exact.evaluation.step_time_s)),
        "closed": seconds(float(report.estimate.closed_form.step_time_s)),
        "passes": count(len(exact.timeline.network.kind)),
        "causes": [c.removesuffix("_s").replace("_", " ") for c in CAUSES],
        "rows": [_rank_row(exact, rank) for rank in ranks],
    }


def _rank_row(exact: Exact, rank: int) -> dict[str, Any]:
    marks = [m for m, r in (("slowest", exact.slowest_rank), ("fullest", exact.fullest_rank)) if r == rank]
    return {
        "rank": rank,
        "marks": ", ".join(marks),
        "busy": seconds(float(exact.timeline.busy_s[rank])),
        "idle": [seconds(s) for s in bubble_json(exact.idle, rank).values()],
        "exchange": seconds(float(exact.exchange_s[rank])),
        "optimizer": seconds(float(exact.optimizer_s[rank])),
        "in_flight": number(float(exact.in_flight[rank])),
        "held": gib(float(exact.held_bytes[rank]) / GIB),
    }


def _spans(exact: Exact) -> Iterator[svg.Span]:
    """Passes and what follows them; of two that run at once each has half of the row."""
    for row in exact.timeline.passes:
        second = False
        for p in row:
            lane = 2 if second else int(p.action.joined > 0)
            second = bool(p.action.joined) and not second
            yield svg.Span(p.rank, f"p-{p.action.kind}", p.start_s, p.end_s, lane)
    for rank, end in enumerate(exact.timeline.last_s.tolist()):
        exchange, update = float(exact.exchange_s[rank]), float(exact.optimizer_s[rank])
        yield svg.Span(rank, "p-exchange", end, end + exchange)
        yield svg.Span(rank, "p-optimizer", end + exchange, end + exchange + update)


def _windows(spans: list[svg.Span]) -> list[tuple[str, float, float]]:
    """(title, from, to): the whole step, or its begin and its end where it has too many passes to see."""
    start, end = min(s.start for s in spans), max(s.end for s in spans)
    if len(spans) <= MOST_SPANS:
        return [("The step of every rank, pass by pass", start, end)]
    half = MOST_SPANS // 2
    until = sorted(s.end for s in spans)[half]
    since = sorted(s.start for s in spans)[-half]
    return [
        ("The beginning of the step, pass by pass", start, until),
        ("The end of the step, pass by pass", since, end),
    ]


def communication(report: Report) -> list[dict[str, Any]]:
    """What each axis sends, over which links, and what of it shows."""
    e = report.estimate
    step = e.step_time_s
    rows = []
    for axis in ("tp", "cp", "ep", "dp", "pp"):
        kind = report.ranks.groups.get("data" if axis == "dp" else axis)
        exposed = float(e.evaluation.time_s[axis])
        if kind is None or (kind.size == 1 and exposed == 0):
            continue
        said = [s.text for s in report.explanation.sentences if s.terms == (f"step.time.{axis}",)]
        rows.append(
            {
                "axis": axis,
                "carries": CARRIES[kind.name],
                "size": count(kind.size),
                "groups": count(kind.count),
                "links": crossed(report.ranks, kind),
                "shows": seconds(exposed),
                "share": units.percent_text(exposed / step),
                "bar": svg.bar([(f"t-{axis}", exposed / step)]),
                "said": said,
            }
        )
    return rows
