"""Mixtral, Qwen3-MoE and gpt-oss: grouped-query attention over routed experts."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.fields import (
    MOST_EXPERTS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Block, Mlp, Model, Moe


def mixtral(f: Fields, name: str) -> Model:
    """`MixtralForCausalLM`: experts in every layer, of width `intermediate_size`."""
    window = f.optional("sliding_window", most=MOST_POSITIONS)
    attention = replace(grouped_query(f), window=window)
    moe = routed(f, "num_local_experts", "num_experts", width_key="intermediate_size")
    return model_of([Block(attention, moe)] * depth(f), **common(f, name))


def qwen3_moe(f: Fields, name: str) -> Model:
    """`Qwen3MoeForCausalLM`: experts every `decoder_sparse_step` layers, none in `mlp_only_layers`."""
    bias = f.flag("attention_bias", default=False)
    attention = replace(grouped_query(f, bias_qkv=bias, bias_out=bias), qk_norm="head")
    if f.flag("use_sliding_window", default=False):
        window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096)
        attention = replace(attention, window=window)
    layers, step = depth(f), f.integer("decoder_sparse_step", most=MOST_LAYERS, default=1)
    only_mlp = f.indices("mlp_only_layers", layers)
    sparse = [i not in only_mlp and (i + 1) % step == 0 for i in range(layers)]
    dense = None
    if not all(sparse):
        dense = Block(attention, Mlp(f.integer("intermediate_size", most=MOST_WIDTH)))
    moe = routed(f, "num_experts", "num_local_experts", width_key="moe_intermediate_size")
    expert = Block(attention, moe)
    return model_of([expert if dense is None or s else dense for s in sparse], **common(f, name))


def gpt_oss(f: Fields, name: str) -> Model:
    """`GptOssForCausalLM`: sinks, biases on every matrix, a window in every other layer."""
    bias = f.flag("attention_bias", default=True)
    attention = replace(grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=64), sinks=True)
    layers = depth(f)
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=128)
    words = f.words("layer_types", LAYER_WORDS, layers) or [LAYER_WORDS[(i + 1) % 2] for i in range(layers)]
    moe = routed(f, "num_local_experts", "num_experts", width_key="intermediate_size")
    moe = replace(moe, bias=True, router_bias=True)
    far, near = Block(attention, moe), Block(replace(attention, window=window), moe)
    return model_of([near if w == "sliding_attention" else far for w in words], **common(f, name))


def routed(f: Fields, *experts_keys: str, width_key: str) -> Moe:
    """Routed experts without a shared one."""
    n_experts = f.integer(*experts_keys, most=MOST_EXPERTS)
    top_k = f.integer("num_experts_per_tok", most=MOST_EXPERTS)
    key = next((k for k in experts_keys if f.values.get(k) is not None), experts_keys[0])
    f.rule(
        top_k <= n_experts,
        f"num_experts_per_tok {top_k} is more than {key} {n_experts}",
        "num_experts_per_tok",
        *experts_keys,
    )
    return Moe(n_experts, top_k, f.integer(width_key, most=MOST_WIDTH))
