"""The computed table behind the guide: of every job the best plan, and how near other mixes come to it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from meshwright.search.guide.facts import Facts, facts
from meshwright.search.guide.practice import Job
from meshwright.search.mixes import Mix, mixes
from meshwright.strategy.records import Strategy

SLACK = 0.15  # mixes that lose more are not told apart
NAME = "table.csv"
_COLUMNS = ("model", "cluster", "seq_len", "n_chips", "sequences", "step_time_s", "strategy", "losses")


@dataclass(frozen=True, slots=True)
class Case:
    """A job with its best plan (None where nothing fits) and the losses of all mixes within `SLACK`."""

    job: Job
    n_chips: int
    sequences: int
    step_time_s: float | None
    strategy: Strategy | None
    losses: dict[Mix, float]

    def facts(self) -> Facts:
        """What is known of the job before any search."""
        asked = self.job.request()
        return facts(asked.model, asked.cluster, asked.work)

    def loss(self, mix: Mix) -> float:
        """What a mix loses against the best plan; `SLACK` where it loses more, or does not fit."""
        return self.losses.get(mix, SLACK)


def solved(job: Job) -> Case:
    """A job searched now."""
    request = job.request()
    found = mixes(request, SLACK)
    losses = {mix: round(loss, 4) for mix, loss in found.losses.items()}
    best = found.best
    return Case(
        job,
        request.cluster.n_chips,
        int(request.work.global_batch_size),
        None if best is None else float(f"{best.step_time_s:.6g}"),
        None if best is None else best.strategy,
        losses,
    )


@cache
def shipped() -> tuple[Case, ...]:
    """The table that comes with the program."""
    return read(files(__package__).joinpath(NAME).read_text(encoding="utf-8"))


def written(cases: Iterable[Case]) -> str:
    """The table as CSV."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for case in cases:
        job = case.job
        strategy = "" if case.strategy is None else json.dumps(_told(case.strategy))
        near = ";".join(f"{m.tp}/{m.pp}/{m.cp}/{m.ep}:{loss:g}" for m, loss in case.losses.items())
        step = "" if case.step_time_s is None else f"{case.step_time_s:.6g}"
        lines.writerow(
            (job.model, job.cluster, job.seq_len, case.n_chips, case.sequences, step, strategy, near)
        )
    return out.getvalue()


def read(text: str) -> tuple[Case, ...]:
    """The cases of a table that `written` wrote."""
    return tuple(_case(row) for row in csv.DictReader(io.StringIO(text)))


def _case(row: dict[str, str]) -> Case:
    losses = {}
    for part in row["losses"].split(";") if row["losses"] else ():
        degrees, _, loss = part.partition(":")
        losses[Mix(*(int(d) for d in degrees.split("/")))] = float(loss)
    strategy = Strategy(**_restored(row["strategy"])) if row["strategy"] else None
    return Case(
        Job(row["model"], int(row["cluster"]), int(row["seq_len"])),
        int(row["n_chips"]),
        int(row["sequences"]),
        float(row["step_time_s"]) if row["step_time_s"] else None,
        strategy,
        losses,
    )


def _told(strategy: Strategy) -> dict[str, object]:
    """The fields of a strategy that differ from what is left out."""
    every = {f.name: (getattr(strategy, f.name), f.default) for f in fields(strategy)}
    return {name: value for name, (value, usual) in every.items() if usual is MISSING or value != usual}


def _restored(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
