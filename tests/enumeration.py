"""Every legal strategy of a small space, found without the search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from meshwright import checks
from meshwright.checks.shapes import moe
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.strategy.records import Strategy
from meshwright.work import Work

ONE_CHUNK = ("1f1b", "gpipe", "zb-1p", "dualpipe")  # schedules that are also those of one stage


def placed(strategy: Strategy, placements: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The placement of `placements` that comes first and orders the axes of several ranks like this one's."""
    wide = [axis for axis in strategy.placement if getattr(strategy, axis) > 1]
    return next(p for p in placements if [axis for axis in p if axis in wide] == wide)


def enumerated(model: Model, place: Cluster, work: Work, words: dict[str, Any]) -> Iterator[Strategy]:
    """Every legal strategy: numbers by trying all of them (or those that `words` lists), rules by asking one
    strategy at a time. What changes nothing is spelled with the first word alone."""
    n = place.n_chips
    groups, zeros, schedules = words["zero_group"], words["zero"], words["schedule"]
    sps, methods = words.get("sp", (True, False)), words.get("cp_method", ("ring", "all-to-all"))
    single = [s for s in schedules if s in ONE_CHUNK] or schedules
    placements, first = words["placement"], min(zeros)
    tps, pps, cps = (words.get(name, range(1, n + 1)) for name in ("tp", "pp", "cp"))
    chunks = words.get("vpp", range(1, model.n_layers + 3))
    sizes = words.get("microbatch_size", range(1, work.global_batch_size + 1))
    for tp, pp, cp, ep, etp in product(tps, pps, cps, words["ep"], words["etp"]):
        if n % (tp * pp * cp):
            continue
        dp = n // (tp * pp * cp)
        ranks, domain, node = dp * cp, place.scale_up_size, place.chip.chips_per_node
        size_of = {"all": ranks, "domain": np.gcd(ranks, max(domain // tp, 1)),
                   "node": np.gcd(ranks, max(node // tp, 1))}  # fmt: skip
        for vpp, size in product(chunks, sizes):
            if work.global_batch_size % (dp * size) or (pp == 1 and vpp > 1) or pp * vpp > model.n_layers + 2:
                continue  # no rule allows these, and there are many
            for sp, method, schedule, placement, offload in product(
                sps, methods, schedules, placements, words["offload"]
            ):
                if (tp == 1 and sp != min(sps)) or (cp == 1 and method != methods[0]):
                    continue
                if pp == 1 and schedule != single[0]:
                    continue
                for zero, group, recompute in product(zeros, groups, words["recompute"]):
                    shared = size_of[group]
                    known = [size_of[g] for g in groups[: groups.index(group)]]
                    if (zero == 0 and group != groups[0]) or (zero and shared in known):
                        continue
                    # Ranks with the same weights share them; those of tp hold copies of experts.
                    if (ranks * tp if moe(model) else ranks) == 1 and (zero, group) != (first, groups[0]):
                        continue
                    strategy = Strategy(
                        dp=dp, tp=tp, sp=sp, pp=pp, vpp=vpp, cp=cp, cp_method=method, ep=ep, etp=etp,
                        zero=zero, zero_group=int(shared), schedule=schedule, microbatch_size=size,
                        recompute=recompute, dispatcher="all-to-all", placement=placement, offload=offload,
                    )  # fmt: skip
                    if placed(strategy, placements) != placement:
                        continue
                    if not any(d.severity == "error" for d in checks.run(model, place, work, strategy)):
                        yield strategy
