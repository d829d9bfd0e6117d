"""The tree of terms: value, how children combine, formula, and the numbers that went in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from meshwright import units
from meshwright.cost.evaluation import MEMORY_KEYS
from meshwright.cost.terms import Term
from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.report.records import Estimate
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.units import GIB

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LONGEST = 1000  # columns of a line in a pipe or file
_SIGN = {"leaf": "", "sum": "sum of", "max": "largest of", "product": "product of"}


def print_tree(found: Estimate, console: Console, *, depth: int | None, path: str | None) -> None:
    """The tree below `path` (all of it without one), `depth` levels of it."""
    term, width = chosen(found, path), console.width
    if not console.is_terminal:  # a pipe has no edge to fold at: a line is as long as its formula and inputs
        console.width = LONGEST
    console.print(_branch(term, depth))
    console.width = width
    if term.name == "memory" and len(found.evaluation.by_stage) > 1:
        console.print()
        print_table(console, _by_stage(found))


def _by_stage(found: Estimate) -> Table:
    """Every pipeline stage at its own fullest moment, GiB; categories that no stage has are left out."""
    stages = found.evaluation.by_stage
    present = [name for name in MEMORY_KEYS if any(held.memory_bytes[name] for held in stages)]
    columns = (">stage", "fullest at", ">peak", *(f">{name}" for name in present))
    table = plain_table(*columns, title="by stage, GiB")
    for held in stages:
        cells = [f"{held.memory_bytes[name] / GIB:.1f}" for name in present]
        table.add_row(str(held.stage), held.moment, f"{held.peak_bytes / GIB:.1f}", *cells)
    return table


def chosen(found: Estimate, path: str | None) -> Term:
    """The term at `path` of an estimate's tree, or the root; InputError where there is none."""
    root = found.evaluation.terms
    if root is None:
        raise InputError(Diagnostic("MW906", "this estimate has no tree of terms"))
    return root if path is None else term_at(root, path)


def term_at(root: Term, path: str) -> Term:
    """The node at dotted `path` (with or without the root's name), or InputError with close names."""
    known = dict(root.walk())
    for name in (path, f"{root.name}.{path}"):
        if name in known:
            return known[name]
    tails = {p for p in known if p.split(".")[-1] == path}
    if len(tails) == 1:
        return known[tails.pop()]
    hint = f"several: {', '.join(sorted(tails)[:6])}" if tails else did_you_mean(path, list(known))
    raise InputError(
        Diagnostic(
            "MW906", f"no term {path!r}", where="--term", hint=hint or "explain without --term lists them"
        )
    )


def _branch(term: Term, depth: int | None) -> Tree:
    tree = Tree(_line(term), guide_style="dim")
    _grow(tree, term, depth)
    return tree


def _grow(tree: Tree, term: Term, depth: int | None) -> None:
    if depth is not None and depth <= 1:
        return
    for child in term.children:
        _grow(tree.add(_line(child)), child, None if depth is None else depth - 1)


def _line(term: Term) -> Text:
    line = Text.assemble((term.name, "bold"), "  ", value_text(term.value, term.unit))
    if term.provenance != "derived":
        line.append(f"  [{term.provenance}]", style="yellow" if term.provenance == "assumed" else "dim")
    if term.children:
        line.append(f"  {_SIGN[term.combine]} {len(term.children)}", style="dim")
    if term.formula:
        line.append(f"  = {term.formula}")
    if term.inputs:
        line.append(f"  ({', '.join(f'{k}={_short(v)}' for k, v in term.inputs.items())})", style="dim")
    return line


def value_text(value: Any, unit: str) -> str:
    """A term's value in its own unit."""
    number = float(value)
    if unit == "s":
        return units.seconds_text(number, 4)
    if unit == "B":
        return units.bytes_text(number, 4)
    if unit == "FLOP":
        return units.flops_text(number, 4, per_second=False)
    return units.number_text(number, 4)


def _short(value: Any) -> str:
    if isinstance(value, str | bool) or value is None:
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e9 else f"{number:.4g}"
