"""Hunyuan: normed queries and keys, a shared expert; in the large one layers share keys and values."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_EXPERTS, MOST_LAYERS, MOST_WIDTH, Fields, model_of, shown
from meshwright.model.records import Attention, Block, Mlp, Model, Moe


def hunyuan_dense(f: Fields, name: str) -> Model:
    """`HunYuanDenseV1ForCausalLM`."""
    block = Block(_attention(f, normed=True), Mlp(f.integer("intermediate_size", most=MOST_WIDTH)))
    return model_of([block] * depth(f), **common(f, name))


def hunyuan_moe(f: Fields, name: str) -> Model:
    """`HunYuanMoEV1ForCausalLM`: a shared expert as wide as a routed one."""
    return model_of([Block(_attention(f, normed=True), _experts(f, 1))] * depth(f), **common(f, name))


def hunyuan(f: Fields, name: str) -> Model:
    """Hunyuan-Large: with `use_cla`, of each `cla_share_factor` layers only the first has keys and values.

    **Source**: config.json and modelling code of the released model; no class of the library reads it.
    """
    layers = depth(f)
    own = _attention(f, normed=f.flag("use_qk_norm", default=False))
    every = f.integer("cla_share_factor", most=MOST_LAYERS, default=1)
    every = every if f.flag("use_cla", default=False) else 1
    shared = 0
    if f.flag("use_mixed_mlp_moe", default=False):
        shared = f.integer("num_shared_expert", most=MOST_EXPERTS, default=1)
    moe = _experts(f, shared)
    blocks = [Block(replace(own, kv_from="own" if i % every == 0 else "below"), moe) for i in range(layers)]
    return model_of(blocks, **common(f, name))


def _attention(f: Fields, *, normed: bool) -> Attention:
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    return replace(attention, qk_norm="head") if normed else attention


def _experts(f: Fields, shared: int) -> Moe:
    """Experts of width `intermediate_size`; the file may repeat the number a token uses for every layer."""
    value = f.values.get("moe_topk")
    if isinstance(value, list | tuple) and value:
        f.unsupported(
            any(v != value[0] for v in value),
            "moe_topk",
            f"layers that differ ({shown(value)}) are not modelled",
        )
        f = replace(f, values={**f.values, "moe_topk": value[0]})
    moe = routed(
        f,
        "num_experts",
        "num_local_experts",
        width_key="intermediate_size",
        top_k_keys=("moe_topk", "num_experts_per_tok"),
    )
    return replace(moe, shared_d_ff=shared * moe.d_ff)
