"""What waits in host memory takes time: the host's step, weights and activations on their way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost.evaluation import Evaluation
from meshwright.cost.host_link import Copies, Waits
from meshwright.cost.step import evaluate
from meshwright.hardware.chips import table
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.profiles.load import load
from meshwright.simulate.exact import exact
from meshwright.strategy.records import Strategy
from meshwright.work import Work

LLAMA = presets.load("llama-3.1-8b")
H100 = parse("8xh100")
PLAIN = Strategy(dp=8, zero=1, zero_group=8)


def faster(link: float = 1.0, memory: float = 1.0) -> Cluster:
    """Eight H100 whose host is so many times faster."""
    chip = H100.chip
    quick = replace(
        chip, host_bytes_s=chip.host_bytes_s * link, host_memory_bytes_s=chip.host_memory_bytes_s * memory
    )
    return replace(H100, chip=quick)


def run(
    offload: str, cluster: Cluster = H100, seq_len: int = 8192, batch: int = 64, **words: object
) -> Evaluation:
    profile = load("megatron-core", cluster.chip)
    strategy = replace(PLAIN, offload=offload, **words)  # type: ignore[arg-type]
    return evaluate(LLAMA, cluster, Work(seq_len, batch), strategy, profile, detail=True)


def waited(found: Evaluation) -> float:
    """Seconds a step for the host link beside the passes."""
    assert found.terms is not None
    return float(next(term.value for path, term in found.terms.walk() if path.endswith("other.offload")))


def test_the_host_steps_at_the_pace_of_its_memory() -> None:
    """bf16 gradients, 12 bytes of state read and written, bf16 weights: 28 a parameter of the shard."""
    by_hand = total_params(LLAMA) / 8 * 28 / H100.chip.host_memory_bytes_s
    assert run("optimizer").time_s["optimizer"] == pytest.approx(by_hand, rel=1e-3)
    assert by_hand > 20 * run("none").time_s["optimizer"]


def test_a_slow_link_sets_the_pace_instead() -> None:
    slow = run("optimizer", faster(link=1 / 100))
    by_hand = total_params(LLAMA) / 8 * 2 / (H100.chip.host_bytes_s / 100)
    assert slow.time_s["optimizer"] == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize("offload", ["optimizer", "params", "optimizer+params", "activations"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_faster_host_is_never_slower(offload: str, zero: int) -> None:
    words = {"zero": zero, "seq_len": 512, "batch": 8}
    times = [
        run(offload, cluster, **words).step_time_s  # type: ignore[arg-type]
        for cluster in (H100, faster(link=2), faster(memory=2), faster(2, 2), faster(1e9, 1e9))
    ]
    assert times[0] >= times[1] >= times[3] >= times[4]
    assert times[0] >= times[2] >= times[3]
    assert times[4] <= run("none", **words).step_time_s * (1 + 1e-6)  # type: ignore[arg-type]


def test_weights_on_the_host_are_read_for_every_pass() -> None:
    """A rank's whole weights (ZeRO-1) or its shard (ZeRO-3), forward and again backward, each microbatch."""
    slow = faster(link=1e-3)  # so slow that nothing hides what counts
    weights = total_params(LLAMA) * 2.0
    for zero, share in ((1, 1.0), (3, 1 / 8)):
        more = [run("params", slow, batch=batch, zero=zero).step_time_s for batch in (8, 16)]
        by_hand = 2 * weights * share / slow.chip.host_bytes_s
        assert more[1] - more[0] == pytest.approx(by_hand, rel=0.02)
    assert waited(run("params", slow, finetune="qlora:8")) < waited(run("params", slow, finetune="lora:8"))


def test_activations_hide_behind_their_passes_until_the_link_is_too_slow() -> None:
    """Copied once to the host beside the forward and once back beside the backward."""

    at = {link: waited(run("activations", faster(link=link))) for link in (10.0, 1e-2, 1e-3)}
    assert at[10.0] == 0.0
    assert at[1e-3] == pytest.approx(10 * at[1e-2], rel=0.1)


def test_the_link_sends_both_ways_at_once() -> None:
    """Activations leave while weights come; both come beside the backward. Each half of a cut one waits."""
    copies = Copies(offloaded=3.0, forward=2.0, backward=4.0)
    assert copies.waits(1.0, 2.0, 1.0, splits=False) == Waits(2.0, 5.0)
    assert copies.waits(1.0, 2.0, 1.0, splits=True) == Waits(2.0, 5.0, 2.5)
    assert copies.waits(9.0, 8.0, 2.0, splits=False) == Waits(0.0, 0.0)
    assert copies.waits(9.0, 8.0, 2.0, splits=True) == Waits(0.0, 1.5, 1.5)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-1p", "dualpipe"])
@pytest.mark.parametrize("offload", ["activations", "params"])
def test_every_stage_waits_for_the_link(schedule: str, offload: str) -> None:
    """Fill and drain of a pipeline last as long as its passes do, waits and all, as in its simulation."""
    uneven = {"schedule": schedule, "offload": offload, "layers_per_stage": (8, 9, 9, 6)}
    strategy = Strategy(dp=2, pp=4, zero=1, **uneven)  # type: ignore[arg-type]
    slow = faster(link=0.1)
    profile = load("megatron-core", slow.chip)
    found = evaluate(LLAMA, slow, Work(8192, 16), strategy, profile)
    simulated = exact(LLAMA, slow, Work(8192, 16), strategy, profile).evaluation
    assert found.step_time_s == pytest.approx(simulated.step_time_s, rel=0.08)
    assert found.time_s["other"] > 0.3 * found.step_time_s


def test_experts_tensors_wait_on_the_host() -> None:
    """What their activation reads, 4 f_e bytes a routed token (and what they are given, 2 h); what is
    recomputed is not there to go."""
    model, cluster = presets.load("qwen3-30b-a3b"), parse("8xh100")
    profile = load("megatron-core", cluster.chip)
    work = Work(16384, 64, options=frozenset({"balanced-routing"}))

    def saved(offload: str, recompute: str = "none") -> float:
        plan = replace(PLAIN, ep=8, offload=offload, recompute=recompute)
        return float(evaluate(model, cluster, work, plan, profile).memory_bytes["activations"])

    routed = 48 * 16384 * 8  # layers, tokens, experts of each
    two = 2 / 48  # of two layers, on their way
    read, given = 4 * 768 * routed, 2 * 2048 * routed
    for recompute in ("none", "selective:moe_act"):
        assert saved("none", recompute) - saved("experts", recompute) == pytest.approx(read * (1 - two))
        assert saved("experts", recompute) - saved("experts-all", recompute) == pytest.approx(
            given * (1 - two)
        )
    assert saved("experts-all", "selective:moe") == saved("none", "selective:moe")


def test_figures_of_the_host_have_a_source() -> None:
    for chip in table().values():
        assert chip.host_bytes_s > 0
        assert chip.host_memory_bytes_s > 0
        if chip.family not in ("v100", "a100", "h100", "b200", "gb200", "gb300", "gh200"):
            assert chip.derives_from in ("v100", "a100", "h100", "b200", "gb200") or "host_bytes_s" in dict(
                chip.assumed
            )
