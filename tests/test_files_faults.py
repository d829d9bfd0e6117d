"""Files that cannot be a plan are refused with their line and a way out, never with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.files import plan_file, text
from meshwright.files.yaml import dump, load

PLAN = """\
version: 1
model: llama-3.1-8b
cluster: 64xh100
work:
  seq_len: 8k
  global_batch_size: 128
strategy:
  tp: 2
  microbatch_size: 1
"""


def read(tmp_path: Path, content: str | bytes) -> plan_file.PlanGiven:
    path = tmp_path / "plan.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return plan_file.plan_of(load(path))


def faults(tmp_path: Path, content: str | bytes) -> dict[str, str]:
    """Codes and messages with their place and hint."""
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    return {d.code: f"{d.where} {d.message} {d.hint}" for d in caught.value.diagnostics}


def outcome(tmp_path: Path, content: str | bytes) -> list[str]:
    """Messages of the faults, empty where the content is a plan; anything but InputError propagates."""
    try:
        read(tmp_path, content)
    except InputError as error:
        return [d.message if d.code else "" for d in error.diagnostics] or [""]
    return []


def test_a_plan_reads(tmp_path: Path) -> None:
    plan = read(tmp_path, PLAN)
    assert plan.work == {"seq_len": 8192, "global_batch_size": 128, "precision": "bf16", "options": []}
    assert plan.strategy == {"tp": 2, "microbatch_size": 1}
    assert plan.cluster.cluster.n_chips == 64


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "MW805"),
        (b"   \n\n", "MW805"),
        (b"\x80\x04\x95binary", "MW804"),
        (b"PK\x03\x04\x00\x00", "MW804"),
        (b"version: 1\nmodel: [a, b\n", "MW806"),
        (b"version: 1\nversion: 1\n", "MW806"),
        (b"version: 1\n\tmodel: x\n", "MW806"),
        (b"- a\n- b\n", "MW807"),
        (b"just words\n", "MW807"),
        (b"[" * 5000, "MW803"),
        (b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: !!python/object:os.system x\n", "MW806"),
        (b"a: " + b"[" * 100 + b"]" * 100, "MW803"),
    ],
)
def test_torn_files(tmp_path: Path, content: bytes, code: str) -> None:
    found = faults(tmp_path, content)
    assert code in found


def test_files_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    found = faults(tmp_path, "\n".join(lines))
    assert "MW803" in found


def test_missing_files_name_their_neighbours(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "plam.yaml")
    assert caught.value.diagnostics[0].code == "MW801"
    assert str(tmp_path / "plan.yaml") in caught.value.diagnostics[0].hint


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    with path.open("wb") as out:
        out.truncate(text.LIMIT_BYTES + 1)
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.diagnostics[0].code == "MW803"


def test_folders_and_pipes_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError) as caught:
            load(path)
        assert caught.value.diagnostics[0].code == "MW802"


def test_every_fault_of_a_plan_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    content = (
        PLAN.replace("  tp: 2", "  tpp: 2\n  zero: 9").replace("8k", "8q").replace("64xh100", "64xh1000")
        + "extra: 1\n"
    )
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    said = {f"{d.where.rsplit(':', 1)[-1]} {d.message} | {d.hint}" for d in caught.value.diagnostics}
    assert any(s.startswith("8 unknown key strategy.tpp") and "tp" in s.split("|")[1] for s in said), said
    assert any(s.startswith("9 strategy.zero is 9") for s in said), said
    assert any(s.startswith("5 work.seq_len") and "8q" in s for s in said), said
    assert any(s.startswith("3 ") and "h1000" in s for s in said), said
    assert any("unknown key extra" in s for s in said), said


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("  tp: true", "strategy.tp is True"),
        ("  tp: 2.5", "strategy.tp is 2.5"),
        ("  tp: '2'", "strategy.tp is '2'"),
        ("  tp: 0", "strategy.tp is 0"),
        ("  tp: [2]", "strategy.tp is [2]"),
        ("  sp: 1", "strategy.sp is 1"),
    ],
)
def test_values_are_not_bent(tmp_path: Path, line: str, wanted: str) -> None:
    assert wanted in faults(tmp_path, PLAN.replace("  tp: 2", line))["MW813"]


@pytest.mark.parametrize(
    ("version", "code"), [("", "MW814"), ("version: 2\n", "MW814"), ("version: x\n", "MW814")]
)
def test_other_versions_are_refused(tmp_path: Path, version: str, code: str) -> None:
    assert code in faults(tmp_path, PLAN.replace("version: 1\n", version))


def test_wrong_sections_are_all_named(tmp_path: Path) -> None:
    found = faults(tmp_path, "version: 1\nmodel: 3\nwork: []\nstrategy: 5\n")
    assert {"MW812", "MW813"} <= set(found)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, len(PLAN)))
def test_noise_in_a_plan_never_ends_in_a_traceback(tmp_path: Path, noise: bytes, at: int) -> None:
    raw = PLAN.encode()
    assert all(outcome(tmp_path, raw[:at] + noise + raw[at:]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(PLAN)))
def test_a_cut_plan_never_ends_in_a_traceback(tmp_path: Path, at: int) -> None:
    assert all(outcome(tmp_path, PLAN[:at]))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["model", "cluster", "work", "strategy", "estimate"]), VALUES)
def test_any_value_in_any_section_is_judged(tmp_path: Path, section: str, value: object) -> None:
    data: dict[str, object] = {
        "version": 1, "model": "llama-3.1-8b", "cluster": "64xh100",
        "work": {"seq_len": 8192, "global_batch_size": 128}, "strategy": {}, section: value,
    }  # fmt: skip
    assert all(outcome(tmp_path, dump(data)))


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    text.write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match="No space left"):
        text.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_writing_into_a_missing_folder_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        text.write_text(tmp_path / "no" / "plan.yaml", "x")
    assert caught.value.diagnostics[0].code == "MW808"
