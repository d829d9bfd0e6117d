"""Qwen2-MoE, Qwen3-Next and Qwen3.5: a gated shared expert beside the routed ones; gated delta nets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.experts import multi_token, routed
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Block, LinearAttention, Mixer, Mlp, Model, Moe

_MIXER_WORDS = ("linear_attention", "full_attention")


def qwen2_moe(f: Fields, name: str) -> Model:
    """`Qwen2MoeForCausalLM`: where the window is used, every other of the first `max_window_layers`."""
    layers = depth(f)
    far = grouped_query(f, bias_qkv=f.flag("qkv_bias", default=True))
    used = f.flag("use_sliding_window", default=False)
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096) if used else None
    near = replace(far, window=window)
    words = f.words("layer_types", LAYER_WORDS, layers)
    last = f.integer("max_window_layers", most=MOST_LAYERS, least=0, default=28)
    words = words or [LAYER_WORDS[used and i % 2 == 0 and i < last] for i in range(layers)]
    f.rule(
        window is not None or "sliding_attention" not in words,
        "layer_types has sliding_attention, but use_sliding_window is off or sliding_window is null",
        "layer_types",
        "use_sliding_window",
        "sliding_window",
    )
    return _decoder(f, name, [near if w == "sliding_attention" else far for w in words], _ffns(f, layers))


def qwen3_next(f: Fields, name: str) -> Model:
    """`Qwen3NextForCausalLM`: three gated delta nets, then one gated attention; experts in every layer."""
    layers = depth(f)
    return _decoder(f, name, _mixers(f, layers), _ffns(f, layers))


def qwen3_5(f: Fields, name: str) -> Model:
    """`Qwen3_5ForCausalLM`: the mixers of Qwen3-Next over dense MLPs."""
    layers = depth(f)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    return _decoder(f, name, _mixers(f, layers), [mlp] * layers)


def qwen3_5_moe(f: Fields, name: str) -> Model:
    """`Qwen3_5MoeForCausalLM`: the mixers of Qwen3-Next, experts in every layer."""
    layers = depth(f)
    return _decoder(f, name, _mixers(f, layers), [_experts(f)] * layers)


def _mixers(f: Fields, layers: int) -> list[Mixer]:
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=256)
    attention = replace(attention, qk_norm="head", output_gate=True)
    keys = f.integer("linear_num_key_heads", most=MOST_HEADS, default=16)
    values = f.integer("linear_num_value_heads", most=MOST_HEADS, default=32)
    f.rule(
        values % keys == 0,
        f"linear_num_value_heads {values} is not a multiple of linear_num_key_heads {keys}",
        "linear_num_value_heads",
        "linear_num_key_heads",
    )
    linear = LinearAttention(
        "gated_deltanet",
        n_k_heads=keys,
        n_v_heads=values,
        k_dim=f.integer("linear_key_head_dim", most=MOST_WIDTH, default=128),
        v_dim=f.integer("linear_value_head_dim", most=MOST_WIDTH, default=128),
        d_conv=f.integer("linear_conv_kernel_dim", most=MOST_WIDTH, default=4),
    )
    words = f.words("layer_types", _MIXER_WORDS, layers)
    every = f.integer("full_attention_interval", most=MOST_LAYERS, default=4)
    words = words or [_MIXER_WORDS[(i + 1) % every == 0] for i in range(layers)]
    return [attention if w == "full_attention" else linear for w in words]


def _ffns(f: Fields, layers: int) -> list[Mlp | Moe]:
    """Experts every `decoder_sparse_step` layers, none in `mlp_only_layers`."""
    step = f.integer("decoder_sparse_step", most=MOST_LAYERS, default=1)
    only_mlp = f.indices("mlp_only_layers", layers)
    sparse = [i not in only_mlp and (i + 1) % step == 0 for i in range(layers)]
    moe = _experts(f)
    mlp = moe if all(sparse) else Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    return [moe if s else mlp for s in sparse]


def _experts(f: Fields) -> Moe:
    moe = routed(f, "num_experts", "num_local_experts", width_key="moe_intermediate_size")
    shared = f.integer("shared_expert_intermediate_size", most=MOST_WIDTH)
    return replace(moe, shared_d_ff=shared, shared_gate=True)


def _decoder(f: Fields, name: str, mixers: Sequence[Mixer], ffns: Sequence[Mlp | Moe]) -> Model:
    mtp = multi_token(f, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    blocks = [Block(mixer, ffn) for mixer, ffn in zip(mixers, ffns)]
    return model_of(blocks, mtp_layers=mtp, **common(f, name))
