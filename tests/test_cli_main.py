"""The command's contract: exit codes, faults as text and as JSON, what is loaded, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from meshwright.cli import main, options, output
from meshwright.cli.main import VERBS, run

ESTIMATE = ["estimate", "llama-3.1-8b", "--on", "8xh100", "--seq-len", "8k", "--global-batch", "64"]
HEAVY = ("numpy", "pydantic", "rich", "ruamel", "meshwright.cost", "meshwright.api", "scipy", "torch")


def loaded(*args: str) -> set[str]:
    """Modules in a fresh process after the command ran on `args`."""
    code = (
        "import sys, contextlib, io\n"
        "from meshwright.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): rc = run(sys.argv[1:])\n"
        "assert rc == 0, rc\n"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["version"], *([verb, "--help"] for verb in VERBS)]
)
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    assert not {m for m in loaded(*args) if m.startswith(HEAVY)}


def test_an_estimate_of_presets_loads_no_file_schema() -> None:
    found = loaded(*ESTIMATE, "--json")
    assert "numpy" in found
    assert not {m for m in found if m.startswith(("pydantic", "scipy", "torch", "rich"))}


def test_every_verb_is_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in VERBS:
        assert f"\n  {verb}" in shown
        assert run([verb, *(["runs"] if verb == "calibrate" else []), "--help"]) == 0
        assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["estmate"], "did you mean estimate"),
        (["estimate"], "MODEL"),
        (["estimate", "llama-3.1-8b", "--tpp", "3"], "--tpp"),
        (["validate", "--task", "cook"], "cook"),
        (["estimate", "llama-3.1-8b", "--set", "chip.foo=3"], "cluster.FIELD=VALUE"),
        ([*ESTIMATE, "--pp", "2", "--layers-per-stage", "16,x"], "of each virtual stage in order"),
        ([*ESTIMATE, "--pp", "2", "--layers-per-stage", "-1,33"], "-1 is not 0 to"),
        ([*ESTIMATE, "--pp", "2", "--layers-per-stage", "16,15"], "for example 16,16"),
        (["plan", *ESTIMATE[1:], "--total-tokens", "1T", "--deadline", "0d"], "more than 0"),
        (["plan", *ESTIMATE[1:], "--total-tokens", "1T", "--deadline", "soon"], "like 60d or 36h"),
        (["estimate", ".", *ESTIMATE[2:]], "a folder without a config.json"),
    ],
)
def test_bad_usage_is_exit_2(args: list[str], wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert wanted in said.err
    assert "Traceback" not in said.err
    assert run([*args, "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "meshwright.error/1"
    assert shown["diagnostics"]


def test_all_faults_of_a_command_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "estimate",
        "lama",
        "--on",
        "8xh1000",
        "--tp",
        "x",
        "--set",
        "cluster.foo=1",
        "--precision",
        "fp7",
    ]
    assert run([*args, "--price-per-chip-hour", "much", "--json"]) == 2
    said = {d["message"] for d in json.loads(capsys.readouterr().out)["diagnostics"]}
    for wanted in ("'lama'", "h1000", "tp is 'x'", "cluster.foo", "fp7", "price", "sequence length", "batch"):
        assert any(wanted in m for m in said), (wanted, said)


@pytest.mark.parametrize(
    ("flag", "word", "said"),
    [
        ("--moe-balance", "", "moe_balance is ''"),
        ("--moe-balance", "balanced+", "moe_balance is ''"),
        ("--framework", "", "no framework ''"),
        ("--options", "", "--options '' names no word"),
        ("--options", ",", "--options ',' names no word"),
        ("--price-per-chip-hour", "-0", "is '-0', not a price"),
    ],
)
def test_empty_words_and_prices_below_nothing_are_faults(
    flag: str, word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["mixtral-8x7b", "--on", "8xh100", "--seq-len", "4k", "--global-batch", "64"]
    assert run(["estimate", *args, flag, word]) == 2
    assert said in capsys.readouterr().err


def _raises(error: BaseException) -> click.Command:
    @click.command("boom", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def command() -> None:
        raise error

    return command


@pytest.fixture
def boom(monkeypatch: pytest.MonkeyPatch) -> object:
    """A function that makes the verb `version` raise."""

    def arm(error: BaseException) -> None:
        monkeypatch.setattr(main.Verbs, "get_command", lambda *_: _raises(error))

    return arm


def test_our_own_bug_is_exit_3_and_says_how_to_report(boom, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    boom(ZeroDivisionError("division\nby zero"))
    assert run(["version"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ZeroDivisionError: division by zero" in said
    assert "--debug" in said
    assert run(["version", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err
    assert run(["version", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["diagnostics"][0]["code"] == "MW999"


def test_interruption_is_130(boom, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    boom(KeyboardInterrupt())
    assert run(["version"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_signal_interrupts_a_search(moment: int) -> None:
    command = [sys.executable, "-m", "meshwright", "plan", "deepseek-v3", "--on", "16384xh100"]
    process = subprocess.Popen(
        [*command, "--seq-len", "8k", "--tokens-per-step", "384M", "--schedule", "any"],  # minutes of work
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a parent may ignore it
    )
    time.sleep(2.0 + 0.1 * moment)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_a_broken_pipe_is_quiet() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", "models"], stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_MESHWRIGHT_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completion_knows_presets_and_chips() -> None:
    env = {**os.environ, "_MESHWRIGHT_COMPLETE": "bash_complete"}
    for words, wanted in (
        ("meshwright estimate Llama-3.1-4", "Llama-3.1-405B"),
        ("meshwright est", "estimate"),
        ("meshwright plan x --schedule inter", "interleaved-1f1b"),
    ):
        asked = env | {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "meshwright"], env=asked, capture_output=True, text=True, check=False
        )
        assert wanted in done.stdout


def test_the_flags_know_every_word_and_field() -> None:
    from typing import get_args

    from meshwright import api
    from meshwright.strategy import records
    from meshwright.work import PRECISIONS

    assert set(options.SCHEDULES) <= set(api.words("--schedule")) <= set(get_args(records.Schedule))
    assert "megatron-core" in api.words("--framework")
    assert set(options.PRECISIONS) == set(PRECISIONS)
    assert set(options.STRATEGY_FIELDS) == set(records.Strategy.__dataclass_fields__)


def test_no_colour_reaches_a_pipe(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *ESTIMATE], capture_output=True, check=True,
        env={**os.environ, "NO_COLOR": "1", "FORCE_COLOR": "1"},
    )  # fmt: skip
    assert b"\x1b[3" not in done.stdout


def test_a_link_to_itself_and_a_file_without_a_path_are_named_for_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "mine").mkdir()
    assert run(["estimate", "./loop", *ESTIMATE[2:]]) == 2
    assert "symbolic links" in capsys.readouterr().err
    assert run(["estimate", "mine", *ESTIMATE[2:]]) == 2
    assert "write ./mine" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["chips", "models"])
def test_a_list_without_a_match_says_so(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "zzz"]) == 0
    assert "holds these words" in capsys.readouterr().out
    assert run([verb, "zzz", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[verb] == []


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 0.5, 1.2, 3.0, 11.3, 12.0])
    update = output._lines("searching", now=lambda: next(clock))
    for done in range(5):
        update(done, 4)
    assert capsys.readouterr().err == "searching 25%, 1 s so far\nsearching 75%, 11 s so far\n"


def test_progress_of_json_in_a_pipe_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("searching", quiet=True) as update:
        for done in range(3):
            update(done, 2)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
