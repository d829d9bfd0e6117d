"""Below the sums: layers of a stage and operations of a layer add up to what the search computed."""

from __future__ import annotations

from typing import Any

import pytest

import meshwright
from meshwright.cost import step
from meshwright.cost.step import evaluate
from meshwright.cost.terms import Term
from meshwright.hardware.cluster import parse
from meshwright.model.presets import load as load_model
from meshwright.profiles.load import load
from meshwright.strategy.records import Strategy
from meshwright.work import Work

ASKED: dict[str, Any] = {"seq_len": 4096, "global_batch_size": 64}
PLANS: dict[str, dict[str, Any]] = {
    "dense": {"model": "llama-3.1-70b", "cluster": "64xh100", "tp": 8, "pp": 2},
    "whole layers again": {"model": "llama-3.1-8b", "cluster": "8xh100", "pp": 4, "recompute": "full"},
    "results stay": {"model": "llama-3.1-8b", "cluster": "8xh100", "tp": 2, "recompute": "products:2"},
    "every second again": {"model": "llama-3.1-8b", "cluster": "8xh100", "tp": 2, "recompute": "every:2"},
    "experts": {
        "model": "deepseek-v3", "cluster": "128xh800", "tp": 2, "pp": 16, "vpp": 2, "ep": 8,
        "recompute": "selective:norm+moe_act",
    },
    "context": {"model": "llama-3.1-8b", "cluster": "16xh100", "cp": 4, "zero": 3},
    "hybrid": {"model": "nemotron-h-8b", "cluster": "8xh100", "tp": 2},
    "compiled": {"model": "llama-3.1-8b", "cluster": "16xtpu-v5p", "zero": 3},
    "adapters": {"model": "llama-3.1-8b", "cluster": "8xh100", "finetune": "lora:16"},
    "pairs": {"model": "llama-3.1-8b", "cluster": "8xh100", "tp": 2, "finetune": "dpo"},
    "offloaded": {"model": "llama-3.1-8b", "cluster": "8xh100", "tp": 2, "offload": "activations"},
}  # fmt: skip


@pytest.fixture(scope="module", params=PLANS, ids=str)
def tree(request: pytest.FixtureRequest) -> dict[str, Term]:
    found = meshwright.estimate(**PLANS[request.param], **ASKED, nearest=0)
    assert found.evaluation.terms is not None
    return dict(found.evaluation.terms.walk())


def test_sums_are_the_sums_of_their_children(tree: dict[str, Term]) -> None:
    for path, term in tree.items():
        if term.combine == "sum":
            total = sum(child.value for child in term.children)
            assert total == pytest.approx(term.value, rel=1e-6, abs=1e-12), path


def test_paths_are_distinct(tree: dict[str, Term]) -> None:
    for path, term in tree.items():
        names = [child.name for child in term.children]
        assert len(names) == len(set(names)), path


def test_compute_and_activations_go_down_to_layers(tree: dict[str, Term]) -> None:
    compute = tree["step.time.compute"]
    assert compute.children
    for child in compute.children:
        assert child.inputs["microbatches"] * child.inputs["layers"] * child.inputs[
            "seconds"
        ] == pytest.approx(child.value)
    activations = tree.get("step.memory.activations")  # none where the optimizer's step is the peak
    if activations is not None:
        assert activations.children
        assert all(child.formula and child.unit == "B" for child in activations.children)


@pytest.mark.parametrize("name", ["dense", "whole layers again", "experts", "context", "hybrid", "pairs"])
def test_layers_go_down_to_operations_with_their_inputs(name: str) -> None:
    found = meshwright.estimate(**PLANS[name], **ASKED, nearest=0)
    assert found.evaluation.terms is not None
    tree = dict(found.evaluation.terms.walk())
    for kind in [path for path in tree if path.startswith("step.layers.") and path.count(".") == 2]:
        forward, saved = tree[f"{kind}.time.forward"], tree[f"{kind}.saved"]
        if forward.value:
            assert forward.children, kind
            assert all("module" in op.inputs and op.formula for op in forward.children)
        if saved.value:
            assert saved.children, kind
    if "step.memory.activations" in tree:
        kept = [t for t in tree["step.memory.activations"].children if t.name.startswith("layer")]
        assert kept
        assert all(term.children for term in kept)


def test_a_matrix_product_says_its_shape() -> None:
    found = meshwright.estimate("llama-3.1-8b", "8xh100", tp=2, recompute="full", **ASKED, nearest=0)
    assert found.evaluation.terms is not None
    tree = dict(found.evaluation.terms.walk())
    inputs = tree["step.layers.layer_0.time.forward.down"].inputs
    assert (inputs["m"], inputs["k"], inputs["n"]) == (4096, 14336 / 2, 4096)


def test_formulas_of_time_and_of_memory_are_their_own() -> None:
    found = meshwright.estimate("llama-3.1-8b", "8xh100", tp=2, recompute="full", **ASKED, nearest=0)
    assert found.evaluation.terms is not None
    tree = dict(found.evaluation.terms.walk())
    assert "HBM rate" in tree["step.time.optimizer"].formula
    assert "state bytes" in tree["step.memory.optimizer"].formula


def test_one_plan_has_its_tree_however_few_are_evaluated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    place, model, work = parse("64xh100"), load_model("mixtral-8x7b"), Work(4096, 256)
    strategy = Strategy(dp=8, tp=2, sp=True, pp=4, ep=4, zero=1, zero_group=8)
    request = (model, place, work, strategy, load(None, place.chip))
    usual = evaluate(*request, detail=True)
    monkeypatch.setattr(step, "at_once", lambda *_: False)  # as with more candidates than go together
    assert evaluate(*request, detail=True) == usual
