"""The page of a report: sections as data for one template, which does no arithmetic and formats no number."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from meshwright import __version__, units
from meshwright.cost.terms import Term
from meshwright.report import as_json, plain
from meshwright.report.document import Report
from meshwright.report.html import alternatives, parts
from meshwright.report.terminal.tree import value_text


def page(report: Report) -> str:
    """The HTML of a report."""
    e = report.estimate
    return _template().render(
        version=__version__,
        model=e.model.name,
        cluster=f"{units.count_text(e.cluster.n_chips)} x {e.cluster.chip.name}",
        work=f"{units.length_text(e.work.seq_len)} tokens x {units.count_text(e.work.global_batch_size)} "
        f"{units.plural(e.work.global_batch_size, 'sequence')} a step, {e.work.precision}",
        profile=as_json.profile_name(e),
        strategy=as_json.strategy_line(e.strategy),
        verdict=parts.verdict(report),
        sentences=[said.text for said in report.explanation.sentences],
        story=plain.story(report.explanation),
        time=parts.time(report),
        memory=parts.memory(report),
        pipeline=parts.pipeline(report),
        communication=parts.communication(report),
        what_ifs=[alternatives.what_if(one) for one in report.what_ifs],
        plans=alternatives.plans(report),
        necessity=alternatives.necessity(report),
        checks=e.diagnostics,
        provenance=alternatives.provenance(report),
        tree=None if e.evaluation.terms is None else _branch(e.evaluation.terms),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    loader = PackageLoader("meshwright.report.html", "template")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["style"] = Markup(_asset(environment, "style.css"))
    environment.globals["script"] = Markup(_asset(environment, "script.js"))
    return environment.get_template("page.html")


def _asset(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _branch(term: Term) -> dict[str, Any]:
    """A term and those below it."""
    return {
        "name": term.name,
        "value": value_text(term.value, term.unit),
        "formula": term.formula,
        "provenance": "" if term.provenance == "derived" else term.provenance,
        "children": [_branch(child) for child in term.children],
    }
