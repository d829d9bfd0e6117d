"""Published models count exactly, are found under their spellings, and have the layer kinds they should."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.model import params, presets
from meshwright.model.records import (
    Attention,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mlp,
    Model,
    Moe,
    ShortConv,
)

ROWS = presets.rows()


def test_the_table_is_whole() -> None:
    assert len(ROWS) == 138
    assert len(presets.names()) == len(set(presets.names())) == 138
    assert all(row.source for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_counts_equal_the_published_classes(row: presets.PresetFigures) -> None:
    model = presets.load(row.name)
    assert model.n_layers == row.layers
    assert params.total_params(model) == row.total
    assert params.active_params(model) == row.active
    assert params.active_params(model, embedding=False) == row.active_no_embedding


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_count_rests_on_an_unexplained_remainder(row: presets.PresetFigures) -> None:
    model = presets.load(row.name)
    assert model.extra_params == 0
    assert all(block.extra_params == 0 for block in model.blocks)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parts_sum_to_the_whole_and_ranks_hold_at_least_their_share(row: presets.PresetFigures) -> None:
    model = presets.load(row.name)
    layers = params.layer_params(model)
    rest = params.embedding_params(model) + params.head_params(model) + params.final_params(model)
    assert layers.total + rest == row.total
    assert sum(p for p, _ in layers.capped) <= layers.sharded
    assert layers.per_rank() == layers.total
    for tp, ep in ((2, 1), (8, 4), (64, 8)):
        held = layers.per_rank(tp=tp, ep=ep)
        evenly = layers.sharded / tp + layers.replicated + layers.expert / ep
        assert evenly * (1 - 1e-12) <= held <= layers.total


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-405b", "Llama-3.1-405B"),
        ("Llama-3.1-405B", "Llama-3.1-405B"),
        ("Llama 3.1 405B", "Llama-3.1-405B"),
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-70B", "Llama-3-70B"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("Qwen/Qwen3-235B-A22B", "Qwen3-235B-A22B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("mamba-2.8b", "Mamba-2.8b"),
        ("mamba2_2.7b", "Mamba2-2.7b"),
        ("mamba2-8b", "Mamba2-8B"),
        ("Mamba2 8B", "Mamba2-8B"),
        ("nvidia/mamba2-8b-3t-4k", "Mamba2-8B"),
        ("state-spaces/mamba_2.8b", "Mamba-2.8b"),
        ("GPT-175B", "GPT-3-175B"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert presets.resolve(spelling) == name
    assert presets.load(spelling) is presets.load(name)


def test_a_spelling_that_only_punctuation_would_tell_apart_names_both() -> None:
    with pytest.raises(InputError) as caught:
        presets.resolve("mamba28b")
    assert caught.value.diagnostics[0].code == "MW831"
    assert "Mamba-2.8b, Mamba2-8B" in str(caught.value.diagnostics[0].hint)


def test_every_name_and_alias_is_found() -> None:
    for row in ROWS:
        assert presets.resolve(row.name) == row.name
        assert presets.resolve(row.name.lower().replace("-", " ")) == row.name
        for alias in row.aliases:
            assert presets.resolve(alias) == row.name, alias


@pytest.mark.parametrize("name", ["llama-3.1-504b", "Mixtral8x7", "no such thing", "", "///", "x" * 5000])
def test_unknown_names_are_refused_with_a_way_out(name: str) -> None:
    with pytest.raises(InputError) as caught:
        presets.load(name)
    assert all(d.hint for d in caught.value.diagnostics)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(InputError) as caught:
        presets.load("llama-3.1-504b")
    assert "Llama-3.1-405B" in caught.value.diagnostics[0].hint


def _windows(model: Model) -> list[int | None]:
    mixers = [model.blocks[kind].mixer for kind in model.pattern]
    return [m.window for m in mixers if isinstance(m, Attention)]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("gpt-oss-120b", [128, None] * 3),
        ("Gemma-2-9B", [4096, None] * 3),
        ("Gemma-3-27B", [1024] * 5 + [None] + [1024] * 5 + [None]),
        ("OLMo-3-32B", [4096] * 3 + [None]),
        ("Llama-4-Scout-17B-16E", [8192] * 3 + [None]),
        ("Mistral-7B-v0.1", [4096] * 4),
        ("MiMo-V2-Flash", [None, 128, 128, 128, 128, None]),
        ("Llama-3.1-8B", [None] * 4),
    ],
)
def test_windows_are_distinct_kinds_in_order(name: str, start: list[int | None]) -> None:
    assert _windows(presets.load(name))[: len(start)] == start


@pytest.mark.parametrize("name", presets.names())
def test_kinds_are_distinct_and_all_used(name: str) -> None:
    model = presets.load(name)
    assert len(set(model.blocks)) == len(model.blocks)
    assert set(model.pattern) == set(range(len(model.blocks)))


def _count(model: Model, part: type) -> int:
    blocks = [model.blocks[kind] for kind in model.pattern]
    return sum(isinstance(b.mixer, part) or isinstance(b.ffn, part) for b in blocks)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("DeepSeek-V3", {LatentAttention: 61, Mlp: 3, Moe: 58}),
        ("Llama-4-Maverick-17B-128E", {Attention: 48, Mlp: 24, Moe: 24}),
        ("Step-3", {Attention: 61, Mlp: 5, Moe: 56}),
        ("Jamba-1.5-Large", {Attention: 9, Mamba1: 63, Mlp: 36, Moe: 36}),
        ("Nemotron-H-56B", {Attention: 10, Mamba2: 54, Mlp: 54}),
        ("Nemotron-3-Ultra-550B-A55B", {Attention: 12, Mamba2: 48, Moe: 48}),
        ("Qwen3-Next-80B-A3B", {Attention: 12, LinearAttention: 36, Moe: 48}),
        ("MiniMax-Text-01", {Attention: 10, LinearAttention: 70, Moe: 80}),
        ("LFM2.5-8B-A1B", {Attention: 6, ShortConv: 18, Mlp: 2, Moe: 22}),
        ("Bamba-9B", {Attention: 3, Mamba2: 29, Mlp: 32}),
        ("Granite-4.0-H-Small", {Attention: 4, Mamba2: 36, Moe: 40}),
        ("Zamba2-7B", {Mamba2: 81, Attention: 0}),
        ("Falcon-Mamba-7B", {Mamba1: 64, Mlp: 0}),
    ],
)
def test_layers_of_each_kind(name: str, counts: dict[type, int]) -> None:
    model = presets.load(name)
    assert {part: _count(model, part) for part in counts} == counts


def test_zamba_calls_its_shared_block_thirteen_times() -> None:
    model = presets.load("Zamba2-7B")
    assert model.shared_block is not None
    assert (len(model.shared_at), model.shared_sets) == (13, 2)
    # The applied weights that the table's notes tell: each call runs one of the two sets.
    once = params.block_params(model.shared_block, model).total
    applied = params.total_params(model) + (13 - 2) * once
    assert applied == pytest.approx(11.03e9, rel=2e-3)
    assert model.with_layers(20).shared_at == (6, 11, 17)


def test_multi_token_prediction_of_deepseek_v3() -> None:
    model = presets.load("DeepSeek-V3")
    last = params.block_params(model.blocks[model.pattern[-1]], model).total
    assert params.mtp_params(model).total == last + 2 * 7168 * 7168 + 3 * 7168
    # With its own copies of embedding and head, as the hub stores it, the module is the 14B of the report.
    stored = params.mtp_params(model).total + 2 * 129280 * 7168
    assert stored == pytest.approx(14e9, rel=0.05)


def test_multi_token_prediction_of_hybrids_has_attention_and_experts() -> None:
    mixer, ffn = params.mtp_blocks(presets.load("Nemotron-3-Super-120B-A12B"))
    assert isinstance(mixer.mixer, Attention)
    assert isinstance(ffn.ffn, Moe)
    assert params.mtp_params(presets.load("Llama-3.1-8B")).total == 0
    assert params.mtp_blocks(presets.load("Llama-3.1-8B")) == ()


@pytest.mark.parametrize(("name", "group"), [("Mamba2-2.7b", 1), ("Nemotron-H-8B", 8)])
def test_state_space_groups_stop_being_divided(name: str, group: int) -> None:
    model = presets.load(name)
    mixer = next(b.mixer for b in model.blocks if isinstance(b.mixer, Mamba2))
    count = params.mixer_params(mixer, model.d_model)
    assert count.capped == ((2 * group * mixer.d_state * (model.d_model + mixer.d_conv + 1), group),)


def test_key_value_heads_are_copied_beyond_their_number() -> None:
    model = presets.load("Llama-3.1-8B")
    layer = params.block_params(model.blocks[0], model)
    keys_values = 2 * 4096 * 8 * 128
    assert layer.capped == ((keys_values, 8),)
    assert layer.per_rank(tp=8) == layer.sharded / 8 + layer.replicated
    held = (layer.sharded - keys_values) / 16 + keys_values / 8 + layer.replicated
    assert layer.per_rank(tp=16) == pytest.approx(held, rel=1e-12)


def test_ranks_hold_the_same_for_numbers_and_arrays() -> None:
    layers = params.layer_params(presets.load("Qwen3-235B-A22B"))
    tp, ep = np.array([1, 2, 8, 16])[:, None], np.array([1, 8, 128])[None, :]
    held = layers.per_rank(tp=tp, ep=ep)
    assert held.shape == (4, 3)
    assert all(
        held[i, j] == layers.per_rank(tp=int(tp[i, 0]), ep=int(ep[0, j])) for i in range(4) for j in range(3)
    )
