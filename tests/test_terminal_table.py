"""Tables on narrow terminals: nothing is cut unsaid, and a pipe has no edge."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from meshwright import api
from meshwright.report.terminal.comparison import print_comparison
from meshwright.report.terminal.plan import print_plan
from meshwright.report.terminal.table import fits, plain_table, print_table
from meshwright.report.terminal.tables import print_chips

ASK = {"seq_len": "8k", "global_batch_size": 64, "tp": 1, "recompute": "none", "zero": [1, 2], "cp": 1}


def console(width: int, *, terminal: bool = True) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, soft_wrap=not terminal
    )


def shown(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def sheet() -> Table:
    table = plain_table(
        "name", ">HBM GiB", ">usable", ">bf16 TFLOP/s", "aliases", title="chips", caption="dense"
    )
    table.add_row("H100-SXM", "80.0", "79.1", "989", "h100, h100-sxm, nvidia-h100-80gb-hbm3")
    table.add_row("B200-SXM", "180", "174", "2,250", "b200")
    return table


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_every_number_stands_whole_or_its_column_is_said_to_be_left_out(width: int) -> None:
    on = console(width)
    print_table(on, sheet(), spare=("aliases", "usable"))
    said = shown(on)
    folded = " ".join(said.split())
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
    for name, cells in (
        ("usable", ("79.1", "174")),
        ("bf16", ("989", "2,250")),
        ("HBM GiB", ("80.0", "180")),
    ):
        here = all(cell in said.split() for cell in cells)
        assert here or (name == "usable" and f"left out of {width} columns" in folded)
    assert ("usable;" in folded or "usable;" in folded.replace(" ", "")) == ("79.1" not in said.split())


def test_what_is_least_important_goes_first() -> None:
    on = console(50)
    print_table(on, sheet(), spare=("aliases", "usable"))
    said = shown(on)
    assert "left out of 50 columns: aliases;" in said
    assert "79.1" in said


def test_parts_repeat_the_first_column() -> None:
    on = console(30)
    print_table(on, sheet())
    said = shown(on)
    assert said.count("H100-SXM") >= 2
    assert "h100-sxm" in said.replace("\n", "")
    assert said.index("chips") < said.index("H100-SXM")
    assert said.count("dense") == 1


def test_a_pipe_has_every_column_in_one_table() -> None:
    on = console(30, terminal=False)
    print_table(on, sheet(), spare=("aliases",))
    assert shown(on).count("H100-SXM") == 1
    assert "left out" not in shown(on)
    assert "…" not in shown(on)


def test_what_fits_is_known() -> None:
    assert fits(console(120), sheet())
    assert not fits(console(40), sheet())


@pytest.mark.parametrize("width", [60, 80, 100])
def test_chips_plans_and_comparisons_lose_no_cell(width: int) -> None:
    on = console(width)
    print_chips(api.chips(["h100"]), on, sources=False)
    found = api.plan("llama-3.1-8b", "16xh100", **ASK, pp=[1, 2])
    print_plan(found, on, shown=10)
    sides = [{"model": "llama-3.1-8b", "cluster": "16xh100", "tp": tp} for tp in (1, 2, 4, 8)]
    print_comparison(api.compare(*sides, seq_len="8k", global_batch_size=64), on)
    said = shown(on)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= width
