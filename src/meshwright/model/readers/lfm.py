"""LFM2: gated short convolutions with attention in a few layers, dense or with experts."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_LAYERS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Block, Mixer, Mlp, Model, ShortConv

_WORDS = ("conv", "full_attention")


def lfm2_moe(f: Fields, name: str) -> Model:
    """`Lfm2MoeForCausalLM`: `num_dense_layers` dense layers, then experts."""
    layers = depth(f)
    dense = f.integer("num_dense_layers", most=MOST_LAYERS, least=0, default=2)
    moe = routed(f, "num_experts", "num_local_experts", width_key="moe_intermediate_size")
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH)) if dense else moe
    blocks = [Block(mixer, mlp if i < dense else moe) for i, mixer in enumerate(_mixers(f, layers))]
    return model_of(blocks, **_common(f, name))


def _mixers(f: Fields, layers: int) -> list[Mixer]:
    bias = f.flag("conv_bias", default=False)
    f.unsupported(bias, "conv_bias", "biases of the short convolution are not modelled")
    attention = replace(grouped_query(f), qk_norm="head")
    conv = ShortConv(f.integer("conv_L_cache", most=MOST_WIDTH, default=3))
    words = f.words("layer_types", _WORDS, layers)
    if words is None and f.values.get("full_attn_idxs") is not None:
        full = f.indices("full_attn_idxs", layers)
        return [attention if i in full else conv for i in range(layers)]
    if words is None and "layer_types" not in f.faulty:
        hint = "add layer_types (conv or full_attention for each layer)"
        f.fault("MW841", "layer_types is missing", "layer_types", hint=hint)
    return [attention if w == "full_attention" else conv for w in words or ["conv"] * layers]


def _common(f: Fields, name: str) -> dict[str, object]:
    tied = f.flag("tie_embedding", default=f.flag("tie_word_embeddings", default=True))
    return common(f, name) | {"tied_embeddings": tied}
