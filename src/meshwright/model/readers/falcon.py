"""Falcon, GPT-NeoX and GPT-J: layernorms, plain MLPs, attention and MLP mostly side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshwright.model.readers.dense import common, depth, split_heads
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_VOCAB,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, Mlp, Model


def falcon(f: Fields, name: str) -> Model:
    """`FalconForCausalLM`: one key/value head (7B), groups (40B, 180B) or one a query head (RW).

    The newer architecture has a norm for each part, the older parallel one a single norm for both.
    """
    width = f.integer("n_embed", "hidden_size", most=MOST_WIDTH)
    heads = f.integer("num_attention_heads", "n_head", most=MOST_HEADS)
    newer = f.flag("new_decoder_architecture", default=False)
    parallel = f.flag("parallel_attn", default=True) or newer
    kv_heads = f.integer("num_kv_heads", "n_head_kv", most=MOST_HEADS, default=heads)
    if f.flag("multi_query", default=True) and not newer:
        kv_heads = 1
    kv_key = f.spelled("num_kv_heads", "n_head_kv")
    heads_key = f.spelled("num_attention_heads", "n_head")
    f.rule(
        heads % kv_heads == 0,
        f"{heads_key} {heads} is not a multiple of {kv_key} {kv_heads}",
        heads_key,
        kv_key,
    )
    f.rule(
        newer or kv_heads in (1, heads),
        f"{kv_key} {kv_heads} is neither 1 nor {heads_key} {heads} without new_decoder_architecture",
        heads_key,
        kv_key,
    )
    norms = f.integer("num_ln_in_parallel_attn", most=2, default=2 if newer else 1) if parallel else 2
    f.rule(
        norms == 1 or newer or not parallel,
        f"num_ln_in_parallel_attn {norms} without new_decoder_architecture: one norm for both parts",
        "num_ln_in_parallel_attn",
    )
    bias = f.flag("bias", default=False)
    head_dim = split_heads(f, width, heads, f.spelled("n_embed", "hidden_size"), heads_key)
    rotary = not f.flag("alibi", default=False)
    attention = Attention(heads, kv_heads, head_dim, bias_qkv=bias, bias_out=bias, rotary=rotary)
    d_ff = f.integer("ffn_hidden_size", most=MOST_WIDTH, default=4 * width)
    block = Block(attention, Mlp(d_ff, gated=False, bias=bias), n_norms=norms, parallel=parallel)
    layers = f.integer("num_hidden_layers", "n_layer", most=MOST_LAYERS)
    return _layernormed(f, name, [block] * layers, width, tied_default=True)


def gpt_neox(f: Fields, name: str) -> Model:
    """`GPTNeoXForCausalLM`: biases everywhere but on the head; parallel unless told otherwise."""
    width = f.integer("hidden_size", most=MOST_WIDTH)
    heads = f.integer("num_attention_heads", most=MOST_HEADS)
    attention = Attention(heads, heads, split_heads(f, width, heads), bias_qkv=True, bias_out=True)
    if not f.flag("attention_bias", default=True):
        attention = replace(attention, bias_qkv=False, bias_out=False)
    mlp = Mlp(f.integer("intermediate_size", most=MOST_WIDTH), gated=False, bias=True)
    block = Block(attention, mlp, parallel=f.flag("use_parallel_residual", default=True))
    return model_of([block] * depth(f), norm="layernorm", **common(f, name))


def gptj(f: Fields, name: str) -> Model:
    """`GPTJForCausalLM`: one norm for both parts, biases on the MLP and the head only."""
    width = f.integer("n_embd", "hidden_size", most=MOST_WIDTH)
    heads = f.integer("n_head", "num_attention_heads", most=MOST_HEADS)
    keys = f.spelled("n_embd", "hidden_size"), f.spelled("n_head", "num_attention_heads")
    attention = Attention(heads, heads, split_heads(f, width, heads, *keys))
    mlp = Mlp(f.integer("n_inner", most=MOST_WIDTH, default=4 * width), gated=False, bias=True)
    block = Block(attention, mlp, n_norms=1, parallel=True)
    layers = f.integer("n_layer", "num_hidden_layers", most=MOST_LAYERS)
    return _layernormed(f, name, [block] * layers, width, tied_default=False, head_bias=True)


def _layernormed(
    f: Fields, name: str, blocks: list[Block], width: int, *, tied_default: bool, **rest: Any
) -> Model:
    return model_of(
        blocks,
        name=name,
        d_model=width,
        vocab=f.integer("vocab_size", most=MOST_VOCAB),
        tied_embeddings=f.flag("tie_word_embeddings", default=tied_default),
        norm="layernorm",
        family=str(f.values.get("model_type")),
        source=f.where,
        **rest,
    )
