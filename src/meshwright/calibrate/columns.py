"""The columns of a table of measured runs: what a cell may hold and which values are absurd."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from meshwright.errors import did_you_mean

Kind = Literal["count", "real", "flag", "word", "text"]

SCHEDULES = (
    "gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev",
)  # fmt: skip
ON = ("1", "on", "yes", "true")
OFF = ("0", "off", "no", "false")
ULYSSES = re.compile(r"(\d+) \([^)]*ulysses[^)]*\)", re.IGNORECASE)  # "8 (attention, Ulysses-style)"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what its cells are, and the range (inclusive) outside which a number is a slip."""

    kind: Kind
    low: float = 0.0
    high: float = math.inf
    words: tuple[str, ...] = ()
    unit: str = ""


def _count(high: float, low: float = 1, unit: str = "") -> Column:
    return Column("count", low, high, unit=unit)


def _real(high: float, unit: str) -> Column:
    # A measured zero is a missing value written as a number; the smallest float stands for "above 0".
    return Column("real", math.ulp(0.0), high, unit=unit)


_TEXT = Column("text")

COLUMNS: dict[str, Column] = {
    "id": _TEXT,
    "source": _TEXT,
    "framework": _TEXT,
    "model": _TEXT,
    "n_layers": _count(100_000),
    "d_model": _count(10_000_000),
    "n_heads": _count(1_000_000),
    "n_kv_heads": _count(1_000_000),
    "d_head": _count(1_000_000),
    "d_ff": _count(100_000_000),
    "vocab": _count(100_000_000),
    "gated_mlp": Column("flag"),
    "n_experts": _count(1_000_000),
    "top_k": _count(1_000_000),
    "chip": _TEXT,
    "n_chips": _count(10_000_000),
    "chips_per_node": _count(100_000),
    "interconnect": _TEXT,
    "scale_out_gbits_s_per_chip": _real(1e6, "Gbit/s"),
    "release": _TEXT,
    "options": _TEXT,
    "precision": Column("word", words=("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4")),
    "seq_len": _count(1e9, unit="tokens"),
    "global_batch_size": _count(1e9, unit="sequences"),
    "microbatch_size": _count(1e7, unit="sequences"),
    "tp": _count(10_000_000),
    "sp": _TEXT,
    "pp": _count(10_000_000),
    "vpp": _count(100_000),
    "pp_schedule": Column("word", words=SCHEDULES),
    "cp": _count(10_000_000),
    "ep": _count(10_000_000),
    "etp": _count(10_000_000),
    "dp": _count(10_000_000),
    "zero": _count(3, low=0),
    "zero_group": _count(10_000_000),
    "recompute": _TEXT,
    "layers_per_stage": _TEXT,
    "step_time_s": _real(1e7, "s"),
    "tokens_per_s_per_chip": _real(1e9, "tokens/s"),
    "tflops_per_chip": _real(1e6, "TFLOP/s"),
    "mfu_percent": _real(1000, "%"),
    "hfu_percent": _real(1000, "%"),
    "peak_memory_gib": _real(1e5, "GiB"),
    "memory_kind": Column("word", words=("allocated", "reserved", "active", "device")),
    "out_of_memory": Column("flag"),
    "suspect": _TEXT,
    "filled": _TEXT,
    "notes": _TEXT,
    "kind": _TEXT,
    "optimizer": _TEXT,
}

Cell = int | float | str | None


@lru_cache(maxsize=16384)  # the same degrees and sizes stand in most rows
def cell(name: str, text: str) -> tuple[Cell, str]:
    """The typed value of a cell and what is wrong with it ("" where nothing is).

    >>> cell("tp", "8")
    (8, '')
    >>> cell("tp", "-8")[1]
    'tp is -8, below the smallest legal value 1'
    """
    text = text.strip()
    if not text:
        return None, ""
    column = COLUMNS[name]
    return _READERS[column.kind](name, text, column)


def _number(name: str, text: str, column: Column) -> tuple[Cell, str]:
    try:
        value = float(text)
    except ValueError:
        return None, f"{name} is {text[:40]!r}, not a number"
    if not math.isfinite(value):
        return None, f"{name} is {text[:40]}, not a finite number"
    if column.kind == "count" and value != int(value):
        return None, f"{name} is {text[:40]}, not a whole number"
    if value < column.low:
        floor = (
            "a positive number is wanted"
            if column.kind == "real"
            else (f"below the smallest legal value {column.low:g}")
        )
        return None, f"{name} is {text[:40]}, {floor}"
    if value > column.high:
        unit = f" {column.unit}" if column.unit else ""
        return None, f"{name} is {text[:40]}{unit}, above the largest believable value {column.high:g}{unit}"
    return (int(value) if column.kind == "count" else value), ""


def _flag(name: str, text: str, column: Column) -> tuple[Cell, str]:
    if text.lower() in ON:
        return 1, ""
    if text.lower() in OFF:
        return 0, ""
    return None, f"{name} is {text[:40]!r}, not 0 or 1"


def _word(name: str, text: str, column: Column) -> tuple[Cell, str]:
    if text.lower() in column.words:
        return text.lower(), ""
    hint = did_you_mean(text, column.words) or f"one of {', '.join(column.words)}"
    return None, f"{name} is {text[:40]!r}, not a known word ({hint})"


def _text(name: str, text: str, column: Column) -> tuple[Cell, str]:
    if name == "sp" and text.lower() not in ON + OFF and not ULYSSES.fullmatch(text):
        return None, f"sp is {text[:40]!r}, not 0 or 1"
    if name == "layers_per_stage" and not re.fullmatch(r"\d{1,6}(\+\d{1,6})*", text):
        return None, f"layers_per_stage is {text[:40]!r}, not layer counts joined by + (such as 7+8+8+7)"
    return text, ""


_READERS: dict[Kind, Callable[[str, str, Column], tuple[Cell, str]]] = {
    "count": _number,
    "real": _number,
    "flag": _flag,
    "word": _word,
    "text": _text,
}
