"""Do I need pipeline parallelism here? What the search says where published runs have, or have not, one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from meshwright import api
from meshwright.search.ranking import TIED

# Of a space that has all it takes: what is fixed here never won, or changes nothing in these jobs.
NARROW: dict[str, Any] = {"zero_group": "all", "cp_method": "ring"}


def loss(model: str, on: str, **given: Any) -> float:
    """Percent that the best plan without a pipeline is slower than the best plan."""
    found = api.plan(model, on, top=1, **given)
    (need,) = [n for n in found.necessity if n.without == "pp"]
    assert need.loss_percent is not None
    return need.loss_percent


@pytest.mark.parametrize("placement", ["tp,cp,dp,pp", "any"])
def test_it_falls_with_the_fast_domain(placement: str) -> None:
    """In any order a domain of 256 holds a whole pipeline, whose sends are then as quick as those of the plan
    without one: of two plans that the model cannot tell apart the one gains on the other."""
    losses = [
        loss("llama-3.1-405b", "1024xh100", seq_len="8k", global_batch_size=256, placement=placement,
             overrides={"scale_up_size": size}, **NARROW)
        for size in (8, 16, 64, 256)
    ]  # fmt: skip
    least = 100.0 * TIED if placement == "any" else 0.0
    assert all(wider <= max(loss, least) for loss, wider in pairwise(losses))
    assert losses[0] > losses[-1] + 1.0


def test_it_falls_with_the_network() -> None:
    losses = [
        loss("llama-3.1-405b", "1024xh100", seq_len="8k", global_batch_size=256,
             overrides={"scale_out_gbits_s": rate}, **NARROW)
        for rate in (200, 400, 800, 1600, 3200)
    ]  # fmt: skip
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1] + 1.0


def test_a_large_run_at_a_small_batch_needs_one() -> None:
    given = {"seq_len": "8k", "tokens_per_step": "16M"}
    assert loss("llama-3.1-405b", "16384xh100", **given, **NARROW) > 4.0


PALM = ("palm-540b", "2*tpu-v4:12x16x16", {"seq_len": "2k", "global_batch_size": 2048,
        "overrides": {"scale_out_gbits_s": 13.2}})  # fmt: skip  # 81 Tbit/s between two pods of 3,072 chips
LLAMA = ("llama-3.1-405b", "256xtpu-v7", {"seq_len": "8k", "global_batch_size": 1536})
DEEPSEEK = ("deepseek-v3", "256xtpu-v7", {"seq_len": "4k", "global_batch_size": 4096})
PUBLISHED_WITHOUT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "palm": PALM, "llama": LLAMA, "deepseek": DEEPSEEK,
}  # fmt: skip


@pytest.mark.parametrize("run", PUBLISHED_WITHOUT)
def test_runs_published_without_one_need_none_of_their_framework(run: str) -> None:
    """XLA makes a loop over stages all forwards, then all backwards: a pipeline that keeps everything."""
    model, on, given = PUBLISHED_WITHOUT[run]
    assert loss(model, on, **given) < 4.0


@pytest.mark.parametrize(("run", "left"), [("palm", 0.3), ("deepseek", 0.75)])
def test_activations_on_the_host_stand_in_for_one(run: str, left: float) -> None:
    """Whatever the schedule: as these runs did, what backward needs waits on the host. On PaLM 1F1B keeps
    some of its lead once it may recompute norms alone, which no loop over layers on a TPU does."""
    model, on, given = PUBLISHED_WITHOUT[run]
    schedules = ["1f1b", "interleaved-1f1b"]
    with_host = loss(model, on, **given, schedule=schedules, offload=["none", "activations"])
    assert with_host <= left * loss(model, on, **given, schedule=schedules, offload="none")
    assert with_host < 4.0 or run == "palm"


def test_a_large_fast_domain_needs_none() -> None:
    assert loss("llama-3.1-70b", "64xgb200", seq_len="8k", global_batch_size=128) < 4.0
