"""What careless hands and odd surroundings do to the command: an answer and the right exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.cli.main import run

ASK = ["llama-3.1-8b", "--on", "8xh100", "--seq-len", "8k", "--global-batch", "128"]
HEAD = "id,source,framework,model,chip,n_chips,seq_len,global_batch_size,tp,pp,dp,step_time_s\n"
RUN = "a,s@1,torchtitan,llama-3.1-8b,h100,8,8192,128,2,1,4,10.0\n"


def said(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(args)
    return code, out.getvalue(), err.getvalue()


def started(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`command` in a shell where $M is the program."""
    ours = {"M": f"{sys.executable} -m meshwright", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, **ours, **env},
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--seq-len", "0"), ("--seq-len", "nan"), ("--seq-len", "1e400"), ("--seq-len", "9" * 18),
        ("--seq-len", "8192,16384"), ("--global-batch", "4,8"), ("--global-batch", "512,768"),
        ("--global-batch", "1e18"), ("--total-tokens", "1e300"), ("--total-tokens", "0.5"),
        ("--price-per-chip-hour", "1e308"), ("--price-per-chip-hour", "nan"),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_faults_with_a_hint(flag: str, value: str) -> None:
    code, out, _ = said("estimate", *ASK, flag, value, "--json")
    assert code == 2
    assert all(d["hint"] for d in json.loads(out)["diagnostics"])


@pytest.mark.parametrize(("tokens", "hint"), [("0", "16M"), ("1", "--global-batch 1")])
def test_tokens_a_step_below_one_sequence(tokens: str, hint: str) -> None:
    args = ("estimate", "llama-3.1-8b", "--on", "1xh100", "--seq-len", "8k")
    code, _, err = said(*args, "--tokens-per-step", tokens)
    assert code == 2
    assert err.strip().endswith(hint)
    assert said(*args, "--global-batch", "1")[0] == 0


def test_markup_in_a_name_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + RUN.replace("a,", "[/red]a,", 1))
    code, out, err = said("validate", str(path), "--rows")
    assert code == 0, err
    assert "[/red]a" in out


def test_odd_columns_of_a_table_are_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD.replace("\n", ",step_time\n") + RUN.replace("\n", ",1\n"))
    code, out, err = said("validate", str(path), "--json")
    assert code == 0
    assert "'step_time'" in err
    assert json.loads(out)["runs"] == 1


def test_a_framework_that_no_run_has_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + RUN)
    code, _, err = said("validate", str(path), "--framework", "torchtitn")
    assert code == 2
    assert "did you mean torchtitan?" in err
    assert said("validate", str(path), "--framework", "TorchTitan")[0] == 0


def test_explain_json_heeds_term_and_depth() -> None:
    code, out, _ = said("explain", *ASK, "--term", "nope", "--json")
    assert (code, json.loads(out)["schema"]) == (2, "meshwright.error/1")
    found = json.loads(said("explain", *ASK, "--term", "step.time", "--depth", "2", "--json")[1])["plan"][
        "terms"
    ]
    assert found["name"] == "time"
    assert found["children"]
    assert not any(c["children"] for c in found["children"])


def test_figures_without_a_cluster_are_a_fault() -> None:
    assert said("clusters", "--set", "cluster.usable_gib=5")[0] == 2


def test_a_broken_output_is_no_bug_of_ours() -> None:
    words = " ".join(ASK)
    for flags in ("", " --json"):
        full = started(f"$M estimate {words}{flags} >/dev/full")
        assert full.returncode == 2
        assert "No space left" in full.stderr
        assert started(f"$M estimate {words}{flags} >&-").returncode == 0
    closed = started("$M estimate nope --json | true; exit ${PIPESTATUS[0]}")
    assert (closed.returncode, closed.stderr) == (2, "")


def test_a_terminal_without_unicode_still_reads() -> None:
    words = " ".join(ASK)
    plain = started(f"$M estimate {words}", PYTHONIOENCODING="ascii")
    assert plain.returncode == 0
    assert "step time" in plain.stdout
    assert json.loads(started(f"$M estimate {words} --json", PYTHONIOENCODING="ascii").stdout)["plan"][
        "fits"
    ] in (
        True,
        False,
    )


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("old")
    code, _, _ = said("plan", "llama-3.1-405b", *ASK[1:], "-o", str(path))
    assert (code, path.read_text()) == (1, "old")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--vary", "tp=1,2", "--vary", "tp=4,8"], "tp of --vary stands twice"),
        (["--case", "tp=1", "--vary", "tp=4,8"], "tp of --vary stands twice"),
        (["--case", "tp=1 tp=2", "--case", "pp=2"], "tp of --case stands twice"),
        (["--vary", f"seq_len={','.join(str(1024 * i) for i in range(1, 30))}"], "29 sides to compare, and"),
    ],
)
def test_sides_that_would_hide_one_another_are_refused(flags: list[str], told: str) -> None:
    code, _, err = said("compare", *ASK, *flags)
    assert code == 2
    assert told in err


def test_a_switch_with_two_numbers_has_none() -> None:
    code, _, err = said("estimate", *ASK, "--straggler", "1.1", "--options", "straggler:2")
    assert code == 2
    assert "straggler stands twice: straggler:1.1 and straggler:2" in err
    assert "hint: keep straggler:1.1 or straggler:2" in err


def test_each_fault_of_a_switch_has_a_way_out_of_its_own() -> None:
    code, _, err = said("estimate", *ASK, "--options", "straggler:0,fused-loss:2,capacity:1.25,dropless")
    assert code == 2
    hints = ("write straggler:1.1", "write fused-loss; a number follows straggler:", "keep capacity:1.25 or")
    for hint in hints:
        assert f"hint: {hint}" in err


def test_a_count_of_chips_with_many_digits_is_too_many_not_no_number() -> None:
    code, _, err = said("estimate", "llama-3.1-8b", "--on", f"1{'0' * 20}xh100", "--seq-len", "8k",
                        "--global-batch", "8")  # fmt: skip
    assert code == 2
    assert "outside 1 to 10000000" in err


def test_a_closed_or_full_stderr_costs_no_answer(tmp_path: Path) -> None:
    words, path = " ".join(ASK), tmp_path / "plan.yaml"
    for end in ("2>&-", "2>/dev/full"):
        found = started(f"$M estimate {words} --json -o {path} {end}")
        assert found.returncode == 0
        assert json.loads(found.stdout)["plan"]["step_time_s"] > 0


def test_outputs_that_cannot_be_written_are_told_before_the_work(tmp_path: Path) -> None:
    same, folder = str(tmp_path / "same"), str(tmp_path)
    code, out, err = said("estimate", *ASK, "--trace", same, "-o", same, "--actions", folder)
    assert (code, out) == (2, "")
    assert "is named for two outputs" in err
    assert "it is a folder" in err
    code, out, err = said("plan", *ASK, "-o", str(tmp_path / "no" / "plan.yaml"))
    assert (code, out) == (2, "")
    assert "does not exist" in err
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_keeps_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / ("p" * 250 + ".yaml")  # the longest name there is
    path.write_text("old")
    path.chmod(0o600)
    assert said("estimate", *ASK, "-o", str(path))[0] == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() != "old"


def test_ending_a_write_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "import signal, sys; from pathlib import Path; from meshwright.cli import main; "
        "from meshwright.files import text; import os; "
        "signal.signal(signal.SIGTERM, main._terminated); "
        "text.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGTERM); "
        f"text.write_text(Path({str(tmp_path / 'page.html')!r}), 'x')"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 143
    assert not list(tmp_path.iterdir())


def test_a_name_in_another_alphabet_is_a_name() -> None:
    code, _, err = said("estimate", "лама🦙", *ASK[1:])
    assert code == 2
    assert "no model is called 'лама🦙'" in err


def test_a_name_that_is_too_long_for_a_file_is_a_fault_and_a_list_of_models_none(tmp_path: Path) -> None:
    long = "a" * 300 + ".yaml"
    for asked in (["estimate", *ASK, "-o", long], ["estimate", *ASK, "--trace", str(tmp_path / long)]):
        code, _, err = said(*asked)
        assert code == 2
        assert "MW808" in err
        assert "too long" in err
    models = ",".join(["llama-3.2-1b", "gemma-2-2b"] * 12 + ["llama-3.1-8b"])
    fixed = [*ASK[1:], "--tp", "1", "--pp", "1", "--zero", "1", "--recompute", "full", "--jobs", "1"]
    code, out, err = said("sweep", models, *fixed, "--over", "cp=1", "--json")
    assert (code, {p["model"] for p in json.loads(out)["points"]}) == (0, set(models.split(",")))


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    assert said("estimate", *ASK, "--tp", "2", "-o", str(file))[0] == 0
    kept = file.read_bytes()
    for asked in (["report", str(file), "--quick", "-o"], ["estimate", str(file), "--trace"]):
        code, _, err = said(*asked, str(file))
        assert code == 2
        assert "MW808" in err
    assert file.read_bytes() == kept


def test_a_range_has_an_end() -> None:
    code, _, err = said("sweep", *ASK, "--over", "cluster.scale_out_gbits_s=1:1e400")
    assert code == 2
    assert "MW911" in err
