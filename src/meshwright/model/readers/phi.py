"""Phi: parallel blocks with layernorms (1, 2), Llama-like (3, 4), experts with layernorms (3.5)."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_POSITIONS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Block, Mlp, Model


def phi(f: Fields, name: str) -> Model:
    """`PhiForCausalLM`: one layernorm feeds both parts at once; biases everywhere, the head included."""
    normed = f.flag("qk_layernorm", default=False)
    f.unsupported(normed, "qk_layernorm", "layernorms with biases on queries and keys are not modelled")
    attention = grouped_query(f, bias_qkv=True, bias_out=True, kv_required=False)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH), gated=False, bias=True)
    block = Block(attention, mlp, n_norms=1, parallel=True)
    return model_of([block] * depth(f), norm="layernorm", head_bias=True, **common(f, name))


def phi3(f: Fields, name: str) -> Model:
    """`Phi3ForCausalLM`: one window for every layer where the file names one."""
    attention = replace(grouped_query(f, kv_required=False), window=_window(f))
    block = Block(attention, Mlp(f.integer("intermediate_size", most=MOST_WIDTH)))
    return model_of([block] * depth(f), **common(f, name))


def phimoe(f: Fields, name: str) -> Model:
    """`PhimoeForCausalLM`: experts of width `intermediate_size` in every layer, layernorms."""
    bias = f.flag("attention_bias", default=False)
    attention = replace(grouped_query(f, bias_qkv=bias, bias_out=bias), window=_window(f))
    moe = routed(f, "num_local_experts", "num_experts", width_key="intermediate_size")
    return model_of(
        [Block(attention, moe)] * depth(f),
        norm="layernorm",
        head_bias=f.flag("lm_head_bias", default=False),
        **common(f, name),
    )


def _window(f: Fields) -> int | None:
    """The window, or None where it is as long as the whole context (Phi-3.5-MoE)."""
    window = f.optional("sliding_window", most=MOST_POSITIONS)
    context = f.integer("max_position_embeddings", most=MOST_POSITIONS, default=MOST_POSITIONS)
    return None if window is None or window >= context else window
