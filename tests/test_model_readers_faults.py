"""Faulty files of the further families: every fault at once, with its arithmetic, never a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.model import config_json, params
from meshwright.model.records import Moe
from test_model_readers_released import RELEASED
from test_model_readers_small import SMALL

Config = dict[str, Any]


def _faults(values: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        config_json.read(values)
    assert caught.value.diagnostics
    return {d.where: d.message for d in caught.value.diagnostics}


def _first(kind: str) -> Config:
    return next(dict(v) for v in SMALL if v["model_type"] == kind)


@pytest.mark.parametrize(
    ("kind", "changed", "where", "arithmetic"),
    [
        ("glm4_moe", {"first_k_dense_replace": 5}, "first_k_dense_replace, num_hidden_layers", "5"),
        ("glm4_moe", {"n_group": 4}, "n_routed_experts, n_group", "6 is not a multiple of n_group 4"),
        ("glm_moe_dsa", {"index_topk_pattern": "FXSS"}, "index_topk_pattern", "F S"),
        ("glm_moe_dsa", {"index_topk_pattern": "FS"}, "index_topk_pattern, num_hidden_layers", "2"),
        ("gemma2", {"layer_types": ["local"] * 4}, "layer_types", "local"),
        ("gemma4_text", {"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input", "8"),
        ("gemma4_text", {"num_kv_shared_layers": 2}, "num_kv_shared_layers", "2"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm", "True"),
        ("nemotron_h", {"hybrid_override_pattern": "M*?E"}, "hybrid_override_pattern", "M * - E"),
        ("nemotron_h", {"num_hidden_layers": 9}, "hybrid_override_pattern, num_hidden_layers", "9"),
        ("nemotron_h", {"n_groups": 4}, "mamba_num_heads, n_groups", "6 is not a multiple of n_groups 4"),
        ("nemotron_h", {"use_bias": True}, "use_bias", "True"),
        ("jamba", {"attn_layer_offset": 2}, "attn_layer_offset, attn_layer_period", "2 is not below"),
        ("jamba", {"mamba_conv_bias": False}, "mamba_conv_bias", "False"),
        ("zamba2", {"use_shared_attention_adapter": True}, "use_shared_attention_adapter", "True"),
        ("zamba2", {"n_mamba_heads": 6}, "mamba_expand, hidden_size, n_mamba_heads",
         "2 x hidden_size 64 = 128"),
        ("bamba", {"mamba_d_head": 17}, "mamba_n_heads, mamba_d_head, mamba_expand, hidden_size",
         "8 x mamba_d_head 17"),
        ("bamba", {"attn_layer_indices": [1, 4]}, "attn_layer_indices", "layers 0 to 3"),
        ("granitemoehybrid", {"num_experts_per_tok": 7}, "num_experts_per_tok, num_local_experts", "7"),
        ("mamba2", {"num_heads": 9, "n_groups": 3}, "expand, hidden_size, num_heads, head_dim",
         "9 x head_dim 16 = 144"),
        ("falcon_mamba", {"time_step_rank": "car"}, "time_step_rank", "car"),
        ("minimax", {"attn_type_list": [0, 1]}, "attn_type_list, num_hidden_layers", "2 layers"),
        ("minimax", {"attn_type_list": [0, 1, 2, 0]}, "attn_type_list", "0 and 1"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "linear_num_value_heads, linear_num_key_heads", "3"),
        ("lfm2_moe", {"layer_types": None}, "layer_types", "missing"),
        ("llama4_text", {"moe_layers": [4]}, "moe_layers", "layers 0 to 3"),
        ("falcon", {"multi_query": False, "num_kv_heads": 4}, "num_attention_heads, num_kv_heads",
         "neither 1 nor"),
        ("deepseek_v4", {"compress_ratios": [0, 0]}, "compress_ratios", "each of 5 layers"),
        ("deepseek_v4", {"o_groups": 3}, "num_attention_heads, o_groups",
         "4 is not a multiple of o_groups 3"),
        ("dbrx", {"ffn_config": None}, "ffn_config", "missing"),
        ("dbrx", {"attn_config": 3}, "attn_config", "not an object"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2, 1, 1]}, "moe_topk", "differ"),
        ("mpt", {"expansion_ratio": 3}, "expansion_ratio", "four times"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(kind: str, changed: Config, where: str, arithmetic: str) -> None:
    faults = _faults(_first(kind) | changed)
    assert list(faults) == [f"config: {where}"]
    assert arithmetic in faults[f"config: {where}"]


def test_faults_inside_a_part_say_where_it_is_and_come_together() -> None:
    values = dict(RELEASED["Llama-4-Scout-17B-16E"])
    values["text_config"] = values["text_config"] | {"hidden_size": "wide", "num_experts_per_tok": 17}
    faults = _faults(values)
    assert set(faults) == {
        "config: text_config: hidden_size",
        "config: text_config: num_experts_per_tok, num_local_experts",
    }


def test_layers_named_twice_or_not_at_all_are_refused() -> None:
    values = dict(RELEASED["Kimi-Linear-48B-A3B"])
    values["linear_attn_config"] = values["linear_attn_config"] | {"kda_layers": [1, 2, 5]}
    (message,) = _faults(values).values()
    assert "full_attn_layers names 6 layers and kda_layers 3 of 27, 1 of them twice" in message


@pytest.mark.parametrize("text", ["4,x", "", "4,5,61", 4])
def test_odd_lists_of_expert_layers_are_refused(text: object) -> None:
    values = dict(RELEASED["Step-3"])
    values["text_config"] = values["text_config"] | {"moe_layers_enum": text}
    (where,) = _faults(values)
    assert "moe_layers_enum" in where


def test_a_tied_head_is_for_the_whole_model_to_say() -> None:
    values = dict(RELEASED["Qwen3.5-4B"])
    values["text_config"] = values["text_config"] | {"tie_word_embeddings": False}
    assert config_json.read(values).tied_embeddings
    assert not config_json.read(values | {"tie_word_embeddings": None}).tied_embeddings


def test_the_text_part_alone_and_the_whole_file_read_alike() -> None:
    for name in ("Gemma-3-27B", "Llama-4-Maverick-17B-128E", "MiniMax-M3"):
        whole = config_json.read(RELEASED[name])
        alone = config_json.read(RELEASED[name]["text_config"])
        assert (whole.blocks, whole.pattern) == (alone.blocks, alone.pattern)


@pytest.mark.parametrize("name", RELEASED)
def test_files_that_lose_a_key_are_read_or_refused(name: str) -> None:
    values = RELEASED[name]
    part = values.get("text_config")
    for key in part or values:
        if part is not None:
            cut = values | {"text_config": {k: v for k, v in part.items() if k != key}}
        else:
            cut = {k: v for k, v in values.items() if k != key}
        try:
            assert params.total_params(config_json.read(cut)) > 0
        except InputError as fault:
            told = [d.message and d.where for d in fault.diagnostics]
            assert told
            assert all(told)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 5) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_BASES = [*SMALL, *RELEASED.values()]


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    whole = dict(data.draw(st.sampled_from(_BASES)))
    nested = [k for k, v in whole.items() if isinstance(v, dict)]
    inside = data.draw(st.sampled_from([None, *nested]))
    values = dict(whole[inside]) if inside else whole
    for key in data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3)):
        values[key] = data.draw(_JSON)
    try:
        model = config_json.read(whole | {inside: values} if inside else values)
    except InputError as fault:
        told = [d.message for d in fault.diagnostics]
        assert told
        assert all(told)
        return
    assert 0 < params.active_params(model) <= params.total_params(model)
    assert all(b.ffn.top_k <= b.ffn.n_experts for b in model.blocks if isinstance(b.ffn, Moe))
