"""What ranks of several chunks keep: counted from action lists, and against the simulated step."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from meshwright import checks
from meshwright.cost import schedule
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.schedule.actions import Action
from meshwright.cost.step import evaluate
from meshwright.files import request as requests
from meshwright.model.records import Model
from meshwright.search.derive import complete
from meshwright.simulate.exact import Exact, exact

VPP = {"zb-v": 2, "v-half": 2, "v-min": 2, "dualpipev": 2, "interleaved-1f1b": 2}
STREAMS = {"dualpipe": 2}  # of one chunk each
SEVERAL = sorted(VPP | STREAMS)


def of_layers(model: Model, n: int, **given: Any) -> Model:
    """The model with its first n layers."""
    return replace(model, pattern=model.pattern[:n], **given)


MODELS = {
    "a large head": ("llama-3.1-8b", lambda model: model, {}),
    "30 layers": ("llama-3.1-8b", lambda model: of_layers(model, 30), {}),
    "27 layers, one matrix for both ends": (
        "llama-3.1-8b", lambda model: of_layers(model, 27, tied_embeddings=True), {},
    ),
    "experts after a dense layer": ("deepseek-v2-lite", lambda model: model, {"ep": 2}),
}  # fmt: skip


def request(model: str, word: str, pp: int, m: int, **given: Any) -> tuple[Any, ...]:
    """A plan of m microbatches on two pipelines of pp ranks."""
    name, altered, own = MODELS[model]
    asked = {"schedule": word, "pp": pp, "vpp": VPP.get(word, 1), "microbatch_size": 1} | own | given
    read = requests.read(name, f"{2 * pp}xh100", seq_len=4096, global_batch_size=2 * m, strategy=asked)
    shape, machine = altered(read.model), read.cluster.cluster
    done = complete(shape, machine, read.work, asked, read.profile)
    return shape, machine, read.work, done.strategy, read.profile


def both(model: str, word: str, pp: int, m: int, **given: Any) -> tuple[Exact, Evaluation]:
    """The simulated and the closed estimate."""
    asked = request(model, word, pp, m, **given)
    return exact(*asked), evaluate(*asked, detail=True)


def assert_alike(simulated: Exact, closed: Evaluation) -> None:
    """Every category of the fullest rank, and the peak of every rank."""
    found = simulated.evaluation
    assert closed.peak_bytes == pytest.approx(found.peak_bytes, rel=1e-9)
    # Of ranks that hold as much either may be told.
    assert simulated.peak_bytes[int(closed.peak_stage)] == pytest.approx(found.peak_bytes, rel=1e-9)
    for name, nbytes in found.memory_bytes.items():
        assert closed.memory_bytes[name] == pytest.approx(nbytes, abs=1e-9 * found.peak_bytes), name
    said = [stage.peak_bytes for stage in closed.by_stage]
    np.testing.assert_allclose(said, simulated.peak_bytes, rtol=1e-9)


@pytest.mark.parametrize("word", schedule.names())
@pytest.mark.parametrize("model", MODELS)
def test_the_closed_form_is_the_simulated_peak_of_uneven_stages(word: str, model: str) -> None:
    """Heads, embeddings, dense first layers and leftover layers stand in one chunk of a rank; as many of it
    are in flight as of no other. Which rank is the fullest is found, too."""
    for pp, each in product((2, 4, 8), (1, 2, 4)):
        if schedule.load(word).NEEDS.by_microbatches(pp, each * pp):
            assert_alike(*both(model, word, pp, each * pp))


@pytest.mark.parametrize("word", SEVERAL)
@pytest.mark.parametrize(
    "given",
    [
        {"recompute": "full"},
        {"recompute": "layers:2"},
        {"offload": "activations:2"},
        {"zero": 3, "recompute": "selective:norm+mlp"},
    ],
)
def test_other_words_leave_it_so(word: str, given: dict[str, Any]) -> None:
    for model in ("30 layers", "experts after a dense layer"):
        assert_alike(*both(model, word, 4, 8, **given))


def test_an_exact_loss_holds_every_chunk_of_every_microbatch() -> None:
    for m in (4, 8):
        given = {"moe_balance": "global"}
        assert_alike(*both("experts after a dense layer", "interleaved-1f1b", 4, m, **given))


def test_three_chunks_and_listed_layers() -> None:
    listed = (1, 3, 2, 3, 4, 3, 2, 3, 3, 2, 3, 1)
    given = {"vpp": 3, "layers_per_stage": listed}
    assert_alike(*both("30 layers", "interleaved-1f1b", 4, 8, **given))
    assert_alike(*both("experts after a dense layer", "interleaved-1f1b", 4, 16, vpp=3))


@pytest.mark.parametrize("word", SEVERAL)
def test_many_plans_at_once_are_those_one_by_one(word: str) -> None:
    """Chunks weigh differently beside each other under other tp and ep, so other moments are the fullest."""
    model, cluster, work, plain, profile = request("experts after a dense layer", word, 4, 256)
    cluster = replace(cluster, n_chips=64)
    shapes = [(tp, pp, ep, size) for tp, pp, ep, size in product((1, 2, 4), (2, 4, 8), (1, 2, 4), (1, 2, 4))]
    tp, pp, ep, size = (np.array(x) for x in zip(*shapes))
    every = replace(
        plain, dp=64 // (tp * pp), tp=tp, pp=pp, ep=ep, microbatch_size=size, zero_group=64 // (tp * pp)
    )
    together = evaluate(model, cluster, work, every, profile)
    tested = 0
    for i in range(0, len(shapes), 5):
        one = every.at(i)
        if any(d.severity == "error" for d in checks.run(model, cluster, work, one)):
            continue
        alone = evaluate(model, cluster, work, one, profile)
        assert together.peak_bytes[i] == pytest.approx(alone.peak_bytes, rel=1e-12)
        assert together.peak_stage[i] == alone.peak_stage
        tested += 1
    assert tested > 5


def fullest(row: tuple[Action, ...], weights: np.ndarray) -> np.ndarray:
    """The most that a rank's passes hold at once, a chunk (or stream) weighing `weights` [n, chunks], [n]."""
    signs = {"F": 1, "B": -1, "W": -1}
    passes = [(a.chunk, signs[a.kind]) for a in row if a.kind in signs]
    changes = np.zeros((len(passes), weights.shape[1]))
    changes[np.arange(len(passes)), [chunk for chunk, _ in passes]] = [sign for _, sign in passes]
    return np.asarray((weights @ changes.cumsum(0).T).max(1))


CHUNKS = [(word, STREAMS.get(word, VPP.get(word))) for word in SEVERAL] + [("interleaved-1f1b", 3)]


@pytest.mark.parametrize(("word", "chunks"), CHUNKS)
@pytest.mark.parametrize("pp", [2, 3, 4, 5, 6, 8, 12])
def test_chunks_in_flight_are_those_of_the_action_list(word: str, chunks: int, pp: int) -> None:
    """Whatever the chunks weigh: of V-Min with few microbatches no fewer, else as many."""
    plan, vpp = schedule.load(word), chunks if word in VPP else 1
    assert plan.chunks_in_flight is not None
    if not plan.NEEDS.by_pp(pp):
        return
    weights = np.random.default_rng(pp).uniform(size=(16, chunks)) ** 2
    counts = (1, pp // 2, pp - 1, pp, pp + 1, 2 * pp - 1, 2 * pp, 3 * pp, 4 * pp)
    for m in {plan.NEEDS.enough(pp, count) for count in counts}:
        said = plan.chunks_in_flight(np.arange(pp), pp, vpp, m)
        for rank, row in enumerate(plan.actions(pp, vpp, m)):
            found, form = fullest(row, weights), (weights @ said[:, :, rank].T).max(1)
            if word == "v-min" and m <= 2 * pp / 3:
                assert (form >= found - 1e-12).all()
            else:
                np.testing.assert_allclose(form, found, rtol=1e-12)
