"""Jamba, Bamba and Granite-4: state spaces with attention in a few layers, a feed-forward in all."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_EXPERTS, MOST_LAYERS, MOST_WIDTH, Fields, model_of
from meshwright.model.readers.mamba import plain, prefixed
from meshwright.model.records import Block, Mamba1, Mlp, Model, Moe

_WORDS = ("linear_attention", "full_attention")


def jamba(f: Fields, name: str) -> Model:
    """`JambaForCausalLM`: attention and experts each at an offset in a period; the rest Mamba-1 and MLPs."""
    plain(f, biases=("mamba_proj_bias",), conv="mamba_conv_bias")
    width, layers = f.integer("hidden_size", most=MOST_WIDTH), depth(f)
    attention = grouped_query(f)
    mamba = Mamba1(
        d_inner=f.integer("mamba_expand", most=MOST_WIDTH, default=2) * width,
        d_state=f.integer("mamba_d_state", most=MOST_WIDTH, default=16),
        d_conv=f.integer("mamba_d_conv", most=MOST_WIDTH, default=4),
        dt_rank=f.auto("mamba_dt_rank", most=MOST_WIDTH, otherwise=-(-width // 16)),
        inner_norms=True,
    )
    attends = _periodic(f, "attn", layers, period=8, offset=4)
    sparse = _periodic(f, "expert", layers, period=2, offset=1)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    moe = routed(f, "num_experts", "num_local_experts", width_key="intermediate_size")
    ffn = moe if moe.n_experts > 1 else mlp
    blocks = [Block(attention if a else mamba, ffn if s else mlp) for a, s in zip(attends, sparse)]
    return model_of(blocks, **common(f, name))


def bamba(f: Fields, name: str) -> Model:
    """`BambaForCausalLM`: Mamba-2, attention at `attn_layer_indices`, an MLP in every layer."""
    plain(f, biases=("mamba_proj_bias",), conv="mamba_conv_bias")
    bias, layers = f.flag("attention_bias", default=False), depth(f)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias)
    mamba = prefixed(f, heads_key="mamba_n_heads", d_state=256)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH), bias=f.flag("mlp_bias", default=False))
    attends = f.indices("attn_layer_indices", layers)
    blocks = [Block(attention if i in attends else mamba, mlp) for i in range(layers)]
    return model_of(blocks, **common(f, name))


def granitemoehybrid(f: Fields, name: str) -> Model:
    """`GraniteMoeHybridForCausalLM`: a dense feed-forward in every layer, experts beside it if any.

    Without `layer_types` every layer is Mamba-2.
    """
    layers = depth(f)
    words = f.words("layer_types", _WORDS, layers) or f.words("layers_block_type", _WORDS, layers)
    words = words or ["linear_attention"] * layers
    bias = f.flag("attention_bias", default=False)
    attention = mamba = None
    if "full_attention" in words:
        attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    if "linear_attention" in words:
        plain(f, biases=("mamba_proj_bias",), conv="mamba_conv_bias")
        mamba = prefixed(f, heads_key="mamba_n_heads", d_state=256)
    shared = f.integer("shared_intermediate_size", most=MOST_WIDTH)
    ffn: Mlp | Moe = Mlp(shared)
    if f.integer("num_local_experts", most=MOST_EXPERTS, least=0, default=8):
        ffn = replace(routed(f, "num_local_experts", width_key="intermediate_size"), shared_d_ff=shared)
    blocks = [Block(attention if w == "full_attention" else mamba, ffn) for w in words]
    return model_of(blocks, **common(f, name))


def _periodic(f: Fields, what: str, layers: int, *, period: int, offset: int) -> list[bool]:
    """Which layers stand at `{what}_layer_offset` in each `{what}_layer_period`."""
    period_key, offset_key = f"{what}_layer_period", f"{what}_layer_offset"
    period = f.integer(period_key, most=MOST_LAYERS, default=period)
    offset = f.integer(offset_key, most=MOST_LAYERS, least=0, default=offset)
    f.rule(
        offset < period,
        f"{offset_key} {offset} is not below {period_key} {period}",
        offset_key,
        period_key,
    )
    return [i % period == offset for i in range(layers)]
