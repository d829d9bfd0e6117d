"""MiniMax-Text-01, M2 and M3: experts over lightning, plain and block-sparse attention."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import multi_token, routed
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.readers.glm import FFN_WORDS
from meshwright.model.records import Attention, Block, LinearAttention, Mixer, Mlp, Model, Moe

_MIXER_WORDS = ("linear_attention", "full_attention")
_SPARSE_WORDS = ("full_attention", "minimax_m3_sparse")


def minimax(f: Fields, name: str) -> Model:
    """`MiniMaxForCausalLM`: lightning attention but for the layers named; experts everywhere.

    The released file of MiniMax-Text-01 says 1 for full attention in `attn_type_list`.
    """
    layers = depth(f)
    shared = f.integer("shared_intermediate_size", most=MOST_WIDTH, least=0, default=0)
    f.unsupported(shared > 0, "shared_intermediate_size", "the class has no shared expert")
    window = f.optional("sliding_window", most=MOST_POSITIONS)
    attention = replace(grouped_query(f), window=window)
    heads, width = attention.n_heads, attention.head_dim
    lightning = LinearAttention("lightning", n_k_heads=heads, n_v_heads=heads, k_dim=width, v_dim=width)
    words = f.words("layer_types", _MIXER_WORDS, layers)
    full = [w == "full_attention" for w in words] if words else f.switches("attn_type_list", layers)
    # Without a list the class alternates, full attention first.
    full = full or [(i + 1) % 2 != 0 for i in range(layers)]
    moe = routed(f, "num_local_experts", "num_experts", width_key="intermediate_size")
    mixers: list[Mixer] = [attention if a else lightning for a in full]
    return model_of([Block(mixer, moe) for mixer in mixers], **common(f, name))


def minimax_m2(f: Fields, name: str) -> Model:
    """`MiniMaxM2ForCausalLM`: full attention and experts in every layer."""
    attention = replace(grouped_query(f, head_dim_default=128), qk_norm="full")
    moe = routed(f, "num_local_experts", "num_experts", width_key="intermediate_size")
    mtp = multi_token(f, "num_mtp_modules") if f.flag("use_mtp", default=True) else 0
    return model_of([Block(attention, moe)] * depth(f), mtp_layers=mtp, **common(f, name))


def minimax_m3(f: Fields, name: str) -> Model:
    """The text part of `MiniMaxM3VLForConditionalGeneration`: an indexer picks blocks of the prefix.

    The released file spells what the class calls `layer_types` and `mlp_layer_types` as lists of 0 and 1.
    """
    layers = depth(f)
    attention = replace(grouped_query(f, head_dim_default=128), qk_norm="head")
    words = f.words("layer_types", _SPARSE_WORDS, layers)
    legacy = f.part("sparse_attention_config", "num_hidden_layers")
    indexed = [w == "minimax_m3_sparse" for w in words] if words else None
    if indexed is None and legacy is not None:
        indexed = legacy.switches("sparse_attention_freq", layers)
    indexed = indexed or [False] * layers
    chooser = _chooser(f, legacy, attention) if any(indexed) else attention
    kinds = f.words("mlp_layer_types", FFN_WORDS, layers)
    sparse = [k == "sparse" for k in kinds] if kinds else f.switches("moe_layer_freq", layers)
    sparse = sparse or [True] * layers
    moe: Moe | Mlp = replace(
        routed(f, "num_local_experts", "num_experts", width_key="intermediate_size"),
        shared_d_ff=f.integer("shared_intermediate_size", most=MOST_WIDTH, default=3072),
    )
    mlp = moe if all(sparse) else Mlp(f.integer("dense_intermediate_size", most=MOST_WIDTH))
    mtp = multi_token(f, "num_nextn_predict_layers", "num_mtp_modules")
    blocks = [Block(chooser if looks else attention, moe if s else mlp) for looks, s in zip(indexed, sparse)]
    return model_of(blocks, mtp_layers=mtp, **common(f, name))


def _chooser(f: Fields, legacy: Fields | None, attention: Attention) -> Attention:
    """`attention` with an indexer, whose figures the class and the released file spell differently."""

    def told(key: str, older: str, most: int, default: int) -> int:
        if legacy is not None and f.values.get(key) is None:
            return legacy.integer(older, most=most, default=default)
        return f.integer(key, most=most, default=default)

    block = told("index_block_size", "sparse_block_size", MOST_POSITIONS, 128)
    return replace(
        attention,
        index_n_heads=told("index_n_heads", "sparse_num_index_heads", MOST_HEADS, 4),
        index_head_dim=told("index_head_dim", "sparse_index_dim", MOST_WIDTH, 128),
        index_topk=block * told("index_topk_blocks", "sparse_topk_blocks", MOST_HEADS, 16),
    )
