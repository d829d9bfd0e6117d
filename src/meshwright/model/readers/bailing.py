"""Ling 2.0 (Bailing): grouped-query attention, a dense start, experts in groups and a shared one."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.deepseek import first_dense
from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import grouped, multi_token, routed
from meshwright.model.readers.fields import MOST_WIDTH, Fields, model_of
from meshwright.model.records import Block, Mlp, Model


def bailing_moe(f: Fields, name: str) -> Model:
    """`BailingMoeV2ForCausalLM`, by the released modelling code; no class of the library reads it."""
    layers = depth(f)
    bias = f.flag("use_bias", default=False)
    f.unsupported(bias, "use_bias", "biases beside those of queries, keys and values are not modelled")
    attention = grouped_query(f, bias_qkv=f.flag("use_qkv_bias", default=False))
    if f.flag("use_qk_norm", default=False):
        attention = replace(attention, qk_norm="head")
    moe = routed(f, "num_experts", width_key="moe_intermediate_size")
    moe = grouped(f, moe, groups_keys=("n_group",), experts_key="num_experts")
    first = first_dense(f, layers, default=0)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH)) if first else moe
    blocks = [Block(attention, mlp if i < first else moe) for i in range(layers)]
    return model_of(blocks, mtp_layers=multi_token(f, "num_nextn_predict_layers"), **common(f, name))
