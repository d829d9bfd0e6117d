"""Numbers of programs and libraries: each says its unit, how it is known and since when, and is read."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.resources import files
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import meshwright.checks
import meshwright.cost
from meshwright.cost import schedule
from meshwright.cost.numbers import changed, numbers, records, watched
from meshwright.profiles.records import Provenance
from meshwright.strategy.records import Strategy


def test_every_number_has_a_unit_a_source_and_a_date() -> None:
    text = files("meshwright.cost").joinpath("numbers.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({row["name"] for row in rows}) == len(rows)
    assert {row["name"] for row in rows} < set(numbers()) == set(records())
    for row in rows:
        assert row["unit"], row
        assert row["source"], row
        assert row["provenance"] in get_args(Provenance), row
        date.fromisoformat(row["date"])
        assert numbers()[row["name"]] > 0, row


def test_every_number_is_read_by_a_formula() -> None:
    """By its name, or by one that is put together where it is looked up: `numbers()[f"sends_{word}"]`."""
    rooms = (meshwright.cost, meshwright.checks)
    code = "".join(
        path.read_text(encoding="utf-8") for room in rooms for path in Path(room.__path__[0]).rglob("*.py")
    )
    joined = re.findall(r"""(?:numbers\(\)|known)(?:\[|\.get\()f"([^"]+)\"""", code)
    assert all(re.sub(r"\{.*?\}", "", name).strip("_") for name in joined)
    shapes = [re.compile(re.sub(r"\\{.*?\\}", ".+", re.escape(name))) for name in joined]
    unread = [
        name for name in numbers() if f'"{name}"' not in code and not any(s.fullmatch(name) for s in shapes)
    ]
    assert unread == []


def test_what_a_program_may_do_has_its_numbers() -> None:
    """Every schedule and dispatcher finds what it looks up."""
    sent = {f"sends_{schedule.load(word).SENDS}" for word in schedule.names()} - {"sends_waited"}
    assert sent <= numbers().keys()
    for word in get_args(get_type_hints(Strategy)["dispatcher"]):
        assert numbers()[f"routing_forward_{word}"] >= numbers()[f"routing_backward_{word}"], word


def test_numbers_are_read_when_formulas_are_asked_not_when_they_are_loaded() -> None:
    """What a module or a default reads once would stay as it is where a block changes it."""

    def loaded(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            yield child
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                yield from (part for given in child.args.defaults for part in ast.walk(given))
            else:
                yield from loaded(child)

    rooms = (*meshwright.cost.__path__, *meshwright.checks.__path__)
    for path in (path for room in rooms for path in Path(room).rglob("*.py")):
        for node in loaded(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "numbers", f"{path.name}:{node.lineno}"


def test_a_number_is_changed_within_its_block_alone() -> None:
    shipped = dict(numbers())
    with changed("kernel_s", 2.0):
        assert numbers()["kernel_s"] == 2.0 * shipped["kernel_s"]
        with changed("nvlink.exponent", 0.5):
            assert numbers()["kernel_s"] == 2.0 * shipped["kernel_s"]
            assert numbers()["nvlink.exponent"] == 0.5 * shipped["nvlink.exponent"]
        assert numbers()["nvlink.exponent"] == shipped["nvlink.exponent"]
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: dict(numbers())).result() == shipped
    with pytest.raises(KeyError), changed("kernel_s", 3.0):
        numbers()["no such number"]
    assert dict(numbers()) == shipped


def test_what_is_read_is_told() -> None:
    with watched() as read:
        assert numbers()["kernel_s"] > 0
        assert numbers().get("no such number") is None
    assert numbers()["count_bytes"] > 0
    assert read == {"kernel_s"}
