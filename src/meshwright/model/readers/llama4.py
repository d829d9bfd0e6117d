"""Llama-4 (text): chunked attention in three layers of four, experts in every layer or every other."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_LAYERS, MOST_POSITIONS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Attention, Block, Mlp, Model

_WORDS = ("chunked_attention", "full_attention")


def llama4(f: Fields, name: str) -> Model:
    """`Llama4ForCausalLM`: a shared expert as wide as a routed one; dense layers have their own width.

    The norm of queries and keys (`use_qk_norm`) has no weights.
    """
    layers = depth(f)
    bias = f.flag("attention_bias", default=False)
    far = grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=128)
    moe = routed(f, "num_local_experts", width_key="intermediate_size")
    moe = replace(moe, shared_d_ff=moe.d_ff)
    step = f.integer("interleave_moe_layer_step", most=MOST_LAYERS, default=1)
    sparse = (
        f.indices("moe_layers", layers)
        if f.values.get("moe_layers") is not None
        else frozenset(range(step - 1, layers, step))
    )
    mlp = moe if len(sparse) == layers else Mlp(f.integer("intermediate_size_mlp", most=MOST_WIDTH))
    mixers = _mixers(f, far, layers)
    return model_of(
        [Block(mixer, moe if i in sparse else mlp) for i, mixer in enumerate(mixers)], **common(f, name)
    )


def _mixers(f: Fields, far: Attention, layers: int) -> list[Attention]:
    """Layers with rotary positions attend in chunks, the others to the whole prefix."""
    chunk = f.optional("attention_chunk_size", most=MOST_POSITIONS, absent=8192)
    near = far if chunk is None else replace(far, window=chunk, chunked=True)
    words = f.words("layer_types", _WORDS, layers)
    if words:
        return [near if w == "chunked_attention" else far for w in words]
    every = f.integer("no_rope_layer_interval", most=MOST_LAYERS, default=4)
    told = f.switches("no_rope_layers", layers) if f.values.get("no_rope_layers") else None
    rotary = told or [(i + 1) % every != 0 for i in range(layers)]
    return [near if r else far for r in rotary]
