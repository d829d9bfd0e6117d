"""Clusters from what a user writes: `2048xh800`, `tpu-v5p:8x8x8`, `2*tpu-v4:8x16x24`, `16xdgx-h100`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from meshwright.errors import Diagnostic, InputError
from meshwright.hardware import chips, slices
from meshwright.hardware import overrides as changes
from meshwright.hardware.records import Chip, Cluster
from meshwright.units import counted

MOST_CHIPS = 10_000_000
_FORMS = "2048xh800, tpu-v5p:8x8x8, 2*tpu-v4:8x16x24 or 16xdgx-h100"
_COUNT = re.compile(r"^\s*(?P<count>[+-]?[\d_,.]+)\s*[x×]\s*(?P<name>\S.*?)\s*$", re.IGNORECASE)
_SLICE = re.compile(
    r"^\s*(?:(?P<count>[+-]?[\d_,.]+)\s*\*\s*)?(?P<name>[^:*]+?)\s*:\s*(?P<axes>\d+(?:\s*[x×]\s*\d+)*)\s*$",
    re.IGNORECASE,
)

Derived = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """A product that holds several chips: a count before its name counts machines."""

    name: str
    chip: str
    n_chips: int
    source: str


@cache
def machines() -> Mapping[str, Machine]:
    """Named machines by name."""
    rows = chips.read_table("machines.csv")
    return {r["name"]: Machine(r["name"], r["chip"], int(r["n_chips"]), r["source"]) for r in rows}


def parse(text: str, overrides: Mapping[str, object] | None = None) -> Cluster:
    """The cluster that `text` describes, with the user's overrides.

    >>> parse("256xgb200").scale_up_size, parse("tpu-v5p:8x8x8").n_chips, parse("4xdgx-h100").n_chips
    (64, 512, 32)
    """
    raw = overrides or {}
    if match := _SLICE.match(text):
        return _from_slice(text, match, raw)
    if match := _COUNT.match(text):
        count = _whole(match["count"], text)
        by_key = {chips.key(m.name): m for m in machines().values()}
        machine = by_key.get(chips.key(match["name"]))
        if machine is None:
            return build(_chip_or_machine(match["name"]), count, raw, name=text)
        n_chips = _in_range(count * machine.n_chips, text)
        because = f"{count} x {machine.name} of {machine.n_chips} {machine.chip}"
        return build(
            chips.load(machine.chip), n_chips, raw, name=text, derived=(("n_chips", str(n_chips), because),)
        )
    raise InputError(Diagnostic("MW820", f"cluster {text!r} cannot be read", hint=_form_hint(text)))


def resized(text: str, n_chips: int | str) -> str:
    """The spelling `text` (COUNTxCHIP or COUNTxMACHINE) for `n_chips` chips.

    >>> resized("16xdgx-h100", 512), resized("64xh800", 2048)
    ('512xH100-SXM', '2048xh800')
    """
    match = _COUNT.match(text)
    if match is None:
        message = f"the cluster {text!r} has no count of chips to change"
        raise InputError(Diagnostic("MW820", message, where="n_chips", hint="write it 64xh100"))
    machine = {chips.key(m.name): m for m in machines().values()}.get(chips.key(match["name"]))
    return f"{_whole(str(n_chips), text)}x{machine.chip if machine else match['name']}"


def build(
    chip: Chip | str,
    n_chips: int,
    overrides: Mapping[str, object] | None = None,
    *,
    torus: tuple[int, ...] = (),
    n_slices: int = 0,
    name: str = "",
    derived: Derived = (),
) -> Cluster:
    """A cluster of `n_chips` chips; every figure it needs comes from the sheet or from `overrides`.

    `torus` and `n_slices` say the slice outright (then `n_chips` is their product). Raises `InputError` with
    every fault: counts, overrides, figures that the data sheet lacks.
    """
    if isinstance(chip, str):
        chip = chips.load(chip)
    name = name or f"{n_chips}x{chip.name}"
    _in_range(n_chips, name)
    given, faults = changes.read(overrides or {}, chip)
    if chip.fabric == "torus":
        size, axes, slice_count, more = _torus(chip, n_chips, torus, n_slices, given, faults)
        derived += more
    else:
        size, axes, slice_count = _domain(chip, n_chips, given, faults), (), 1
        domain = given.scale_up_size or chip.scale_up_size or 1
        if size < min(domain, n_chips):
            because = f"the largest divisor of {n_chips} chips within a domain of {domain}"
            derived += (("scale_up_size", str(size), because),)
    up = given.scale_up_bytes_s or chip.scale_up_bytes_s
    if up is None and size > 1:
        faults.append(_missing(chip, "scale_up_gbytes_s", 300, f"{size} chips share a fast domain"))
    out = given.scale_out_bytes_s or chip.scale_out_bytes_s
    if out is None and chip.fabric == "none" and up and 1 < n_chips <= (chip.chips_per_node or 1):
        because = f"{n_chips} cards of one host talk over its bus of {up / 1e9:g} GB/s"
        derived += (("scale_out_gbits_s", f"{up * 8e-9:g}", because),)
        out = up
    if out is None and n_chips > size >= 1:
        why = f"{n_chips} chips need a network: {n_chips} > {size} of one domain"
        faults.append(_missing(chip, "scale_out_gbits_s", 100 if chip.is_tpu else 400, why))
    if faults:
        raise InputError(*faults)
    if chip.fabric == "none" and given.scale_out_bytes_s is None and out and up and up < out:
        because = f"the network card hangs on the card's bus of {up / 1e9:g} GB/s"
        derived += (("scale_out_gbits_s", f"{up * 8e-9:g}", because),)
        out = up
    rules = slices.rules()
    return Cluster(
        name=name,
        chip=chip,
        n_chips=n_chips,
        scale_up_size=size,
        scale_up_bytes_s=math.inf if up is None else up,  # a domain of one chip: no link to be slow
        scale_out_bytes_s=None if out is None else out / given.oversubscription,
        usable_bytes=given.usable_bytes or chip.usable_bytes,
        torus=axes,
        wraps=rules[chip.name].wraps(axes) if axes else (),
        n_slices=slice_count,
        link_bytes_s=_link(chip, up, given.scale_up_size),
        oversubscription=given.oversubscription,
        derived=derived,
    )


def _domain(chip: Chip, n_chips: int, given: changes.Overrides, faults: list[Diagnostic]) -> int:
    """Chips of one fast domain that the cluster uses: a divisor of `n_chips`."""
    if given.scale_up_size is not None:
        size = min(given.scale_up_size, n_chips)
        if n_chips % size:
            best = _largest_divisor(n_chips, size)
            message = (
                f"{counted(n_chips, 'chip')} do not fill domains of {size}: {n_chips} / {size} = "
                f"{n_chips / size:.2f}"
            )
            hint = f"give {changes.flag('scale_up_size', best)} or a count that {size} divides"
            faults.append(Diagnostic("MW823", message, where="cluster.scale_up_size", hint=hint))
        return size
    if chip.scale_up_size is None:
        if n_chips > 1:
            faults.append(_missing(chip, "scale_up_size", 1, "it depends on the system that holds the chip"))
        return 1
    return _largest_divisor(n_chips, chip.scale_up_size)


def _torus(
    chip: Chip,
    n_chips: int,
    torus: tuple[int, ...],
    n_slices: int,
    given: changes.Overrides,
    faults: list[Diagnostic],
) -> tuple[int, tuple[int, ...], int, Derived]:
    """Slice size, axes, how many slices, and what was derived."""
    rule = slices.rules()[chip.name]
    if given.scale_up_size is not None:
        hint = f"name the slice: {n_chips // max(1, given.scale_up_size)}*{chip.name.lower()}:AxB..."
        message = f"cluster.scale_up_size={given.scale_up_size} says nothing of a torus's shape"
        faults.append(Diagnostic("MW823", message, where="cluster.scale_up_size", hint=hint))
    if torus:
        faults.extend(_bad_slice(rule, torus))
        count = max(1, n_slices)
        if not faults and prod(torus) * count != n_chips:
            total = prod(torus) * count
            message = (
                f"{counted(count, 'slice')} of {slices.spell(torus)} are {counted(total, 'chip')}, "
                f"not {n_chips}"
            )
            faults.append(Diagnostic("MW822", message, hint=f"set n_chips to {total}"))
        return max(1, prod(torus)), torus, count, ()
    whole = rule.most_cubic(n_chips)
    if whole is not None:
        because = f"the most cubic {chip.name} slice of {n_chips} chips"
        return n_chips, whole, 1, (("torus", slices.spell(whole), because),)
    split = rule.equal_slices(n_chips) if n_chips > rule.largest else None
    # Hundreds of crumbs on the data-centre network are not what was meant.
    if split is not None and prod(split[1]) * 64 >= rule.largest:
        because = f"{n_chips} chips exceed the {rule.largest} of the largest {chip.name} slice: equal slices"
        spelled = f"{split[0]}*{slices.spell(split[1])}"
        return prod(split[1]), split[1], split[0], (("torus", spelled, because),)
    faults.append(_no_slice(rule, n_chips))
    return 1, (1,) * rule.dims, 1, ()


def _no_slice(rule: slices.TorusRule, n_chips: int) -> Diagnostic:
    if n_chips > rule.largest:
        below = n_chips // rule.largest * rule.largest
        hint = f"{below} is {below // rule.largest} slices of {rule.largest}; or N*{rule.chip.lower()}:AxB"
    else:
        low, high = rule.nearest_counts(n_chips)
        near = " and ".join(str(n) for n in (low, high) if n)
        hint = f"the nearest counts with a slice: {near}; or several slices, N*{rule.chip.lower()}:AxB"
    return Diagnostic("MW822", f"no {rule.chip} slice has {counted(n_chips, 'chip')}", hint=hint)


def _bad_slice(rule: slices.TorusRule, torus: tuple[int, ...]) -> list[Diagnostic]:
    if rule.legal(torus):
        return []
    spelled = slices.spell(torus)
    if len(torus) != rule.dims:
        message = f"{spelled} has {counted(len(torus), 'axis')}, a {rule.chip} slice has {rule.dims}"
    elif prod(torus) > rule.largest:
        message = (
            f"{spelled} is {counted(prod(torus), 'chip')}, the largest {rule.chip} slice has {rule.largest}"
        )
    else:
        message = f"{spelled} is not a {rule.chip} slice"
    named = ", ".join(slices.spell(s) for s in rule.small)
    more = f", or axes that are multiples of {rule.multiple}" if rule.multiple else ""
    return [Diagnostic("MW822", message, hint=f"slices: {named}{more}")]


def _from_slice(text: str, match: re.Match[str], raw: Mapping[str, object]) -> Cluster:
    name = match["name"]
    if counted := _COUNT.match(name):
        hint = f"write {counted['count']}*{counted['name']}:{match['axes']}"
        raise InputError(Diagnostic("MW820", f"cluster {text!r} counts slices with x", hint=hint))
    chip = chips.load(name)
    axes = slices.shape(re.sub(r"\s", "", match["axes"]))
    if chip.fabric != "torus":
        message = f"{chip.name} is not joined in a torus, {slices.spell(axes)} means nothing there"
        raise InputError(Diagnostic("MW820", message, hint=f"write {prod(axes)}x{chip.name}"))
    count = _whole(match["count"], text) if match["count"] else 1
    if faults := _bad_slice(slices.rules()[chip.name], axes):
        raise InputError(*faults)
    return build(chip, prod(axes) * count, raw, torus=axes, n_slices=count, name=text)


def _link(chip: Chip, up: float | None, domain: int | None) -> float:
    """One link, one way: of a torus, a chip's share of its links; of a mesh, what joins it to one peer (the
    domain's other chips share the chip's bandwidth, whether or not the cluster uses them)."""
    if up is None:
        return 0.0
    if chip.fabric == "torus":
        return up / chip.links
    peers = (domain or chip.scale_up_size or 1) - 1
    return up / max(1, peers) if chip.fabric == "mesh" else 0.0


def _missing(chip: Chip, field: str, example: int, why: str) -> Diagnostic:
    flag = changes.flag(field, example)
    message = f"the data sheet of {chip.name} has no {field}, and {why}"
    return Diagnostic("MW824", message, where=f"cluster.{field}", hint=f"give it: {flag}, say")


def _largest_divisor(n: int, limit: int) -> int:
    return next(d for d in range(min(n, limit), 0, -1) if n % d == 0)


def _chip_or_machine(name: str) -> Chip:
    """The chip, with machine names among the suggestions when there is no such chip."""
    try:
        return chips.load(name)
    except InputError as error:
        (fault,) = error.diagnostics
        near = [m for m in machines() if chips.key(m).startswith(chips.key(name)[:4])]
        if fault.code != "MW827" or not near:
            raise
        raise InputError(
            Diagnostic(fault.code, fault.message, hint=f"machines: {', '.join(near)}")
        ) from error


def _whole(text: str, cluster: str) -> int:
    digits = re.sub(r"[_,]", "", text)
    if not re.fullmatch(r"\d{1,100}", digits):
        said = f"{text!r} in {cluster!r} is not a whole number"
        raise InputError(Diagnostic("MW821", said, hint=f"write {_FORMS}"))
    return _in_range(int(digits), cluster)


def _in_range(n_chips: int, cluster: str) -> int:
    if not 1 <= n_chips <= MOST_CHIPS:
        message = f"{counted(n_chips, 'chip')} in {cluster!r} are outside 1 to {MOST_CHIPS}"
        raise InputError(Diagnostic("MW821", message, where="cluster", hint=f"write {_FORMS}"))
    return n_chips


def _form_hint(text: str) -> str:
    bare = text.strip()
    if chips.key(bare) in {chips.key(m) for m in machines()}:
        return f"how many? 4x{bare}"
    try:
        return f"how many? 8x{chips.load(bare).name}" if bare else f"write {_FORMS}"
    except InputError:
        return f"write {_FORMS}"
