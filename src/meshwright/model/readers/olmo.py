"""OLMo 2 and 3, OLMoE: norms over whole queries and keys; from OLMo-2 on norms stand after each part."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_POSITIONS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Attention, Block, Mlp, Model


def olmo2(f: Fields, name: str) -> Model:
    """`Olmo2ForCausalLM`."""
    block = Block(_attention(f), Mlp(f.integer("intermediate_size", most=MOST_WIDTH)))
    return model_of([block] * depth(f), **common(f, name))


def olmo3(f: Fields, name: str) -> Model:
    """`Olmo3ForCausalLM`: three windows, then one full layer, unless `layer_types` says otherwise."""
    far, layers = _attention(f), depth(f)
    near = replace(far, window=f.optional("sliding_window", most=MOST_POSITIONS, absent=4096))
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    words = f.words("layer_types", LAYER_WORDS, layers)
    words = words or [LAYER_WORDS[(i + 1) % 4 != 0] for i in range(layers)]
    blocks = [Block(near if w == "sliding_attention" else far, mlp) for w in words]
    return model_of(blocks, **common(f, name))


def olmoe(f: Fields, name: str) -> Model:
    """`OlmoeForCausalLM`: experts of width `intermediate_size` in every layer."""
    moe = routed(f, "num_experts", "num_local_experts", width_key="intermediate_size")
    return model_of([Block(_attention(f), moe)] * depth(f), **common(f, name))


def _attention(f: Fields) -> Attention:
    bias = f.flag("attention_bias", default=False)
    return replace(grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False), qk_norm="full")
