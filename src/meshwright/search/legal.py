"""Which strategies of a space break no rule, found on its axes before any strategy is spelled out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.checks import RULES, illegal
from meshwright.search.bounds import Request
from meshwright.search.space import IntArray, Mask, Space, Words

FloatArray = npt.NDArray[np.float64]
REASONS = {rule.code: f"{rule.code} {rule.reason}" for rule in RULES}


@dataclass(slots=True)
class Legal:
    """Choices of each block that break no rule: masks along vpp [b, v], experts [b, e], sizes [b, m].

    `joint` [b, v, e, m] is there only where a rule looks at several of them at once. `refused` counts for
    each rule what it is the first to forbid, by (block, vpp).
    """

    vpp: Mask
    experts: Mask
    sizes: Mask
    joint: Mask | None
    refused: list[tuple[str, IntArray]]

    def count(self) -> IntArray:
        """Strategies of each (block, vpp), words apart, [b, v]."""
        if self.joint is None:
            return np.asarray(self.vpp * (self.experts.sum(1) * self.sizes.sum(1))[:, None], np.int64)
        both = self.experts[:, None, :, None] & self.sizes[:, None, None, :] & self.joint
        return np.asarray(self.vpp * both.sum((2, 3)), np.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Legal strategies, words apart: places of their block, vpp, experts and size in the space, each [n], and
    of their order in `ORDERS` where it is not the one of their words."""

    block: IntArray
    vpp: IntArray
    experts: IntArray
    size: IntArray
    order: IntArray | None = None

    def __len__(self) -> int:
        return len(self.block)

    def at(self, part: Any) -> Rows:
        """Some of them."""
        order = None if self.order is None else self.order[part]
        return Rows(self.block[part], self.vpp[part], self.experts[part], self.size[part], order)

    def keys(self, space: Space) -> IntArray:
        """A number of its own for each, whatever its order, [n]."""
        sizes, pairs = len(space.sizes), len(space.ep)
        return ((self.block * len(space.vpp) + self.vpp) * sizes + self.size) * pairs + self.experts

    def degrees(self, space: Space) -> dict[str, IntArray]:
        """Their degrees."""
        found = {name: column[self.block] for name, column in space.blocks.items()}
        found |= {"vpp": space.vpp[self.vpp], "microbatch_size": space.sizes[self.size]}
        found |= {"ep": space.ep[self.experts], "etp": space.etp[self.experts]}
        return found if self.order is None else found | {"placement": self.order}


@dataclass(frozen=True, slots=True)
class Lattice:
    """Legal strategies, words apart and not spelled out: places of block, vpp and size in the space, each
    [t], and which pairs of expert degrees they have, [t, e]. A strategy's place is that in the flat array.
    `by_block`: strategies of a block have the same pairs."""

    block: IntArray
    vpp: IntArray
    size: IntArray
    able: Mask
    by_block: bool

    def rows(self, at: IntArray) -> Rows:
        """The strategies at some places."""
        t, experts = np.divmod(at, self.able.shape[1])
        return Rows(self.block[t], self.vpp[t], experts, self.size[t])

    def counts(self, each: IntArray) -> IntArray:
        """How many there are of each (block, vpp, size), [t], where a block and a pair of expert degrees
        count `each` [b, e] times."""
        if not self.by_block:
            return np.asarray((each[self.block] * self.able).sum(1))
        blocks, first = np.unique(self.block, return_index=True)
        of_block = np.zeros(len(each), np.int64)
        of_block[blocks] = (each[blocks] * self.able[first]).sum(1)
        return of_block.take(self.block)


def joined(several: list[Rows]) -> Rows:
    """All rows of several in one."""
    names = [f.name for f in fields(Rows) if getattr(several[0], f.name) is not None]
    return Rows(**{name: np.concatenate([getattr(one, name) for one in several]) for name in names})


def legal(request: Request, space: Space, words: Words) -> Legal:
    """What breaks no rule under `words` (ZeRO and its group apart)."""
    found = Legal(
        space.has_vpp.copy(), space.has_experts.copy(), space.has_size.copy(), joint=None, refused=[]
    )
    left = found.count()
    for code, broken in illegal(request.model, request.cluster, request.work, _on_axes(space, words)).items():
        _forbid(found, np.asarray(broken))
        still = found.count()
        found.refused.append((REASONS[code], left - still))
        left = still
    return found


def lattice(found: Legal, spelled: Mask) -> Lattice:
    """The strategies that are legal and spelled so (`spelled` [b, v])."""
    some = np.asarray(found.experts.any(1))[:, None, None] & found.sizes[:, None, :]
    block, vpp, size = np.nonzero(some & np.asarray(found.vpp & spelled)[:, :, None])
    able = found.experts[block]
    if found.joint is not None:
        able &= found.joint[block, vpp, :, size]
        left = able.any(1)
        block, vpp, size, able = block[left], vpp[left], size[left], able[left]
    return Lattice(block, vpp, size, able, found.joint is None)


def _on_axes(space: Space, words: Words) -> Any:
    """One strategy whose degrees lie along (block, vpp, experts, size): rules broadcast over them."""
    degrees = {name: column[:, None, None, None] for name, column in space.blocks.items()}
    degrees["vpp"] = space.vpp[None, :, None, None]
    degrees |= {"ep": space.ep[None, None, :, None], "etp": space.etp[None, None, :, None]}
    degrees["microbatch_size"] = space.sizes[None, None, None, :]
    return space.strategy(words, degrees, 1)


def _forbid(found: Legal, broken: Mask) -> None:
    """Take out what a rule breaks, along the axes that it looks at."""
    broken = broken.reshape((1,) * (4 - broken.ndim) + broken.shape)
    inner = [i for i in (1, 2, 3) if broken.shape[i] > 1]
    if len(inner) > 1:
        joint = ~np.broadcast_to(broken, (*found.vpp.shape, found.experts.shape[1], found.sizes.shape[1]))
        found.joint = joint if found.joint is None else found.joint & joint
    elif inner == [2]:
        found.experts &= ~broken[:, 0, :, 0]
    elif inner == [3]:
        found.sizes &= ~broken[:, 0, 0, :]
    else:
        found.vpp &= ~broken[:, :, 0, 0]
