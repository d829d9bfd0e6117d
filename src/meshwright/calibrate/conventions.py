"""What each source means by its figures: FLOPs behind TFLOP/s and MFU, bytes behind a "GB".

A prediction is put in its source's words before it is compared.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from meshwright.calibrate.cases import Case
from meshwright.calibrate.rows import Run
from meshwright.cost import flops as counts
from meshwright.model.records import Attention, LatentAttention, Model
from meshwright.units import GIB


@dataclass(frozen=True, slots=True)
class Convention:
    """`hardware`: recompute is counted; `full_square`: causal attention counts masked scores too."""

    hardware: bool
    full_square: bool
    peak_flops: float | None  # None: the data sheet's for the precision
    basis: str


UNSTATED = Convention(False, True, None, "not stated: model FLOPs, whole attention square, the commonest")


def convention(run: Run) -> Convention:
    """The convention of `run`'s source, by the longest prefix that the table of conventions knows."""
    best = ""
    for prefix in _table():
        if run.source.startswith(prefix) and len(prefix) > len(best):
            best = prefix
    return _table().get(best, UNSTATED)


@cache
def _table() -> dict[str, Convention]:
    text = files("meshwright.calibrate").joinpath("runs/flop-conventions.csv").read_text(encoding="utf-8")
    return {
        row["prefix"]: Convention(
            row["flops"] == "hardware",
            row["square"] == "full",
            float(row["peak_tflops"]) * 1e12 if row["peak_tflops"] else None,
            row["basis"],
        )
        for row in csv.DictReader(text.splitlines())
    }


@dataclass(frozen=True, slots=True)
class Reading:
    """What a printed peak means: its kind, and the bytes of its unit."""

    kind: str | None
    unit: float = GIB

    def __str__(self) -> str:
        said = self.kind or "kind not told"
        return said if self.unit == GIB else f"{said}, units of {self.unit:.0e} bytes"


def reading(run: Run) -> Reading:
    """How the row's peak is to be read: as it says, unless more is known of its source's program."""
    for row in _memory_table():
        if run.source.startswith(row["prefix"]) and (run.memory_kind or "not told") in row["kinds"].split(
            "+"
        ):
            return Reading(row["read_as"] or run.memory_kind, float(row["bytes"]))
    return Reading(run.memory_kind)


@cache
def _memory_table() -> tuple[dict[str, str], ...]:
    text = files("meshwright.calibrate").joinpath("runs/memory-conventions.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def masked_flops(model: Model, seq_len: int) -> float:
    """FLOPs of the masked half of causal attention, forward and backward, one sequence of `seq_len` tokens.

    3 * sum over layers of T^2 * N * (d_qk + d_v): what counting the whole square adds to counting half of it.
    Windowed layers count window * T in either convention and add nothing.

    >>> from meshwright.model.records import Block, Mlp
    >>> m = Model("m", 8, 10, (Block(Attention(2, 2, 4), Mlp(32)),), (0, 0))
    >>> masked_flops(m, 10)  # 3 x 2 layers x 100 x 2 heads x (4 + 4)
    9600.0
    """
    total = 0.0
    for kind, block in enumerate(model.blocks):
        mixer = block.mixer
        if isinstance(mixer, Attention) and (mixer.window is None or mixer.window >= seq_len):
            widths = mixer.n_heads * 2 * mixer.head_dim
        elif isinstance(mixer, LatentAttention):
            widths = mixer.n_heads * (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim)
        else:
            continue
        total += 3.0 * model.count(kind) * seq_len**2 * widths
    return total


def counted_flops(case: Case, model_flops: float, hardware_flops: float, hardware: bool) -> float:
    """FLOPs of a step of `case` as its source counts them, all chips together.

    `model_flops` and `hardware_flops` count causal attention half; the masked half is added where the source
    counts it, as often as the rest is computed. Programs count attention over the length that they were told,
    whatever documents are packed in it.
    """
    how, work = convention(case.run), case.work
    if work.document_len is not None:
        finetune = str(case.given.get("finetune", "none"))
        between = counts.model_flops(case.model, work.seq_len, finetune) * work.tokens_per_step - model_flops
        again = hardware_flops / model_flops  # as often as the rest
        model_flops, hardware_flops = model_flops + between, hardware_flops + again * between
    flops = hardware_flops if hardware else model_flops
    if how.full_square:
        repeats = hardware_flops / model_flops if hardware else 1.0
        flops += masked_flops(case.model, work.seq_len) * work.global_batch_size * repeats
    return flops


def peak_flops(case: Case) -> float:
    """The peak that the source divides by, one chip."""
    stated = convention(case.run).peak_flops
    chip = case.cluster.chip
    if case.work.precision in ("fp8", "mxfp8"):
        return chip.fp8_flops or 2 * (stated or chip.bf16_flops)
    if case.work.precision == "nvfp4":
        return chip.fp4_flops or 4 * (stated or chip.bf16_flops)
    return stated or chip.bf16_flops
