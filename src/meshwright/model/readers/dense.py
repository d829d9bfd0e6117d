"""Llama, Mistral, Qwen2 and Qwen3: pre-norm decoders with grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_VOCAB,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, Mlp, Model

LAYER_WORDS = ("full_attention", "sliding_attention")


def llama(f: Fields, name: str) -> Model:
    """`LlamaForCausalLM`; `attention_bias` is on all four projections."""
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    return _uniform(f, name, attention, mlp_bias=f.flag("mlp_bias", default=False))


def mistral(f: Fields, name: str) -> Model:
    """`MistralForCausalLM`: one window for every layer; a file that does not name it has 4096."""
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096)
    return _uniform(f, name, replace(grouped_query(f), window=window))


def qwen2(f: Fields, name: str) -> Model:
    """`Qwen2ForCausalLM`: biases on queries, keys and values."""
    return _windowed(f, name, grouped_query(f, bias_qkv=True))


def qwen3(f: Fields, name: str) -> Model:
    """`Qwen3ForCausalLM`: a norm on each query and key head; heads are 128 wide unless the file says."""
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, head_dim_default=128)
    return _windowed(f, name, replace(attention, qk_norm="head"))


def grouped_query(
    f: Fields,
    *,
    bias_qkv: bool = False,
    bias_out: bool = False,
    kv_required: bool = True,
    head_dim_default: int | None = None,
) -> Attention:
    """Attention from the usual keys; null key/value heads mean as many as query heads.

    Llama files older than grouped-query attention lack the key (`kv_required=False`); the other families'
    classes would fill in a number of their own, so there its absence is a fault.
    """
    width = f.integer("hidden_size", most=MOST_WIDTH)
    heads = f.integer("num_attention_heads", most=MOST_HEADS)
    optional = not kv_required or "num_key_value_heads" in f.values
    kv_heads = f.integer("num_key_value_heads", most=MOST_HEADS, default=heads if optional else None)
    f.rule(
        heads % kv_heads == 0,
        f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads} "
        f"({heads} / {kv_heads} = {heads / kv_heads:.3g})",
        "num_attention_heads",
        "num_key_value_heads",
    )
    if head_dim_default is None and f.values.get("head_dim") is None:
        head_dim = split_heads(f, width, heads)
    else:
        head_dim = f.integer("head_dim", most=MOST_WIDTH, default=head_dim_default)
    return Attention(heads, kv_heads, head_dim, bias_qkv=bias_qkv, bias_out=bias_out)


def split_heads(f: Fields, width: int, heads: int, width_key: str = "", heads_key: str = "") -> int:
    """Head width where it follows from hidden_size / num_attention_heads."""
    width_key, heads_key = width_key or "hidden_size", heads_key or "num_attention_heads"
    f.rule(
        width % heads == 0,
        f"{width_key} {width} is not a multiple of {heads_key} {heads} "
        f"({width} / {heads} = {width / heads:.4g})",
        width_key,
        heads_key,
        hint="give head_dim where heads do not divide the width",
    )
    return max(1, width // heads)


def sliding(f: Fields, n_layers: int) -> list[int | None]:
    """The window of each layer as Qwen writes it: `layer_types`, else those from `max_window_layers` on."""
    words = f.words("layer_types", LAYER_WORDS, n_layers)
    used = f.flag("use_sliding_window", default=False)
    window = f.optional("sliding_window", most=MOST_POSITIONS, absent=4096) if used else None
    if words is not None:
        f.rule(
            window is not None or "sliding_attention" not in words,
            "layer_types has sliding_attention, but use_sliding_window is off or sliding_window is null",
            "layer_types",
            "use_sliding_window",
            "sliding_window",
        )
        return [window if word == "sliding_attention" else None for word in words]
    first = f.integer("max_window_layers", most=MOST_LAYERS, least=0, default=28)
    return [window if i >= first else None for i in range(n_layers)]


def common(f: Fields, name: str, *, tied_default: bool = False) -> dict[str, object]:
    """The fields of a model that every family of this shape spells alike."""
    return {
        "name": name,
        "d_model": f.integer("hidden_size", most=MOST_WIDTH),
        "vocab": f.integer("vocab_size", most=MOST_VOCAB),
        "tied_embeddings": f.flag("tie_word_embeddings", default=tied_default),
        "family": str(f.values.get("model_type")),
        "source": f.where,
    }


def depth(f: Fields) -> int:
    """Number of layers."""
    return f.integer("num_hidden_layers", most=MOST_LAYERS)


def _uniform(f: Fields, name: str, attention: Attention, *, mlp_bias: bool = False) -> Model:
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH), bias=mlp_bias)
    return model_of([Block(attention, mlp)] * depth(f), **common(f, name))


def _windowed(f: Fields, name: str, attention: Attention) -> Model:
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    windows = sliding(f, depth(f))
    return model_of([Block(replace(attention, window=w), mlp) for w in windows], **common(f, name))
