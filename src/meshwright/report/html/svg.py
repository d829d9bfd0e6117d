"""The drawings of a report as inline SVG, coloured by the page's style: bars, a line chart, a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from markupsafe import Markup, escape

WIDTH, LEFT, RIGHT = 720.0, 74.0, 36.0
ROW, GAP = 20.0, 4.0  # of a timeline
PLOT = 230.0  # height of a line chart
TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its name, class (colour) and points; a point without a height breaks it. `steps`:
    each height holds until the next point."""

    name: str
    style: str
    points: Sequence[tuple[float, float | None]]
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a rank's time; `lane` 0 is all of its row, 1 and 2 the halves of what runs at once."""

    rank: int
    style: str
    start: float
    end: float
    lane: int = 0


def bar(parts: Sequence[tuple[str, float]], mark: float | None = None) -> Markup:
    """A bar of (class, share of the width) side by side, with a line at `mark`. It says nothing that the
    row beside it does not say, so readers of screens skip it."""
    x, drawn = 0.0, []
    for style, share in parts:
        width = 100.0 * max(min(share, 1.0), 0.0)
        drawn.append(f'<rect class="{style}" x="{x:.2f}" width="{width:.2f}" height="10"/>')
        x += width
    if mark is not None:
        drawn.append(f'<rect class="mark" x="{100.0 * mark - 0.3:.2f}" width="0.6" height="10"/>')
    return Markup(
        f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(drawn)}</svg>"
    )


def nice(low: float, high: float, most: int = TICKS) -> list[float]:
    """Round values from `low` to `high`, at most about `most`.

    >>> nice(0.0, 79.0)
    [0.0, 20.0, 40.0, 60.0]
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw)
    return [k * step for k in range(ceil(low / step), floor(high / step * (1 + 1e-9)) + 1)]


def chart(
    title: str,
    lines: Sequence[Line],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    *,
    ratio: bool = False,
    marks: Sequence[tuple[str, float]] = (),
    top: float | None = None,
) -> Markup:
    """Lines over a common axis from zero up; `ratio`: the x axis doubles, and its ticks are the points.
    `marks` are (text, height) of horizontal lines; `top` the least height of the axis."""
    where: Callable[[float], float] = log2 if ratio else float
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points if y is not None] + [y for _, y in marks]
    low, high = where(min(xs)), where(max(xs))
    ceiling = 1.06 * max(*ys, top or 0.0, 0.0) or 1.0

    def at_x(x: float) -> float:
        return LEFT + (where(x) - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return 8.0 + PLOT * (1.0 - y / ceiling)

    ticks = sorted(set(xs)) if ratio else nice(min(xs), max(xs))
    drawn = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{escape(y_text(y))}</text>'
        for y in nice(0.0, ceiling)
    ]
    drawn += [
        f'<text x="{at_x(x):.1f}" y="{PLOT + 26:.0f}" text-anchor="middle">{escape(x_text(x))}</text>'
        for x in ticks
    ]
    drawn += [
        f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}"/>'
        f'<text x="{WIDTH - RIGHT}" y="{at_y(y) - 4:.1f}" text-anchor="end">{escape(text)}</text>'
        for text, y in marks
    ]
    for line in lines:
        drawn.append(f'<path class="line {line.style}" d="{_path(line, at_x, at_y)}"/>')
        if ratio:
            drawn += [
                f'<circle class="{line.style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="3.5"/>'
                for x, y in line.points
                if y is not None
            ]
    if ratio:
        drawn.append(f'<line class="cursor" y1="8" y2="{PLOT + 8:.0f}" x1="-9" x2="-9"/>')
    return _figure(title, PLOT + 34, drawn)


def positions(values: Sequence[float]) -> list[str]:
    """Where the points of a `chart` with `ratio` stand, for its cursor."""
    low, high = log2(min(values)), log2(max(values))
    return [f"{LEFT + (log2(x) - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT):.1f}" for x in values]


def _path(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    said, move, last = [], "M", 0.0
    for x, y in line.points:
        if y is None:
            move = "M"
            continue
        if line.steps and move == "L":
            said.append(f"L{at_x(x):.1f} {last:.1f}")
        last = at_y(y)
        said.append(f"{move}{at_x(x):.1f} {last:.1f}")
        move = "L"
    return "".join(said)


def timeline(
    title: str, names: Sequence[str], spans: Sequence[Span], start: float, end: float,
    x_text: Callable[[float], str],
) -> Markup:  # fmt: skip
    """A row for each rank, from `start` to `end`; idle time is the ground that shows. Spans of a class in a
    row are one path, so that thousands stay small."""
    wide = WIDTH - LEFT - RIGHT
    paths: dict[tuple[int, str], list[str]] = {}
    for span in spans:
        a, b = max(span.start, start), min(span.end, end)
        if b <= a:
            continue
        x, width = LEFT + (a - start) / (end - start) * wide, (b - a) / (end - start) * wide
        y = span.rank * (ROW + GAP) + (ROW / 2 if span.lane == 2 else 0.0)
        tall = ROW / 2 if span.lane else ROW
        # A hair less than its time, so that neighbours can be told apart.
        path = f"M{x:.1f} {y:g}h{max(width - 0.4, 0.2):.1f}v{tall:g}H{x:.1f}z"
        paths.setdefault((span.rank, span.style), []).append(path)
    bottom = len(names) * (ROW + GAP)
    drawn = [
        f'<rect class="idle" x="{LEFT}" y="{i * (ROW + GAP):g}" width="{wide}" height="{ROW}"/>'
        f'<text x="{LEFT - 6}" y="{i * (ROW + GAP) + 14:g}" text-anchor="end">{escape(name)}</text>'
        for i, name in enumerate(names)
    ]
    drawn += [f'<path class="{style}" d="{"".join(d)}"/>' for (_, style), d in paths.items()]
    drawn += [
        f'<text x="{LEFT + (x - start) / (end - start) * wide:.1f}" y="{bottom + 14:g}" '
        f'text-anchor="middle">{escape(x_text(x))}</text>'
        for x in nice(start, end)
    ]
    return _figure(title, bottom + 20, drawn)


def _figure(title: str, height: float, drawn: Sequence[str]) -> Markup:
    """A drawing in a box that scrolls where the screen is narrow, by keyboard too."""
    return Markup(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<svg class="figure" viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(drawn)}</svg></div>"
    )
