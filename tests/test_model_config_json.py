"""Readers of config.json count what the published classes hold, and name every fault of a bad file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.model import config_json, params, presets
from meshwright.model.records import Model

Config = dict[str, Any]
Held = Callable[[str, Config], tuple[int, Config]]

LLAMA: Config = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 96, "tie_word_embeddings": False,
}  # fmt: skip

# Figures as the released files give them; keys that do not change shapes are left out.
RELEASED: dict[str, Config] = {
    "Llama-3.1-8B": {
        "model_type": "llama", "attention_bias": False, "hidden_size": 4096, "intermediate_size": 14336,
        "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": False, "vocab_size": 128256,
    },
    "Llama-3.1-405B": {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128,
        "num_hidden_layers": 126, "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "Llama-3.2-1B": {
        "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "Mistral-7B-v0.1": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
    },
    "Mistral-Nemo-12B": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
        "vocab_size": 131072,
    },
    "Qwen2.5-0.5B": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "Qwen2.5-7B": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 152064,
    },
    "Qwen3-8B": {
        "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "sliding_window": None, "tie_word_embeddings": False, "vocab_size": 151936,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "mlp_only_layers": [], "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 151936,
    },
    "GPT-3-175B": {
        "model_type": "gpt2", "n_embd": 12288, "n_head": 96, "n_layer": 96, "n_positions": 2048,
        "vocab_size": 50304,
    },
    "OPT-13B": {
        "model_type": "opt", "do_layer_norm_before": True, "ffn_dim": 20480, "hidden_size": 5120,
        "max_position_embeddings": 2048, "num_attention_heads": 40, "num_hidden_layers": 40,
        "vocab_size": 50272, "word_embed_proj_dim": 5120,
    },
    "BLOOM-176B": {
        "model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
        "vocab_size": 250880,
    },
    "Mixtral-8x7B": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "sliding_window": None, "vocab_size": 32000,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128, "vocab_size": 201088,
    },
    "DeepSeek-V2-Lite": {
        "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048,
        "intermediate_size": 10944, "kv_lora_rank": 512, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1, "v_head_dim": 128,
        "vocab_size": 102400,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "tie_word_embeddings": False, "topk_group": 4, "v_head_dim": 128, "vocab_size": 129280,
    },
}  # fmt: skip
RELEASED["DeepSeek-V3.2"] = RELEASED["DeepSeek-V3"] | {
    "model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048,
}  # fmt: skip
RELEASED["Kimi-K2"] = RELEASED["DeepSeek-V3"] | {
    "model_type": "kimi_k2", "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0, "vocab_size": 163840,
}  # fmt: skip


@pytest.fixture(scope="session")
def held() -> Held:
    """Parameters of the class that `transformers` builds from a configuration, and its own spelling of it."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()

    def count(model_type: str, values: Config) -> tuple[int, Config]:
        # Token ids of the class defaults may lie beyond a small vocabulary; they carry no parameters.
        given_values = {k: v for k, v in values.items() if k != "model_type"}
        ids = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        config = transformers.AutoConfig.for_model(model_type, **(ids | given_values))
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        return sum(p.numel() for p in model.parameters()), json.loads(config.to_json_string())

    return count


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_file_is_the_preset(name: str) -> None:
    read, preset = config_json.read(RELEASED[name], name), presets.load(name)
    assert [read.blocks[k] for k in read.pattern] == [preset.blocks[k] for k in preset.pattern]
    parts = ("d_model", "vocab", "tied_embeddings", "norm", "n_positions", "embedding_norm", "mtp_layers")
    for part in parts:
        assert getattr(read, part) == getattr(preset, part), part
    assert params.total_params(read) == presets.figures(name).total
    assert params.active_params(read) == presets.figures(name).active


@pytest.mark.parametrize("name", [n for n, c in RELEASED.items() if c["model_type"] != "kimi_k2"])
def test_a_released_file_counts_as_its_class(name: str, held: Held, tmp_path: Path) -> None:
    values = RELEASED[name]
    total, spelled = held(values["model_type"], values)
    assert params.total_params(config_json.read(values)) == total
    # The file as the library itself writes it reads the same.
    path = tmp_path / "config.json"
    path.write_text(json.dumps(spelled))
    assert params.total_params(config_json.read(tmp_path)) == total


SMALL: list[Config] = [
    LLAMA,
    LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    LLAMA | {"head_dim": 24, "num_key_value_heads": None},
    LLAMA | {"model_type": "mistral", "head_dim": 12, "sliding_window": None},
    LLAMA | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    LLAMA | {"model_type": "qwen3", "head_dim": 20, "attention_bias": True},
    LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    LLAMA
    | {
        "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 6, "head_dim": 16,
    },
    LLAMA
    | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": False},
    {"model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 70, "n_positions": 33},
    {
        "model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 70, "n_positions": 33,
        "n_inner": 100, "tie_word_embeddings": False,
    },
    {"model_type": "bloom", "hidden_size": 48, "n_layer": 2, "n_head": 4, "vocab_size": 70},
    {
        "model_type": "opt", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "ffn_dim": 100, "vocab_size": 70, "max_position_embeddings": 20, "do_layer_norm_before": False,
    },
    {
        "model_type": "opt", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "ffn_dim": 100, "vocab_size": 70, "max_position_embeddings": 20, "enable_bias": False,
    },
]  # fmt: skip


@pytest.mark.parametrize("values", SMALL, ids=lambda c: c["model_type"])
def test_small_files_count_as_their_class(values: Config, held: Held) -> None:
    total, spelled = held(values["model_type"], values)
    assert params.total_params(config_json.read(values)) == total
    assert params.total_params(config_json.read(spelled)) == total


@st.composite
def _grouped(draw: st.DrawFn, model_type: str) -> Config:
    kv, share, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 3)), 2 * draw(st.integers(1, 9))
    return {
        "model_type": model_type,
        # These classes ask that heads divide the width, whatever head_dim says.
        "hidden_size": kv * share * draw(st.integers(1, 7)),
        "intermediate_size": draw(st.integers(1, 50)),
        "num_hidden_layers": draw(st.integers(1, 5)),
        "num_attention_heads": kv * share,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "vocab_size": draw(st.integers(2, 90)),
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def _llama(draw: st.DrawFn) -> Config:
    biases = {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    return draw(_grouped("llama")) | biases


@st.composite
def _qwen3_moe(draw: st.DrawFn) -> Config:
    values, experts = draw(_grouped("qwen3_moe")), draw(st.integers(1, 9))
    layers = values["num_hidden_layers"]
    return values | {
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.integers(1, 40)),
        "decoder_sparse_step": draw(st.integers(1, 3)),
        "mlp_only_layers": draw(st.lists(st.integers(0, layers - 1), unique=True)),
        "attention_bias": draw(st.booleans()),
    }


@st.composite
def _gpt_oss(draw: st.DrawFn) -> Config:
    values, experts = draw(_grouped("gpt_oss")), draw(st.integers(1, 9))
    words = st.sampled_from(["sliding_attention", "full_attention"])
    layers = values["num_hidden_layers"]
    return values | {
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "layer_types": draw(st.none() | st.lists(words, min_size=layers, max_size=layers)),
        "attention_bias": draw(st.booleans()),
    }


@st.composite
def _deepseek(draw: st.DrawFn) -> Config:
    groups, layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    experts = groups * draw(st.integers(2, 4))
    return {
        "model_type": "deepseek_v3",
        "hidden_size": heads * draw(st.integers(1, 9)),
        "intermediate_size": draw(st.integers(1, 50)),
        "moe_intermediate_size": draw(st.integers(1, 50)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "q_lora_rank": draw(st.none() | st.integers(1, 20)),
        "kv_lora_rank": draw(st.integers(1, 20)),
        "qk_nope_head_dim": draw(st.integers(1, 12)),
        "qk_rope_head_dim": 2 * draw(st.integers(1, 6)),
        "v_head_dim": draw(st.integers(1, 12)),
        "n_routed_experts": experts,
        "n_shared_experts": draw(st.integers(1, 3)),
        "n_group": groups,
        "topk_group": draw(st.integers(1, groups)),
        "num_experts_per_tok": draw(st.integers(1, 2)),
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "attention_bias": draw(st.booleans()),
        "vocab_size": draw(st.integers(2, 90)),
    }


@st.composite
def _gpt2(draw: st.DrawFn) -> Config:
    heads = draw(st.integers(1, 6))
    return {
        "model_type": "gpt2",
        "n_embd": heads * draw(st.integers(1, 12)),
        "n_head": heads,
        "n_layer": draw(st.integers(1, 4)),
        "n_inner": draw(st.none() | st.integers(1, 70)),
        "n_positions": draw(st.integers(1, 40)),
        "vocab_size": draw(st.integers(2, 90)),
        "tie_word_embeddings": draw(st.booleans()),
    }


FAMILIES = {
    "llama": _llama(), "qwen3_moe": _qwen3_moe(), "gpt_oss": _gpt_oss(), "deepseek_v3": _deepseek(),
    "gpt2": _gpt2(),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_shapes_count_as_their_class(family: str, data: st.DataObject, held: Held) -> None:
    values = data.draw(FAMILIES[family])
    total, spelled = held(values["model_type"], values)
    assert params.total_params(config_json.read(values)) == total
    assert params.total_params(config_json.read(spelled)) == total


def _faults(values: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        config_json.read(values)
    assert caught.value.diagnostics
    return {d.where.rpartition(": ")[2]: d.message for d in caught.value.diagnostics}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "4096"), ("hidden_size", -64), ("hidden_size", 0), ("hidden_size", 64.5),
        ("hidden_size", 10**30), ("hidden_size", True), ("hidden_size", [64]), ("hidden_size", None),
        ("hidden_size", float("nan")), ("num_hidden_layers", 10**9), ("vocab_size", {}),
        ("num_attention_heads", -1), ("num_key_value_heads", 0), ("tie_word_embeddings", "no"),
        ("head_dim", "wide"), ("intermediate_size", 1 << 40),
        pytest.param("vocab_size", 10**5000, id="unprintable"),
    ],
)  # fmt: skip
def test_one_bad_value_is_one_fault_that_names_it(key: str, value: object) -> None:
    faults = _faults(LLAMA | {key: value})
    assert list(faults) == [key]
    assert key in faults[key]


def test_every_fault_is_told_at_once() -> None:
    values = LLAMA | {"hidden_size": "64", "vocab_size": -1, "num_attention_heads": 7, "mlp_bias": 3}
    del values["intermediate_size"]
    faults = _faults(values)
    assert set(faults) == {
        "hidden_size", "vocab_size", "intermediate_size", "mlp_bias",
        "num_attention_heads, num_key_value_heads",
    }  # fmt: skip
    assert "7 / 2 = 3.5" in faults["num_attention_heads, num_key_value_heads"]


def test_a_misspelled_key_is_recognised() -> None:
    values = {k: v for k, v in LLAMA.items() if k != "intermediate_size"} | {"intermediate_sizes": 3}
    with pytest.raises(InputError) as caught:
        config_json.read(values)
    assert "intermediate_sizes" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("values", "where"),
    [
        (LLAMA | {"num_attention_heads": 6, "num_key_value_heads": 6}, "hidden_size, num_attention_heads"),
        (SMALL[6] | {"num_experts_per_tok": 9}, "num_experts_per_tok, num_local_experts, num_experts"),
        (SMALL[7] | {"mlp_only_layers": [6]}, "mlp_only_layers"),
        (SMALL[8] | {"layer_types": ["full_attention"]}, "layer_types, num_hidden_layers"),
        (SMALL[8] | {"layer_types": ["full_attention", "round", "full_attention"]}, "layer_types"),
        (RELEASED["DeepSeek-V3"] | {"n_group": 7, "topk_group": 4}, "n_routed_experts, n_group"),
        (RELEASED["DeepSeek-V3"] | {"topk_group": 9}, "topk_group, n_group"),
        (RELEASED["DeepSeek-V3"] | {"first_k_dense_replace": 62}, "first_k_dense_replace, num_hidden_layers"),
        (RELEASED["DeepSeek-V3"] | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (SMALL[9] | {"add_cross_attention": True}, "add_cross_attention"),
        (SMALL[12] | {"word_embed_proj_dim": 24}, "word_embed_proj_dim"),
    ],
)
def test_contradictions_are_refused(values: Config, where: str) -> None:
    assert list(_faults(values)) == [where]


@pytest.mark.parametrize("kind", ["mamba9", None, 7, ["llama"], "Llama"])
def test_an_unknown_model_type_lists_those_that_can_be_read(kind: object) -> None:
    with pytest.raises(InputError) as caught:
        config_json.read({"model_type": kind})
    (found,) = caught.value.diagnostics
    assert all(t in found.hint for t in config_json.SUPPORTED)


def test_a_text_model_inside_another_is_pointed_to() -> None:
    with pytest.raises(InputError) as caught:
        config_json.read({"model_type": "llava", "text_config": LLAMA})
    assert "text_config" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b'{"model_type": "llama", "hidden_size": 4', b"[]", b"3", b'"llama"', b"\xff\xfe\x00",
        b"[" * 100_000, b'{"model_type": "llama", "hidden_size": ' + b"9" * 6000 + b"}", b"null",
    ],
    ids=lambda c: repr(c[:12]),
)  # fmt: skip
def test_torn_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert _faults(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert _faults(tmp_path / "none.json")
    assert _faults(tmp_path)
    assert _faults("bad\0path")


def test_files_cut_at_every_byte_are_refused_or_read(tmp_path: Path) -> None:
    whole = json.dumps(LLAMA).encode()
    path = tmp_path / "config.json"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert _faults(path)
    path.write_bytes(whole)
    assert isinstance(config_json.read(path), Model)


def test_the_name_comes_from_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert config_json.read(folder).name == "my-model"
    assert config_json.read(folder / "config.json").name == "my-model"
    assert config_json.read(folder, "other").name == "other"
    assert config_json.read(LLAMA | {"_name_or_path": "owner/thing"}).name == "thing"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_BASES = [*SMALL, *RELEASED.values()]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    values = dict(data.draw(st.sampled_from(_BASES)))
    for key in data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=3)):
        values[key] = data.draw(_JSON)
    try:
        model = config_json.read(values)
    except InputError as fault:
        found = [d.message for d in fault.diagnostics]
        assert found
        assert all(found)
        return
    assert 0 < params.active_params(model) <= params.total_params(model)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_tensor_parallelism_divides_is_what_the_class_plans(model_type: str) -> None:
    import torch
    import transformers

    values = LLAMA | {"model_type": model_type, "attention_bias": True} | {"head_dim": 8}
    shape = {k: v for k, v in values.items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    with torch.device("meta"):
        layer = transformers.AutoModelForCausalLM.from_config(config).model.layers[0]
    cut = 0
    for name, p in layer.named_parameters():
        module, _, kind = name.rpartition(".")
        how = config.base_model_tp_plan.get(f"layers.*.{module}", "")
        # The bias after a row-wise product is added once, so every rank keeps it whole.
        cut += p.numel() if how == "colwise" or (how == "rowwise" and kind == "weight") else 0
    model = config_json.read(values)
    assert params.block_params(model.blocks[0], model).sharded == cut
