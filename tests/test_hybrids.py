"""The page of a Transformer, a Mamba and a hybrid by length, and what is said of swept models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.cli.main import run
from meshwright.model import presets
from meshwright.report.sweep import Sweep
from scripts import script

ROOT = Path(__file__).parent.parent
DRIFT = 0.05  # the page is written anew when the model moves further than this

hybrids = script("hybrids")
PAGE = (ROOT / "docs" / "hybrids.md").read_text(encoding="utf-8")
SECTIONS = {m[1]: m[0] for m in re.finditer(r"^## (\S+)\n.*?(?=\n## |\Z)", PAGE, re.DOTALL | re.MULTILINE)}
FEW: dict[str, Any] = {"zero": 1, "zero_group": "all", "microbatch_size": 1, "recompute": ["none", "full"]}


def rows(text: str) -> dict[str, list[str]]:
    """The cells of a section's table by length."""
    found = (line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| \d", line))
    return {cells[0]: cells[1:] for cells in found}


@pytest.fixture(scope="module")
def ends() -> Sweep:
    """The shortest and the longest length of each model, again."""
    found: Sweep = hybrids.swept("4k:1M:2")
    return found


def test_the_page_has_every_model_at_every_length() -> None:
    assert f"```\n{hybrids.COMMAND}\n```" in PAGE
    for model in hybrids.MODELS:
        figures = presets.figures(model)
        section = SECTIONS[figures.name]
        assert figures.source in section
        assert list(rows(section)) == ["4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1M"]
    assert len(re.findall(r"^\* .* of its speed from 4k to 1M", PAGE, re.MULTILINE)) == 1


def test_the_page_is_what_the_command_writes(ends: Sweep) -> None:
    for point in ends.points:
        assert point.best is not None
        shown = rows(SECTIONS[presets.figures(point.model).name])[
            meshwright.units.length_text(point.at["seq_len"])
        ]
        assert float(shown[1].replace(",", "")) == pytest.approx(point.best.tokens_per_s_per_chip, rel=DRIFT)
        again = hybrids.row(point).strip("| ").split(" | ")[1:]
        assert len(shown) == len(again) == 5
        assert float(shown[3].split()[0]) == pytest.approx(float(again[3].split()[0]), rel=DRIFT)


def test_attention_loses_more_along_the_length_than_state_spaces(ends: Sweep) -> None:
    kept = {}
    for model in hybrids.MODELS:
        short, long = (p.best for p in ends.points if p.model == model)
        assert short is not None
        assert long is not None
        kept[model] = long.tokens_per_s_per_chip / short.tokens_per_s_per_chip
    assert kept["llama-3.1-8b"] < kept["nemotron-h-8b"] < kept["mamba2-8b"]


def test_sentences_rest_on_the_points(ends: Sweep) -> None:
    speed, *means, waits = ends.sentences
    for point in ends.points:
        assert point.best is not None
        at = f"{point.model}[seq_len={meshwright.units.length_text(point.at['seq_len'])}]"
        assert speed.values[f"{at}.tokens_per_s_per_chip"] == point.best.tokens_per_s_per_chip
        (own,) = (s for s in means if s.text.startswith(f"{point.model}: "))
        assert own.values.get(f"{at}.cp", 1) == point.best.strategy.cp
        assert own.values.get(f"{at}.recompute", "none") == point.best.strategy.recompute
    for name, seconds in waits.values.items():
        model, part = name.split("[")[0], name.rpartition(".")[2]
        best = [p for p in ends.points if p.model == model][-1].best
        assert best is not None
        found = best.evaluation.recompute_s if part == "recompute" else best.evaluation.time_s[part]
        assert seconds == float(found)


def test_every_length_has_the_same_tokens_where_no_batch_is_given() -> None:
    found = meshwright.sweep(
        ["llama-3.1-8b", "mamba2-8b"], "64xh100", over={"seq_len": "4k,8M"}, tp=1, pp=1, **FEW
    )
    assert found.derived["tokens_per_step"].value == 2**23  # no less than one sequence
    for point in found.points:
        plan = point.best or point.nearest
        assert plan is not None
        assert plan.work.tokens_per_step == 2**23
    given = meshwright.sweep(
        "llama-3.1-8b", "64xh100", over={"seq_len": "4k,8k"}, global_batch_size=64, tp=1, **FEW
    )
    assert not given.derived
    assert not given.sentences  # one model


def test_a_batch_is_missing_where_no_length_is_swept(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["sweep", "llama-3.1-8b", "--on", "64xh100", "--seq-len", "4k", "--over", "tp=1,2"]
    assert run(args) == 2
    assert "the batch is missing" in capsys.readouterr().err


def test_nothing_is_said_along_words_or_two_fields() -> None:
    asked: dict[str, Any] = {"model": ["llama-3.1-8b", "mamba2-8b"], "cluster": "8xh100", "seq_len": 4096,
                             "global_batch_size": 64, "tp": 1, "pp": 1, "cp": 1, **FEW}  # fmt: skip
    assert not meshwright.sweep(**asked, over={"precision": "bf16,fp8"}).sentences
    two = {"seq_len": "4k,8k", "cluster.usable_gib": [40, 70]}
    assert not meshwright.sweep(**{k: v for k, v in asked.items() if k != "seq_len"}, over=two).sentences
