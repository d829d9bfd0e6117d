"""DeepSeek-V2, V3, V3.2 and Kimi-K2: latent attention, dense first layers, then routed and shared experts."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Block, LatentAttention, Mlp, Model, Moe


def deepseek_v2(f: Fields, name: str) -> Model:
    """`DeepseekV2ForCausalLM`; without `first_k_dense_replace` every layer has experts."""
    mlp_bias = f.flag("mlp_bias", default=False)
    f.unsupported(mlp_bias, "mlp_bias", "biases on the dense and shared MLPs alone are not modelled")
    return _decoder(f, name, _latent(f))


def deepseek_v3(f: Fields, name: str) -> Model:
    """`DeepseekV3ForCausalLM`, which Kimi-K2 and Moonlight share."""
    return _decoder(f, name, _latent(f))


def deepseek_v32(f: Fields, name: str) -> Model:
    """`DeepseekV32ForCausalLM`: V3 with a sparse-attention indexer in every layer."""
    attention = replace(
        _latent(f),
        index_n_heads=f.integer("index_n_heads", most=MOST_HEADS),
        index_head_dim=f.integer("index_head_dim", most=MOST_WIDTH),
        index_topk=f.integer("index_topk", most=MOST_POSITIONS),
    )
    return _decoder(f, name, attention)


def _latent(f: Fields) -> LatentAttention:
    return LatentAttention(
        n_heads=f.integer("num_attention_heads", most=MOST_HEADS),
        q_lora_rank=f.optional("q_lora_rank", most=MOST_WIDTH),
        kv_lora_rank=f.integer("kv_lora_rank", most=MOST_WIDTH),
        qk_nope_dim=f.integer("qk_nope_head_dim", most=MOST_WIDTH),
        qk_rope_dim=f.integer("qk_rope_head_dim", most=MOST_WIDTH),
        v_head_dim=f.integer("v_head_dim", most=MOST_WIDTH),
        bias=f.flag("attention_bias", default=False),
    )


def _experts(f: Fields) -> Moe:
    moe = routed(f, "n_routed_experts", width_key="moe_intermediate_size")
    shared = f.integer("n_shared_experts", most=MOST_EXPERTS, least=0, default=0)
    groups = f.integer("n_group", most=MOST_EXPERTS, default=1)
    reach = f.integer("topk_group", most=MOST_EXPERTS, default=groups)
    f.rule(
        moe.n_experts % groups == 0,
        f"n_routed_experts {moe.n_experts} is not a multiple of n_group {groups}",
        "n_routed_experts",
        "n_group",
    )
    f.rule(reach <= groups, f"topk_group {reach} is more than n_group {groups}", "topk_group", "n_group")
    return replace(moe, shared_d_ff=shared * moe.d_ff, n_groups=groups, topk_groups=reach)


def _decoder(f: Fields, name: str, attention: LatentAttention) -> Model:
    layers = depth(f)
    first = f.integer("first_k_dense_replace", most=MOST_LAYERS, least=0, default=0)
    f.rule(
        first <= layers,
        f"first_k_dense_replace {first} is more than num_hidden_layers {layers}",
        "first_k_dense_replace",
        "num_hidden_layers",
    )
    every = f.integer("moe_layer_freq", most=MOST_LAYERS, default=1)
    f.unsupported(every > 1, "moe_layer_freq", "only experts in every layer after the dense ones")
    moe = Block(attention, _experts(f))
    dense = Block(attention, Mlp(f.integer("intermediate_size", most=MOST_WIDTH))) if first else moe
    mtp = f.integer("num_nextn_predict_layers", "num_mtp_layers", most=MOST_LAYERS, least=0, default=0)
    return model_of([dense if i < first else moe for i in range(layers)], mtp_layers=mtp, **common(f, name))
