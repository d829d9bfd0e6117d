"""Layer patterns in one small notation: `first(cycle)last` fills any depth."""

from __future__ import annotations

import re

from meshwright.units import counted

_PATTERN = re.compile(r"(?P<first>[^()]*)\((?P<cycle>[^()]+)\)(?P<last>[^()]*)")
_REPEAT = re.compile(r"\(?(?P<unit>[A-Za-z]+)\)? ?x(?P<times>\d+)")
_RATIO = re.compile(r"(?P<local>\d+)(?: chunked)?:(?P<full>\d+)")
_LAYERS = re.compile(r"layers (?P<list>\d+(?:,\d+)*)")


def fill(pattern: str, n_layers: int) -> str:
    """One letter a layer from `first(cycle)last`; a pattern without parentheses is all cycle.

    >>> fill("DD(E)D", 6), fill("LLLA", 6)
    ('DDEEED', 'LLLALL')
    """
    match = _PATTERN.fullmatch(pattern)
    first, cycle, last = match.group("first", "cycle", "last") if match else ("", pattern, "")
    room = n_layers - len(first) - len(last)
    if room < 0:
        raise ValueError(
            f"pattern {pattern!r} names {counted(len(first) + len(last), 'layer')} of {n_layers}"
        )
    return first + (cycle * (room // len(cycle) + 1))[:room] + last


def written_out(text: str, n_layers: int) -> str | None:
    """One letter a layer where `text` is a compact list such as `(LLLA)x12`, `M x64` or `MEM*E-`; else None.

    >>> written_out("(LA)x2", 4), written_out("MEM*", 4), written_out("period 8, attention at 4", 8)
    ('LALA', 'MEM*', None)
    """
    match = _REPEAT.fullmatch(text)
    letters = match["unit"] * int(match["times"]) if match else text
    return letters if len(letters) == n_layers and re.fullmatch(r"[A-Z*\-]+", letters) else None


def local_layers(text: str, n_layers: int) -> str:
    """`l` for a layer with a window and `g` for one that sees the whole prefix, from the table's wording.

    Ratios put the local layers first (as Gemma and gpt-oss do); "layers 0,5" lists the global ones; no text
    means that every layer has the window.

    >>> local_layers("5:1 local:global", 8), local_layers("all local", 2)
    ('lllllgll', 'll')
    >>> local_layers("3 local, 2 global (layers 0,4)", 5)
    'glllg'
    """
    if listed := _LAYERS.search(text):
        full = {int(i) for i in listed["list"].split(",")}
        return "".join("g" if i in full else "l" for i in range(n_layers))
    if ratio := _RATIO.search(text):
        return fill("l" * int(ratio["local"]) + "g" * int(ratio["full"]), n_layers)
    return "l" * n_layers
