"""MPT and DBRX: layernorms without biases, figures of attention and experts in objects of their own."""

from __future__ import annotations

from typing import Any

from meshwright.model.readers.dense import split_heads
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_VOCAB,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, Mlp, Model


def mpt(f: Fields, name: str) -> Model:
    """`MptForCausalLM`: ALiBi, one key/value head a query head, an MLP of four widths, no biases."""
    width, heads, head_dim = _heads(f)
    attn = f.part("attn_config")
    if attn is not None:
        kind = attn.values.get("attn_type", "multihead_attention")
        attn.unsupported(kind != "multihead_attention", "attn_type", "the class has one kind only")
        normed = attn.flag("qk_ln", default=False)
        attn.unsupported(normed, "qk_ln", "norms of queries and keys are not in the class")
    bias = not f.flag("no_bias", default=True)
    f.unsupported(bias, "no_bias", "the class has no biases")
    ratio = f.integer("expansion_ratio", most=64, default=4)
    f.unsupported(ratio != 4, "expansion_ratio", "the class's MLP has four times the width")
    block = Block(Attention(heads, heads, head_dim, rotary=False), Mlp(4 * width, gated=False))
    return _decoder(f, name, block, width, tied_embeddings=f.flag("tie_word_embeddings", default=True))


def dbrx(f: Fields, name: str) -> Model:
    """`DbrxForCausalLM`: grouped-query attention, gated experts in every layer."""
    width, heads, head_dim = _heads(f)
    attn, ffn = f.part("attn_config"), f.part("ffn_config")
    for part, key in ((attn, "attn_config"), (ffn, "ffn_config")):
        if part is None and key not in f.faulty:
            f.fault("MW841", f"{key} is missing", key, hint=f"add {key}")
    kv_heads = attn.integer("kv_n_heads", most=MOST_HEADS) if attn is not None else 1
    f.rule(
        heads % kv_heads == 0,
        f"n_heads {heads} is not a multiple of kv_n_heads {kv_heads}",
        "n_heads",
        "attn_config",
    )
    moe = routed(
        ffn if ffn is not None else f.filled(moe_num_experts=1, moe_top_k=1, ffn_hidden_size=1),
        "moe_num_experts",
        width_key="ffn_hidden_size",
        top_k_keys=("moe_top_k",),
    )
    return _decoder(f, name, Block(Attention(heads, kv_heads, head_dim), moe), width)


def _heads(f: Fields) -> tuple[int, int, int]:
    width = f.integer("d_model", "hidden_size", most=MOST_WIDTH)
    heads = f.integer("n_heads", "num_attention_heads", most=MOST_HEADS)
    keys = f.spelled("d_model", "hidden_size"), f.spelled("n_heads", "num_attention_heads")
    return width, heads, split_heads(f, width, heads, *keys)


def _decoder(f: Fields, name: str, block: Block, width: int, **rest: Any) -> Model:
    layers = f.integer("n_layers", "num_hidden_layers", most=MOST_LAYERS)
    return model_of(
        [block] * layers,
        name=name,
        d_model=width,
        vocab=f.integer("vocab_size", most=MOST_VOCAB),
        norm="layernorm",
        norm_bias=False,
        family=str(f.values.get("model_type")),
        source=f.where,
        **rest,
    )
