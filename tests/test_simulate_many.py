"""Many simulated steps at once against one at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwright.cost.stages import layers_per_stage
from meshwright.cost.step import evaluate
from meshwright.errors import InputError
from meshwright.files import request as requests
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.profiles.load import load
from meshwright.search.derive import complete
from meshwright.simulate.costs import costs
from meshwright.simulate.exact import exact
from meshwright.simulate.many import step_times
from meshwright.strategy.records import Strategy
from meshwright.work import Work

CHUNKS = {"zb-v": 2, "v-half": 2, "v-min": 2, "dualpipev": 2, "interleaved-1f1b": 3}
GIVEN: list[dict[str, Any]] = [
    {"pp": pp, "tp": tp, "schedule": word, "vpp": CHUNKS.get(word, 1), "recompute": recompute, "zero": zero}
    for pp in (4, 8)
    for tp in (2, 4)
    for word in ("gpipe", "1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "dualpipe")
    for recompute, zero in (("none", 1), ("full", 1), ("full", 3))
]


def ask(batch: int, given: list[dict[str, Any]]) -> tuple[Any, list[Strategy]]:
    read = requests.read("llama-3.1-70b", "64xh100", seq_len=4096, global_batch_size=batch, strategy={})
    request = (read.model, read.cluster.cluster, read.work)
    found = []
    for one in given:
        try:
            found.append(complete(*request, one, read.profile).strategy)
        except InputError:
            continue
    return (*request, read.profile), found


def test_few_microbatches_are_simulated_whole() -> None:
    """Two plans of each pipeline evaluated together are each what they are alone."""
    (*request, profile), strategies = ask(128, GIVEN)
    found = step_times(*request, strategies, profile)
    assert len(found) > 60
    alone = [exact(*request, s, profile).evaluation.step_time_s for s in strategies]
    np.testing.assert_allclose(found, alone, rtol=1e-9)


@pytest.mark.parametrize(
    "word", ["1f1b", "interleaved-1f1b", "zb-1p", "zb-2p", "zb-v", "v-half", "dualpipev"]
)
def test_many_microbatches_go_on_at_the_pace_of_the_last_round(word: str) -> None:
    given = [
        {"pp": pp, "tp": 2, "schedule": word, "vpp": CHUNKS.get(word, 1), "microbatch_size": b}
        for pp in (4, 8)
        for b in (1, 2)
    ]
    (*request, profile), strategies = ask(1024, given)
    found = step_times(*request, strategies, profile)
    alone = [exact(*request, s, profile).evaluation.step_time_s for s in strategies]
    np.testing.assert_allclose(found, alone, rtol=5e-3)
    assert (found <= np.array(alone) * (1 + 1e-9)).all()


def test_a_schedule_that_does_not_exist_has_no_time() -> None:
    (*request, profile), (fine,) = ask(128, [{"pp": 4, "tp": 2}])
    three = Strategy(dp=8, tp=2, sp=True, pp=4, vpp=2, schedule="interleaved-1f1b", microbatch_size=16)
    found = step_times(*request, [fine, three], profile)  # one microbatch does not go round in fours
    assert np.isfinite(found[0])
    assert np.isnan(found[1])


def test_no_strategies_take_no_time() -> None:
    (*request, profile), _ = ask(128, [])
    assert len(step_times(*request, [], profile)) == 0


def test_chunks_of_unequal_length_wait_for_each_other() -> None:
    """Each rank has 20 layers in ten chunks of 2, or in five of 1 and five of 3 in turns of its own."""
    mixed = [(1, 3) if (chunk + rank) % 2 else (3, 1) for chunk in range(0, 10, 2) for rank in range(4)]
    rows = [tuple(m[half] for m in mixed[4 * i : 4 * i + 4]) for i in range(5) for half in (0, 1)]
    listed = tuple(n for row in rows for n in row)
    common = {"pp": 4, "tp": 8, "vpp": 10, "schedule": "interleaved-1f1b"}
    (*request, profile), (even, odd) = ask(
        256, [{**common, "layers_per_stage": (2,) * 40}, {**common, "layers_per_stage": listed}]
    )
    even_s, odd_s = step_times(*request, [even, odd], profile)
    assert odd_s > 1.15 * even_s


@pytest.mark.parametrize(("pp", "vpp"), [(4, 13), (4, 9), (8, 3), (8, 7)])
def test_layers_are_dealt_so_that_turns_are_alike(pp: int, vpp: int) -> None:
    """80 layers that do not divide evenly cost no more than the closed form, which counts whole ranks."""
    (*request, profile), (one,) = ask(256, [{"pp": pp, "tp": 4, "vpp": vpp, "schedule": "interleaved-1f1b"}])
    (seconds,) = step_times(*request, [one], profile)
    assert seconds < 1.03 * float(evaluate(*request, one, profile).step_time_s)


def test_numbers_of_a_profile_may_be_arrays() -> None:
    """What a plan exchanges under two shares of the network's bandwidth is what it does under each."""
    (*request, profile), (strategy, *_) = ask(128, [{"pp": 4, "tp": 2, "zero": 1}])

    def at(share: Any) -> Any:
        changed = replace(profile.numbers["scale_out"], value=share)
        return costs(*request, strategy, replace(profile, numbers=profile.numbers | {"scale_out": changed}))

    shares = [0.3, 0.8]
    both = at(np.array(shares)).exchange
    assert both.shape == (2, 4)
    for own, share in zip(both, shares):
        np.testing.assert_allclose(own, at(share).exchange[0], rtol=1e-12)
    assert (both[0] > both[1]).all()


def test_stages_that_lie_otherwise_do_not_take_the_split_of_the_first() -> None:
    """Five chunks of 32 layers over four ranks leave ends empty, and in a V other ends than in rounds."""
    read = requests.read("llama-3.1-8b", "16xh100", seq_len=4096, global_batch_size=32, strategy={})
    request = (read.model, read.cluster.cluster, read.work)
    in_a_v = Strategy(dp=4, pp=4, vpp=2, schedule="zb-v")
    in_rounds = Strategy(dp=4, pp=4, vpp=5, schedule="interleaved-1f1b")
    both = step_times(*request, [in_a_v, in_rounds], read.profile)
    alone = [float(step_times(*request, [one], read.profile)[0]) for one in (in_a_v, in_rounds)]
    np.testing.assert_allclose(both, alone, rtol=1e-12)


def test_plans_whose_layers_are_cut_otherwise_are_simulated_as_they_are_alone() -> None:
    """Of one pp and vpp, but a head beside layers of other lengths."""
    model, cluster = presets.load("llama-3.1-8b"), parse("64xb200")
    work, profile = Work(4096, 64), load(None, cluster.chip)
    several = [
        Strategy(dp=16 // tp, tp=tp, pp=4, microbatch_size=size, sp=tp > 1, zero=1, zero_group=16 // tp)
        for tp, size in product((1, 4, 8), (1, 4))
    ]
    cuts = {layers_per_stage(model, cluster, work, one, profile) for one in several}
    assert len(cuts) > 1
    together = step_times(model, cluster, work, several, profile)
    alone = [step_times(model, cluster, work, [one], profile)[0] for one in several]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
