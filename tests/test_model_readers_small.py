"""Readers of the further families count what the classes hold on small shapes,
and refuse what they cannot say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.model import config_json, params
from meshwright.model.records import Attention, LatentAttention, LinearAttention, Mamba2
from test_model_config_json import Held, held  # noqa: F401

Config = dict[str, Any]

_BASE: Config = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 30}
_ROUTED = _EXPERTS | {"n_routed_experts": 6, "n_shared_experts": 1}
_LATENT = {"kv_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 4, "v_head_dim": 9}
_DELTA = {
    "linear_key_head_dim": 6, "linear_value_head_dim": 7, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "head_dim": 10,
}  # fmt: skip
_SHARED = _EXPERTS | {"num_experts": 6, "shared_expert_intermediate_size": 50}
_STATE = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 3}


def _of(kind: str, *parts: Config, **rest: Any) -> Config:
    values: Config = {"model_type": kind, **_BASE}
    for part in parts:
        values |= part
    return values | rest


_V4: Config = {
    "model_type": "deepseek_v4", "vocab_size": 96, "hidden_size": 64, "moe_intermediate_size": 30,
    "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 16, "q_lora_rank": 14,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "o_groups": 2, "o_lora_rank": 5, "index_n_heads": 3,
    "index_head_dim": 6, "index_topk": 7, "partial_rotary_factor": 0.5,
}  # fmt: skip
_DBRX: Config = {
    "model_type": "dbrx", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 96,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 30, "moe_num_experts": 6, "moe_top_k": 2},
}  # fmt: skip
_FALCON: Config = {
    "model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
        "vocab_size": 96,
}  # fmt: skip
_NEMOTRON_H = _of(
    "nemotron_h", _ROUTED, head_dim=10, mamba_num_heads=6, mamba_head_dim=5, n_groups=2, ssm_state_size=3,
    moe_shared_expert_intermediate_size=33, hybrid_override_pattern="M*-E", num_hidden_layers=4,
)  # fmt: skip
_GRANITE = _of(
    "granitemoehybrid", _STATE, _EXPERTS, num_local_experts=6, shared_intermediate_size=50,
    layer_types=["mamba", "attention", "mamba", "mamba"],
)  # fmt: skip
_ZAMBA = _of(
    "zamba2", layers_block_type=["mamba", "hybrid", "mamba", "hybrid"], n_mamba_heads=8, mamba_ngroups=2,
    num_mem_blocks=2, adapter_rank=5, num_key_value_heads=8,
)  # fmt: skip
_M3 = _of(
    "minimax_m3_vl_text", _EXPERTS, head_dim=10, num_local_experts=6, dense_intermediate_size=90,
    shared_intermediate_size=33, layer_types=["full_attention"] * 2 + ["minimax_m3_sparse"] * 2,
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"], index_n_heads=2, index_head_dim=6,
)  # fmt: skip

SMALL: list[Config] = [
    _of("qwen3_next", _DELTA, _SHARED, mlp_only_layers=[0], attention_bias=True),
    _of("qwen3_next", _DELTA, _SHARED, decoder_sparse_step=2, full_attention_interval=2),
    _of("qwen3_5_text", _DELTA, tie_word_embeddings=True),
    _of("qwen3_5_moe_text", _DELTA, _SHARED, layer_types=["full_attention", "linear_attention"] * 2),
    _of("qwen2_moe", _SHARED, mlp_only_layers=[1], qkv_bias=False),
    _of("kimi_linear", _LATENT, _EXPERTS, num_experts=6, num_experts_per_token=2, linear_attn_config={
        "head_dim": 6, "num_heads": 5, "short_conv_kernel_size": 3, "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
    }),
    _of("kimi_linear", _LATENT, _EXPERTS, num_experts=6, num_hidden_layers=6, num_shared_experts=2,
        q_lora_rank=11, first_k_dense_replace=2, linear_head_dim=6),
    _of("glm"), _of("glm4", head_dim=10, attention_bias=False),
    _of("glm4_moe", _ROUTED, head_dim=10, use_qk_norm=True, attention_bias=True, first_k_dense_replace=2),
    _of("glm4_moe_lite", _LATENT, _ROUTED, q_lora_rank=14, attention_bias=True),
    _of("glm_moe_dsa", _LATENT, _ROUTED, q_lora_rank=14, index_n_heads=4, index_head_dim=6,
        first_k_dense_replace=1, index_topk_freq=2),
    _of("glm_moe_dsa", _LATENT, _ROUTED, q_lora_rank=14, index_n_heads=4, index_topk_pattern="FSSF"),
    _of("gemma", head_dim=10, attention_bias=True), _of("gemma2", head_dim=10), _of("gemma3_text",
        head_dim=10),
    _of("gemma4_text", _EXPERTS, head_dim=10, global_head_dim=12, hidden_size_per_layer_input=0,
        attention_k_eq_v=True, num_global_key_value_heads=1, num_experts=6, top_k_experts=2,
        enable_moe_block=True, num_hidden_layers=7),
    _of("gemma4_text", head_dim=10, hidden_size_per_layer_input=0, global_head_dim=14, num_hidden_layers=7),
    _of("phi"), _of("phi3", sliding_window=7), _of("phi3", num_key_value_heads=None),
    _of("phimoe", num_local_experts=6, num_experts_per_tok=2, lm_head_bias=True, attention_bias=True),
    _of("nemotron", head_dim=10), _of("nemotron", attention_bias=True, mlp_bias=True),
    _NEMOTRON_H, _NEMOTRON_H | {"moe_latent_size": 17, "hybrid_override_pattern": "EM*E-",
        "num_hidden_layers": 5},
    _of("jamba", num_experts=6, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1,
        mamba_dt_rank=7),
    _of("jamba", num_experts=1, num_experts_per_tok=1, mamba_d_state=5, mamba_d_conv=3, num_hidden_layers=6),
    _ZAMBA, _ZAMBA | {"num_mem_blocks": 1, "num_key_value_heads": 4},
    _of("bamba", _STATE, attn_layer_indices=[1, 3]), _of("bamba", _STATE, mlp_bias=True, attention_bias=True),
    _GRANITE, _GRANITE | {"num_local_experts": 0}, _GRANITE | {"layer_types": ["attention"] * 4},
    _of("mamba", state_size=5, conv_kernel=3), _of("falcon_mamba", time_step_rank=9,
        tie_word_embeddings=False),
    {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16,
     "n_groups": 2, "state_size": 6, "vocab_size": 96},
    _of("minimax", num_local_experts=6, num_experts_per_tok=2, head_dim=10),
    _of("minimax_m2", num_local_experts=6, num_experts_per_tok=2, head_dim=10),
    _M3,
    _of("mimo_v2_flash", _EXPERTS, n_routed_experts=6, head_dim=10, v_head_dim=6, num_hidden_layers=7,
        sliding_window=9),
    _of("lfm2_moe", _EXPERTS, num_experts=6, num_dense_layers=1,
        layer_types=["conv", "full_attention", "conv", "conv"]),
    _of("llama4_text", head_dim=10, intermediate_size_mlp=90, num_local_experts=6, num_experts_per_tok=1,
        interleave_moe_layer_step=2),
    _of("llama4_text", head_dim=10, intermediate_size_mlp=90, num_local_experts=6, num_experts_per_tok=1,
        moe_layers=[0, 3], no_rope_layers=[1, 0, 1, 0], attention_bias=True),
    _of("olmo2", attention_bias=True), _of("olmo3"), _of("olmoe", num_experts=6, num_experts_per_tok=2),
    _FALCON, _FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1},
    _of("gpt_neox", use_parallel_residual=False), _of("gpt_neox", attention_bias=False),
    {"model_type": "gptj", "n_embd": 64, "n_layer": 2, "n_head": 8, "rotary_dim": 4, "vocab_size": 96},
    {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 96},
    _DBRX, _V4, _V4 | {"compress_ratios": [0, 0, 4, 128, 4, 4], "hc_mult": 2},
    _of("hunyuan_v1_dense", head_dim=10), _of("hunyuan_v1_moe", head_dim=10, num_experts=6, moe_topk=2),
    _of("granite", mlp_bias=True), _of("granitemoe", num_local_experts=6, num_experts_per_tok=2),
    _of("seed_oss", head_dim=10, attention_out_bias=True), _of("smollm3"), _of("ministral", head_dim=10),
    _of("exaone4"), _of("cohere"), _of("cohere2", attention_bias=True), _of("ernie4_5", use_bias=True),
    _of("ernie4_5", head_dim=None), _of("stablelm", use_qkv_bias=True),
    _of("stablelm", use_parallel_residual=True), _of("starcoder2"), _of("starcoder2", use_bias=False),
]  # fmt: skip
# Keys that a class needs to be laid out, and that carry no parameters.
_TO_LAY_OUT = {
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "hunyuan_v1_moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}


def _name(values: Config) -> str:
    return str(values["model_type"])


@pytest.mark.parametrize("values", SMALL, ids=_name)
def test_small_files_count_as_their_class(values: Config, held: Held) -> None:  # noqa: F811
    kind = values["model_type"]
    total, spelled = held(kind, values | _TO_LAY_OUT.get(kind, {}))
    assert params.total_params(config_json.read(values)) == total
    again, read = config_json.read(spelled), config_json.read(values)
    assert (again.blocks, again.pattern) == (read.blocks, read.pattern)


def test_every_model_type_has_a_file_here() -> None:
    from test_model_config_json import RELEASED
    from test_model_config_json import SMALL as FIRST
    from test_model_readers_released import RELEASED as SECOND

    shown = {_name(v) for v in [*SMALL, *FIRST, *RELEASED.values(), *SECOND.values()]}
    shown |= {_name(v["text_config"]) for v in SECOND.values() if "text_config" in v}
    assert set(config_json.SUPPORTED) - shown == {"bailing_moe", "mistral3"}  # spellings of another's file


def _mixers(values: Config, kind: type) -> list[int]:
    model = config_json.read(values)
    return [i for i, k in enumerate(model.pattern) if isinstance(model.blocks[k].mixer, kind)]


def _windows(values: Config) -> list[int | None]:
    model = config_json.read(values)
    mixers = [model.blocks[k].mixer for k in model.pattern]
    return [m.window for m in mixers if isinstance(m, Attention)]


def test_layers_stand_where_the_class_puts_them() -> None:
    assert _mixers(_of("qwen3_next", _DELTA, _SHARED, num_hidden_layers=9), Attention) == [3, 7]
    assert _mixers(_of("kimi_linear", _LATENT, _EXPERTS, num_experts=6, num_hidden_layers=9),
                   LatentAttention) == [4, 8]  # fmt: skip
    assert _mixers(_NEMOTRON_H, Mamba2) == [0]
    assert _mixers(_GRANITE, Attention) == [1]
    assert _mixers(_of("minimax", num_local_experts=6, num_experts_per_tok=2), LinearAttention) == [1, 3]
    assert _windows(_of("gemma2", sliding_window=5)) == [5, None, 5, None]
    assert _windows(_of("gemma3_text", num_hidden_layers=7, sliding_window=5)) == [5] * 5 + [None, 5]
    assert _windows(_of("olmo3", sliding_window=5)) == [5, 5, 5, None]
    assert _windows(_of("cohere2", sliding_window=5)) == [5, 5, 5, None]
    assert _windows(_of("exaone4", sliding_window=None)) == [None] * 4
    assert _windows(_of("gemma4_text", hidden_size_per_layer_input=0, num_hidden_layers=3)) == [
        512,
        512,
        None,
    ]


# Families whose class has one kind of layer, or tells kinds apart in another way.
_NAME_NO_KINDS = {
    "cohere", "dbrx", "ernie4_5", "falcon", "gemma", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_neox",
    "gptj", "granite", "granitemoe", "hunyuan_v1_dense", "hunyuan_v1_moe", "minimax_m2", "mpt", "nemotron",
    "olmo2", "olmoe", "phi", "phi3", "phimoe", "seed_oss", "stablelm", "starcoder2",
}  # fmt: skip


@pytest.mark.parametrize("values", [v for v in SMALL if "layer_types" not in v], ids=_name)
def test_patterns_are_those_of_the_class(values: Config) -> None:
    """Where the class writes `layer_types`, windows and linear layers stand exactly there."""
    import transformers

    given_values = {k: v for k, v in values.items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(_name(values), **given_values)
    words = getattr(config, "layer_types", None)
    assert (words is None) == (_name(values) in _NAME_NO_KINDS)
    if words is None:
        return
    model = config_json.read(values)
    for word, kind in zip(words, model.pattern, strict=True):
        mixer = model.blocks[kind].mixer
        if word in ("sliding_attention", "chunked_attention"):
            assert isinstance(mixer, Attention)
            assert mixer.window is not None
        elif word == "full_attention":
            assert isinstance(mixer, Attention | LatentAttention)
            assert not isinstance(mixer, Attention) or mixer.window in (None, values.get("sliding_window"))
        elif word == "linear_attention":
            assert mixer is not None
            assert not isinstance(mixer, Attention | LatentAttention)


@st.composite
def _hybrids(draw: st.DrawFn) -> Config:
    """Random shapes of the families whose layers differ most."""
    kind = draw(st.sampled_from(["nemotron_h", "granitemoehybrid", "qwen3_next", "glm4_moe", "gemma3_text"]))
    kv, share, layers = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    heads, inner = kv * share, 2 * draw(st.integers(1, 4))
    values = _of(
        kind, _ROUTED, num_attention_heads=heads, num_key_value_heads=kv, head_dim=2 * draw(st.integers(1,
            6)),
        hidden_size=heads * inner, num_hidden_layers=layers, vocab_size=draw(st.integers(2, 80)),
        intermediate_size=draw(st.integers(1, 40)), tie_word_embeddings=draw(st.booleans()),
    )  # fmt: skip
    if kind == "nemotron_h":
        letters = st.text(alphabet="M*-E", min_size=layers, max_size=layers)
        values |= {"hybrid_override_pattern": draw(letters), "mamba_num_heads": heads, "mamba_head_dim": 4,
                   "n_groups": kv, "moe_shared_expert_intermediate_size": 9}  # fmt: skip
    elif kind == "granitemoehybrid":
        words = st.sampled_from(["mamba", "attention"])
        values |= {"layer_types": draw(st.lists(words, min_size=layers, max_size=layers)),
                   "mamba_n_heads": heads, "mamba_n_groups": kv, "num_local_experts": draw(st.integers(0,
                       4)) * 2,
                   "shared_intermediate_size": draw(st.integers(1, 30))}  # fmt: skip
        del values["head_dim"]
    elif kind == "qwen3_next":
        values |= _DELTA | _SHARED | {"decoder_sparse_step": draw(st.integers(1, 3))}
    elif kind == "glm4_moe":
        values |= {"first_k_dense_replace": draw(st.integers(0, layers)), "use_qk_norm": draw(st.booleans())}
    return values


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=_hybrids())
def test_random_hybrids_count_as_their_class(values: Config, held: Held) -> None:  # noqa: F811
    total, spelled = held(values["model_type"], values)
    assert params.total_params(config_json.read(values)) == total
    assert params.total_params(config_json.read(spelled)) == total
