"""MiMo-V2-Flash: windows with sinks and more key/value heads, full layers between; experts."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.experts import grouped, multi_token, routed
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.readers.glm import FFN_WORDS
from meshwright.model.records import Block, Mlp, Model


def mimo_v2_flash(f: Fields, name: str) -> Model:
    """`MiMoV2FlashForCausalLM`: windowed layers have twice the key/value heads of full ones.

    The released file spells the kinds of layers as lists of 0 and 1.
    """
    layers = depth(f)
    bias = f.flag("attention_bias", default=False)
    far = grouped_query(f, bias_qkv=bias, head_dim_default=192)
    far = replace(far, v_head_dim=f.integer("v_head_dim", most=MOST_WIDTH, default=128))
    near = replace(
        far,
        n_kv_heads=f.integer("swa_num_key_value_heads", most=MOST_HEADS, default=2 * far.n_kv_heads),
        window=f.integer("sliding_window_size", "sliding_window", most=MOST_POSITIONS, default=128),
        sinks=True,
    )
    f.rule(
        near.n_heads % near.n_kv_heads == 0,
        f"num_attention_heads {near.n_heads} is not a multiple of the {near.n_kv_heads} key/value heads of "
        "windowed layers",
        "num_attention_heads",
        "num_key_value_heads",
        "swa_num_key_value_heads",
    )
    words = f.words("layer_types", LAYER_WORDS, layers)
    local = [w == "sliding_attention" for w in words] if words else f.switches("hybrid_layer_pattern", layers)
    local = local or [i > 0 and (i + 1) % 6 != 0 for i in range(layers)]
    kinds = f.words("mlp_layer_types", FFN_WORDS, layers)
    sparse = [k == "sparse" for k in kinds] if kinds else f.switches("moe_layer_freq", layers)
    sparse = sparse or [i > 0 for i in range(layers)]
    moe = routed(f, "n_routed_experts", "num_local_experts", width_key="moe_intermediate_size")
    moe = grouped(f, moe, groups_keys=("n_group",), experts_key="n_routed_experts")
    mlp = moe if all(sparse) else Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    blocks = [Block(near if w else far, moe if s else mlp) for w, s in zip(local, sparse)]
    mtp = multi_token(f, "num_nextn_predict_layers")
    return model_of(blocks, mtp_layers=mtp, **common(f, name))
