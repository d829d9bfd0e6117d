"""Time of collectives over a `Span`. Everything broadcasts; a group of one costs exactly nothing.

Notation: N ranks of the group, G of them in one fast domain, M = N / G domains; W the one-way bandwidth of a
rank. A group that spans domains works in both levels at once, so its transfer takes the longer of the two,
not their sum (measured: stas00/ml-engineering@744d01e, 4 x 8 B200). Inside a domain the links carry all that
a rank takes in, what came over the network with it: a ring is as quick as its slowest hop for all of its
bytes, and messages between domains change cards inside one. So the same group in a wider domain, which may
form every ring of the narrower one, is never slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.cost.numbers import numbers
from meshwright.strategy.placement import Span

_PIECES = 4.0  # messages that a ring over the four nodes of the network's curve cuts a shard into


def all_gather_time(nbytes: Any, span: Span, fast: Any = 1.0, slow: Any = 1.0) -> Any:
    """Seconds to gather a tensor of `nbytes` that lies in N shards.

    max( B (N-1) / (N W fast), (B/G) (M-1) / (M W_net slow) ), each over its message curve, and the start-up.
    Where a domain has one rank of the group (G = 1) its links carry nothing.

    `nbytes`: bytes B of the full, gathered tensor (any shape that broadcasts with the span). `fast`, `slow`:
    share of the domain's and of the network's bandwidth that large messages reach (a profile's numbers).

    **Source**: ring and hierarchical algorithms, jax-ml/scaling-book gpus.md@1a55377; one rate for (N-1)/N of
    a ring's bytes, NVIDIA/nccl@b647562 src/graph/tuning.cc (bus to algorithm bandwidth, nRanks / nsteps).
    **Assumes** every rank of a domain sends its share over its own network card.

    >>> from meshwright.strategy.placement import spans
    >>> from meshwright.strategy.records import Strategy
    >>> from meshwright.hardware.cluster import parse
    >>> node = spans(parse("8xh100"), Strategy(dp=8))["dp"]
    >>> round(1e3 * float(all_gather_time(1e9, node, fast=0.8)), 2)  # 1e9 x 7/8 / 360e9 = 2.43 ms and a curve
    2.6
    """
    return _hierarchical(nbytes, span, fast, slow, passes=1)


def reduce_scatter_time(nbytes: Any, span: Span, fast: Any = 1.0, slow: Any = 1.0) -> Any:
    """Seconds to add up N tensors of `nbytes` and leave each rank its shard: the bytes of an all-gather.

    `nbytes`: bytes of the full tensor on each rank before the reduction.
    """
    return _hierarchical(nbytes, span, fast, slow, passes=1)


def all_reduce_time(nbytes: Any, span: Span, fast: Any = 1.0, slow: Any = 1.0) -> Any:
    """Seconds to add up N tensors of `nbytes` and give every rank the sum: a reduce-scatter and a gather.

    Where the domain's switch adds (NVLink 4 and later), each rank sends and receives the tensor only once:
    the links carry B / gain instead of 2 B (N-1)/N where that is less, 1.23 times for one domain of 8 ranks
    (measured 1.1 to 1.3). The gain is the share of a rank's bandwidth that such an all-reduce keeps.

    **Source**: gain fitted with the message curve, see `collective_curves.csv`.
    """
    return _hierarchical(nbytes, span, fast, slow, passes=2)


def all_to_all_time(nbytes: Any, span: Span, fast: Any = 1.0, slow: Any = 1.0) -> Any:
    """Seconds to exchange a buffer of `nbytes` a rank, an Nth of it for every rank.

    max( s (N-1) / (N W fast), s (M-1) / (M W_net slow) ). `nbytes`: bytes s of each rank's send buffer. On a
    torus W counts that messages pass through other chips (`Span.exchange_bytes_s`).

    **Source** of N where G would do if only messages inside the domain took its links: NCCL 2.12 hands a
    message to the card of its target's rail first (PXN, "Doubling all2all Performance with NCCL 2.12").
    """
    near = _on_links(nbytes, span)
    far = nbytes * (span.remote - 1) / span.remote
    return _both(nbytes, near, far, span.exchange_bytes_s, span, fast, slow, size=nbytes)


def send_recv_time(nbytes: Any, span: Span, fast: Any = 1.0, slow: Any = 1.0) -> Any:
    """Seconds to send `nbytes` a rank to the neighbour in the group: B / W and the latency.

    A group that crosses domains is as slow as the pair that crosses. `nbytes`: bytes that each rank sends, in
    one message, where the all-reduces that the network's curve was fitted to cut theirs in four.
    """
    crosses, alone = span.remote > 1, span.degree <= 1
    time = span.remote_latency_s + _transfer(nbytes, _PIECES * nbytes, span.remote_bytes_s, slow, "network")
    if not np.all(crosses | alone):  # some stay inside a domain
        near = _transfer(nbytes, nbytes, span.direct_bytes_s, fast, span.link_kind)
        time = np.where(crosses, time, span.local_latency_s + near)
    return np.where(~np.asarray(alone) & (np.asarray(nbytes) > 0), time, 0.0)[()]


def reached_share(n_experts: Any, on_target: Any, top_k: int) -> Any:
    """Share of tokens that reach a rank or domain with `on_target` of `n_experts` experts, K drawn evenly.

    1 - C(E - e, K) / C(E, K) = 1 - prod over i < K of (E - e - i) / (E - i).

    >>> round(float(reached_share(8, 1, 2)), 3)  # Mixtral, one expert a rank
    0.25
    """
    missed: Any = 1.0
    for i in range(top_k):
        missed = missed * np.maximum(n_experts - on_target - i, 0.0) / np.maximum(n_experts - i, 1.0)
    return 1.0 - missed


def expert_all_to_all_time(
    tokens: Any,
    hidden_bytes: Any,
    top_k: int,
    n_experts: int,
    span: Span,
    fast: Any = 1.0,
    slow: Any = 1.0,
    max_domains: int | None = None,
) -> Any:
    """Seconds to send tokens to their experts (or the outputs back), each rank and domain reached once.

    A token crosses the network once for every other domain that holds one of its K experts and is handed on
    inside: network T h r_M (M-1)/M domains, links T h r_N (N-1)/N ranks, with r the distinct ones reached.

    `tokens`: T of one rank; `hidden_bytes`: h of one token as sent; `max_domains`: domains a token may visit
    (node-limited routing), all if None.

    **Source**: DeepSeek DeepEP@dd758ca (one copy a node, forwarded inside); ranks by `reached_share`.
    **Assumes** even routing and that the span is the expert-parallel group, E / N experts a rank.
    """
    domains = span.remote if max_domains is None else np.minimum(span.remote, max_domains)
    open_share = domains / span.remote
    eligible = n_experts * open_share
    reached_ranks = span.degree * open_share * reached_share(eligible, n_experts / span.degree, top_k)
    reached_domains = domains * reached_share(eligible, n_experts / span.remote, top_k)
    sent = tokens * hidden_bytes
    near = _on_links(sent * reached_ranks, span)
    if span.least and max_domains is not None:
        near = 0.0 * near  # fewer ranks a domain open fewer experts to a token: links may carry anything less
    far = sent * reached_domains * (span.remote - 1) / span.remote
    return _both(sent, near, far, span.exchange_bytes_s, span, fast, slow, size=sent * top_k)


def _hierarchical(nbytes: Any, span: Span, fast: Any, slow: Any, *, passes: int) -> Any:
    """Gather (`passes` 1) or all-reduce (2) in the domain and, of an Gth of the bytes, between domains."""
    near = _on_links(passes * nbytes, span)
    if passes == 2 and span.in_switch_reduction:
        near = np.minimum(near, nbytes / numbers()[f"{span.link_kind}.switch_gain"])
    shard = nbytes / span.local
    far = passes * shard * (span.remote - 1) / span.remote
    # The network's own algorithms go up and down a tree where messages are short.
    steps = passes * np.ceil(np.log2(span.remote))
    return _both(
        nbytes, near, far, span.local_bytes_s, span, fast, slow, size=nbytes, far_size=shard, steps=steps
    )


def _on_links(nbytes: Any, span: Span) -> Any:
    """Of `nbytes` spread over the group, what a rank takes in over its domain's links: all but its own part,
    (N-1)/N, unless it is alone in its domain."""
    return np.where(span.local > 1, nbytes * (span.degree - 1) / span.degree, 0.0)


def _both(
    nbytes: Any,
    near: Any,
    far: Any,
    near_bytes_s: Any,
    span: Span,
    fast: Any,
    slow: Any,
    *,
    size: Any,
    far_size: Any = None,
    steps: Any = None,
) -> Any:
    """Start-up and the longer transfer: `near` bytes a rank on links, `far` on the network.

    `steps` on the network come before a first piece reaches the links; None: messages to all ranks start at
    once, on both levels.
    """
    inside = _transfer(near, size, near_bytes_s, fast, span.link_kind)
    outside = _transfer(far, size if far_size is None else far_size, span.remote_bytes_s, slow, "network")
    hops = np.where(span.local > 1, span.hops * span.local_latency_s, 0.0)
    crossing = np.where(span.remote > 1, span.remote_latency_s, 0.0)
    start = np.maximum(hops, crossing) if steps is None else hops + steps * crossing
    return np.where(np.asarray(nbytes) > 0, start + np.maximum(inside, outside), 0.0)[()]


def _transfer(wire: Any, size: Any, bytes_s: Any, share: Any, kind: str) -> Any:
    """Seconds of `wire` bytes over links of a `kind` whose bandwidth grows with the message:
    W / (1 + (half_time W / size)^e), multiplied out so that an endless W costs nothing.

    At size = half_time x W half the bandwidth is reached: a faster link needs a longer message.
    """
    exponent = numbers()[f"{kind}.exponent"]
    slowed = numbers()[f"{kind}.half_time_s"] ** exponent * bytes_s ** (exponent - 1.0)
    return wire / share * (1.0 / bytes_s + slowed / np.maximum(size, 1.0) ** exponent)
