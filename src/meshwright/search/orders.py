"""Orders of the axes beside the usual one: which a layout has, and which of them no other makes needless.

An order matters only through the ranks of each group that share a fast domain. Where one order gives every
group as many as another does, and on a torus as many links, no step is slower under it: the other is not
looked at. What a rank holds depends on no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.checks.layout import ExpertBorders
from meshwright.hardware.records import Cluster
from meshwright.model.records import Moe
from meshwright.profiles.records import Profile
from meshwright.search.bounds import Request
from meshwright.search.space import IntArray, Mask, Space, Words, same_order
from meshwright.strategy.placement import Span, spans
from meshwright.strategy.records import ORDERS

BORDERS = ExpertBorders()
NO_NEARER = "another order of the axes lays every group as near"
_MORE = {"local": 1, "local_bytes_s": 1, "exchange_bytes_s": 1, "direct_bytes_s": 1, "hops": -1}


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of a space beside the one of its words: `numbers` [o] are their places in `ORDERS`.

    `different` [b] counts those that place the ranks of a block unlike any before; `legal` [o, b, e] says
    which of these break no rule with each pair of expert degrees.
    """

    numbers: IntArray
    different: IntArray
    legal: Mask

    def count(self, block: IntArray, experts: IntArray) -> IntArray:
        """How many legal ones some rows have, [n]."""
        each = self.each()
        return np.asarray(each.ravel().take(block * each.shape[1] + experts))

    def each(self) -> IntArray:
        """How many legal ones there are, [b, e]."""
        return np.asarray(self.legal.sum(0, dtype=np.int64))


def other_orders(request: Request, space: Space) -> Orders:
    """The orders that a space tries beside the first."""
    d = space.blocks
    numbers = space.other_orders
    unlike = np.ones((len(numbers), len(d["dp"])), bool)
    tried = [space.words["placement"][0], *(ORDERS[i] for i in numbers)]
    for i, own in enumerate(tried[1:]):
        for earlier in tried[: i + 1]:
            unlike[i] &= ~same_order(own, earlier, d)
    wide: dict[str, Any] = {name: column[:, None] for name, column in d.items()}
    wide |= {"ep": space.ep[None, :], "etp": space.etp[None, :], "vpp": 1, "microbatch_size": 1}
    legal = np.repeat(unlike[:, :, None], len(space.ep), axis=2)
    words = next(space.layer_words())
    for i, number in enumerate(numbers):
        strategy = replace(space.strategy(words, wide, 1), placement=ORDERS[number])
        legal[i] &= ~BORDERS.violated(request.model, request.cluster, request.work, strategy)
    return Orders(np.array(numbers, np.int64), unlike.sum(0), legal)


def nearer_is_quicker(cluster: Cluster, profile: Profile, words: Words) -> bool:
    """Whether a group is never slower for having more of its ranks in one domain.

    So it is where the domain's links are no slower and no later than the network. An exchange that is another
    one inside a domain than between them (`hierarchical`) may be; experts that a token reaches in few domains
    are asked for by `needed` itself.
    """
    return where_nearer_is_quicker(cluster, profile, words) is cluster


def where_nearer_is_quicker(cluster: Cluster, profile: Profile, words: Words) -> Cluster | None:
    """The cluster, or where its network is the quicker one the same with domains as quick as that, on which
    no step is slower; None where a group may be slower for having more of its ranks in one domain even so."""
    if words.cp_method == "hierarchical":
        return None
    chip, network = cluster.chip, cluster.scale_out_bytes_s
    of_links = bool(cluster.torus) or chip.fabric == "mesh"
    links = cluster.link_bytes_s if of_links else cluster.scale_up_bytes_s
    if network is None or cluster.n_chips <= cluster.scale_up_size:
        return cluster
    wanted = network * float(profile["scale_out"]) / float(profile["scale_up"])
    if links >= wanted and chip.scale_up_latency_s <= chip.scale_out_latency_s:
        return cluster
    speed: dict[str, Any] = {"link_bytes_s" if of_links else "scale_up_bytes_s": max(links, wanted)}
    latency_s = min(chip.scale_up_latency_s, chip.scale_out_latency_s)
    return replace(cluster, chip=replace(chip, scale_up_latency_s=latency_s), **speed)


def needed(
    request: Request,
    space: Space,
    words: Words,
    orders: Orders,
    groups: Sequence[IntArray],
    block: IntArray,
    experts: IntArray,
) -> Mask:
    """Which legal orders no other one, nor that of `words`, makes needless for some (block, pair of expert
    degrees), [o, n], whichever of the sharding `groups` ([b] each) they have. Of orders that give every group
    the same the first is needed."""
    legal = orders.legal[:, block, experts]
    able = np.concatenate([np.ones((1, len(block)), bool), legal])
    placed = np.concatenate([[ORDERS.index(dict(words.constant)["placement"])], orders.numbers])
    degrees: dict[str, Any] = {name: column[block] for name, column in space.blocks.items()}
    degrees |= {"ep": space.ep[experts], "etp": space.etp[experts], "vpp": 1, "microbatch_size": 1}
    reach: list[Any] = []
    limited = any(isinstance(one.ffn, Moe) and one.ffn.n_groups > 1 for one in request.model.blocks)
    for sizes in groups:
        strategy = replace(space.strategy(words, degrees, sizes[block]), placement=placed[:, None])
        named = spans(request.cluster, strategy)
        own = ("shard", "replica", "expert_shard", "expert_replica")
        wanted = own if reach else tuple(named)
        for name, span in named.items():
            if name in wanted:
                measures = _measures(span, able)
                # Where tokens go to few domains, larger ones are not nearer but hold more of their experts.
                reach += [*measures, *(-x for x in measures if limited and name == "ep")]
    comparable = nearer_is_quicker(request.cluster, request.profile, words)
    near, number = np.array(reach).reshape(-1, *able.shape), np.arange(len(placed))[:, None]
    found = legal.copy()
    for i in range(1, len(placed)):
        same = (near == near[:, i : i + 1]).all(0)
        nearer = (near >= near[:, i : i + 1]).all(0) & ~same & comparable
        found[i - 1] &= ~(able & (nearer | (same & (number < i)))).any(0)
    return found


def _measures(span: Span, like: Mask) -> list[Any]:
    """What of a group an order changes, each the larger the better, [orders, n]."""
    found = []
    for name, sign in _MORE.items():
        value = np.broadcast_to(np.asarray(getattr(span, name), float), like.shape)
        if (value != value[:1]).any():
            found.append(sign * value)
    return found
