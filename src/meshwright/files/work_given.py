"""The work part of a request: lengths and batches as people write them, checked against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import copysign
from typing import Any, cast

from meshwright import units
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.report.records import Because
from meshwright.work import EFFECTS, PRECISIONS, Precision, Work, faulty_values, restated, unknown_options

UNSAID = "no batch was given"
MOST_USD = 1e6  # an hour of a chip; above it the cost of a run stops being a number
MOST_BATCHES = 16  # of a range; powers of two reach 32,768 times the first
# What a flag is written like, and the most that any run has had of it, with room to spare.
LIMITS = {
    "--seq-len": ("write --seq-len 8k (8,192 tokens)", 10**9),
    "--global-batch": ("write --global-batch 128 (sequences a step)", 10**9),
    "--tokens-per-step": ("write --tokens-per-step 16M", 10**18),
    "--total-tokens": ("write --total-tokens 15T (15 x 10^12)", 10**18),
}


@dataclass(frozen=True, slots=True)
class WorkGiven:
    """What flags or arguments say of the work; None is not said."""

    seq_len: float | str | None = None
    global_batch_size: float | str | None = None
    tokens_per_step: float | str | None = None
    total_tokens: float | str | None = None
    precision: str | None = None
    options: tuple[str, ...] = ()
    several: bool = False
    usual_tokens: int | None = None  # a step, where neither a flag nor a file gives the batch
    flags: frozenset[str] = frozenset()  # fields of the strategy that are given, which may restate switches


@dataclass(frozen=True, slots=True)
class WorkRead:
    """The work, the batches of a range (empty without one), and what was derived."""

    work: Work
    batches: tuple[int, ...] = ()
    derived: dict[str, Because] = field(default_factory=dict)


def work_of(
    given: WorkGiven, base: Work | None, plan: Mapping[str, Any], *, unread: bool = False
) -> WorkRead | None:
    """The work that `given` asks for over `base` (a record) or `plan` (a plan file's); all faults at once.

    With `unread`, a plan that could not be read: what is left out is not called missing, and may come out
    as None.
    """
    faults: list[Diagnostic] = []
    start = base if base is not None else _from_plan(plan)
    seq_len = _length(given, start, unread, faults)
    tokens = start.total_tokens if start is not None else None
    if given.total_tokens is not None:
        tokens = _number("--total-tokens", units.parse_count, given.total_tokens, faults)
    precision = start.precision if start is not None else "bf16"
    if given.precision is not None:
        precision = cast(Precision, given.precision)
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS) or f"one of {', '.join(PRECISIONS)}"
        faults.append(Diagnostic("MW903", f"unknown precision {precision!r}", where="--precision", hint=hint))
    batches, derived = _batches(given, start, seq_len, unread, faults)
    faults += _faulty_options(given.options)
    if faults:
        raise InputError(*faults)
    if seq_len is None or not batches:
        return None
    options = restated(start.options if start is not None else (), given.options, given.flags)
    work = Work(seq_len, batches[0], precision, tokens, options)
    return WorkRead(work, batches if _is_range(given) else (), derived)


def _number(flag: str, parse: Callable[[Any], int], text: Any, faults: list[Diagnostic]) -> int | None:
    """The number of a flag within its limits."""
    hint, most = LIMITS[flag]
    try:
        value = parse(text)
    except units.UnitError as error:
        faults.append(Diagnostic("MW903", str(error), where=flag, hint=hint))
        return None
    if value < 1 or value > most:
        bound = "at least 1" if value < 1 else f"at most {most:,}"
        said = f"{flag} is {value:.6g}; it must be {bound}"
        faults.append(Diagnostic("MW903", said, where=flag, hint=hint))
        return None
    return value


def _length(given: WorkGiven, start: Work | None, unread: bool, faults: list[Diagnostic]) -> int | None:
    """Tokens of a sequence."""
    if given.seq_len is not None:
        return _number("--seq-len", units.parse_length, given.seq_len, faults)
    if start is None and not unread:
        said = "the sequence length is missing"
        faults.append(Diagnostic("MW903", said, where="--seq-len", hint="add --seq-len 8k"))
    return None if start is None else start.seq_len


def _is_range(given: WorkGiven) -> bool:
    text = str(given.global_batch_size)
    return given.tokens_per_step is None and ":" in text and "," not in text


def _batches(
    given: WorkGiven, start: Work | None, seq_len: int | None, unread: bool, faults: list[Diagnostic]
) -> tuple[tuple[int, ...], dict[str, Because]]:
    """Sequences a step, several of a range, and how they follow where they were not given; none where they
    cannot be read."""
    flag, own = "--global-batch", given.global_batch_size
    if own is not None and given.tokens_per_step is not None:
        said = "both --global-batch and --tokens-per-step are given, and either decides the other"
        faults.append(Diagnostic("MW903", said, where=flag, hint="drop one of them"))
        return (), {}
    if own is not None:
        if "," in str(own):
            said = f"--global-batch {own} holds a comma, and a list is no batch"
            way = "write it without commas, or search a range with plan: --global-batch 512:4096"
            faults.append(Diagnostic("MW903", said, where=flag, hint=way))
            return (), {}
        if _is_range(given):
            return _range(str(own), given, faults), {}
        batch = _number(flag, units.parse_length, own, faults)
        return (() if batch is None else (batch,)), {}
    if given.tokens_per_step is None and start is not None:
        return (start.global_batch_size,), {}
    asked, why = given.tokens_per_step, ""
    if asked is None:
        asked, why = given.usual_tokens, f"{UNSAID}: "
    if asked is not None:
        found = _batch_of_tokens(asked, seq_len, faults)
        if found is None:
            return (), {}
        return (found[0],), {"global_batch_size": Because(found[0], why + found[1])}
    if not unread:
        hint = "add --global-batch SEQUENCES or --tokens-per-step TOKENS"
        faults.append(Diagnostic("MW903", "the batch is missing", where=flag, hint=hint))
    return (), {}


def _faulty_options(options: tuple[str, ...]) -> Iterator[Diagnostic]:
    """Words that no framework switch has, and numbers that they do not take."""
    for word in unknown_options(options):
        hint = did_you_mean(word, tuple(EFFECTS)) or f"the words are {', '.join(sorted(EFFECTS))}"
        yield Diagnostic("MW908", f"no option is called {word!r}", where="--options", hint=hint)
    for said, hint in faulty_values(options):
        yield Diagnostic("MW908", f"option {said}", where="--options", hint=hint)


def _from_plan(plan: Mapping[str, Any]) -> Work | None:
    if not plan:
        return None
    kept = {k: v for k, v in plan.items() if k != "framework"}
    return Work(**(kept | {"options": frozenset(kept.get("options", ()))}))


def _range(text: str, given: WorkGiven, faults: list[Diagnostic]) -> tuple[int, ...]:
    """The batches of `A:B`: A, 2 A, 4 A, ... and B."""
    if not given.several:
        faults.append(
            Diagnostic(
                "MW903", f"--global-batch {text} is a range; only plan searches one", where="--global-batch",
                hint="give one number",
            )
        )  # fmt: skip
        return ()
    ends = [_number("--global-batch", units.parse_length, part, faults) for part in text.split(":")]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        if len(ends) != 2:
            faults.append(
                Diagnostic(
                    "MW903",
                    f"--global-batch {text} is not a range",
                    where="--global-batch",
                    hint="write 512:4096",
                )
            )
        return ()
    low, high = ends[0], ends[1]
    if low > high:
        faults.append(
            Diagnostic(
                "MW903", f"--global-batch {text} is empty: {low} > {high}", where="--global-batch",
                hint=f"write {high}:{low}",
            )
        )  # fmt: skip
        return ()
    tried = [low]
    while tried[-1] * 2 <= high and len(tried) < MOST_BATCHES:
        tried.append(tried[-1] * 2)
    return tuple(tried if tried[-1] == high else [*tried, high])


def _batch_of_tokens(
    text: float | str, seq_len: int | None, faults: list[Diagnostic]
) -> tuple[int, str] | None:
    """Sequences a step and how they follow from tokens a step.

    A step is a whole number of sequences, and sequences are lengths: `16M` of 8k sequences means 2,048 of
    them, so k and M are 1024 and 1024^2 where that divides, else the powers of 1000 where those do.
    """
    readings: list[tuple[int, str]] = []
    for parse, base in ((units.parse_length, "1024"), (units.parse_count, "1000")):
        try:
            readings.append((parse(text), base))
        except units.UnitError:
            continue
    if not readings:
        faults.append(
            Diagnostic(
                "MW903",
                f"{text!r} is not a number of tokens",
                where="--tokens-per-step",
                hint="write 16M or 4194304",
            )
        )
        return None
    hint, most = LIMITS["--tokens-per-step"]
    tokens = readings[0][0]
    if not 1 <= tokens <= most:
        bound = "at least 1" if tokens < 1 else f"at most {most:,}"
        said = f"--tokens-per-step is {tokens:.6g}; it must be {bound}"
        faults.append(Diagnostic("MW903", said, where="--tokens-per-step", hint=hint))
        return None
    if seq_len is None:
        return None
    for tokens, base in readings:
        if tokens >= seq_len and tokens % seq_len == 0:
            batch = tokens // seq_len
            spelled = (
                f"{text} (powers of {base})"
                if isinstance(text, str) and not text.isdigit()
                else f"{tokens:,}"
            )
            return (
                batch,
                f"{spelled} = {tokens:,} tokens a step / {seq_len:,} a sequence = "
                f"{units.counted(batch, 'sequence')}",
            )
    tokens = readings[0][0]
    below = tokens // seq_len
    near = f"{below} or {below + 1}" if below else "1"
    faults.append(
        Diagnostic(
            "MW903",
            f"{tokens:,} tokens a step are not whole sequences: "
            f"{tokens:,} / {seq_len:,} = {tokens / seq_len:,.2f}",
            where="--tokens-per-step", hint=f"nearest: --global-batch {near}",
        )
    )  # fmt: skip
    return None


def price(value: float | str | None) -> float | None:
    """US dollars for an hour of a chip, as given in a number or text; InputError where it is no price."""
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = -1.0
    if not 0 <= found <= MOST_USD or copysign(1.0, found) < 0:
        said = f"--price-per-chip-hour is {value!r}, not a price"
        raise InputError(
            Diagnostic("MW903", said, where="--price-per-chip-hour", hint="write 2.50 (US dollars)")
        )
    return found
