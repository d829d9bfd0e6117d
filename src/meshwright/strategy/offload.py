"""The offload word: what waits in host memory, activations between the passes or states between steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import Diagnostic, InputError, did_you_mean

WORDS = ("none", "activations", "activations:N", "experts", "experts-all", "optimizer", "params")
# Of experts, by the operation that keeps it: what their activation reads; and the tokens that they are given.
# Source: Megatron-Core's offload_modules moe_act and expert_fc1, which move the input of each.
_OF_EXPERTS = {
    "experts": frozenset({"experts_up"}),
    "experts-all": frozenset({"experts_up", "permute"}),
}


@dataclass(frozen=True, slots=True)
class Offload:
    """`operations` None: all that a layer keeps; otherwise what operations of those names keep. `layers`: the
    first so many of each stage (0: every layer). `optimizer`: optimizer state, whose step then runs on the
    host; `params`: the rank's shard of the weights as well."""

    word: str
    any: bool = False
    operations: frozenset[str] | None = None
    layers: int = 0
    optimizer: bool = False
    params: bool = False

    def share(self, layers_on_stage: Any) -> Any:
        """Share of a stage's layers whose activations are offloaded; broadcasts."""
        if not self.any:
            return 0.0
        if not self.layers:
            return 1.0
        return np.minimum(1.0, self.layers / np.maximum(np.asarray(layers_on_stage, float), 1.0))

    @property
    def of_layers(self) -> tuple[bool, frozenset[str] | None, int]:
        """What layers look at; words that differ only in the states they send to the host share it."""
        return self.any, self.operations, self.layers

    def takes(self, operation: str) -> bool:
        """Whether what the operation of that name keeps goes to the host."""
        return self.any and (self.operations is None or operation in self.operations)


@lru_cache(maxsize=256)
def parse(word: str) -> Offload:
    """The word as a record; several are joined by +.

    >>> parse("activations:20").share(80)
    np.float64(0.25)
    >>> parse("params+optimizer").word
    'optimizer+params'

    Raises InputError naming the words.
    """
    named = [part.strip() for part in word.strip().lower().split("+")]
    if named == ["none"]:
        return Offload("none")
    operations: frozenset[str] | None = None
    layers, taken = 0, ""
    for part in named:
        if part in ("optimizer", "params"):
            continue
        if taken:
            raise _fault(word, f"{taken} and {part} both say which activations go", f"keep {taken}")
        head, colon, tail = part.partition(":")
        if part in _OF_EXPERTS:
            operations = _OF_EXPERTS[part]
        elif head == "activations" and colon and tail.isascii() and tail.isdigit() and len(tail) < 7:
            layers = int(tail)
        elif part != "activations":
            raise _fault(word, f"the words are {', '.join(WORDS)}", did_you_mean(head, WORDS))
        if colon and not 0 < layers <= 100_000:
            raise _fault(word, "activations:N needs a whole number from 1 to 100000", "try activations:8")
        taken = part
    states = [part for part in ("optimizer", "params") if part in named]
    spelled = "+".join([taken, *states] if taken else states)
    return Offload(spelled, bool(taken), operations, layers, "optimizer" in states, "params" in states)


def _fault(word: str, message: str, hint: str | None) -> InputError:
    said = f"offload is {word!r}, but {message}"
    return InputError(Diagnostic("MW142", said, where="offload", hint=hint or f"one of {', '.join(WORDS)}"))
