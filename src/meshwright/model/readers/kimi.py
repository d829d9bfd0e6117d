"""Kimi-Linear: three delta-attention layers, then one of latent attention; experts after a dense start."""

from __future__ import annotations

from meshwright.model.readers.deepseek import latent
from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.experts import grouped, multi_token, routed
from meshwright.model.readers.fields import MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Fields, model_of
from meshwright.model.readers.glm import ffn_kinds
from meshwright.model.records import Block, LinearAttention, Mixer, Mlp, Model
from meshwright.units import counted

_WORDS = ("linear_attention", "full_attention")


def kimi_linear(f: Fields, name: str) -> Model:
    """`KimiLinearForCausalLM`; released files keep the delta attention in `linear_attn_config`."""
    layers = depth(f)
    full = _full(f, layers)
    attention, linear = latent(f), _delta(f)
    every = f.integer("moe_layer_freq", most=MOST_LAYERS, default=1)
    f.unsupported(every > 1, "moe_layer_freq", "only experts in every layer after the dense ones")
    sparse = ffn_kinds(f, layers, dense_first=1)
    moe = routed(
        f,
        "num_experts",
        "num_local_experts",
        width_key="moe_intermediate_size",
        top_k_keys=("num_experts_per_token", "num_experts_per_tok"),
    )
    key = f.spelled("num_experts", "num_local_experts")
    moe = grouped(f, moe, groups_keys=("num_expert_group", "n_group"), experts_key=key, shared_default=1)
    mlp = moe if all(sparse) else Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    mixers: list[Mixer] = [attention if a else linear for a in full]
    blocks = [Block(mixer, moe if s else mlp) for mixer, s in zip(mixers, sparse)]
    mtp = multi_token(f, "num_nextn_predict_layers")
    return model_of(blocks, mtp_layers=mtp, **common(f, name))


def _full(f: Fields, layers: int) -> list[bool]:
    """Which layers have latent attention: lists counted from 1, else `layer_types`, else every fourth."""
    words = f.words("layer_types", _WORDS, layers)
    if words:
        return [w == "full_attention" for w in words]
    part = f.part("linear_attn_config")
    if part is not None and {"full_attn_layers", "kda_layers"} <= set(part.values):
        full = part.indices("full_attn_layers", layers, first=1)
        delta = part.indices("kda_layers", layers, first=1)
        part.rule(
            not full & delta and len(full) + len(delta) == layers,
            f"full_attn_layers names {counted(len(full), 'layer')} and kda_layers {len(delta)} of {layers}, "
            f"{len(full & delta)} of them twice",
            "full_attn_layers",
            "kda_layers",
            "num_hidden_layers",
        )
        return [i in full for i in range(layers)]
    return [i > 0 and i % 4 == 0 for i in range(layers)]


def _delta(f: Fields) -> LinearAttention:
    part = f.part("linear_attn_config")

    def told(inner: str, outer: str, most: int, default: int) -> int:
        if part is not None and part.values.get(inner) is not None:
            return part.integer(inner, most=most)
        return f.integer(outer, most=most, default=default)

    heads = told("num_heads", "linear_num_heads", MOST_HEADS, 32)
    width = told("head_dim", "linear_head_dim", MOST_WIDTH, 128)
    conv = told("short_conv_kernel_size", "linear_conv_kernel_dim", MOST_WIDTH, 4)
    return LinearAttention("kda", n_k_heads=heads, n_v_heads=heads, k_dim=width, v_dim=width, d_conv=conv)
