"""Every strategy worth a number: arrays over degrees, loops over words.

A word that changes nothing is spelled once, so that no strategy is counted twice: without tp there is no sp,
without cp no cp_method, with one rank of dp x cp no ZeRO, without a pipeline no interleaving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.checks.advice import present_modules
from meshwright.checks.layout import SINGLE_CHUNK, TWO_CHUNKS
from meshwright.checks.rule import divisors
from meshwright.checks.shapes import moe
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search.derive import bare_selective, group_size
from meshwright.search.given import read_choices
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy
from meshwright.strategy.stages import most_virtual_stages
from meshwright.work import Work

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
CONSTANT_FIELDS = ("optimizer", "offload", "dispatcher", "placement", "layers_per_stage")
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
    recompute: str
    constant: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Space:
    """`degrees` [n] of every field in DEGREE_FIELDS, and the values of each word."""

    degrees: dict[str, IntArray]
    words: dict[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.degrees["dp"])

    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Each axis with the values that are tried, for a person to read."""
        tried = {f: tuple(int(v) for v in np.unique(self.degrees[f])) for f in DEGREE_FIELDS}
        return tried | self.words

    def families(self) -> Iterator[list[list[Words]]]:
        """Every combination of words. A family shares those that decide what is legal (schedule, sp,
        cp_method, listed layers); its lists share the recompute word too. ZeRO-0 shards nothing, so it has
        one group."""
        w = self.words
        constants = [tuple(zip(CONSTANT_FIELDS, v)) for v in product(*(w[f] for f in CONSTANT_FIELDS))]
        shards = [(zero, g) for zero in w["zero"] for g in (w["zero_group"] if zero else w["zero_group"][:1])]
        for constant, schedule, sp, cp in product(constants, w["schedule"], w["sp"], w["cp_method"]):
            yield [
                [Words(schedule, sp, cp, zero, group, word, constant) for zero, group in shards]
                for word in w["recompute"]
            ]

    def spelled(self, words: Words) -> Mask:
        """Which rows are spelled with `words`: where a word changes nothing, only its first value is used."""
        d, w = self.degrees, self.words
        schedules = [s for s in w["schedule"] if s in SINGLE_CHUNK]
        one, suits = d["vpp"] == 1, np.zeros((len(w["schedule"]), len(self)), bool)
        for i, word in enumerate(w["schedule"]):
            if word in SINGLE_CHUNK:
                suits[i] = one & ((d["pp"] > 1) | (word == schedules[0]))
            else:
                suits[i] = (d["vpp"] == 2) if word in TWO_CHUNKS else (d["vpp"] > 1)
        suits[0] |= ~suits.any(axis=0)  # rows that no word suits are rejected once, not left out
        kept = suits[w["schedule"].index(words.schedule)]
        if words.sp != min(w["sp"]):
            kept = kept & (d["tp"] > 1)
        if words.cp_method != w["cp_method"][0]:
            kept = kept & (d["cp"] > 1)
        first = (min(w["zero"]), w["zero_group"][0])
        if (words.zero, words.group) != first:
            kept = kept & (d["dp"] * d["cp"] > 1)
        return np.asarray(kept, bool)

    def group_sizes(self, words: Words, cluster: Cluster, rows: IntArray) -> tuple[IntArray, Mask]:
        """zero_group of each row, and which rows an earlier word gives the same group."""
        d = {f: self.degrees[f][rows] for f in ("dp", "cp", "tp")}

        def sized(group: int | str) -> IntArray:
            size = group_size(group, d["dp"], d["cp"], d["tp"], cluster)
            return np.broadcast_to(np.asarray(size, np.int64), rows.shape)

        own, double = sized(words.group), np.zeros(rows.shape, bool)
        if words.zero:
            for earlier in self.words["zero_group"][: self.words["zero_group"].index(words.group)]:
                double |= sized(earlier) == own
        return own, double

    def strategy(self, words: Words, rows: IntArray, groups: IntArray) -> Strategy:
        """The strategies of `rows` under `words`, degrees as arrays."""
        values: dict[str, Any] = {f: self.degrees[f][rows] for f in DEGREE_FIELDS} | dict(words.constant)
        values |= {f: getattr(words, f) for f in ("sp", "cp_method", "zero", "schedule", "recompute")}
        return Strategy(zero_group=groups, **values)


def build(model: Model, cluster: Cluster, work: Work, fixed: Mapping[str, Any], profile: Profile) -> Space:
    """The space of `model` on `cluster`, where `fixed` pins a field to a value or to a list of them.

    Degrees: divisors of the chips; vpp: every count that leaves no chunk empty; ep: divisors of the experts;
    etp: divisors of an expert's width; microbatch_size: `sizes`. Raises InputError for unreadable fields.
    """
    choices = read_choices(fixed)
    words: dict[str, tuple[Any, ...]] = {f: (value,) for f, value in complete_words(work, profile).items()}
    words |= {
        "schedule": ("1f1b", "interleaved-1f1b"), "sp": (True, False), "cp_method": ("ring", "all-to-all"),
        "zero": (1, 0, 2, 3), "zero_group": ("all", "domain"),
    }  # fmt: skip
    words |= {name: values for name, values in choices.items() if name not in (*DEGREE_FIELDS, "recompute")}
    words["recompute"] = _recomputes(model, profile, choices)
    return Space(_degrees(model, cluster, work, choices), words)


def complete_words(work: Work, profile: Profile) -> dict[str, Any]:
    """The words that are not searched, as `derive` fills them in."""
    options = work.options
    named = [word for word in ("deep-ep", "hybrid-ep", "all-to-all") if word in options]
    return {
        "optimizer": "adamw-bf16" if "bf16-optimizer" in options else "adamw",
        "offload": "none",
        "dispatcher": named[0] if named else profile.framework.default_dispatcher,
        "placement": ("tp", "cp", "dp", "pp"),
        "layers_per_stage": None,
    }


def sizes(work: Work) -> list[int]:
    """Microbatch sizes that are tried: divisors of the global batch, all up to 8 and powers of two beyond."""
    most = max(MOST_TOKENS // int(work.seq_len), 1)
    return [
        d
        for d in divisors(int(work.global_batch_size))
        if d <= most and (d <= EVERY_SIZE_TO or d & (d - 1) == 0)
    ]


def _recomputes(model: Model, profile: Profile, choices: dict[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """none, the sets that the framework's recipes use and this model has, and full."""
    if "recompute" in choices:
        words = tuple(bare_selective(profile) if w == "selective" else w for w in choices["recompute"])
        return tuple(dict.fromkeys(words))
    habits = profile.framework
    usual = [parse(w) for w in (*habits.usual_recompute, habits.default_recompute)]
    present = present_modules(model)
    kept = [bare_selective(profile) if w.unresolved else w.word for w in usual if w.modules <= present]
    return tuple(dict.fromkeys(["none", *(w for w in kept if w != "full"), "full"]))


def _degrees(
    model: Model, cluster: Cluster, work: Work, choices: dict[str, tuple[Any, ...]]
) -> dict[str, IntArray]:
    """The cross of all degrees whose product can be right, as one array a field."""
    chips = cluster.n_chips
    whole = divisors(chips)
    listed = [layers for layers in choices.get("layers_per_stage", ()) if layers is not None]
    experts = moe(model)
    few = np.gcd.reduce([m.n_experts for m in experts]) if experts else 1
    width = np.gcd.reduce([m.d_ff for m in experts]) if experts else 1
    tps, pps, cps = (choices.get(name, tuple(whole)) for name in ("tp", "pp", "cp"))
    eps = choices.get("ep", tuple(divisors(int(few))))
    etps = choices.get("etp", tuple(divisors(int(np.gcd(width, chips)))))
    batches = choices.get("microbatch_size", tuple(sizes(work)))
    most = most_virtual_stages(model)
    rows: list[IntArray] = []
    expert_pairs = np.array(list(product(eps, etps)), np.int64).reshape(-1, 2)
    for tp, pp, cp in product(tps, pps, cps):
        if chips % (tp * pp * cp) or pp > most:
            continue
        dp = chips // (tp * pp * cp)
        if "dp" in choices and dp not in choices["dp"]:
            continue
        if "vpp" in choices:
            vpps = choices["vpp"]
        elif listed:
            vpps = tuple(sorted({len(layers) // pp for layers in listed if len(layers) % pp == 0}))
        else:
            vpps = tuple(range(1, most // pp + 1)) if pp > 1 else (1,)
        ranks = dp * cp * tp
        pairs = expert_pairs
        if "ep" not in choices and "etp" not in choices:
            pairs = pairs[ranks % (pairs[:, 0] * pairs[:, 1]) == 0]
        fitting = [b for b in batches if work.global_batch_size % (dp * b) == 0] or list(batches[:1])
        grid = np.array(list(product(vpps, range(len(pairs)), fitting)), np.int64).reshape(-1, 3)
        if not len(grid):
            continue
        fixed = np.broadcast_to(np.array([dp, tp, pp, cp], np.int64), (len(grid), 4))
        rows.append(np.column_stack([fixed, grid[:, 0], pairs[grid[:, 1]], grid[:, 2]]))
    table = np.concatenate(rows) if rows else np.zeros((0, 8), np.int64)
    order = ("dp", "tp", "pp", "cp", "vpp", "ep", "etp", "microbatch_size")
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(order)}
