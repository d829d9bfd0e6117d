"""Families close to Llama: Cohere, ERNIE, EXAONE, Granite, Ministral, Seed, SmolLM, StableLM, StarCoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_LAYERS, MOST_POSITIONS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Attention, Block, Mlp, Model


def granite(f: Fields, name: str) -> Model:
    """`GraniteForCausalLM`: Llama with scaling factors."""
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    return _plain(f, name, attention, _mlp(f, bias=f.flag("mlp_bias", default=False)))


def granitemoe(f: Fields, name: str) -> Model:
    """`GraniteMoeForCausalLM`: experts of width `intermediate_size` in every layer."""
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    moe = routed(f, "num_local_experts", width_key="intermediate_size")
    return model_of([Block(attention, moe)] * depth(f), **common(f, name))


def seed_oss(f: Fields, name: str) -> Model:
    """`SeedOssForCausalLM`: biases on queries, keys and values; heads are 128 wide unless the file says."""
    attention = grouped_query(
        f,
        bias_qkv=f.flag("attention_bias", default=True),
        bias_out=f.flag("attention_out_bias", default=False),
        head_dim_default=128,
    )
    return _plain(f, name, attention, _mlp(f, bias=f.flag("mlp_bias", default=False)))


def smollm3(f: Fields, name: str) -> Model:
    """`SmolLM3ForCausalLM`: where the window is used, layers without rotary positions have it."""
    bias, layers = f.flag("attention_bias", default=False), depth(f)
    far = grouped_query(f, bias_qkv=bias, bias_out=bias)
    used = f.flag("use_sliding_window", default=False)
    window = f.optional("sliding_window", most=MOST_POSITIONS)
    every = f.integer("no_rope_layer_interval", most=MOST_LAYERS, default=4)
    rotary = f.switches("no_rope_layers", layers) or [(i + 1) % every != 0 for i in range(layers)]
    words = f.words("layer_types", LAYER_WORDS, layers)
    words = words or [LAYER_WORDS[used and window is not None and not r] for r in rotary]
    mlp = _mlp(f, bias=f.flag("mlp_bias", default=False))
    return _windowed(f, name, far, window, words, mlp, tied_default=True)


def ministral(f: Fields, name: str) -> Model:
    """`MinistralForCausalLM`: the window in every layer unless `layer_types` says otherwise."""
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096)
    layers = depth(f)
    words = f.words("layer_types", LAYER_WORDS, layers) or [LAYER_WORDS[window is not None]] * layers
    return _windowed(f, name, grouped_query(f), window, words, _mlp(f))


def exaone4(f: Fields, name: str) -> Model:
    """`Exaone4ForCausalLM`: normed queries and keys; if there is a window, three layers of four have it."""
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096)
    words = _cycle(f, window, every=4)
    attention = replace(grouped_query(f), qk_norm="head")
    return _windowed(f, name, attention, window, words, _mlp(f))


def cohere(f: Fields, name: str) -> Model:
    """`CohereForCausalLM`: one norm without bias feeds both parts of a layer."""
    normed = f.flag("use_qk_norm", default=False)
    f.unsupported(normed, "use_qk_norm", "norms with a weight for each head's channels are not modelled")
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    block = Block(attention, _mlp(f), n_norms=1, parallel=True)
    return model_of(
        [block] * depth(f), norm="layernorm", norm_bias=False, **common(f, name, tied_default=True)
    )


def cohere2(f: Fields, name: str) -> Model:
    """`Cohere2ForCausalLM`: as Cohere, with three windows, then one full layer."""
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096)
    words = _cycle(f, window, every=4)
    bias = f.flag("attention_bias", default=False)
    far = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    near, mlp = replace(far, window=window), _mlp(f)
    blocks = [Block(near if w == "sliding_attention" else far, mlp, n_norms=1, parallel=True) for w in words]
    return model_of(blocks, norm="layernorm", norm_bias=False, **common(f, name, tied_default=True))


def ernie4_5(f: Fields, name: str) -> Model:
    """`Ernie4_5ForCausalLM`: one switch for all biases; heads are 128 wide unless the file says."""
    bias = f.flag("use_bias", default=False)
    head_dim = None if "head_dim" in f.values else 128
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=head_dim)
    return _plain(f, name, attention, _mlp(f, bias=bias), tied_default=True)


def stablelm(f: Fields, name: str) -> Model:
    """`StableLmForCausalLM`: layernorms; a parallel block has a single one."""
    normed = f.flag("qk_layernorm", default=False)
    f.unsupported(normed, "qk_layernorm", "a norm for each head is not modelled")
    attention = grouped_query(f, bias_qkv=f.flag("use_qkv_bias", default=False))
    parallel = f.flag("use_parallel_residual", default=False)
    block = Block(attention, _mlp(f), n_norms=1 if parallel else 2, parallel=parallel)
    return model_of([block] * depth(f), norm="layernorm", **common(f, name))


def starcoder2(f: Fields, name: str) -> Model:
    """`Starcoder2ForCausalLM`: layernorms, an MLP of two matrices, one switch for all biases."""
    bias = f.flag("use_bias", default=True)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias)
    attention = replace(attention, window=f.optional("sliding_window", most=MOST_POSITIONS))
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH), gated=False, bias=bias)
    return _plain(f, name, attention, mlp, tied_default=True, norm="layernorm")


def _mlp(f: Fields, *, bias: bool = False) -> Mlp:
    return Mlp(f.integer("intermediate_size", most=MOST_WIDTH), bias=bias)


def _plain(
    f: Fields, name: str, attention: Attention, mlp: Mlp, *, tied_default: bool = False, **rest: Any
) -> Model:
    return model_of([Block(attention, mlp)] * depth(f), **rest, **common(f, name, tied_default=tied_default))


def _cycle(f: Fields, window: int | None, *, every: int) -> list[str]:
    """`layer_types`, else a window in all but the last layer of each cycle."""
    layers = depth(f)
    words = f.words("layer_types", LAYER_WORDS, layers)
    if words:
        return words
    every = f.integer("sliding_window_pattern", most=MOST_LAYERS, default=every)
    return [LAYER_WORDS[window is not None and (i + 1) % every != 0] for i in range(layers)]


def _windowed(
    f: Fields,
    name: str,
    far: Attention,
    window: int | None,
    words: list[str],
    mlp: Mlp,
    *,
    tied_default: bool = False,
) -> Model:
    near = replace(far, window=window)
    blocks = [Block(near if w == "sliding_attention" else far, mlp) for w in words]
    return model_of(blocks, **common(f, name, tied_default=tied_default))
