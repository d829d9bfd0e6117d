"""What published runs cover, and how far off the model is where they do not.

A job is covered by a run of the same program on the same chip, by one of its architecture, by one on its chip
of sequences as long, and by one of its program that trains the same parameters. Errors of jobs that nothing
covers come from fits that saw neither the source of a run nor its chip, its program, its architecture or its
length, and from runs that are in no fit, so each falls into the class that those fits knew it in.
`covered.csv` holds the kinds of jobs that the shipped runs are; `docs/accuracy.py` writes it.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshwright.calibrate.predict import predict
from meshwright.hardware.records import Chip
from meshwright.model.records import Attention, LatentAttention, Model, Moe
from meshwright.strategy.finetune import parse

if TYPE_CHECKING:
    from meshwright.calibrate.fit import Observation, Solution

COVERED, ONE, SEVERAL = "covered", "one unseen", "several unseen"
COVERED_FILE = "covered.csv"
SHORT, LONG, LONGEST = "up to 16k", "16k to 64k", "over 64k"  # tokens a sequence
_ENDS = ((16 * 1024, SHORT), (64 * 1024, LONG))
ALL, ADAPTERS = "all parameters", "adapters"
QUANTISED, PAIRS = "adapters on a quantised base", "preference pairs"


class Kind(NamedTuple):
    """What runs and jobs are told apart by: chip family, program, architecture, length of sequences, and
    which parameters train."""

    chip: str
    framework: str
    architecture: str
    length: str = SHORT
    trains: str = ALL


@dataclass(frozen=True, slots=True)
class Held:
    """A run predicted by a fit of others: what they cover of it, and ln(predicted / measured)."""

    id: str
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


def length(seq_len: float) -> str:
    """The class of lengths that a sequence of `seq_len` tokens is in."""
    return next((word for end, word in _ENDS if seq_len <= end), LONGEST)


def trains(finetune: str) -> str:
    """What a fine-tuning word trains.

    >>> trains("none"), trains("lora:16"), trains("qlora:16"), trains("dpo")
    ('all parameters', 'adapters', 'adapters on a quantised base', 'preference pairs')
    """
    word = parse(finetune)
    if word.pairs:
        return PAIRS
    return ALL if not word.frozen else QUANTISED if word.base else ADAPTERS


def kind_of(chip: Chip, framework: str, model: Model, seq_len: float, finetune: str) -> Kind:
    """The kind of a job of `model` with `framework` on `chip`."""
    return Kind(chip.family, framework, architecture(model), length(seq_len), trains(finetune))


def unseen(kind: Kind, runs: Collection[Kind]) -> tuple[str, ...]:
    """Which fields of `kind` no run has; `pair` where chip and program were seen, never together. A length is
    seen with its chip and what trains with its program, where there are runs of these.

    >>> runs = {Kind("h100", "megatron-core", "dense"), Kind("tpu-v5p", "maxtext", "moe", LONG)}
    >>> unseen(Kind("h100", "maxtext", "dense"), runs), unseen(Kind("b200", "maxtext", "hybrid"), runs)
    (('pair',), ('chip', 'architecture'))
    >>> unseen(Kind("h100", "megatron-core", "dense", LONG, ADAPTERS), runs)
    ('length', 'trains')
    """

    def seen(*names: str) -> bool:
        return any(all(getattr(r, name) == getattr(kind, name) for name in names) for r in runs)

    missing = [name for name in ("chip", "framework", "architecture") if not seen(name)]
    if not {"chip", "framework"} & {*missing} and not seen("chip", "framework"):
        missing.insert(0, "pair")
    for name, beside in (("length", "chip"), ("trains", "framework")):
        if not (seen(name) if beside in missing else seen(name, beside)):
            missing.append(name)
    return tuple(missing)


def coverage(missing: tuple[str, ...]) -> str:
    """The class of a job of which `missing` is unseen."""
    return (COVERED, ONE, SEVERAL)[min(len(missing), 2)]


@cache
def covered() -> frozenset[Kind]:
    """The kinds that the shipped runs are of."""
    text = files("meshwright.calibrate").joinpath(COVERED_FILE).read_text(encoding="utf-8")
    return frozenset(Kind(*(r[name] for name in Kind._fields)) for r in csv.DictReader(text.splitlines()))


def said(missing: tuple[str, ...], chip: Chip, kind: Kind) -> str:
    """What no measured run has, in words; nothing where a job is covered."""
    on = "" if "chip" in missing else f" on {chip.name}"
    program = "" if "framework" in missing else f" with {kind.framework}"
    words = {
        "pair": f"on {chip.name} with {kind.framework}", "chip": f"on {chip.name}",
        "framework": f"with {kind.framework}", "architecture": f"of a model like it ({kind.architecture})",
        "length": f"of {kind.length} tokens a sequence{on}", "trains": f"that trains {kind.trains}{program}",
    }  # fmt: skip
    return "no measured run " + ", none ".join(words[name] for name in missing) if missing else ""


_LEFT_OUT = (
    ("source",), ("source", "chip"), ("source", "framework"), ("source", "chip", "framework"),
    ("source", "architecture"), ("source", "length"), ("source", "chip", "length"),
)  # fmt: skip


def kinds(found: Iterable[Observation]) -> list[Kind]:
    """The kind of each observation."""
    return [
        kind_of(
            one.case.cluster.chip, one.profile.framework.name, one.case.model, one.case.work.seq_len,
            one.strategy.finetune,
        )
        for one in found
    ]  # fmt: skip


def held(solution: Solution) -> list[Held]:
    """Every run as fits without its source, and without its chip, program or architecture, predict it; long
    ones also as fits without their length do (without the short ones there would be no fit)."""
    found = solution.task.found
    every = kinds(found)
    out = []
    for names in _LEFT_OUT:
        known: dict[tuple[str, ...], set[Kind]] = {}
        labels = [
            tuple(one.source if name == "source" else getattr(kind, name) for name in names)
            for one, kind in zip(found, every, strict=True)
        ]
        for one, label, residual, kind in zip(found, labels, solution.beside(labels), every, strict=True):
            if "length" in names and kind.length == SHORT:
                continue
            if label not in known:
                known[label] = {k for k, other in zip(every, labels) if not _shared(label, other)}
            cover = coverage(unseen(kind, known[label]))
            out.append(Held(one.case.run.id, kind, cover, one.source, float(residual), ", ".join(names)))
    return out


def apart(found: Iterable[Observation], known: Collection[Kind]) -> list[Held]:
    """Runs that are in no fit as the shipped numbers predict them; `known`: the kinds that those saw."""
    every = list(found)
    return [
        Held(
            one.case.run.id, kind, coverage(unseen(kind, known)), one.source,
            math.log(predict(one.case).step_time_s / one.seconds), "source",
        )
        for one, kind in zip(every, kinds(every), strict=True)
    ]  # fmt: skip


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return any(a == b for a, b in zip(one, other, strict=True))


def write(path: Path, found: Iterable[Observation], date: str) -> None:
    """Write the kinds of the runs and how many there are of each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*Kind._fields, "n_runs", "date"))
        for kind, n in sorted(Counter(kinds(found)).items()):
            out.writerow((*kind, n, date))
