"""Tables of measured runs: every cell typed, every fault of a user's table told at once."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calibrate import rows
from meshwright.calibrate.columns import COLUMNS, cell
from meshwright.errors import InputError


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "runs.csv"
    if isinstance(text, bytes):
        path.write_bytes(text)
    else:
        path.write_text(text, encoding="utf-8")
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        rows.read(path)
    assert all(d.hint for d in caught.value.diagnostics), "every fault says how to mend it"
    return [d.message for d in caught.value.diagnostics]


@pytest.mark.parametrize("name", rows.SHIPPED)
def test_shipped_tables_are_read_cell_by_cell(name: rows.Shipped) -> None:
    text = files("meshwright.calibrate").joinpath(f"runs/measured-{name}.csv").read_text(encoding="utf-8")
    raw = list(csv.DictReader(text.splitlines(keepends=True)))
    runs = rows.shipped(name)
    assert len(runs) == len(raw)
    assert set(raw[0]) <= set(COLUMNS)
    for run, cells in zip(runs, raw):
        for column, written_text in cells.items():
            value = getattr(run, column)
            if column == "options":
                assert value == frozenset(written_text.split("+") if written_text else ())
            elif not written_text.strip():
                assert value in (None, "")
            elif isinstance(value, int | float):
                assert value == float(written_text)
            else:
                assert value.lower() == written_text.strip().lower()


def test_every_shipped_training_run_names_a_source() -> None:
    runs = rows.read()
    assert len(runs) == 1088
    assert all(run.source for run in runs)
    keys = {run.source_key for run in runs}
    assert "NVIDIA-NeMo/Megatron-Bridge" in keys
    assert not any("@" in key for key in keys)


def test_stated_none_differs_from_not_stated() -> None:
    runs = rows.read()
    assert any(r.recompute == "none" and r.recompute_stated for r in runs)
    assert any(r.recompute is None and not r.recompute_stated for r in runs)


def test_columns_may_be_few_and_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "step_time_s,tp,model\n1.5,8,Llama-2-7B\n\n2.5,,\n")
    first, second = rows.read(path)
    assert (first.step_time_s, first.tp, first.model) == (1.5, 8, "Llama-2-7B")
    assert second.tp is None
    assert first.id == "line-2"
    assert second.id == "line-4"


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xef\xbb\xbfid,tp\r\na,2\r\n")
    assert rows.read(path)[0].tp == 2


def test_unknown_column_is_a_warning_with_a_suggestion(tmp_path: Path) -> None:
    path = written(tmp_path, "id,step_times_s\na,1\n")
    table = rows.read_table(path)
    assert len(table.runs) == 1
    (warning,) = table.warnings
    assert warning.severity == "warning"
    assert "step_times_s" in warning.message
    assert "step_time_s" in warning.hint


def test_twice_the_same_id_is_a_warning(tmp_path: Path) -> None:
    table = rows.read_table(written(tmp_path, "id,tp\na,1\na,2\n"))
    assert [w.code for w in table.warnings] == ["MW702"]
    assert "line 3" in table.warnings[0].message
    assert "line 2" in table.warnings[0].message


def test_all_faults_are_told_with_their_lines(tmp_path: Path) -> None:
    header = "id,tp,step_time_s,zero,mfu_percent,pp_schedule,sp\n"
    text = header + "a,-1,nan,7,1e9,1f1c,maybe\nb,2.5,fast,1,40,1f1b,1\n"
    messages = faults(written(tmp_path, text))
    assert len(messages) == 8
    assert all(m.startswith("line 2") for m in messages[:6])
    assert all(m.startswith("line 3") for m in messages[6:])
    for part in (
        "tp is -1",
        "step_time_s is nan",
        "zero is 7",
        "mfu_percent is 1e9",
        "1f1c",
        "sp is 'maybe'",
    ):
        assert any(part in m for m in messages), part


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("\n\n  \n", "is empty"),
        ("1,2,3\n4,5,6\n", "names no column"),
        ("id,tp\n", "no runs"),
        ("id,tp\na,1,2\n", "has 3 cells, the header has 2"),
        ("id,tp,pp\na,1\n", "has 2 cells, the header has 3"),
        ('id,tp\n"a,1\n', "is not CSV"),
        ('"id,tp\na,1\n', "line 1 is not CSV"),
        ("id,notes\na," + "x" * 200_000 + "\n", "is not CSV"),
        ("id,tp,tp\na,1,2\n", "more than once"),
        ("id,n_heads,n_kv_heads\na,8,16\n", "n_kv_heads 16 is above n_heads 8"),
        ("id,n_experts,top_k\na,8,16\n", "top_k 16 is above n_experts 8"),
        ("id,step_time_s,out_of_memory\na,1,1\n", "out_of_memory"),
        ("id,n_chips\na,20000000\n", "above the largest believable value 1e+07"),
        ("id,step_time_s\na,0\n", "a positive number is wanted"),
        ("id,layers_per_stage\na,4+x\n", "layers_per_stage"),
        (b"id,tp\n\x00\x01", "binary"),
        (b"id,tp\n\xff\xfe,1\n", "not UTF-8"),
    ],
)
def test_torn_and_absurd_tables_are_refused(tmp_path: Path, text: str | bytes, part: str) -> None:
    assert any(part in message for message in faults(written(tmp_path, text)))


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in faults(tmp_path / "none.csv")[0]
    assert "folder" in faults(tmp_path)[0]


def test_a_long_list_of_faults_is_cut_and_counted(tmp_path: Path) -> None:
    text = "id,tp\n" + "".join(f"r{i},-1\n" for i in range(50))
    messages = faults(written(tmp_path, text))
    assert len(messages) == rows.MAX_FAULTS + 1
    assert messages[-1].startswith("30 more faults")
    assert "50 in all" in messages[-1]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_runs_or_faults(data: bytes) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return
    try:
        table = rows.parse("id,tp,step_time_s\n" + text, "fuzz.csv")
    except InputError as error:
        told = len(error.diagnostics)
    else:
        told = len(table.runs)
        assert all(run.tp is None or run.tp >= 1 for run in table.runs)
    assert told > 0


@given(st.sampled_from(sorted(COLUMNS)), st.text(max_size=20))
def test_a_cell_is_a_value_or_a_fault(column: str, text: str) -> None:
    value, fault = cell(column, text)
    assert not (fault and value is not None)
    if not text.strip():
        assert (value, fault) == (None, "")
