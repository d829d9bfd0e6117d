"""The recompute word: which activations are thrown away in forward and computed again in backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.strategy.records import RECOMPUTE_MODULES

WORDS = ("none", "full", "minimal", "selective", "every:N", "layers:N", "products:N")

# XLA's "minimal" policy keeps the result of every matrix product and recomputes what lies between: norms,
# activation functions and the fused attention call, which is not a plain product to that policy.
MINIMAL_MODULES = frozenset({"core_attn", "norm", "moe_act"})


@dataclass(frozen=True, slots=True)
class Recompute:
    """A parsed recompute word.

    `modules` are recomputed in every layer that is not recomputed whole. `every` = n > 0 recomputes whole
    every n-th layer (1: all, which is `full`); `layers` recomputes whole the first `layers` layers of each
    pipeline stage; `products` = n > 0 keeps of a layer the result of every n-th matrix product, of attention
    and of what ranks scatter or exchange, and computes the rest again (torchtitan's selective `op`, n = 2).
    `unresolved` marks a bare `selective`, whose modules are the framework's own.
    """

    word: str
    modules: frozenset[str] = frozenset()
    every: int = 0
    layers: int = 0
    products: int = 0
    unresolved: bool = False

    @property
    def is_full(self) -> bool:
        """Whether all layers are recomputed whole."""
        return self.every == 1

    def redoes(self, other: Recompute) -> bool:
        """Whether it computes again everything that `other` does.

        >>> parse("selective:norm+moe").redoes(parse("selective:moe_act"))
        True
        """
        if self.is_full or self == other:
            return True
        within = self.modules | ({"moe_act"} if "moe" in self.modules else set())
        plain = not (other.every or other.layers or other.products or other.unresolved)
        return plain and other.modules <= within

    def full_share(self, layers_on_stage: Any) -> Any:
        """Share of a stage's layers that is recomputed whole; broadcasts over `layers_on_stage`."""
        n = np.maximum(np.asarray(layers_on_stage, float), 1.0)
        if self.every:
            # The first of every group of `every` layers, so a stage of one layer recomputes it.
            return np.ceil(n / self.every) / n
        return np.minimum(self.layers / n, 1.0)


@lru_cache(maxsize=1024)
def parse(word: str) -> Recompute:
    """`none`, `full`, `minimal`, `selective:a+b`, `selective`, `every:2`, `layers:N` or `products:2`.

    >>> sorted(parse("selective:norm+core_attn").modules)
    ['core_attn', 'norm']
    >>> parse("every:2").full_share(8)
    np.float64(0.5)

    Raises InputError naming every word or module that is not known.
    """
    text = word.strip().lower()
    head, colon, tail = text.partition(":")
    if head == "none" and not colon:
        return Recompute("none")
    if head == "full" and not colon:
        return Recompute("full", every=1)
    if head == "minimal" and not colon:
        return Recompute("minimal", modules=MINIMAL_MODULES)
    if head == "selective":
        if not colon:
            return Recompute("selective", unresolved=True)
        return _selective(word, tail)
    if head in ("every", "layers", "products"):
        if not tail.isascii() or not tail.isdigit() or not 1 <= int(tail[:6]) <= 100_000 or len(tail) > 6:
            raise _fault(word, f"{head}:N needs a whole number of 1 or more", f"try {head}:2")
        n = int(tail)
        counts: dict[str, int] = {head: n}
        return Recompute(f"{head}:{n}", **counts)  # type: ignore[arg-type]
    modules = [m for m in text.replace(",", "+").split("+") if m]
    if modules and all(m in RECOMPUTE_MODULES for m in modules):
        hint = f"write selective:{'+'.join(modules)}"
        raise _fault(word, "it names modules without saying selective", hint)
    hint = did_you_mean(head, tuple(w.partition(":")[0] for w in WORDS))
    hint = hint or "write selective:core_attn for one module"
    raise _fault(word, f"the words are {', '.join(WORDS)}", hint)


def in_order(words: Iterable[str]) -> list[str]:
    """The words, one that computes more again after all whose work it includes.

    >>> in_order(["full", "selective:norm", "none"])
    ['none', 'selective:norm', 'full']
    """
    many = list(words)
    return sorted(many, key=lambda word: sum(parse(word).redoes(parse(other)) for other in many))


def spell(modules: frozenset[str] | set[str]) -> str:
    """The word of a set of modules, in the order of `RECOMPUTE_MODULES`.

    >>> spell({"norm", "core_attn"})
    'selective:core_attn+norm'
    """
    return f"selective:{'+'.join(m for m in RECOMPUTE_MODULES if m in modules)}" if modules else "none"


def _selective(word: str, tail: str) -> Recompute:
    named = [m.strip() for m in tail.replace(",", "+").split("+") if m.strip()]
    if not named:
        raise _fault(word, "selective: names no module", f"the modules are {', '.join(RECOMPUTE_MODULES)}")
    unknown = [m for m in named if m not in RECOMPUTE_MODULES]
    if unknown:
        close = [(m, did_you_mean(m, RECOMPUTE_MODULES)) for m in unknown]
        hints = [f"{m}: {meant}" for m, meant in close if meant]
        raise _fault(
            word,
            f"{', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} not among the modules "
            f"{', '.join(RECOMPUTE_MODULES)}",
            "; ".join(hints) or "name modules of that list, joined by +",
        )
    modules = frozenset(named)
    return Recompute(spell(modules), modules=modules)


def _fault(word: str, message: str, hint: str) -> InputError:
    return InputError(Diagnostic("MW140", f"recompute {word!r}: {message}", where="recompute", hint=hint))
