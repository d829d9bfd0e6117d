"""Strategies under several recompute words evaluated at once are what each is by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost.distinct import Picked
from meshwright.cost.rows import candidates
from meshwright.cost.step import evaluate
from meshwright.cost.tables import shared
from meshwright.hardware.cluster import parse
from meshwright.model.presets import load as load_model
from meshwright.profiles.load import load
from meshwright.search.all_words import AllWords
from meshwright.search.bounds import Request
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.strategy.records import Strategy
from meshwright.work import Work

WORDS = ("none", "selective:core_attn", "every:2", "full")


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "jamba-1.5-mini"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-v"])
def test_several_words_at_once(model: str, schedule: str) -> None:
    place, work = parse("64xh100"), Work(4096, 256)
    profile, known = load(None, place.chip), load_model(model)
    vpp = {"1f1b": 1, "interleaved-1f1b": 4, "zb-v": 2}[schedule]
    many = Strategy(
        dp=np.array([16, 8, 8, 4]), tp=np.array([1, 2, 2, 2]), pp=np.array([4, 4, 4, 8]), vpp=vpp,
        cp=np.array([1, 1, 1, 1]), zero=1, zero_group=np.array([16, 8, 8, 4]), schedule=schedule,
        microbatch_size=np.array([1, 1, 2, 1]), ep=np.array([1, 1, 1, 1]), etp=np.array([1, 1, 1, 1]),
    )  # fmt: skip
    n = len(many.dp)
    tables = shared(known, place, work, many, profile, candidates(many, n), WORDS)
    several = AllWords([tables.prices.table(replace(many, recompute=word)) for word in WORDS], n)
    which, part = np.array([3, 0, 1, 2, 0, 2, 1, 3]), np.array([0, 1, 2, 3, 3, 0, 1, 2])
    layers, where = several.at(which, part), tables.where.cut(Picked(part))
    own = replace(tables, layers=layers, where=where)
    found = evaluate(known, place, work, many.take(part), profile, known=own)
    for i, (word, k) in enumerate(zip(which, part)):
        alone = evaluate(known, place, work, replace(many.at(int(k)), recompute=WORDS[word]), profile)
        assert found.step_time_s[i] == pytest.approx(alone.step_time_s, rel=1e-12)
        assert found.peak_bytes[i] == pytest.approx(alone.peak_bytes, rel=1e-12)
        for name, seconds in found.time_s.items():
            assert np.broadcast_to(seconds, 8)[i] == pytest.approx(alone.time_s[name], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("finetune", ["none", "lora:16"])
def test_what_a_search_keeps_is_what_its_strategies_take(finetune: str) -> None:
    place, model, work = parse("8xh100", {"usable_gib": 16.0}), load_model("llama-3.1-8b"), Work(8192, 64)
    profile = load(None, place.chip)
    words = {"finetune": finetune, "recompute": list(WORDS), "zero": [1, 3], "placement": "tp,cp,dp,pp"}
    request = Request(model, place, work, profile)
    found = scan(request, build(model, place, work, words, profile), top=20)
    assert len({plan.strategy.recompute for plan in found.best}) > 1
    for plan in (*found.best, *(one for some in found.without.values() for one in some.plans)):
        alone = evaluate(model, place, work, plan.strategy, profile)
        assert plan.step_time_s == pytest.approx(alone.step_time_s, rel=1e-12)
        assert plan.peak_bytes == pytest.approx(alone.peak_bytes, rel=1e-12)
