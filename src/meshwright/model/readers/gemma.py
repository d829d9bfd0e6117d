"""Gemma 1 to 4 (text): tied embeddings, gated MLPs, from Gemma-2 on four norms a layer and windows."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import LAYER_WORDS, common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, Mlp, Model

_HEAD_DIM = 256


def gemma(f: Fields, name: str) -> Model:
    """`GemmaForCausalLM`: heads are 256 wide whatever the width of the model."""
    block = Block(_attention(f), Mlp(f.integer("intermediate_size", most=MOST_WIDTH)))
    return model_of([block] * depth(f), **common(f, name, tied_default=True))


def gemma2(f: Fields, name: str) -> Model:
    """`Gemma2ForCausalLM`: a window in every other layer, the first included; norms after each part too."""
    return _windowed(f, name, _attention(f), cycle=2)


def gemma3(f: Fields, name: str) -> Model:
    """`Gemma3ForCausalLM`: five windows, then one full layer; a norm on each query and key head.

    Released files leave out what equals the class's own figures, so those stand in here.
    """
    f = f.filled(num_attention_heads=8, num_key_value_heads=4, vocab_size=262_208)
    cycle = f.integer("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS, default=6)
    return _windowed(f, name, replace(_attention(f), qk_norm="head"), cycle=cycle)


def gemma4(f: Fields, name: str) -> Model:
    """`Gemma4ForCausalLM`: as Gemma-3, but full layers have heads of another width and may share K and V.

    With `enable_moe_block`, every layer has experts beside its MLP.
    """
    side = f.integer("hidden_size_per_layer_input", most=MOST_WIDTH, least=0, default=_HEAD_DIM)
    f.unsupported(side > 0, "hidden_size_per_layer_input", "an embedding for every layer is not modelled")
    reused = f.integer("num_kv_shared_layers", most=MOST_LAYERS, least=0, default=0)
    f.unsupported(reused > 0, "num_kv_shared_layers", "keys and values of an earlier layer are not modelled")
    layers = depth(f)
    near = replace(
        _attention(f), qk_norm="head", window=f.integer("sliding_window", most=MOST_POSITIONS, default=512)
    )
    far = _full(f, near, layers)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    sparse = f.flag("enable_moe_block", default=False)
    ffn = (
        replace(
            routed(f, "num_experts", width_key="moe_intermediate_size", top_k_keys=("top_k_experts",)),
            shared_d_ff=mlp.d_ff,
            router_scales=True,
        )
        if sparse
        else mlp
    )
    norms = 7 if sparse else 4
    words = _words(f, layers, cycle=6)
    words[-1] = "full_attention"  # the class makes the last layer full whatever the file says
    blocks = [Block(near if w == "sliding_attention" else far, ffn, n_norms=norms) for w in words]
    return model_of(blocks, **common(f, name, tied_default=True))


def _full(f: Fields, near: Attention, layers: int) -> Attention:
    """The layers of Gemma-4 that see the whole prefix, by the released keys or as the class writes them."""
    shared = f.flag("attention_k_eq_v", default=False)
    rest = f
    if (by_layer := f.part("per_layer_config")) is not None:
        known = [k for k in map(str, range(layers)) if k in by_layer.values]
        told = [part for k in known if (part := by_layer.part(k)) is not None]
        if any(t.values != told[0].values for t in told):
            f.unsupported(True, "per_layer_config", "full layers of several shapes are not modelled")
        rest = told[0] if told else f
    head_dim = rest.integer("global_head_dim" if rest is f else "head_dim", most=MOST_WIDTH, default=512)
    kv = near.n_kv_heads
    if shared:
        key = "num_global_key_value_heads" if rest is f else "num_key_value_heads"
        kv = rest.integer(key, most=MOST_HEADS, default=kv)
        f.rule(
            near.n_heads % kv == 0,
            f"num_attention_heads {near.n_heads} is not a multiple of num_global_key_value_heads {kv}",
            "num_attention_heads",
            "num_global_key_value_heads",
        )
    full = replace(near, window=None, head_dim=head_dim, n_kv_heads=kv)
    return replace(full, kv_from="shared") if shared else full


def _attention(f: Fields) -> Attention:
    bias = f.flag("attention_bias", default=False)
    return grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=_HEAD_DIM)


def _words(f: Fields, layers: int, *, cycle: int) -> list[str]:
    """`layer_types`, or every layer with a window but the last of each `cycle`."""
    words = f.words("layer_types", LAYER_WORDS, layers)
    return words or [LAYER_WORDS[(i + 1) % cycle != 0] for i in range(layers)]


def _windowed(f: Fields, name: str, attention: Attention, *, cycle: int) -> Model:
    near = replace(attention, window=f.optional("sliding_window", most=MOST_POSITIONS, absent=4096))
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    words = _words(f, depth(f), cycle=cycle)
    blocks = [Block(near if w == "sliding_attention" else attention, mlp, n_norms=4) for w in words]
    return model_of(blocks, **common(f, name, tied_default=True))
