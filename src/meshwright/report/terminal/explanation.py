"""An explanation for a person: sentences first, then the tree; or the plain story."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from meshwright.report import plain
from meshwright.report.explanation import Explanation
from meshwright.report.terminal.estimate import print_balance, print_headline
from meshwright.report.terminal.tree import chosen, print_tree

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = 3  # of the whole tree: the parts of time and memory, and what each is the sum of
PAGE = 90  # columns of the plain story


def print_explanation(found: Explanation, console: Console, *, depth: int | None, path: str | None) -> None:
    """Headline, sentences and `depth` levels of the tree (`LEVELS` unless given); only the part at `path`,
    all of it unless `depth` is given, where one is named."""
    if path is not None:
        chosen(found.estimate, path)  # a wrong name is told before anything is printed
    print_headline(found.estimate, console)
    console.print()
    if path is None:
        for said in found.sentences:
            console.print(said.text)
        console.print()
    print_tree(found.estimate, console, depth=depth or (LEVELS if path is None else None), path=path)
    if path is None:
        if depth is None:
            console.print(
                f"{LEVELS} levels of terms; --depth N shows more, --term memory.activations a part down to "
                "its operations."
            )
        print_balance(found.estimate, console)


def print_plain(found: Explanation, console: Console) -> None:
    """The plain story on a page."""
    for i, paragraph in enumerate(plain.story(found)):
        if i:
            console.print()
        console.print(fill(paragraph, min(PAGE, console.width)))
