"""Ranks on a torus: the ways in which they fill a slice, and what links that leaves to a group.

A walk is a row of segments (axis, length), innermost first: the first segment's length of ranks lie side by
side on its axis, the next segment steps over them, and so on. Segments of one axis multiply to its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from meshwright.hardware.records import Cluster

Walk = tuple[tuple[int, int], ...]


def walks(cluster: Cluster) -> tuple[Walk, ...]:
    """Ways to fill a slice: axis by axis, and by rows two wide over its first two axes (none where they hold
    two chips each). Short axes come first, however the slice is spelled.

    Two wide, four ranks are 2 x 2 and eight are 4 x 2, so rings, where a row of so few on an axis of 16 is a
    line of half the bandwidth.

    **Source** of rings two wide: MaxText's meshes `hybrid_ring_64x4` and `hybrid_ring_32x8` on 16 x 16.

    >>> from meshwright.hardware.cluster import parse
    >>> walks(parse("tpu-v5e:16x8"))
    (((1, 8), (0, 16)), ((1, 2), (0, 2), (1, 4), (0, 8)))
    """
    return _walks(cluster.torus)


@cache
def _walks(axes: tuple[int, ...]) -> tuple[Walk, ...]:
    order = sorted(range(len(axes)), key=lambda axis: (axes[axis] == 1, axes[axis]))
    straight = tuple((axis, axes[axis]) for axis in order)
    halved = [step for step in straight[:2] if step[1] > 1]
    rest = [(axis, length // 2) for axis, length in halved if length > 2]
    wide = (*((axis, 2) for axis, _ in halved), *rest, *straight[len(halved) :])
    return (straight,) if wide == straight else (straight, wide)


def ways(axes: tuple[int, ...], wraps: tuple[bool, ...]) -> list[int]:
    """Links of a chip along each axis: one, two where the axis closes (which takes four chips), none where
    there is no other chip.

    >>> ways((1, 2, 4, 8), (False, False, True, False))
    [0, 1, 2, 1]
    """
    return [int(n > 1) + int(closes) for n, closes in zip(axes, wraps, strict=True)]


def places(walk: Walk, ranks: Any) -> list[Any]:
    """Coordinates of `ranks` (numbers inside a slice) along each axis.

    >>> [places(((0, 2), (1, 2), (0, 2), (1, 2)), rank) for rank in (1, 2, 4)]
    [[1, 0], [0, 1], [2, 0]]
    """
    found: list[Any] = [0] * len({axis for axis, _ in walk})
    scale, before = [1] * len(found), 1
    for axis, length in walk:
        found[axis] = found[axis] + ranks // before % length * scale[axis]
        scale[axis] *= length
        before *= length
    return found


def rates(
    axes: tuple[int, ...],
    wraps: tuple[bool, ...],
    link: Any,
    pieces: Sequence[tuple[Any, Any]],
    local: Any,
    walk: Walk,
) -> tuple[Any, Any, Any, Any]:
    """Gather, all-to-all and neighbour bandwidth and the hops of a group inside a slice.

    Along a torus axis of n chips a group has m members every t chips. Its members' links are shared with
    the t - 1 groups between them, so a gather gets W/t, twice that both ways round if m t = n and the axis
    closes; several axes add up. In two pieces, m every t chips and such runs every u, a group shares with
    u/m - 1 others. All-to-all passes m/4 neighbours on average (a line: m/2 each way), so with s bytes a rank
    an axis takes s t m / (8 W), without a wrap s t m / (4 W); the slowest axis binds.

    `axes` and which of them close (`wraps`), one `link`'s bandwidth one way; `pieces`: (stride, degree) of
    the group inside the slice, `local` their ranks; degrees may be arrays.

    **Source**: jax-ml/scaling-book, sharding (one axis both ways 2W, all-to-all a fourth of a gather).
    """
    gather: Any = 0.0
    direct: Any = link
    longest: Any = 0.0  # seconds of an all-to-all of one byte a rank, times the link's bandwidth
    hops: Any = 0.0
    for axis, (length, both) in enumerate(zip(axes, ways(axes, wraps), strict=True)):
        members: Any = 1.0
        sharing: Any = 1.0  # groups whose messages pass the same links
        reach: Any = 1.0  # places of the axis from a group's first member on, its last gap included
        line: Any = 0.0  # hops from its first member to its last
        for stride, degree in pieces:
            on_axis, gap = _along(walk, axis, stride, degree)
            used = on_axis > 1
            members = members * on_axis
            sharing = np.where(used, sharing * gap / reach, sharing)
            reach = np.where(used, gap * on_axis, reach)
            line = line + (on_axis - 1) * gap
            direct = np.where(used, np.minimum(direct, link / gap), direct)
        taken = members > 1
        ring = np.where(reach >= length, float(max(both, 1)), 1.0)
        gather = gather + np.where(taken, ring * link / sharing, 0.0)
        longest = np.maximum(longest, np.where(taken, members * sharing / (4 * ring), 0.0))
        hops = hops + np.where(taken, np.where(ring > 1, np.ceil(members / 2) * sharing, line), 0.0)
    share = (local - 1) / local
    exchange = np.where(longest > 0, share * link / np.where(longest > 0, longest, 1.0), link)
    alone = gather == 0
    return (
        np.where(alone, link, gather)[()],
        exchange[()],
        direct[()],
        np.maximum(hops, 1.0)[()],
    )


def _along(walk: Walk, axis: int, stride: Any, degree: Any) -> tuple[Any, Any]:
    """Members of a group on an axis, and the chips from one to the next."""
    members: Any = 1.0
    apart: Any = 1.0
    before = scale = 1
    for on, length in walk:
        if on == axis:
            first = np.maximum(stride, before)
            here = np.maximum(np.minimum(stride * degree, before * length) / first, 1.0)
            gap = first * (scale / before)
            apart = gap if scale == 1 else np.where((members == 1.0) & (here > 1.0), gap, apart)
            members = members * here
            scale *= length
        before *= length
    return members, apart
