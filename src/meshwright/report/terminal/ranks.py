"""The map of ranks for a person: how ranks are numbered, which groups cross what, one group or one rank."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from meshwright import units
from meshwright.report.as_json import strategy_line
from meshwright.report.ranks import CARRIES, RankMap, axes_of, links
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.strategy.ranks import Group, coordinates

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ROWS = 8  # domains and stages shown, half from either end
LISTED = 64  # groups of one kind that --axis shows without --full


def print_ranks(found: RankMap, console: Console) -> None:
    """The whole map, long lists cut in the middle."""
    _headline(found, console)
    for table in (groups_table(found), stages_table(found), domains_table(found)):
        console.print()
        print_table(console, table)


def print_axis(found: RankMap, name: str, console: Console, *, full: bool) -> None:
    """Every group of one kind."""
    _headline(found, console)
    kind = found.kind(name)
    console.print()
    console.print(
        f"{name}: {CARRIES[name]}; {kind.count:,} x {units.counted(kind.size, 'rank')}, "
        f"{crossed(found, kind)}"
    )
    table = plain_table(">group", "ranks", "domains", title=f"groups of {name}")
    lists = kind.ranks()
    for i in range(len(lists)) if full else _ends(len(lists), LISTED):
        if i is None:
            table.add_row("...", "", "")
            continue
        domains = np.unique(lists[i] // found.cluster.scale_up_size)
        table.add_row(str(i), ranges_text(lists[i].tolist()), ranges_text(domains.tolist()))
    print_table(console, table)


def print_rank(found: RankMap, rank: int, console: Console) -> None:
    """One rank in detail."""
    place = found.place(rank)
    _headline(found, console)
    console.print()
    torus = f", torus ({', '.join(map(str, place.torus))})" if place.torus else ""
    node = "" if place.node is None else f", node {place.node}"
    console.print(f"rank {rank}: {_domain_word(found)} {place.domain}{node}{torus}")
    at = [f"{axis} {place.coordinates[axis]}" for axis in _shown_axes(found)]
    console.print(f"coordinates: {', '.join(at) or 'the only rank'}")
    for stage in place.virtual_stages:
        console.print(f"virtual stage {stage}: {_layers_text(found, stage)}")
    columns = ("group", ">size", ">index", f">in its {_domain_word(found)}", "ranks", "carries")
    table = plain_table(*columns, title="groups")
    for kind in _shown_kinds(found):
        ranks = place.groups[kind.name]
        here = sum(r // found.cluster.scale_up_size == place.domain for r in ranks)
        counts = (f"{len(ranks):,}", str(ranks.index(rank)), f"{here:,}")
        table.add_row(kind.name, *counts, ranges_text(ranks), CARRIES[kind.name])
    console.print()
    print_table(console, table)
    console.print(_alone(found))


def groups_table(found: RankMap) -> Table:
    """Kinds of groups: how large, which ranks the first and the last hold, and what they cross."""
    table = plain_table("group", ">ranks", ">groups", "first and last", "link", "carries", title="groups")
    for kind in _shown_kinds(found):
        lists = kind.ranks()
        ends = [ranges_text(lists[i].tolist()) for i in sorted({0, len(lists) - 1})]
        table.add_row(
            kind.name, f"{kind.size:,}", f"{kind.count:,}", "\n".join(ends), crossed(found, kind),
            CARRIES[kind.name],
        )  # fmt: skip
    alone = _alone(found)
    if alone:
        table.caption = alone
    return table


def stages_table(found: RankMap) -> Table:
    """Ranks and layers of each stage."""
    table = plain_table(">pp", "ranks", "virtual stages", "layers", title="stages")
    at = coordinates(found.strategy, np.arange(found.cluster.n_chips))["pp"]
    for p in _ends(len(found.held), ROWS):
        if p is None:
            table.add_row("...", "", "", "")
            continue
        ranks = np.flatnonzero(at == p).tolist()
        chunks = found.held[p]
        laid = ", ".join(_layers_text(found, s) for s in chunks)
        table.add_row(str(p), ranges_text(ranks), ", ".join(map(str, chunks)), laid)
    return table


def domains_table(found: RankMap) -> Table:
    """What each fast domain holds, by coordinates."""
    size = found.cluster.scale_up_size
    axes = _shown_axes(found)
    title = f"{_domain_word(found)}s of {size:,}"
    table = plain_table(f">{_domain_word(found)}", "ranks", *axes, title=title)
    for domain in _ends(found.cluster.n_chips // size, ROWS):
        if domain is None:
            table.add_row("...", "", *("" for _ in axes))
            continue
        ranks = np.arange(domain * size, (domain + 1) * size)
        at = coordinates(found.strategy, ranks)
        held = [ranges_text(np.unique(at[axis]).tolist()) for axis in axes]
        table.add_row(str(domain), ranges_text(ranks.tolist()), *held)
    return table


def ranges_text(ranks: Sequence[int], most: int = 3) -> str:
    """Rising numbers in short: runs as 0-7, many alike as 0-7, 64-71, ..., 448-455.

    >>> ranges_text([0, 1, 2, 3]), ranges_text([0, 8, 16]), ranges_text(range(0, 64, 8))
    ('0-3', '0, 8, 16', '0, 8, ..., 56')
    """
    runs = [[r for _, r in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(texts) <= most:
        return ", ".join(texts)
    steps = {b[0] - a[0] for a, b in pairwise(runs)}
    alike = len(steps) == 1 and len({len(run) for run in runs}) == 1
    return f"{texts[0]}, {texts[1]}, ..., {texts[-1]}" + ("" if alike else f" ({len(ranks):,} ranks)")


def _headline(found: RankMap, console: Console) -> None:
    cluster = found.cluster
    console.print(f"{found.model.name} on {units.count_text(cluster.n_chips)} x {cluster.chip.name}")
    console.print(strategy_line(found.strategy))
    steps = [(f"{stride:,} x " if stride > 1 else "") + axis for axis, stride in _steps(found)]
    where = [f"{_domain_word(found)} = rank // {cluster.scale_up_size:,}"]
    if found.node_size is not None and found.node_size != cluster.scale_up_size:
        where.append(f"node = rank // {found.node_size:,}")
    console.print(f"rank = {' + '.join(steps) or '0'}; {', '.join(where)}")
    if cluster.torus:
        filled = f"a slice is {'x'.join(map(str, cluster.torus))}; ranks fill "
        if len(found.walk) == len(cluster.torus):
            filled += "its axes from the shortest on"
        else:
            taken = ", ".join(f"{length} on axis {axis}" for axis, length in found.walk[:4])
            filled += f"rows two wide ({taken}, ...): in a row some groups would have fewer links"
        console.print(filled)


def _shown_kinds(found: RankMap) -> list[Group]:
    """Groups of more than one rank; dp x cp only where it is not dp again."""
    kinds = [kind for kind in found.groups.values() if kind.size > 1]
    return [k for k in kinds if k.name != "data" or found.groups["cp"].size > 1]


def _steps(found: RankMap) -> list[tuple[str, int]]:
    return [(axis, stride) for axis, stride in found.strides.items() if getattr(found.strategy, axis) > 1]


def _domain_word(found: RankMap) -> str:
    return "slice" if found.cluster.torus else "domain"


def _shown_axes(found: RankMap) -> tuple[str, ...]:
    known = [axis for axis in ("pp", "dp", "cp", "tp") if getattr(found.strategy, axis) > 1]
    known += [axis for axis in ("edp", "ep", "etp") if axis in found.groups and found.groups[axis].size > 1]
    return axes_of(tuple(known))


def crossed(found: RankMap, kind: Group) -> str:
    """What the groups of a kind cross, and at what bandwidth a rank sends there."""
    span, parts = found.links[kind.name], []
    for level, ranks, rate in links(kind, span):
        if level == "network":
            what = f"{ranks:,} {_domain_word(found)}s over the network"
        elif kind.axes:
            named = [f"{n} along axis {i}" for i, n in enumerate(kind.axes) if n > 1]
            what = f"in a slice: {' x '.join(named)}"
        else:
            what = f"{ranks:,} in a domain ({span.link_kind})"
        parts.append(f"{what}, {units.rate_text(rate)}")
    if 0 < kind.crossing < kind.count:
        parts.append(f"{kind.crossing:,} of {kind.count:,} straddle a border; all are priced so")
    return "; ".join(parts)


def _layers_text(found: RankMap, stage: int) -> str:
    count, first = found.layers[stage], found.first_layer(stage)
    words = ["embedding"] if stage == 0 else []
    if count:
        words.append(f"{first}-{first + count - 1}" if count > 1 else f"{first}")
    words += ["head"] if stage == len(found.layers) - 1 else []
    return " + ".join(words)


def _alone(found: RankMap) -> str:
    names = [kind.name for kind in found.groups.values() if kind.size == 1]
    return f"of one rank: {', '.join(names)}" if names else ""


def _ends(count: int, most: int) -> list[int | None]:
    """0 to count - 1 with the middle left out (None) where there are more than `most`."""
    if count <= most:
        return list(range(count))
    return [*range(most // 2), None, *range(count - most // 2, count)]
