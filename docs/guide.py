"""Write the golden rule: the table of computed plans, the tree fitted to it, and `docs/guide.md`.

`python docs/guide.py` searches every job of the guide (about ten minutes of one core; an interrupted run is
taken up where it stopped), writes `search/guide/table.csv` and `rule.json` of the package, then the page.
`--page` writes the rule and the page from the table that is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cells

from meshwright import units
from meshwright.model.params import active_params, total_params
from meshwright.report.guide import LEFT, sentences
from meshwright.search.guide import practice, rule, table
from meshwright.search.mixes import Mix

PAGE = Path(__file__).parent / "guide.md"
DATA = Path(table.__file__).parent


def solved(job: practice.Job) -> str:
    """A job searched, as a line of the table."""
    return table.written([table.solved(job)]).splitlines()[1]


def cases(processes: int) -> tuple[table.Case, ...]:
    """Every job of the guide, searched now or kept from an interrupted run."""
    head = table.written([])
    lines = [line for _, line in cells.computed("guide", list(practice.jobs()), solved, processes)]
    return table.read(head + "\n".join(lines) + "\n")


def short(mix: Mix) -> str:
    """A mix without what is 1."""
    return " ".join(f"{name}{n}" for name, n in mix.fields().items() if n > 1) or "dp alone"


def loss_text(loss: float) -> str:
    """A loss, or that it is beyond what is told apart."""
    return f"≥ {table.SLACK:.0%}" if loss >= table.SLACK else f"{loss:.1%}"


def cell(case: table.Case, golden: rule.Rule) -> str:
    """The computed mix of a job, and what the rule's advice loses against it."""
    if case.strategy is None:
        return "nothing fits"
    advised = golden.mix(case.facts())
    return f"{short(Mix.of(case.strategy))} ({loss_text(case.loss(advised))})"


def table_of(model: str, found: Sequence[table.Case], golden: rule.Rule) -> Iterator[str]:
    """The plans of one model: a line a length, a column a cluster."""
    own = [case for case in found if case.job.model == model]
    clusters = practice.practice()["clusters"]
    first = {case.job.cluster: case for case in own}
    heads = [f"{c['name']}, {first[i].n_chips:,}" for i, c in enumerate(clusters)]
    shape = own[0].job.loaded()
    yield f"### {model}"
    yield (
        f"{units.count_text(total_params(shape))} parameters, of which a token uses "
        f"{units.count_text(active_params(shape))}; {practice.tokens_per_step(shape) >> 20}M a step."
    )
    lines = ["| tokens | " + " | ".join(heads) + " |", "| --- " * (len(heads) + 1) + "|"]
    for seq_len in practice.practice()["lengths"]:
        cells_ = [cell(c, golden) for i in range(len(clusters)) for c in own
                  if (c.job.cluster, c.job.seq_len) == (i, seq_len)]  # fmt: skip
        lines.append(f"| {units.length_text(seq_len)} | " + " | ".join(cells_) + " |")
    yield "\n".join(lines)


def tree(golden: rule.Rule) -> str:
    """The rule as a nested list."""
    return "\n".join(f"{'  ' * level}* {text}" for level, text in sentences(golden.root))


def unseen(golden: rule.Rule) -> str:
    """What the tree loses on each model when it is fitted to all others."""
    lines = [
        "| model left out | median loss | mean | at most 3 % | beyond |",
        "| --- | --- | --- | --- | --- |",
    ]
    every = {**golden.by_model, "all": golden.unseen}
    for name, lost in every.items():
        shares = (units.percent_text(x, 0) for x in (lost.good, lost.beyond))
        cells_ = (units.percent_text(lost.median), units.percent_text(lost.mean), *shares)
        lines.append(f"| {name} | " + " | ".join(cells_) + " |")
    return "\n".join(lines)


def needs(case: table.Case, axis: str) -> bool:
    """Whether every mix without an axis loses more than anyone would notice."""
    return all(loss > rule.GOOD for mix, loss in case.losses.items() if getattr(mix, axis) == 1)


def needed(found: Sequence[table.Case]) -> str:
    """In how many jobs of each cluster each axis is needed."""
    names = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
    lines = ["| cluster | jobs | " + " | ".join(names.values()) + " |", "| --- " * (len(names) + 2) + "|"]
    for place, cluster in enumerate(practice.practice()["clusters"]):
        own = [case for case in found if case.job.cluster == place and case.strategy is not None]
        counts = [str(sum(needs(case, axis) for case in own)) for axis in names]
        lines.append(f"| {cluster['name']} | {len(own)} | " + " | ".join(counts) + " |")
    return "\n".join(lines)


NEEDED = "Jobs in which the best plan without an axis of parallelism loses more than 3 %."

OPENING = """{jobs} training jobs were searched, timed by closed forms: {models} models on {clusters}
clusters at {lengths} lengths, in bf16, with what their frameworks' recipes recompute. To the best plans a
decision tree is fitted, over figures that one knows before any search. `meshwright guide` prints it;
`meshwright guide MODEL --on CLUSTER --seq-len 8k` follows it for a job of yours, with `--compare` beside a
search."""

GOOD = """A tree of depth {depth} with {leaves} leaves. The loss is the step time of the best plan with
the advised degrees over that of the best plan of all, less 1; both are predictions. A mix that loses
{slack} or more, or does not fit, counts as {slack}.

Over all jobs the median loss is {median} and the mean {mean}; {good} lose at most 3 %, {beyond} lose
{slack} or more. Those are the jobs it was fitted to. Fitted without a model and then asked about it, the
tree loses {out_median} (median) and {out_mean} (mean): for a model unlike these take it as a first guess,
and let `plan` search."""


def page(found: Sequence[table.Case], golden: rule.Rule) -> str:
    """The whole page, from the table and the rule alone."""
    listed = practice.practice()
    chips, tokens = listed["chips"], listed["tokens_per_step"]
    lost, out, percent = golden.losses, golden.unseen, units.percent_text
    figures = {
        "depth": golden.depth,
        "leaves": sum(1 for _ in golden.leaves()),
        "slack": percent(table.SLACK, 0),
        "median": percent(lost.median),
        "mean": percent(lost.mean),
        "good": percent(lost.good, 0),
        "beyond": percent(lost.beyond, 0),
        "out_median": percent(out.median),
        "out_mean": percent(out.mean),
    }
    counts = {name: len(listed[name]) for name in ("models", "clusters", "lengths")}
    parts = [
        "# The golden rule",
        "Written by `make guide`.",
        OPENING.format(jobs=len(found), **counts),
        "## The rule",
        tree(golden),
        f"What the rule leaves open: {LEFT}. Sequences are also split until every chip has one to work on.",
        "## How good it is",
        GOOD.format(**figures),
        unseen(golden),
        "## What the plans need",
        NEEDED,
        needed(found),
        "## The computed plans",
        f"Chips: {chips['rule']} ({chips['source']}).",
        f"Tokens a step: {tokens['rule']} ({tokens['source']}).",
        "Each cell is the mix of the best plan, and in brackets what the rule's advice loses against it.",
        *(text for model in listed["models"] for text in table_of(model, found, golden)),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    """Compute what is missing and write table, rule and page."""
    if "--page" in arguments:
        found = table.shipped()
    else:
        found = cases(cells.processes(arguments))
        (DATA / table.NAME).write_text(table.written(found), encoding="utf-8")
    fitted = rule.fitted(found)
    (DATA / rule.NAME).write_text(rule.written(fitted), encoding="utf-8")
    PAGE.write_text(page(found, rule.read(rule.written(fitted))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
