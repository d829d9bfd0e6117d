"""Hostile and careless files: refused quickly, with every fault and a way out, and nothing is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from meshwright import api
from meshwright.calibrate import rows
from meshwright.errors import Diagnostic, InputError
from meshwright.files import cluster_file, plan_file, text
from meshwright.files import yaml as documents

PLAN = """\
version: 1
model: llama-3.1-8b
cluster: 64xh100
work:
  seq_len: 8k
  global_batch_size: 128
strategy:
  tp: 2
"""
MODEL = (
    "{name: 'm', d_model: 512, vocab: 1000, n_layers: 4, blocks: [{mixer: {type: attention, n_heads: 8, "
    "n_kv_heads: 8, head_dim: 64}, ffn: {type: mlp, d_ff: 2048}}]}"
)


def faults(tmp_path: Path, content: str) -> tuple[Diagnostic, ...]:
    """The faults of estimating a plan file of this content; each has a hint."""
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        api.estimate(path)
    assert all(d.hint for d in caught.value.diagnostics)
    return caught.value.diagnostics


@pytest.mark.parametrize("depth", ["999999999999", "10001"])
def test_a_depth_beyond_any_model_is_refused_before_it_is_built(tmp_path: Path, depth: str) -> None:
    for model in (f"{{preset: llama-3.1-8b, n_layers: {depth}}}", MODEL.replace("4,", f"{depth},")):
        (found,) = faults(tmp_path, PLAN.replace("llama-3.1-8b", model))
        assert depth in found.message


def test_a_torn_plan_is_not_blamed_for_work_that_it_states(tmp_path: Path) -> None:
    assert [d.code for d in faults(tmp_path, PLAN + "foo: 1\n")] == ["MW811"]


def test_words_and_schema_faults_of_a_strategy_are_told_together(tmp_path: Path) -> None:
    content = PLAN.replace("tp: 2", "zero: 4\n  recompute: nope\n  placement: [a]\n  schedule: nope")
    found = faults(tmp_path, content)
    assert {d.where.rsplit(":", 1)[-1] for d in found} == {"8", "9", "10", "11"}


def test_a_name_that_does_not_print_is_refused(tmp_path: Path) -> None:
    for name in ('"\\e[31m"', '"\\ud800"'):
        (found,) = faults(tmp_path, PLAN.replace("llama-3.1-8b", MODEL.replace("'m'", name)))
        assert "do not print" in found.message


def test_a_value_of_no_kind_names_its_key(tmp_path: Path) -> None:
    assert {d.message.split(" is ")[0] for d in faults(tmp_path, PLAN.replace("64xh100", "2020-01-01"))} == {
        "cluster"
    }


def test_many_faults_are_counted_and_capped(tmp_path: Path) -> None:
    found = faults(tmp_path, PLAN + "".join(f"k{i}: 1\n" for i in range(500)))
    assert len(found) == 51
    assert "450 more faults" in found[-1].message


def test_yaml_that_would_read_for_minutes_is_refused_at_once(tmp_path: Path) -> None:
    start = time.monotonic()
    (found,) = faults(tmp_path, PLAN + "".join(f"k{i}: 1\n" for i in range(90_000)))
    assert found.code == "MW803"
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("{on: 64xh100, chip: {hbm: 0.001}}", "0.001 - 0.9"),
        ("{on: 64xh100, usable_gib: 60, chip: {hbm: 40}}", "outside 0.1 to 40"),
        ("{on: 64xh100, chip: {bf16: 1e-300}}", "1e-300"),
        ("{on: 64xh100, chip: {bf16: .inf}}", "inf"),
    ],
)
def test_figures_that_no_chip_has(tmp_path: Path, cluster: str, said: str) -> None:
    (found,) = faults(tmp_path, PLAN.replace("64xh100", cluster))
    assert said in found.message


def test_usable_memory_is_judged_by_the_memory_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\non: 64xh100\nusable_gib: 90\nchip: {hbm: 96}\n")
    given = cluster_file.cluster_of(documents.load(path))
    assert given.cluster.usable_bytes == 90 * 2**30
    assert given.overrides == {"usable_gib": 90}


@pytest.mark.parametrize("name", ["a/" * 3000 + "x", "a/" * 3000 + "x.yaml"])
def test_names_longer_than_any_path(name: str) -> None:
    with pytest.raises(InputError):
        api.estimate(name, "8xh100", seq_len=8192, global_batch_size=8)


def test_a_zero_byte_in_a_path_is_a_fault(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, PLAN.replace("llama-3.1-8b", '{config: "x\\0.json"}'))
    assert "zero byte" in found.message


def test_writing_follows_links_and_never_replaces_a_device(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    text.write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    text.write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(InputError, match="directory"):
        text.write_text(tmp_path, "x")


def test_a_table_is_a_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(InputError) as caught:
            rows.read(path)
        assert "not a table" in caught.value.diagnostics[0].message


def test_no_tag_runs_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    tag = f'!!python/object/apply:os.system ["touch {mark}"]'
    assert faults(tmp_path, PLAN.replace("llama-3.1-8b", tag))[0].code == "MW806"
    assert not mark.exists()


def test_a_whole_plan_still_reads(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("llama-3.1-8b", MODEL))
    assert plan_file.plan_of(documents.load(path)).model.n_layers == 4
