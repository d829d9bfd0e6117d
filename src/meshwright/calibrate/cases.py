"""A measured run as a question to the cost model: model, cluster, work, and the strategy as stated.

What a row leaves out stays left out (the profile's rules fill it, as for any user); what it states in the
words of its source is put into Meshwright's own. A row without a needed cell is a `Skip`; a row that is
complete but that Meshwright cannot express is a `Miss`, and misses are counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from meshwright.calibrate import stated, tuning
from meshwright.calibrate.rows import Run
from meshwright.calibrate.shapes import NoShape, shape
from meshwright.errors import InputError
from meshwright.hardware import chips
from meshwright.hardware import cluster as clusters
from meshwright.hardware.records import Chip, Cluster
from meshwright.model.records import Model
from meshwright.units import counted
from meshwright.work import Work

TRAINING_KINDS = (None, "pretrain", "sft", "other", "lora", "qlora", "dpo")
# Words of `options` and `optimizer` for which there is no model of time or memory yet: these runs are misses.
UNMODELLED = frozenset({"emb", "tiled-mlp"})


@dataclass(frozen=True, slots=True)
class Skip:
    """A row that cannot be judged because a cell is empty or its chip has no figures."""

    run: Run
    # no chip, no chip figures, no model shape, no layout, no batch, no sequence, no network figure
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Miss:
    """A row that states enough and that Meshwright fails to express or to predict."""

    run: Run
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A run ready to be predicted. `given`: the strategy fields that the row states, in Strategy's names."""

    run: Run
    model: Model
    cluster: Cluster
    work: Work
    given: Mapping[str, Any]
    framework: str | None
    release: str
    derived: tuple[tuple[str, str], ...] = ()  # (cell, because) of what the row left out


def case(run: Run) -> Case | Skip | Miss:
    """`run` as a case, or why it is none."""
    derived: list[tuple[str, str]] = []
    gap = _gap(run)
    if gap is not None:
        return gap
    shaped = shape(run)
    if isinstance(shaped, NoShape):
        if shaped.missing:
            return Skip(run, "no model shape", shaped.detail)
        return Miss(run, "unknown model", shaped.detail)
    derived += shaped.derived
    unmodelled = sorted(run.options & UNMODELLED)
    if run.kind not in TRAINING_KINDS:
        unmodelled.append(str(run.kind))
    if run.precision == "fp32":
        unmodelled.append("precision fp32")
    if re.search(r"\bvision\b", run.notes):
        unmodelled.append("vision encoder")  # its weights, activations and image tokens have no column
    if run.optimizer is not None and run.optimizer not in tuning.OPTIMIZERS:
        unmodelled.append(f"optimizer {run.optimizer}")
    if unmodelled:
        return Miss(run, "not modelled", ", ".join(dict.fromkeys(unmodelled)))
    chip = load_chip(run.chip or "")
    if chip is None:
        return Skip(run, "no chip figures", f"{run.chip} is not among the chips with a data sheet")
    seq_len = run.seq_len or stated.sequence(run, derived)
    if seq_len is None:
        return Skip(run, "no sequence")
    given = stated.degrees(run, derived)
    if given is None:
        return Skip(run, "no layout", "tp and pp are not given, and nothing else fixes them")
    batch = run.global_batch_size or stated.batch_size(run, given, seq_len, derived)
    if batch is None:
        return Skip(run, "no batch")
    try:
        network = _network(run, chip, derived)
        cluster = _cluster(
            chip, run.n_chips or 0, run.chips_per_node, network, stated.slices(run), stated.links(run)
        )
    except InputError as error:
        if any("scale_out_gbits_s" in d.message for d in error.diagnostics):
            return Skip(run, "no network figure", str(error))
        return Miss(run, "cluster refused", str(error))
    stated.add_words(run, given, batch, shaped.model, derived)
    tuning.add_words(run, given, derived)
    precision = stated.precision(run, chip, derived)
    work = Work(seq_len, batch, precision, options=stated.options(run))
    return Case(
        run, shaped.model, cluster, work, given, stated.program(run), stated.release(run), tuple(derived)
    )


def _gap(run: Run) -> Skip | None:
    """The first cell that nothing can stand in for."""
    if not run.chip:
        return Skip(run, "no chip")
    if not run.n_chips:
        return Skip(run, "no chip", "the number of chips is not given")
    return None


@lru_cache(maxsize=256)
def load_chip(name: str) -> Chip | None:
    """The chip that a table names, a remark in brackets left off; None where no data sheet is known."""
    for spelled in (name, re.sub(r"\s*\(.*\)$", "", name)):
        try:
            return chips.load(spelled)
        except InputError:
            continue
    return None


def _network(run: Run, chip: Chip, derived: list[tuple[str, str]]) -> float | None:
    """Gbit/s a chip and direction of the network between nodes: the cell, else (where the data sheet has none
    either) the adapter that the interconnect cell names, shared by the chips of a node."""
    if run.scale_out_gbits_s_per_chip is not None or chip.scale_out_bytes_s is not None:
        return run.scale_out_gbits_s_per_chip
    named = re.fullmatch(r"InfiniBand (\d+) Gb/s", run.interconnect or "")
    if named is None or not run.chips_per_node:
        return None
    derived.append(
        (
            "scale_out_gbits_s",
            f"{run.interconnect} a node, shared by {counted(run.chips_per_node, 'chip')}",
        )
    )
    return float(named.group(1)) / run.chips_per_node


@lru_cache(maxsize=4096)
def _cluster(
    chip: Chip,
    n_chips: int,
    chips_per_node: int | None,
    scale_out_gbits_s: float | None,
    n_slices: int,
    links: int | None = None,
) -> Cluster:
    """The machine of a run; a node smaller than the data sheet's is a smaller domain where they are one, and
    a board that wires fewer links than the chip has is so much slower."""
    overrides: dict[str, str | float] = {}
    domain = chip.scale_up_size or 0
    if chips_per_node and domain == chip.chips_per_node and chips_per_node < domain:
        overrides["scale_up_size"] = chips_per_node
    if links and chip.links > links and chip.link_bytes_s:
        overrides["scale_up_gbytes_s"] = links * chip.link_bytes_s / 1e9
    if scale_out_gbits_s:
        overrides["scale_out_gbits_s"] = scale_out_gbits_s
    if chip.is_tpu and n_slices > 1 and n_chips % n_slices == 0:
        one = clusters.build(chip, n_chips // n_slices, overrides)
        axes = "x".join(str(a) for a in one.torus)
        return clusters.parse(f"{n_slices}*{chip.name}:{axes}", overrides)
    return clusters.build(chip, n_chips, overrides)
