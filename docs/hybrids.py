"""Write `docs/hybrids.md`: a Transformer, a Mamba-2 and a hybrid of one size by length of the sequence.

`python docs/hybrids.py` runs the sweep that the page names, half a minute; run it again when the model
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from meshwright import api, units
from meshwright.model import presets
from meshwright.report.as_json import strategy_line
from meshwright.report.contrast import value_text
from meshwright.report.sweep import Point, Sweep
from meshwright.report.terminal.sweep import change_text

PAGE = Path(__file__).parent / "hybrids.md"
MODELS = ("llama-3.1-8b", "mamba2-8b", "nemotron-h-8b")
CLUSTER = "64xh100"
LENGTHS = "4k:1M"
COMMAND = f"meshwright sweep {','.join(MODELS)} --on {CLUSTER} --over seq_len={LENGTHS}"
HEAD = "| length | step | tokens/s/chip | MFU | memory | best strategy |"


def swept(lengths: str = LENGTHS, models: Iterable[str] = MODELS) -> Sweep:
    """What the page's command finds, or some of it."""
    return api.sweep(list(models), CLUSTER, over={"seq_len": lengths})


def row(point: Point) -> str:
    """A line of a model's table."""
    at, best = value_text("seq_len", point.at["seq_len"]), point.best
    if best is None:
        return f"| {at} | - | - | - | - | nothing fits |"
    cells = (
        units.seconds_text(best.step_time_s),
        units.number_text(best.tokens_per_s_per_chip),
        units.percent_text(best.mfu),
        units.bytes_text(float(best.evaluation.peak_bytes)),
        f"`{strategy_line(best.strategy)}`",
    )
    return f"| {' | '.join((at, *cells))} |"


def section(found: Sweep, model: str) -> Iterator[str]:
    """A model with its table and where its best strategy changes."""
    figures = presets.figures(model)
    yield f"## {figures.name}"
    yield f"{figures.layers} layers, {units.count_text(figures.total)} parameters. Source: {figures.source}."
    rows = "\n".join(row(p) for p in found.points if p.model == model)
    yield f"{HEAD}\n| --- | --- | --- | --- | --- | --- |\n{rows}"
    yield "\n".join(f"* {change_text(c, several=False)}" for c in found.changes if c.model == model)


def page(found: Sweep) -> str:
    """The whole page."""
    derived = [f"{name} {value_text(name, b.value)}: {b.because}" for name, b in found.derived.items()]
    parts = [
        "# Transformer, Mamba and hybrid by length",
        "Written by `python docs/hybrids.py`, which runs",
        f"```\n{COMMAND}\n```",
        "Each point is planned anew over every strategy; what is not given is searched. Predictions, whose "
        f"errors stand on the [accuracy page](accuracy.md). {'; '.join(derived)}.",
        "## How they differ",
        "\n".join(f"* {sentence.text}" for sentence in found.sentences),
        *(text for model in MODELS for text in section(found, model)),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Sweep and write the page."""
    PAGE.write_text(page(swept()), encoding="utf-8")


if __name__ == "__main__":
    main()
