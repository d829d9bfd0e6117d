"""Numbers of programs and libraries: each says its unit, how it is known and since when, and is read."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from importlib.resources import files
from pathlib import Path

import pytest

import meshwright.cost
from meshwright.cost.numbers import changed, numbers, records, watched

KNOWN = {"datasheet", "measured", "fitted", "assumed", "derived"}  # derived: follows from what is counted


def test_every_number_has_a_unit_a_source_and_a_date() -> None:
    text = files("meshwright.cost").joinpath("numbers.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({row["name"] for row in rows}) == len(rows)
    assert {row["name"] for row in rows} < set(numbers()) == set(records())
    for row in rows:
        assert row["unit"], row
        assert row["source"], row
        assert row["provenance"] in KNOWN, row
        date.fromisoformat(row["date"])
        assert numbers()[row["name"]] > 0, row


def test_every_number_is_read_by_a_formula() -> None:
    """By its name, or as bytes a logit of a loss whose word begins it; of a curve by what it is of a link."""
    (room,) = meshwright.cost.__path__
    code = "".join(path.read_text(encoding="utf-8") for path in Path(room).rglob("*.py"))
    losses = {f"{word}_logit_bytes" for word in ("fused", "chunked")}
    assert '{loss}_logit_bytes"' in code
    for name in set(numbers()) - losses:
        assert f'"{name}"' in code or f'}}.{name.partition(".")[2]}"' in code, name


def test_numbers_are_read_when_formulas_are_asked_not_when_they_are_loaded() -> None:
    """What a module or a default reads once would stay as it is where a block changes it."""

    def loaded(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            yield child
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                yield from (part for given in child.args.defaults for part in ast.walk(given))
            else:
                yield from loaded(child)

    (room,) = meshwright.cost.__path__
    for path in Path(room).rglob("*.py"):
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
