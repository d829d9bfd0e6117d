"""The fine-tuning word: which parameters train, what the others are kept in, whether rows are pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from meshwright.errors import Diagnostic, InputError, did_you_mean

WORDS = ("none", "lora:RANK", "qlora:RANK", "qlora-int8:RANK", "dpo", "dpo+lora:RANK", "dpo+qlora:RANK")
TARGETS = ("all", "attention", "qkv", "qv")
_METHODS = {"lora": "", "qlora": "nf4", "qlora-int8": "int8"}
_MOST = 65536  # no adapter is wider than a layer

# Bytes a weight of a quantised base: NormalFloat4 with an fp32 scale for 64 weights (QLoRA, arXiv 2305.14314,
# section 3; nested scales save 0.05 more), and eight bits with an fp32 scale a row.
BASE_BYTES = {"": 2.0, "nf4": 0.5 + 4.0 / 64.0, "int8": 1.0}


@dataclass(frozen=True, slots=True)
class Finetune:
    """`rank` 0: every parameter trains. `base`: what frozen matrices are quantised to, "" for not at all.
    `targets`: which linear layers carry adapters. `pairs`: a preferred and a rejected answer a row, beside a
    frozen reference model (direct preference optimisation, arXiv 2305.18290)."""

    word: str
    rank: int = 0
    base: str = ""
    targets: str = "all"
    pairs: bool = False

    @property
    def frozen(self) -> bool:
        """Whether the model's own parameters stay as they are."""
        return self.rank > 0

    @property
    def rows(self) -> int:
        """Rows of tokens in one sequence of the batch: a pair is two."""
        return 2 if self.pairs else 1

    @property
    def adapts_mlp(self) -> bool:
        """Whether the matrices of the feed-forward layers carry adapters."""
        return self.rank > 0 and self.targets == "all"


@lru_cache(maxsize=256)
def parse(word: str) -> Finetune:
    """The word as a record. `full` is another way to say `none`; targets follow an `@`.

    >>> parse("qlora:16").base, parse("lora:8@qv").targets, parse("dpo+lora:32").pairs
    ('nf4', 'qv', True)

    Raises InputError naming the words.
    """
    text = word.strip().lower()
    pairs = text == "dpo" or text.startswith("dpo+")
    rest = text.removeprefix("dpo").removeprefix("+") if pairs else text
    if rest in ("", "none", "full") and (pairs or rest):
        return Finetune("dpo" if pairs else "none", pairs=pairs)
    method, colon, tail = rest.partition(":")
    rank, at, targets = tail.partition("@")
    if method not in _METHODS:
        hint = did_you_mean(method, tuple(_METHODS)) or f"one of {', '.join(WORDS)}"
        raise _fault(word, f"the words are {', '.join(WORDS)}", hint)
    if not (colon and rank.isascii() and rank.isdigit() and len(rank) < 6 and 0 < int(rank) <= _MOST):
        said = f"{method}:RANK needs a whole number from 1 to {_MOST}"
        raise _fault(word, said, f"write {method}:16")
    if at and targets not in TARGETS:
        hint = did_you_mean(targets, TARGETS) or f"one of {', '.join(TARGETS)}"
        raise _fault(word, f"adapters sit on {', '.join(TARGETS)}, not on {targets!r}", hint)
    targets = targets or "all"
    spelled = f"{'dpo+' if pairs else ''}{method}:{int(rank)}{'' if targets == 'all' else f'@{targets}'}"
    return Finetune(spelled, int(rank), _METHODS[method], targets, pairs)


def _fault(word: str, message: str, hint: str) -> InputError:
    return InputError(Diagnostic("MW143", f"finetune {word!r}: {message}", where="finetune", hint=hint))
