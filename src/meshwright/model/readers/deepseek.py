"""DeepSeek-V2, V3, V3.2 and Kimi-K2: latent attention, dense first layers, then routed and shared experts."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.experts import grouped, multi_token, routed
from meshwright.model.readers.fields import (
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
    return _decoder(f, name, latent(f), shared_default=2)


def deepseek_v3(f: Fields, name: str) -> Model:
    """`DeepseekV3ForCausalLM`, which Kimi-K2 and Moonlight share."""
    return _decoder(f, name, latent(f))


def deepseek_v32(f: Fields, name: str) -> Model:
    """`DeepseekV32ForCausalLM`: V3 with a sparse-attention indexer in every layer."""
    attention = replace(
        latent(f),
        index_n_heads=f.integer("index_n_heads", most=MOST_HEADS),
        index_head_dim=f.integer("index_head_dim", most=MOST_WIDTH),
        index_topk=f.integer("index_topk", most=MOST_POSITIONS),
    )
    return _decoder(f, name, attention)


def latent(f: Fields) -> LatentAttention:
    """Latent attention without an indexer; where `q_lora_rank` is null, queries have no factor."""
    return LatentAttention(
        n_heads=f.integer("num_attention_heads", most=MOST_HEADS),
        q_lora_rank=f.optional("q_lora_rank", most=MOST_WIDTH),
        kv_lora_rank=f.integer("kv_lora_rank", most=MOST_WIDTH),
        qk_nope_dim=f.integer("qk_nope_head_dim", most=MOST_WIDTH),
        qk_rope_dim=f.integer("qk_rope_head_dim", most=MOST_WIDTH),
        v_head_dim=f.integer("v_head_dim", most=MOST_WIDTH),
        bias=f.flag("attention_bias", default=False),
    )


def shared_and_routed(f: Fields, *, shared_default: int = 1) -> Moe:
    """Routed experts in groups, and shared experts of the same width."""
    moe = routed(f, "n_routed_experts", width_key="moe_intermediate_size")
    return grouped(
        f, moe, groups_keys=("n_group",), experts_key="n_routed_experts", shared_default=shared_default
    )


def first_dense(f: Fields, layers: int, *, default: int) -> int:
    """How many layers at the start have a dense feed-forward."""
    first = f.integer("first_k_dense_replace", most=MOST_LAYERS, least=0, default=default)
    f.rule(
        first <= layers or "first_k_dense_replace" not in f.values,
        f"first_k_dense_replace {first} is more than num_hidden_layers {layers}",
        "first_k_dense_replace",
        "num_hidden_layers",
    )
    return first


def _decoder(f: Fields, name: str, attention: LatentAttention, *, shared_default: int = 1) -> Model:
    layers = depth(f)
    first = first_dense(f, layers, default=0)
    every = f.integer("moe_layer_freq", most=MOST_LAYERS, default=1)
    f.unsupported(every > 1, "moe_layer_freq", "only experts in every layer after the dense ones")
    moe = Block(attention, shared_and_routed(f, shared_default=shared_default))
    dense = Block(attention, Mlp(f.integer("intermediate_size", most=MOST_WIDTH))) if first else moe
    mtp = multi_token(f, "num_nextn_predict_layers", "num_mtp_layers")
    return model_of([dense if i < first else moe for i in range(layers)], mtp_layers=mtp, **common(f, name))
