"""The offload word: which activations wait for the backward pass in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import Diagnostic, InputError, did_you_mean

WORDS = ("none", "activations", "activations:N", "experts")


@dataclass(frozen=True, slots=True)
class Offload:
    """`modules` None: all that a layer keeps; otherwise what those modules keep. `layers`: the first so many
    of each stage (0: every layer)."""

    word: str
    any: bool = False
    modules: frozenset[str] | None = None
    layers: int = 0

    def share(self, layers_on_stage: Any) -> Any:
        """Share of a stage's layers that is offloaded; broadcasts."""
        if not self.any:
            return 0.0
        if not self.layers:
            return 1.0
        return np.minimum(1.0, self.layers / np.maximum(np.asarray(layers_on_stage, float), 1.0))

    def takes(self, module: str) -> bool:
        """Whether what `module` keeps goes to the host."""
        return self.any and (self.modules is None or module in self.modules)


@lru_cache(maxsize=256)
def parse(word: str) -> Offload:
    """The word as a record.

    >>> parse("activations:20").share(80)
    np.float64(0.25)

    Raises InputError naming the words.
    """
    text = word.strip().lower()
    if text == "none":
        return Offload("none")
    if text == "activations":
        return Offload(text, any=True)
    if text == "experts":
        return Offload(text, any=True, modules=frozenset({"moe_act"}))
    head, colon, tail = text.partition(":")
    if head == "activations" and colon and tail.isascii() and tail.isdigit() and 0 < int(tail[:6]) <= 100_000:
        return Offload(text, any=True, layers=int(tail))
    hint = did_you_mean(head, WORDS) or f"one of {', '.join(WORDS)}"
    raise InputError(
        Diagnostic(
            "MW142", f"offload is {word!r}, but the words are {', '.join(WORDS)}", where="offload", hint=hint
        )
    )
