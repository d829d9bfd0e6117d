"""What published runs cover, and how far off the model is where they do not.

A job is covered by a run of the same program on the same chip and by one of its architecture. Errors of jobs
that nothing covers come from fits that saw neither the source of a run nor its chip, its program or its
architecture, so each falls into the class that those fits knew it in. `covered.csv` holds the kinds of jobs
that the shipped runs are; `docs/accuracy.py` writes it.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshwright.hardware.records import Chip
from meshwright.model.records import Attention, LatentAttention, Model, Moe

if TYPE_CHECKING:
    from meshwright.calibrate.fit import Observation, Solution

COVERED, ONE, SEVERAL = "covered", "one unseen", "several unseen"
COVERED_FILE = "covered.csv"


class Kind(NamedTuple):
    """What runs and jobs are told apart by: chip family, program, architecture."""

    chip: str
    framework: str
    architecture: str


@dataclass(frozen=True, slots=True)
class Held:
    """A run predicted by a fit of others: what they cover of it, and ln(predicted / measured)."""

    kind: Kind
    coverage: str
    source: str
    residual: float
    left_out: str  # what the fit had to do without


def architecture(model: Model) -> str:
    """`dense`, `moe`, `mla-moe`, `hybrid` or `hybrid-moe`: what a reader looks for first."""
    moe = any(isinstance(b.ffn, Moe) for b in model.blocks)
    mixers = [b.mixer for b in model.blocks if b.mixer is not None]
    if any(not isinstance(m, Attention | LatentAttention) for m in mixers):
        return "hybrid-moe" if moe else "hybrid"
    if any(isinstance(m, LatentAttention) for m in mixers):
        return "mla-moe" if moe else "mla"
    return "moe" if moe else "dense"


def kind_of(chip: Chip, framework: str, model: Model) -> Kind:
    """The kind of a job of `model` with `framework` on `chip`."""
    return Kind(chip.family, framework, architecture(model))


def unseen(kind: Kind, runs: Collection[Kind]) -> tuple[str, ...]:
    """Which of `chip`, `framework`, `architecture` no run has; `pair` where chip and program were seen, never
    together.

    >>> runs = {Kind("h100", "megatron-core", "dense"), Kind("tpu-v5p", "maxtext", "moe")}
    >>> unseen(Kind("h100", "maxtext", "dense"), runs), unseen(Kind("b200", "maxtext", "hybrid"), runs)
    (('pair',), ('chip', 'architecture'))
    """
    missing = [name for name in Kind._fields if all(getattr(r, name) != getattr(kind, name) for r in runs)]
    together = any((r.chip, r.framework) == (kind.chip, kind.framework) for r in runs)
    if not together and not {"chip", "framework"} & {*missing}:
        missing.insert(0, "pair")
    return tuple(missing)


def coverage(missing: tuple[str, ...]) -> str:
    """The class of a job of which `missing` is unseen."""
    return (COVERED, ONE, SEVERAL)[min(len(missing), 2)]


@cache
def covered() -> frozenset[Kind]:
    """The kinds that the shipped runs are of."""
    text = files("meshwright.calibrate").joinpath(COVERED_FILE).read_text(encoding="utf-8")
    return frozenset(
        Kind(r["chip"], r["framework"], r["architecture"]) for r in csv.DictReader(text.splitlines())
    )


def said(missing: tuple[str, ...], chip: Chip, framework: str, model: Model) -> str:
    """What no measured run has, in words; nothing where a job is covered."""
    words = {
        "pair": f"on {chip.name} with {framework}", "chip": f"on {chip.name}",
        "framework": f"with {framework}", "architecture": f"of a model like it ({architecture(model)})",
    }  # fmt: skip
    return "no measured run " + ", none ".join(words[name] for name in missing) if missing else ""


_LABELS: Mapping[str, Callable[[Observation], str]] = {
    "source": lambda one: one.source,
    "chip": lambda one: one.case.cluster.chip.family,
    "framework": lambda one: one.profile.framework.name,
    "architecture": lambda one: architecture(one.case.model),
}
_LEFT_OUT = (
    ("source",), ("source", "chip"), ("source", "framework"), ("source", "chip", "framework"),
    ("source", "architecture"),
)  # fmt: skip


def kinds(found: Iterable[Observation]) -> list[Kind]:
    """The kind of each observation."""
    return [kind_of(one.case.cluster.chip, one.profile.framework.name, one.case.model) for one in found]


def held(solution: Solution) -> list[Held]:
    """Every run as fits without its source, and without its chip, program or architecture, predict it."""
    every = kinds(solution.task.found)
    out = []
    for names in _LEFT_OUT:
        known: dict[tuple[str, ...], set[Kind]] = {}
        labels = [tuple(_LABELS[name](one) for name in names) for one in solution.task.found]
        for label, residual, kind in zip(labels, solution.beside(labels), every, strict=True):
            if label not in known:
                known[label] = {k for k, other in zip(every, labels) if not _shared(label, other)}
            missing = unseen(kind, known[label])
            out.append(Held(kind, coverage(missing), label[0], float(residual), ", ".join(names)))
    return out


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return any(a == b for a, b in zip(one, other, strict=True))


def write(path: Path, found: Iterable[Observation], date: str) -> None:
    """Write the kinds of the runs and how many there are of each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*Kind._fields, "n_runs", "date"))
        for kind, n in sorted(Counter(kinds(found)).items()):
            out.writerow((*kind, n, date))
