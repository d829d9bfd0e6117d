"""What else there was, section by section: what-ifs, other plans, the price of doing without, provenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwright import units
from meshwright.report.as_json import conventions, plain, strategy_line
from meshwright.report.document import Report, WhatIf
from meshwright.report.explanation import by_tag
from meshwright.report.html import svg
from meshwright.report.html.shown import Shown, gib, number, percent, seconds, share
from meshwright.report.records import Estimate
from meshwright.report.sweep import told
from meshwright.units import GIB

TITLES = {
    "cluster.scale_out_gbits_s": "Bandwidth of the network between domains, a chip",
    "cluster.scale_up_gbytes_s": "Bandwidth of the links of the fast domain, a chip",
    "cluster.scale_up_size": "Chips of a fast domain",
    "seq_len": "Sequence length, at the same tokens a step",
}
_VALUES: dict[str, Callable[[float], str]] = {
    "cluster.scale_out_gbits_s": lambda x: f"{units.number_text(x)} Gbit/s",
    "cluster.scale_up_gbytes_s": lambda x: f"{units.number_text(x)} GB/s",
    "cluster.scale_up_size": units.count_text,
    "seq_len": lambda x: units.length_text(int(x)),
}


def what_if(one: WhatIf) -> dict[str, Any]:
    """A field: a row for each value, a chart, and where the best strategy changes."""
    text, values = _VALUES[one.field], [p.at[one.field] for p in one.sweep.points]
    lines = [
        svg.Line("this plan", "line-0", [(v, _rate(k)) for v, k in zip(values, one.kept)]),
        svg.Line("the best plan", "line-1", [(v, _rate(p.best)) for v, p in zip(values, one.sweep.points)]),
    ]
    title = TITLES[one.field]
    rows = [
        {
            "value": text(value),
            "x": x,
            "now": value == one.now,
            "kept": _short(kept),
            "best": _short(point.best),
            "simplest": "the same"
            if point.simplest is not None and point.best is not None
            and point.simplest.strategy == point.best.strategy
            else "" if point.simplest is None else strategy_line(point.simplest.strategy),
            "why_not": "nothing fits" if point.nearest is not None else "no legal plan",
        }
        for value, x, point, kept in zip(values, svg.positions(values), one.sweep.points, one.kept)
    ]  # fmt: skip
    return {
        "id": one.field.replace(".", "-").replace("_", "-"),
        "title": title,
        "now": next((i for i, row in enumerate(rows) if row["now"]), 0),
        "rows": rows,
        "last": len(rows) - 1,
        "chart": svg.chart(
            f"{title}: tokens a second and chip of this plan and of the best plan", lines, text,
            units.number_text, ratio=True,
        ),
        "slack": units.percent_text(one.sweep.slack, 0),
        "faults": told(one.sweep.points),
    }  # fmt: skip


def _rate(plan: Estimate | None) -> float | None:
    """Tokens a second and chip, where the plan fits."""
    return plan.tokens_per_s_per_chip if plan is not None and plan.fits else None


def _short(plan: Estimate | None) -> dict[str, Any] | None:
    """A plan in a cell."""
    if plan is None:
        return None
    return {
        "fits": plan.fits,
        "rate": number(plan.tokens_per_s_per_chip),
        "step": seconds(plan.step_time_s),
        "memory": gib(float(plan.evaluation.peak_bytes) / GIB),
        "strategy": strategy_line(plan.strategy),
    }


def plans(report: Report) -> dict[str, Any]:
    """The best plans, and those that none beats in time, memory and chips at once."""
    search = report.search
    rows = [
        {
            "this": plan.strategy == report.estimate.strategy,
            "tied": search.tied(plan) and len(search.plans) > 1,
            "step": seconds(plan.step_time_s),
            "rate": number(plan.tokens_per_s_per_chip),
            "mfu": share(plan.mfu),
            "memory": gib(float(plan.evaluation.peak_bytes) / GIB),
            "strategy": strategy_line(plan.strategy),
        }
        for plan in search.plans
    ]
    most = max((p.seconds_per_token for p in search.pareto), default=1.0)
    front = [
        {
            "chips": units.count_text(p.n_chips),
            "batch": units.count_text(p.global_batch_size),
            "step": seconds(p.step_time_s),
            "memory": gib(p.peak_bytes / GIB),
            "bar": svg.bar([("t-compute", p.seconds_per_token / most)]),
            "strategy": strategy_line(p.strategy),
        }
        for p in search.pareto
    ]
    searched = (
        f"{units.count_text(search.searched)} {units.plural(search.searched, 'strategy')} evaluated in "
        f"{units.seconds_text(search.search_seconds)}, {units.count_text(search.feasible)} of them fit"
    )
    cut = [*search.bounded.items(), *search.rejected.items()]
    why = [said.text for said in search.why[1:]]
    counts = [(reason, units.count_text(n)) for reason, n in cut]
    return {"rows": rows, "front": front, "searched": searched, "cut": counts, "why": why}


def necessity(report: Report) -> list[dict[str, Any]]:
    """What the step costs without each means, the dearest first; what is not used is one row."""
    needs = report.search.necessity
    dearest = max((n.loss_percent or 0.0 for n in needs), default=0.0) or 1.0
    used = [n for n in needs if n.loss_percent != 0]
    rows = [
        {
            "without": n.without,
            "step": None if n.step_time_s is None else seconds(n.step_time_s),
            "loss": None if n.loss_percent is None else percent(n.loss_percent),
            "bar": svg.bar([("over" if n.loss_percent is None else "t-bubble",
                             1.0 if n.loss_percent is None else n.loss_percent / dearest)]),
        }
        for n in sorted(used, key=lambda n: -(float("inf") if n.loss_percent is None else n.loss_percent))
    ]  # fmt: skip
    unused = [n.without for n in needs if n.loss_percent == 0]
    return [*rows, *([{"without": ", ".join(unused), "step": "not used"}] if unused else [])]


def provenance(report: Report) -> dict[str, Any]:
    """What the figures rest on: numbers and their sources, what was derived, measured runs nearby."""
    e, found = report.estimate, report.explanation
    step = e.step_time_s
    numbers = [
        (n.name, f"{n.value:.3g}", n.provenance, seconds(n.seconds), n.source)
        for n in found.numbers
        if n.seconds >= step * 0.001
    ]
    tags = [
        (tag, seconds(s), svg.bar([(f"tag-{tag}", s / step)])) for tag, s in by_tag(e, found.numbers).items()
    ]
    derived = [(name, _word(d.value), d.because) for name, d in e.derived.items()]
    near = [
        (n.id, _amount(n.measured, n.unit), None if n.predicted is None else _amount(n.predicted, n.unit),
         n.why, n.source)
        for n in e.nearest
    ]  # fmt: skip
    cluster = e.cluster
    figures = [
        ("inside a domain", units.rate_text(cluster.scale_up_bytes_s)),
        ("between domains", "-" if cluster.scale_out_bytes_s is None
         else units.rate_text(cluster.scale_out_bytes_s)),
        ("chips a domain", units.count_text(cluster.scale_up_size)),
        ("a process can allocate", units.bytes_text(cluster.usable_bytes)),
    ]  # fmt: skip
    return {"numbers": numbers, "tags": tags, "derived": derived, "near": near, "figures": figures,
            "conventions": list(conventions(e).items())}  # fmt: skip


def _amount(value: float, unit: str) -> Shown:
    if unit == "s":
        return seconds(value)
    return Shown(float(value), f"{units.number_text(value)} {unit}")


def _word(value: Any) -> str:
    told = plain(value)
    return ",".join(str(v) for v in told) if isinstance(told, list) else "-" if told is None else str(told)
