"""A simulated step against the array result, and by hand where stages differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cost import schedule
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.files import request as requests
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.profiles.load import load
from meshwright.search.derive import complete
from meshwright.simulate.exact import MOST_PASSES, Exact, exact
from meshwright.strategy.records import Strategy
from meshwright.work import Work

CHUNKS = {"zb-v": 2, "v-half": 2, "v-min": 2, "dualpipev": 2, "interleaved-1f1b": 2}


def both(model: str, on: str, batch: int, *, even: bool = False, **given: Any) -> tuple[Exact, Evaluation]:
    """The simulated and the array result; `even`: many layers and ends that weigh nothing beside them."""
    asked = {k: v for k, v in given.items() if k in ("seq_len", "options")}
    strategy = {k: v for k, v in given.items() if k not in asked}
    read = requests.read(model, on, global_batch_size=batch, strategy=strategy, **({"seq_len": 4096} | asked))
    shape = read.model
    if even:
        shape = replace(shape, pattern=shape.pattern[:64] * 32, vocab=256)
    machine = read.cluster.cluster
    done = complete(shape, machine, read.work, strategy, read.profile)
    request = (shape, machine, read.work, done.strategy, read.profile)
    return exact(*request), evaluate(*request)


def term(found: Exact, path: str) -> float:
    """The term of the simulated estimate at `path`."""
    assert found.evaluation.terms is not None
    (value,) = (t.value for at, t in found.evaluation.terms.walk() if at == path)
    return float(value)


@pytest.mark.parametrize("word", schedule.names())
@pytest.mark.parametrize(
    "given",
    [
        {"tp": 4, "pp": 8},
        {"tp": 4, "pp": 8, "cp": 2, "recompute": "full"},
        {"tp": 8, "pp": 4, "zero": 3, "recompute": "selective:core_attn"},
        {"tp": 4, "pp": 8, "offload": "activations:4"},
    ],
)
def test_even_stages_give_the_array_result(word: str, given: dict[str, Any]) -> None:
    """Every part of time and memory within 1 % of the whole, the slowest rank's and the fullest rank's."""
    found, closed = both(
        "llama-3.1-70b", "256xh100", 512, even=True, schedule=word, vpp=CHUNKS.get(word, 1), **given
    )
    assert_alike(found, closed)


def assert_alike(found: Exact, closed: Evaluation) -> None:
    simulated = found.evaluation
    assert simulated.step_time_s == pytest.approx(closed.step_time_s, rel=0.01)
    for name, seconds in closed.time_s.items():
        assert simulated.time_s[name] == pytest.approx(seconds, abs=0.01 * closed.step_time_s), name
    assert sum(simulated.time_s.values()) == pytest.approx(simulated.step_time_s, rel=1e-12)
    for name, nbytes in closed.memory_bytes.items():
        assert simulated.memory_bytes[name] == pytest.approx(nbytes, abs=0.01 * closed.peak_bytes), name
    assert sum(simulated.memory_bytes.values()) == pytest.approx(simulated.peak_bytes, rel=1e-12)


@pytest.mark.parametrize("word", schedule.names())
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_even_stages_of_any_number_give_the_array_result(word: str, pp: int) -> None:
    """From as many microbatches as ranks on, small ones that wait for their launches and large ones."""
    needs = schedule.load(word).NEEDS
    for m in (pp, 2 * pp, 4 * pp):
        for size, seq_len in ((1, 512), (1, 4096), (4, 4096)):
            if not needs.by_microbatches(pp, m):
                continue
            assert_alike(*both(
                "llama-3.1-8b", f"{2 * pp}xh100", 2 * m * size, even=True, schedule=word, pp=pp,
                vpp=CHUNKS.get(word, 1), microbatch_size=size, seq_len=seq_len,
            ))  # fmt: skip


@pytest.mark.parametrize("word", schedule.names())
def test_busy_idle_exchange_and_update_fill_the_step_of_every_rank(word: str) -> None:
    found, _ = both("llama-3.1-8b", "64xh100", 128, pp=4, schedule=word, vpp=CHUNKS.get(word, 1))
    own = found.evaluation.step_time_s - found.evaluation.time_s["other"]
    host = term(found, "step.time.other.host")
    filled = found.timeline.busy_s + found.idle.total_s + found.after_s
    np.testing.assert_allclose(filled, own + host, rtol=1e-9)


def test_a_slow_stage_is_the_slowest_rank_and_others_wait_for_it() -> None:
    found, closed = both("llama-3.1-8b", "64xh100", 512, pp=4, layers_per_stage=(7, 7, 11, 7), seq_len=8192)
    assert found.slowest_rank == 2
    assert found.idle.imbalance_s[1] > 0.2 * found.evaluation.step_time_s
    assert found.idle.imbalance_s[2] < 0.01 * found.evaluation.step_time_s
    assert found.evaluation.step_time_s == pytest.approx(closed.step_time_s, rel=0.02)


def test_ranks_that_drain_late_hide_no_exchange_of_others() -> None:
    """The step ends with the last rank's update; a rank is busy or idle until its own."""
    found, _ = both("llama-3.1-8b", "64xh100", 64, pp=4, zero=1)
    ends = found.timeline.last_s + found.after_s
    straggler = term(found, "step.time.other.straggler")
    assert ends.max() == pytest.approx(found.evaluation.step_time_s - straggler, rel=1e-9)


def test_slower_links_send_longer() -> None:
    fast, _ = both("llama-3.1-70b", "64xh100", 128, tp=8, pp=8, microbatch_size=1)
    read = requests.read(
        "llama-3.1-70b", "64xh100", seq_len=4096, global_batch_size=128, 
        overrides={"scale_out_gbits_s": 25.0},
        strategy={"tp": 8, "pp": 8},
    )  # fmt: skip
    done = complete(read.model, read.cluster.cluster, read.work, {"tp": 8, "pp": 8}, read.profile)
    slow = exact(read.model, read.cluster.cluster, read.work, done.strategy, read.profile)
    assert slow.idle.send_s.max() > 4 * fast.idle.send_s.max()
    assert slow.evaluation.step_time_s > fast.evaluation.step_time_s


def test_memory_over_time_peaks_at_the_peak_and_ends_empty() -> None:
    found, _ = both("llama-3.1-8b", "64xh100", 128, pp=4, schedule="1f1b")
    for rank in range(4):
        seconds, nbytes = found.memory_over_time(rank)
        assert nbytes.max() == pytest.approx(found.peak_bytes[rank])
        assert nbytes[-1] == found.between_bytes[rank] < nbytes[-2] < nbytes.max()
        assert (np.diff(seconds) >= -1e-12).all()
        assert seconds[-1] <= found.evaluation.step_time_s + 1e-12
    np.testing.assert_allclose(found.in_flight, [4, 3, 2, 1])


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("seq_len", [8192, 64])
def test_memory_over_time_is_state_and_what_passes_hold(seq_len: int, keeps: bool) -> None:
    """Eight microbatches, one after the other, by hand: 8B parameters of the rank at 2 + 2 + 12 / 8 bytes and
    the context stay; a forward adds what its layers save; the optimizer adds 4 / 8 bytes a parameter. With 64
    tokens that is the fullest moment. Gradients that are made anew are not there between steps. State is
    there from the first pass on, though programs make it in the first update (lesson 3: the first step
    proves nothing).
    """
    model, cluster = presets.load("llama-3.1-8b"), parse("8xh100")
    profile = load("megatron-core", cluster.chip)
    habits = replace(profile.framework, keeps_grads=keeps, context_gib=1.0, fragments=0.0)
    strategy = Strategy(dp=8, zero=1, zero_group=8)
    found = exact(model, cluster, Work(seq_len, 64), strategy, replace(profile, framework=habits))
    seconds, nbytes = found.memory_over_time(0)
    n = total_params(model) - model.d_model  # the final norm stands on no stage
    state = n * ((4.0 if keeps else 2.0) + 12 / 8) + 2**30
    np.testing.assert_allclose(found.between_bytes, state, rtol=1e-4)
    np.testing.assert_allclose(nbytes[[-3, -1]], state, rtol=1e-4)
    assert nbytes[-2] == pytest.approx(n * (4.0 + 12 / 8 + 4 / 8) + 2**30, rel=1e-4)
    saved = found.held_bytes[0]
    np.testing.assert_allclose(np.abs(np.diff(nbytes[:-3])), saved)  # forward, backward, forward, ...
    assert nbytes[0] == pytest.approx(found.between_bytes[0] + found.working_bytes[0] + saved)
    assert nbytes.max() == pytest.approx(found.peak_bytes[0])
    assert bool(nbytes.argmax() == len(nbytes) - 2) == (seq_len == 64)
    assert (found.evaluation.by_stage[0].moment == "optimizer") == (seq_len == 64)
    assert seconds[-1] - seconds[-2] == pytest.approx(found.optimizer_s[0])


def test_a_pipeline_of_one_rank_has_no_bubble() -> None:
    found, closed = both("llama-3.1-8b", "8xh100", 64)
    assert found.evaluation.time_s["bubble"] == pytest.approx(0.0, abs=1e-12)
    assert found.evaluation.step_time_s == pytest.approx(closed.step_time_s, rel=1e-12)
    assert found.evaluation.peak_bytes == pytest.approx(closed.peak_bytes, rel=1e-12)


def test_steps_of_too_many_passes_say_so() -> None:
    with pytest.raises(InputError) as caught:
        both("llama-3.1-8b", "8xh100", 8 * MOST_PASSES, pp=8)
    (said,) = caught.value.diagnostics
    assert said.code == "MW157"
    assert "76.8M passes" in said.message
    assert "2 x pp 8" in said.message
