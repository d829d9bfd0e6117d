"""Reader of tables of measured runs: the shipped ones and a user's own, one row a run, every cell typed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from meshwright.calibrate.columns import COLUMNS, Cell, cell
from meshwright.errors import Diagnostic, InputError, did_you_mean

Shipped = Literal["training", "training-small-one-node", "memory", "memory-small"]
SHIPPED: tuple[Shipped, ...] = ("training", "training-small-one-node", "memory", "memory-small")

MAX_BYTES = 64 * 2**20  # a table of a hundred thousand runs is 40 MB
MAX_FAULTS = 20  # more than a person mends at once


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run as its table states it; None is "not stated". Names are the columns' names."""

    id: str
    source: str = ""
    framework: str | None = None
    model: str | None = None
    n_layers: int | None = None
    d_model: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    d_head: int | None = None
    d_ff: int | None = None
    vocab: int | None = None
    gated_mlp: int | None = None
    n_experts: int | None = None
    top_k: int | None = None
    chip: str | None = None
    n_chips: int | None = None
    chips_per_node: int | None = None
    interconnect: str | None = None
    scale_out_gbits_s_per_chip: float | None = None
    release: str | None = None
    options: frozenset[str] = frozenset()
    precision: str | None = None
    seq_len: int | None = None
    global_batch_size: int | None = None
    microbatch_size: int | None = None
    tp: int | None = None
    sp: str | None = None
    pp: int | None = None
    vpp: int | None = None
    pp_schedule: str | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    zero: int | None = None
    zero_group: int | None = None
    recompute: str | None = None
    layers_per_stage: str | None = None
    step_time_s: float | None = None
    tokens_per_s_per_chip: float | None = None
    tflops_per_chip: float | None = None
    mfu_percent: float | None = None
    hfu_percent: float | None = None
    peak_memory_gib: float | None = None
    memory_kind: str | None = None
    out_of_memory: int | None = None
    suspect: str | None = None
    filled: str | None = None
    notes: str = ""
    kind: str | None = None
    optimizer: str | None = None
    line: int = 0  # of the file, 1 is the header

    @property
    def recompute_stated(self) -> bool:
        """Whether the table says what was recomputed (`none` is a statement, an empty cell is not)."""
        return self.recompute is not None

    @property
    def source_key(self) -> str:
        """The source without its revision and page: the text before the first `@` or `:`."""
        return re.split("[@:]", self.source, maxsplit=1)[0].strip()

    @property
    def noted_model(self) -> str:
        """The model's name where only the notes give one (`model: NAME; ...`)."""
        match = re.match(r"model:\s*([^;]+)", self.notes)
        return match.group(1).strip() if match else ""


@dataclass(frozen=True, slots=True)
class Table:
    """What a file held: its runs, and findings that do not stop the reading."""

    runs: tuple[Run, ...]
    warnings: tuple[Diagnostic, ...] = ()


def read(path: Path | None = None) -> tuple[Run, ...]:
    """The runs of `path`, or of the shipped table of training runs. Faults raise InputError, all at once."""
    return read_table(path).runs


def read_table(path: Path | None = None) -> Table:
    """As `read`, with the warnings (columns that nobody knows, ids given twice)."""
    if path is None:
        return Table(shipped("training"))
    return parse(_load(path), str(path))


@cache
def shipped(name: Shipped) -> tuple[Run, ...]:
    """The runs of a table that comes with Meshwright."""
    text = files("meshwright.calibrate").joinpath(f"runs/measured-{name}.csv").read_text(encoding="utf-8")
    return parse(text, f"measured-{name}.csv").runs


def _load(path: Path) -> str:
    """The text of a table file, or InputError saying why there is none."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise InputError(_fault(f"{path} is a folder, not a table", hint="name a CSV file"))
        if not path.is_file():
            said = f"{path} is a device or a pipe, not a table"
            raise InputError(_fault(said, hint="save the table as a CSV file first"))
        if size > MAX_BYTES:
            raise InputError(
                _fault(
                    f"{path} has {size / 2**20:.0f} MiB; a table may have {MAX_BYTES // 2**20} MiB",
                    hint="split the table",
                )
            )
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(_fault(f"{path} cannot be read: {reason}", hint="check the path")) from error
    if b"\0" in raw:
        raise InputError(
            _fault(
                f"{path} is binary (a zero byte at offset {raw.index(0)})",
                hint="export the table as CSV in UTF-8",
            )
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            _fault(
                f"{path} is not UTF-8 text (byte {raw[error.start]:#04x} at offset {error.start})",
                hint="export the table as CSV in UTF-8",
            )
        ) from error


def parse(text: str, name: str) -> Table:
    """The table in `text`; `name` stands in messages."""
    if not text.strip():
        raise InputError(_fault(f"{name} is empty", hint=_FORM))
    faults: list[Diagnostic] = []
    lines = _records(text, name, faults)
    _, header = next(lines, (1, []))
    if faults:
        raise InputError(*faults)
    names = [h.strip() for h in header]
    warnings = _header(names, name)
    runs: list[Run] = []
    first_line: dict[str, int] = {}
    known = [n in COLUMNS for n in names]
    for line, cells in lines:
        if not any(c.strip() for c in cells):
            continue
        if len(cells) != len(names):
            faults.append(
                _fault(
                    f"line {line} has {len(cells)} cells, the header has {len(names)}",
                    f"{name}:{line}",
                    "quote cells that hold a comma or a line break; an empty cell still needs its comma",
                )
            )
            continue
        run, wrong = _run({n: c for n, c, k in zip(names, cells, known) if k}, line)
        faults += [_fault(f"line {line}: {message}", f"{name}:{line}", hint) for message, hint in wrong]
        if run.id in first_line:
            warnings.append(
                Diagnostic(
                    "MW702",
                    f"line {line}: id {run.id!r} was given on line {first_line[run.id]}",
                    "warning",
                    f"{name}:{line}",
                    "give each run its own id",
                )
            )
        first_line.setdefault(run.id, line)
        runs.append(run)
    if not runs and not faults:
        faults.append(_fault(f"{name} has a header and no runs", hint=_FORM))
    if faults:
        raise InputError(*_capped(faults, name))
    return Table(tuple(runs), tuple(warnings))


_FORM = "the first line names columns (id, model, chip, n_chips, tp, pp, step_time_s, ...), then a line a run"


def _records(text: str, name: str, faults: list[Diagnostic]) -> Iterator[tuple[int, list[str]]]:
    """(first line, cells) of every record; a torn quote ends the table and is a fault."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            faults.append(
                _fault(
                    f"line {start} is not CSV: {error}",
                    f"{name}:{start}",
                    "close the quotes; is the file whole?",
                )
            )
            return
        yield start, cells


def _header(names: list[str], name: str) -> list[Diagnostic]:
    """Warnings about the header; InputError where it is none."""
    if not any(n in COLUMNS for n in names):
        shown = ", ".join(names[:5])[:100]
        raise InputError(
            _fault(
                f"line 1 of {name} names no column of a table of runs (it reads: {shown})", f"{name}:1", _FORM
            )
        )
    twice = sorted({n for n in names if n and names.count(n) > 1})
    if twice:
        raise InputError(
            _fault(
                f"line 1 names {', '.join(twice)} more than once", f"{name}:1", "keep one column of each name"
            )
        )
    return [
        Diagnostic(
            "MW701",
            f"column {n!r} is not known and is not read",
            "warning",
            f"{name}:1",
            did_you_mean(n, tuple(COLUMNS)) or "columns are listed in the documentation of the format",
        )
        for n in names
        if n not in COLUMNS
    ]


def _run(cells: dict[str, str], line: int) -> tuple[Run, list[tuple[str, str]]]:
    """The run on `line` and its faults as (message, hint)."""
    wrong: list[tuple[str, str]] = []
    values: dict[str, Cell | frozenset[str]] = {}
    for column, text in cells.items():
        if not text:
            continue
        value, fault = cell(column, text)
        if fault:
            wrong.append((fault, "correct the cell, or leave it empty where the value is not known"))
        elif value is not None:
            values[column] = value
    options = str(values.get("options", ""))
    values["options"] = frozenset(word for word in options.split("+") if word)
    wrong += _contradictions(values)
    values["id"] = values.get("id") or f"line-{line}"
    return Run(line=line, **values), wrong  # type: ignore[arg-type]  # checked column by column above


def _contradictions(values: dict[str, Cell | frozenset[str]]) -> list[tuple[str, str]]:
    """Faults between the cells of one row that no run can have."""
    wrong: list[tuple[str, str]] = []

    def number(column: str) -> int:
        value = values.get(column)
        return value if isinstance(value, int) else 0

    for small, large in (("n_kv_heads", "n_heads"), ("top_k", "n_experts")):
        if number(small) and number(large) and number(small) > number(large):
            wrong.append(
                (
                    f"{small} {number(small)} is above {large} {number(large)}",
                    f"swap the two, or correct {small}",
                )
            )
    if number("out_of_memory") and values.get("step_time_s"):
        wrong.append(("step_time_s is given for a run that is marked out_of_memory", "clear one of the two"))
    return wrong


def _fault(message: str, where: str = "", hint: str = "") -> Diagnostic:
    return Diagnostic("MW700", message, "error", where, hint)


def _capped(faults: list[Diagnostic], name: str) -> list[Diagnostic]:
    """At most MAX_FAULTS of them, and how many there are beyond."""
    if len(faults) <= MAX_FAULTS:
        return faults
    more = len(faults) - MAX_FAULTS
    return [
        *faults[:MAX_FAULTS],
        _fault(f"{more} more faults in {name} ({len(faults)} in all)", name, "mend these and read it again"),
    ]
