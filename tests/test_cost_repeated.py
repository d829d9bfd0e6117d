"""What runs again under `products:N` and `minimal`, and what stays: counts by hand and published peaks."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.cost.columns import columns, shape_on, tokens_of, words_of
from meshwright.cost.layer import LayerCost, layer_cost
from meshwright.hardware import cluster
from meshwright.model import presets
from meshwright.profiles.load import load
from meshwright.strategy.placement import spans
from meshwright.strategy.recompute import parse
from meshwright.strategy.records import Strategy
from meshwright.units import GIB
from meshwright.work import Work
from published_runs import Run

TOKENS, WIDTH, KV, FF, HEADS = 8192, 4096, 1024, 14336, 32  # llama-3.1-8b
COMPILE = frozenset({"compile"})


def layer(
    word: str, options: frozenset[str] = frozenset(), tp: int = 1, framework: str = "torchtitan"
) -> LayerCost:
    """A decoder layer of one sequence under a framework's habits."""
    machine, work = cluster.parse("8xh100"), Work(TOKENS, 8)
    strategy = Strategy(dp=8 // tp, tp=tp, sp=tp > 1, zero=3, recompute=word)
    profile = load(framework, machine.chip)
    words = words_of(work, strategy, profile)
    _, ops, _, _ = columns(
        presets.load("llama-3.1-8b"), shape_on(work, strategy, tokens_of(work, strategy)), words
    )[0]
    return layer_cost(ops, words, spans(machine, strategy), machine.chip, profile, parse(word), options)


def test_every_second_product_stays() -> None:
    """Of q k v o w1 w3 w2 the first, third, fifth and seventh: q, v, w1, w2. Beside them the boundary, what
    attention gives and its log-sum-exp; k, o and w3 run again.
    """
    found = layer("products:2")
    results = WIDTH + KV + FF + WIDTH
    assert found.saved == 2 * TOKENS * (WIDTH + results + WIDTH) + 4 * TOKENS * HEADS
    assert found.flops_recompute == 2 * TOKENS * WIDTH * (KV + WIDTH + FF)
    assert layer("products:1").flops_recompute == 0
    assert layer("products:4").flops_recompute > found.flops_recompute  # q and w1 alone stay


def test_minimal_keeps_results_of_products_alone() -> None:
    """MaxText's policy names q k v, o and both halves of the feed-forward; what lies between them (norms,
    attention, the gated product) runs again. The model keeps attention's result in the place of o's.
    """
    found = layer("minimal", framework="maxtext")
    assert found.saved == 2 * TOKENS * (WIDTH + (WIDTH + 2 * KV) + WIDTH + 2 * FF)
    assert found.recompute > layer("selective:core_attn", framework="maxtext").recompute
    assert found.flops_recompute == layer("selective:core_attn", framework="maxtext").flops_recompute


def test_a_compiled_layer_drops_what_nothing_reads() -> None:
    """The last product's result: the next layer keeps its own boundary."""
    eager, compiled = layer("products:2"), layer("products:2", COMPILE)
    assert eager.saved - compiled.saved == 2 * TOKENS * WIDTH
    assert eager.flops_recompute == compiled.flops_recompute


def test_scattered_sums_stay_and_gathers_run_again() -> None:
    """With tensor ranks each product of a rank is its share, but that of w2 (a sum of whole width) is not;
    the two scattered sums stay beside it, so only gathers are sent again.
    """
    found = layer("products:2", tp=2)
    shares = (WIDTH + KV + FF + WIDTH + WIDTH) / 2 + WIDTH  # q v w1, attention, boundary; w2 whole
    scattered = 2 * WIDTH / 2
    assert found.saved == 2 * TOKENS * (shares + scattered) + 4 * TOKENS * HEADS / 2
    once = layer("none", tp=2)
    assert once.tp_backward < found.tp_backward < once.tp_backward + once.tp_forward
    assert found.saved < once.saved


def pool(run: Run) -> float:
    """What the allocator has reserved at the peak, in GiB, as torchtitan prints it."""
    found = run.found
    return float(found.peak_bytes + found.kept_bytes - found.memory_bytes["framework"]) / GIB


# Gpus, length, sequences a rank, cp, recompute, precision, switches, peak of the allocator's pool in GiB.
PEAKS = [
    (8, 8192, 2, 1, "products:2", "bf16", (), 82.4),
    (8, 8192, 2, 1, "products:2", "bf16", ("compile",), 77.0),
    (8, 8192, 2, 1, "products:2", "fp8", ("compile",), 76.8),
    (128, 8192, 2, 1, "products:2", "bf16", (), 67.0),
    (128, 8192, 2, 1, "products:2", "bf16", ("compile",), 62.0),
    (128, 8192, 2, 1, "products:2", "fp8", ("compile",), 61.8),
    (8, 32768, 1, 1, "full", "fp8", ("compile",), 83.9),
    (8, 65536, 1, 2, "full", "fp8", ("compile",), 84.2),
    (8, 131072, 1, 4, "full", "fp8", ("compile",), 84.0),
]


@pytest.mark.parametrize(
    ("n", "length", "each", "cp", "recompute", "precision", "options", "published"), PEAKS
)
def test_published_peaks_of_torchtitan(
    n: int, length: int, each: int, cp: int, recompute: str, precision: str, options: tuple[str, ...],
    published: float,
) -> None:  # fmt: skip
    """Llama-3.1-8B on H100 in 2024 (pytorch/torchtitan, benchmarks/llama3_h100_202412, Tables 1 to 3): low
    precision moves no peak, since what stays are results; compiling saves 5 GiB, the results of w2.
    """
    run = Run("llama-3.1-8b", f"{n}xh100-500w", length, each * n // cp, precision, framework="torchtitan",
              release="2024", options=options, cp=cp, zero=3, microbatch_size=each,
              recompute=recompute)  # fmt: skip
    assert 0.97 < pool(run) / published < 1.11


def test_a_loss_over_a_split_vocabulary_takes_a_copy_more() -> None:
    """torchtitan's 70B at tp 8 (Table 4): 71.9 GiB, and 67.6 with asynchronous tensor ranks. Backward of
    its loss holds softmax, gradient, their sum and the product, 4 bytes a logit each.
    """
    words: dict[str, Any] = {"framework": "torchtitan", "release": "2024", "options": ("compile",), "tp": 8}
    run = Run("llama-3.1-70b", "256xh100-500w", 8192, 512, "fp8", zero=3, microbatch_size=16,
              recompute="full", **words)  # fmt: skip
    assert 0.95 < pool(run) / 71.9 < pool(run) / 67.6 < 1.06
