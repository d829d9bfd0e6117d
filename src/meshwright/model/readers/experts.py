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


def routed(
    f: Fields, *experts_keys: str, width_key: str, top_k_keys: tuple[str, ...] = ("num_experts_per_tok",)
) -> Moe:
    """Routed experts without a shared one."""
    n_experts = f.integer(*experts_keys, most=MOST_EXPERTS)
    top_k = f.integer(*top_k_keys, most=MOST_EXPERTS)
    f.rule(
        top_k <= n_experts,
        f"{f.spelled(*top_k_keys)} {top_k} is more than {f.spelled(*experts_keys)} {n_experts}",
        *top_k_keys,
        *experts_keys,
    )
    return Moe(n_experts, top_k, f.integer(width_key, most=MOST_WIDTH))


def grouped(
    f: Fields, moe: Moe, *, groups_keys: tuple[str, ...], experts_key: str, shared_default: int = 0
) -> Moe:
    """`moe` with routing limited to `topk_group` of its groups, and the shared experts beside it.

    A file silent on shared experts has `shared_default`, one that says null has none.
    """
    keys = ("n_shared_experts", "num_shared_experts")
    absent = 0 if any(k in f.values for k in keys) else shared_default
    shared = f.integer(*keys, most=MOST_EXPERTS, least=0, default=absent)
    groups = f.integer(*groups_keys, most=MOST_EXPERTS, default=1)
    reach = f.integer("topk_group", most=MOST_EXPERTS, default=groups)
    key = f.spelled(*groups_keys)
    f.rule(
        moe.n_experts % groups == 0,
        f"{experts_key} {moe.n_experts} is not a multiple of {key} {groups}",
        experts_key,
        key,
    )
    f.rule(reach <= groups, f"topk_group {reach} is more than {key} {groups}", "topk_group", key)
    return replace(moe, shared_d_ff=shared * moe.d_ff, n_groups=groups, topk_groups=reach)


def multi_token(f: Fields, *keys: str) -> int:
    """Multi-token-prediction layers that the file states under one of `keys`; none where it is silent."""
    return f.integer(*keys, most=MOST_LAYERS, least=0, default=0)
