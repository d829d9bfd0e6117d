"""What frameworks can be told: their files against the words that strategies have."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshwright import api
from meshwright.search.given import read
from meshwright.strategy.recompute import WORDS
from meshwright.strategy.records import RECOMPUTE_MODULES, Strategy
from meshwright.strategy.targets import load, names
from meshwright.work import PRECISIONS


@pytest.mark.parametrize("name", names())
def test_files_say_words_that_exist_and_where_from(name: str) -> None:
    target = load(name)
    assert set(target.fields) <= {f.name for f in fields(Strategy)}
    for field, values in target.fields.items():
        assert values
        for value in values:
            assert read({field: value}) == {field: value}
    assert target.forms <= {word.partition(":")[0] for word in WORDS}
    assert target.modules <= set(RECOMPUTE_MODULES)
    assert set(target.precisions) <= set(PRECISIONS)
    assert len(target.source) > 40


def test_what_changes_nothing_is_no_lack() -> None:
    titan = load("torchtitan")
    assert titan.lacks(Strategy(dp=8, zero=3, zero_group=8, schedule="zb-1p", cp_method="all-to-all")) == ()
    assert titan.lacks(Strategy(dp=4, pp=2, zero=1, zero_group=4, schedule="zb-1p")) == (
        "schedule zb-1p",
        "zero 1",
    )
    assert load("deepspeed").lacks(Strategy(dp=4, pp=2, zero=2, zero_group=4)) == ("zero 2 with pp 2",)
    assert load("megatron-core").lacks(Strategy(dp=8, recompute="every:2")) == ("recompute every:2",)


def test_a_framework_that_has_sequence_parallelism_alone_does_without_it_at_one_rank() -> None:
    found = api.plan("mixtral-8x7b", "16xh100", seq_len="4k", global_batch_size=64, target="torchtitan",
                     recompute="none", zero_group="all", top=1)  # fmt: skip
    losses = {need.without: need.loss_percent for need in found.necessity}
    assert losses["sp"] == losses["tp"] is not None


def test_megatron_core_copies_no_heads_for_context_parallelism() -> None:
    """405B has 8 key/value heads: 4 a rank under tp 2, which cp 4 divides and cp 8 does not."""
    asked = {"seq_len": 8192, "global_batch_size": 2048, "nearest": 0, "tp": 2, "pp": 8, "recompute": "full"}
    for cp, able in ((4, True), (8, False)):
        found = api.estimate("llama-3.1-405b", "2048xh100", cp=cp, cp_method="all-to-all", **asked).json()
        assert ("megatron-core" in found["plan"]["expressed_by"]) == able
        assert ("MW413" in {d["code"] for d in found["plan"]["diagnostics"]}) != able
