"""Every strategy worth a number: arrays over degrees, loops over words.

A word that changes nothing is spelled once, so that no strategy is counted twice: without tp there is no sp,
without cp no cp_method, without a pipeline no interleaving, with one rank of dp x cp no ZeRO (with experts:
with one rank a stage, for ranks of tp may hold copies of them).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.checks.layout import SINGLE_CHUNK, TWO_CHUNKS
from meshwright.checks.rule import divisors
from meshwright.checks.shapes import moe
from meshwright.errors import Diagnostic, InputError
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search.derive import group_size
from meshwright.search.given import Between, read_choices
from meshwright.search.words import LAYOUT, chosen, left, unpiped, untried
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import stages_outermost
from meshwright.strategy.records import AXES, ORDERS, Strategy
from meshwright.strategy.stages import most_virtual_stages
from meshwright.strategy.targets import Target, spelled
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
CONSTANT_FIELDS = (
    "finetune",
    "optimizer",
    "dispatcher",
    "moe_balance",
    "placement",
    "layers_per_stage",
)
WORD_FIELDS = ("sp", "cp_method", "zero", "offload", "schedule", "recompute")
DEGREE_FIELDS = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatch_size")

# All divisors up to here are tried as microbatch sizes, powers of two beyond. Matrix products are full at a
# few thousand tokens, so between 8 and 16 sequences nothing but memory and divisibility changes.
EVERY_SIZE_TO = 8
# More tokens than this in one microbatch are not tried, unless one sequence is longer: activations of a
# single layer of width 1024 already take 2 GiB there for each tensor of its width.
MOST_TOKENS = 2**20


@dataclass(frozen=True, slots=True)
class Words:
    """One combination of everything that is not a number. `group` is a zero_group: a number or a word."""

    schedule: str
    sp: bool
    cp_method: str
    zero: int
    group: int | str
    offload: str
    recompute: str
    constant: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Space:
    """Every strategy as a product of choices within blocks: a block is one (dp, tp, pp, cp).

    `blocks[name]` [b]; `vpp` [v], `ep` and `etp` [e], `sizes` [m] are what may be chosen, and `has_*` [b, .]
    say which of them a block has. `words` holds the values of each word.
    """

    blocks: dict[str, IntArray]
    vpp: IntArray
    ep: IntArray
    etp: IntArray
    sizes: IntArray
    has_vpp: Mask
    has_experts: Mask
    has_size: Mask
    spreads: Mask  # [b]: whether there are ranks over which ZeRO may spread something
    words: dict[str, tuple[Any, ...]]
    zero_under_pipeline: int = 3  # the highest stage with pp > 1 that the target has
    unpiped: str = (
        ""  # a schedule that the target or the framework lacks: it stands for plans without a pipeline alone
    )
    left: dict[str, str] = field(default_factory=dict)  # what is not tried of a field, and why
    untried: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # the words that are left, of layouts

    def __len__(self) -> int:
        rows = self.has_vpp.sum(1) * self.has_experts.sum(1) * self.has_size.sum(1)
        return int(rows.sum())

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Each axis with the values that are tried, for a person to read."""
        some = self.has_vpp.any(1) & self.has_experts.any(1) & self.has_size.any(1)
        tried = {name: self.blocks[name][some] for name in ("dp", "tp", "pp")}
        tried["vpp"] = self.vpp[self.has_vpp[some].any(0)]
        tried["cp"] = self.blocks["cp"][some]
        pairs = self.has_experts[some].any(0)
        tried |= {"ep": self.ep[pairs], "etp": self.etp[pairs]}
        tried["microbatch_size"] = self.sizes[self.has_size[some].any(0)]
        numbers = {name: tuple(int(v) for v in np.unique(tried[name])) for name in DEGREE_FIELDS}
        shown = {name: tuple(_shown(v) for v in values) for name, values in self.words.items()}
        shown["schedule"] = self.pipelines or shown["schedule"]
        chunks = [v for v in numbers["vpp"] if v == 1 or any(_has_chunks(word, v) for word in self.pipelines)]
        return numbers | {"vpp": tuple(chunks)} | shown

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The schedules that are tried with more than one stage."""
        return tuple(word for word in self.words["schedule"] if word != self.unpiped)

    def reads(self, name: str) -> bool:
        """Whether a word of a layout changes any of its strategies."""
        axis = LAYOUT[name]
        column = self.ep if axis == "ep" else self.blocks.get(axis)
        return column is None or bool((column > 1).any())

    @property
    def other_orders(self) -> tuple[int, ...]:
        """Places in `ORDERS` of the placements that are tried beside the first; those are words of their own
        where the first has no pipeline outermost, so that what breaks no rule in them may break one in it."""
        first, *others = self.words["placement"]
        return tuple(ORDERS.index(order) for order in others) if stages_outermost(first) else ()

    def without(self, technique: str) -> Space:
        """The strategies that do without a technique; all of them for what none of them has."""
        if technique == "sp" and False not in self.words["sp"]:
            technique = "tp"
        if technique in ("tp", "pp", "cp"):
            kept = self.blocks[technique] == 1
            blocks = {name: column[kept] for name, column in self.blocks.items()}
            return replace(
                self, blocks=blocks, has_vpp=self.has_vpp[kept], has_experts=self.has_experts[kept],
                has_size=self.has_size[kept], spreads=self.spreads[kept],
            )  # fmt: skip
        if technique == "vpp":
            return replace(self, has_vpp=self.has_vpp & (self.vpp == 1))
        if technique in ("ep", "etp"):
            return replace(self, has_experts=self.has_experts & (getattr(self, technique) == 1))
        plain = {"sp": (False,), "recompute": ("none",), "zero-3": (0, 1, 2), "offload": ("none",)}
        if technique not in plain:
            return self
        name = technique.partition("-")[0]
        words = tuple(word for word in self.words[name] if word in plain[technique])
        return replace(self, words=self.words | {name: words})

    def layer_words(self) -> Iterator[Words]:
        """Words that layers look at, the recompute word apart, under the first of the others."""
        w = self.words
        if self.other_orders:
            w = w | {"placement": w["placement"][:1]}
        constants = [tuple(zip(CONSTANT_FIELDS, v)) for v in product(*(w[f] for f in CONSTANT_FIELDS))]
        offloads = {parse_offload(word).of_layers: word for word in reversed(w["offload"])}
        first = [word for word in w["offload"] if word in offloads.values()]
        for constant, offload, sp, cp_method in product(constants, first, w["sp"], w["cp_method"]):
            yield Words("", sp, cp_method, 0, 1, offload, w["recompute"][0], constant)

    def shards(self, words: Words) -> list[Words]:
        """`words` with every (zero, group) and every offload word under which layers are what they are under
        its own. ZeRO-0 shards nothing, so it has one group."""
        w, layers = self.words, parse_offload(words.offload).of_layers
        return [
            replace(words, zero=zero, group=group, offload=offload)
            for zero in w["zero"]
            for offload in sorted(w["offload"], key=lambda word: word != "none")
            if parse_offload(offload).of_layers == layers
            for group in (w["zero_group"] if zero else w["zero_group"][:1])
        ]

    def spelled(self, words: Words) -> Mask:
        """Which (block, vpp) are spelled with `words`, [b, v]: where a word changes nothing, only its first
        value is used."""
        d, w = {name: column[:, None] for name, column in self.blocks.items()}, self.words
        schedules = [s for s in w["schedule"] if s in SINGLE_CHUNK]
        vpp = self.vpp[None, :]
        suits = np.zeros((len(w["schedule"]), *self.has_vpp.shape), bool)
        for i, word in enumerate(w["schedule"]):
            suits[i] = _has_chunks(word, vpp)
            if word in SINGLE_CHUNK:
                suits[i] &= (d["pp"] > 1) | (word == schedules[0])
        suits[0] |= ~suits.any(axis=0)  # rows that no word suits are rejected once, not left out
        kept = suits[w["schedule"].index(words.schedule)]
        if words.schedule == self.unpiped:
            kept = kept & (d["pp"] == 1)
        if words.sp != min(w["sp"]):
            kept = kept & (d["tp"] > 1)
        if words.cp_method != w["cp_method"][0]:
            kept = kept & (d["cp"] > 1)
        if (words.zero, words.group) != (min(w["zero"]), w["zero_group"][0]):
            kept = kept & self.spreads[:, None]
        if words.zero > self.zero_under_pipeline:
            kept = kept & (d["pp"] == 1)
        own = dict(words.constant)["placement"]
        for earlier in w["placement"][: w["placement"].index(own)]:
            kept = kept & ~same_order(own, earlier, d)
        return np.asarray(kept, bool)

    def group_sizes(self, words: Words, cluster: Cluster) -> tuple[IntArray, Mask]:
        """zero_group of each block, and which blocks an earlier word gives the same group."""
        d = self.blocks

        def sized(group: int | str) -> IntArray:
            size = group_size(group, d["dp"], d["cp"], d["tp"], cluster)
            return np.broadcast_to(np.asarray(size, np.int64), d["dp"].shape)

        own, double = sized(words.group), np.zeros(d["dp"].shape, bool)
        if words.zero:
            for earlier in self.words["zero_group"][: self.words["zero_group"].index(words.group)]:
                double |= sized(earlier) == own
        return own, double

    def strategy(self, words: Words, degrees: Mapping[str, Any], groups: Any) -> Strategy:
        """The strategies of some `degrees` under `words`."""
        values = dict(words.constant) | dict(degrees)
        values |= {f: getattr(words, f) for f in WORD_FIELDS}
        return Strategy(zero_group=groups, **values)


def build(
    model: Model,
    cluster: Cluster,
    work: Work,
    fixed: Mapping[str, Any],
    profile: Profile,
    target: Target | None = None,
) -> Space:
    """The space of `model` on `cluster`, where `fixed` pins a field to a value, a list or a range of them.

    Degrees: divisors of the chips; vpp: every count that leaves no chunk empty; ep: divisors of the experts;
    etp: divisors of an expert's width; microbatch_size: `sizes`. A `target` takes out what that framework
    cannot express. Raises InputError for unreadable fields and for those of which nothing is left.
    """
    choices = read_choices(fixed)
    words, numbers = chosen(choices, model, work, profile, cluster.n_chips, target)
    space = replace(_blocks(model, cluster, work, numbers, words), unpiped=unpiped(choices, profile, target))
    rest = untried(words | {"schedule": space.pipelines}, choices, target)
    return replace(
        space,
        left=left(choices),
        untried={name: some for name, some in rest.items() if space.reads(name)},
        zero_under_pipeline=target.zero_under_pipeline if target is not None else space.zero_under_pipeline,
    )


def sizes(work: Work) -> list[int]:
    """Microbatch sizes that are tried: divisors of the global batch, all up to 8 and powers of two beyond."""
    most = max(MOST_TOKENS // int(work.seq_len), 1)
    return [
        d
        for d in divisors(int(work.global_batch_size))
        if d <= most and (d <= EVERY_SIZE_TO or d & (d - 1) == 0)
    ]


def _has_chunks(schedule: str, vpp: Any) -> Any:
    """Whether a schedule runs so many chunks a rank; broadcasts over them."""
    if schedule in SINGLE_CHUNK:
        return vpp == 1
    return vpp == 2 if schedule in TWO_CHUNKS else vpp > 1


def _shown(value: Any) -> Any:
    return spelled(value) if isinstance(value, tuple) else value


def same_order(one: tuple[str, ...], other: tuple[str, ...], degrees: Mapping[str, IntArray]) -> Mask:
    """Where two orders of axes place the same ranks alike: the axes they swap have one rank."""
    same = np.ones_like(degrees["dp"], bool)
    for i, a in enumerate(AXES):
        for b in AXES[i + 1 :]:
            if (one.index(a) < one.index(b)) != (other.index(a) < other.index(b)):
                same = same & ((degrees[a] == 1) | (degrees[b] == 1))
    return same


def _numbers(name: str, choices: dict[str, tuple[Any, ...]], usual: list[int]) -> tuple[int, ...]:
    """The values of a number: those listed, and those of `usual` that a range holds."""
    if name not in choices:
        return tuple(usual)
    found: list[int] = []
    for choice in choices[name]:
        some = choice.of(usual) if isinstance(choice, Between) else (choice,)
        if not some:
            near = ", ".join(str(v) for v in usual[:12])
            said = f"{name} {choice} holds none of the values there are: {near}"
            raise InputError(Diagnostic("MW104", said, where=name, hint=f"widen it, or leave {name} out"))
        found += some
    return tuple(dict.fromkeys(found))


def _blocks(
    model: Model,
    cluster: Cluster,
    work: Work,
    choices: dict[str, tuple[Any, ...]],
    words: dict[str, tuple[Any, ...]],
) -> Space:
    """All degrees whose product can be right."""
    chips = cluster.n_chips
    whole = divisors(chips)
    experts = moe(model)
    few = np.gcd.reduce([m.n_experts for m in experts]) if experts else 1
    width = np.gcd.reduce([m.d_ff for m in experts]) if experts else 1
    eps = _numbers("ep", choices, divisors(int(few)))
    etps = _numbers("etp", choices, divisors(int(np.gcd(width, chips))))
    pairs = np.array(list(product(eps, etps)), np.int64).reshape(-1, 2)
    ranged = any(isinstance(c, Between) for c in choices.get("microbatch_size", ()))
    tried = divisors(int(work.global_batch_size)) if ranged else sizes(work)
    batches = np.array(_numbers("microbatch_size", choices, tried), np.int64)
    most = most_virtual_stages(model)
    found = [
        (chips // (tp * pp * cp), tp, pp, cp)
        for tp, pp, cp in product(*(_numbers(name, choices, whole) for name in ("tp", "pp", "cp")))
        if chips % (tp * pp * cp) == 0 and pp <= most
    ]
    dps = set(_numbers("dp", choices, whole))
    found = [block for block in found if block[0] in dps]
    table = np.array(found, np.int64).reshape(-1, 4)
    blocks = {name: table[:, i] for i, name in enumerate(("dp", "tp", "pp", "cp"))}
    alike = blocks["dp"] * blocks["cp"]  # ranks with the same weights, experts apart
    ranks = (alike * blocks["tp"])[:, None]
    spreads = np.asarray((ranks[:, 0] if experts else alike) > 1)
    has_experts = np.ones((len(table), len(pairs)), bool)
    if "ep" not in choices and "etp" not in choices:
        has_experts = ranks % (pairs[:, 0] * pairs[:, 1]) == 0
    has_size = np.asarray(work.global_batch_size) % (blocks["dp"][:, None] * batches) == 0
    has_size[~has_size.any(1), :1] = True  # what no size fits is rejected once, not left out
    listed = [layers for layers in words["layers_per_stage"] if layers is not None]
    chunks = {int(pp): _chunks(int(pp), most, choices, listed) for pp in np.unique(blocks["pp"])}
    vpp = np.array(sorted({v for some in chunks.values() for v in some}), np.int64)
    has_vpp = np.array([np.isin(vpp, chunks[int(pp)]) for pp in blocks["pp"]], bool)
    has_vpp = has_vpp.reshape(len(table), len(vpp))
    return Space(
        blocks, vpp, pairs[:, 0], pairs[:, 1], batches, has_vpp, has_experts, np.asarray(has_size), spreads,
        words,
    )  # fmt: skip


def _chunks(
    pp: int, most: int, choices: dict[str, tuple[Any, ...]], listed: list[tuple[int, ...]]
) -> tuple[int, ...]:
    """The vpp that are tried with `pp` stages."""
    every = list(range(1, most // pp + 1)) if pp > 1 else [1]
    if "vpp" in choices:
        inside = (v for c in choices["vpp"] for v in (c.of(every) if isinstance(c, Between) else (c,)))
        return tuple(dict.fromkeys(inside))
    if listed:
        return tuple(sorted({len(layers) // pp for layers in listed if len(layers) % pp == 0}))
    return tuple(every)
