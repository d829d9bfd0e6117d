"""Many strategies in one call are worked out in parts: each number is what the strategy alone gives."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from meshwright.cost import parts
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.rows import added
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.profiles.load import load
from meshwright.search.space import build
from meshwright.strategy.records import Strategy
from meshwright.work import Work

CLUSTER = parse("64xh800")
MODEL = presets.load("deepseek-v3")
WORK = Work(4096, 512)
PROFILE = load("megatron-core", CLUSTER.chip)
WORDS: tuple[dict[str, Any], ...] = (
    {"zero": 0, "recompute": "full"},
    {"zero": 1, "schedule": "interleaved-1f1b", "offload": "optimizer"},
    {"zero": 2, "recompute": "selective:moe_act", "moe_balance": "global-counted"},
    {"zero": 3, "recompute": "every:2", "sp": True},
    {"zero": 1, "schedule": "zb-1p", "offload": "activations"},
)


def many(words: dict[str, Any]) -> Strategy:
    """Every third of the layouts of 64 chips, legal or not, with arrays of degrees [n]."""
    space = build(MODEL, CLUSTER, WORK, {"zero": 1, "microbatch_size": [1, 2]}, PROFILE)
    vpp = [2, 3] if words.get("schedule") == "interleaved-1f1b" else [1]
    rows = [
        (int(dp), int(tp), int(pp), int(cp), v, ep, etp, size, max(int(dp * cp) // share, 1))
        for dp, tp, pp, cp in zip(*(space.blocks[name] for name in ("dp", "tp", "pp", "cp")))
        if pp <= 8
        for v in vpp for ep, etp in ((1, 1), (8, 1), (4, 2)) for size in (1, 2) for share in (1, 2)
        if dp * tp * cp % (ep * etp) == 0
    ][::3]  # fmt: skip
    names = ("dp", "tp", "pp", "cp", "vpp", "ep", "etp", "microbatch_size", "zero_group")
    return Strategy(**dict(zip(names, np.array(rows).T)), **words)


def numbers(found: Evaluation) -> dict[str, Any]:
    """All that is told of each strategy, by name."""
    alike = {
        f.name: getattr(found, f.name) for f in fields(found) if f.name.endswith(("_s", "_bytes", "_flops"))
    }
    told = {name: value for name, value in alike.items() if not isinstance(value, dict)}
    told |= {f"time {name}": found.time_s[name] for name in TIME_KEYS}
    told |= {f"memory {name}": found.memory_bytes[name] for name in MEMORY_KEYS}
    return told | {"stage": found.peak_stage}


@pytest.mark.parametrize("words", WORDS, ids=lambda words: "-".join(map(str, words.values())))
def test_parts_change_nothing(words: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    strategies = many(words)
    n = len(strategies.dp)
    assert n > 200
    whole = numbers(evaluate(MODEL, CLUSTER, WORK, strategies, PROFILE))
    monkeypatch.setattr(parts, "CHUNK", 64)
    # Pipelines that are frequent have parts of their own, others share: both are there.
    often = np.bincount(strategies.pp * strategies.vpp)
    monkeypatch.setattr(parts, "ALIKE", int(np.median(often[often > 0])))
    by_part = numbers(evaluate(MODEL, CLUSTER, WORK, strategies, PROFILE))
    for name, values in whole.items():
        np.testing.assert_allclose(by_part[name], values, rtol=1e-12, err_msg=name)
    for i in range(0, n, n // 7):
        alone = numbers(evaluate(MODEL, CLUSTER, WORK, strategies.at(i), PROFILE))
        for name, value in alone.items():
            np.testing.assert_allclose(np.broadcast_to(whole[name], (n,))[i], value, rtol=1e-9, err_msg=name)


def test_zeros_are_left_out_of_a_sum() -> None:
    column = np.array([[1.0], [2.0]])
    assert added([0.0, column, 0.0]) is column
    assert added([0.0, 0]) == 0.0
    np.testing.assert_array_equal(added([column, 3, column]), 2 * column + 3)


def test_plain_numbers_of_one_pipeline_are_read_as_arrays_are() -> None:
    one = Strategy(dp=8, tp=2, pp=4, ep=4, zero=1, zero_group=8, microbatch_size=1)
    alone = numbers(evaluate(MODEL, CLUSTER, WORK, one, PROFILE))
    alike = replace(one, microbatch_size=np.array([1, 2, 1]))
    three = numbers(evaluate(MODEL, CLUSTER, WORK, alike, PROFILE))
    for name, value in alone.items():
        np.testing.assert_allclose(
            np.broadcast_to(three[name], (3,))[[0, 2]], value, rtol=1e-12, err_msg=name
        )
