"""GLM-4 and later: dense with norms around each part, experts over grouped-query or latent attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.model.readers.deepseek import first_dense, latent, shared_and_routed
from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import multi_token
from meshwright.model.readers.fields import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, LatentAttention, Mlp, Model

FFN_WORDS = ("dense", "sparse")


def glm(f: Fields, name: str) -> Model:
    """`GlmForCausalLM`: biases on queries, keys and values; heads are 128 wide unless the file says."""
    return _dense(f, name, n_norms=2)


def glm4(f: Fields, name: str) -> Model:
    """`Glm4ForCausalLM`: as `glm`, with a norm after each part too."""
    return _dense(f, name, n_norms=4)


def glm4_moe(f: Fields, name: str) -> Model:
    """`Glm4MoeForCausalLM` (GLM-4.5 to 4.7): grouped-query attention, a dense start, experts after it."""
    attention = grouped_query(f, bias_qkv=f.flag("attention_bias", default=False))
    if f.flag("use_qk_norm", default=False):
        attention = replace(attention, qk_norm="head")
    layers = depth(f)
    first = first_dense(f, layers, default=1)
    return _sparse(f, name, [attention] * layers, [i >= first for i in range(layers)])


def glm4_moe_lite(f: Fields, name: str) -> Model:
    """`Glm4MoeLiteForCausalLM` (GLM-4.7-Flash): latent attention; the first layer is dense unless told."""
    layers = depth(f)
    return _sparse(f, name, [latent(f)] * layers, ffn_kinds(f, layers, dense_first=1))


def glm_moe_dsa(f: Fields, name: str) -> Model:
    """`GlmMoeDsaForCausalLM` (GLM-5): latent attention that looks where an indexer points.

    A layer either has an indexer or reuses the choice of the one below it.
    """
    layers = depth(f)
    own = replace(
        latent(f),
        index_n_heads=f.integer("index_n_heads", most=MOST_HEADS, default=32),
        index_head_dim=f.integer("index_head_dim", most=MOST_WIDTH, default=128),
        index_topk=f.integer("index_topk", most=MOST_POSITIONS, default=2048),
    )
    reused = replace(own, index_n_heads=0, index_head_dim=0)
    mixers = [own if owns else reused for owns in _indexers(f, layers)]
    return _sparse(f, name, mixers, ffn_kinds(f, layers, dense_first=3))


def ffn_kinds(f: Fields, layers: int, *, dense_first: int) -> list[bool]:
    """Whether each layer has experts: `mlp_layer_types`, else from `first_k_dense_replace` on."""
    words = f.words("mlp_layer_types", FFN_WORDS, layers)
    first = first_dense(f, layers, default=dense_first)
    return [w == "sparse" for w in words] if words else [i >= first for i in range(layers)]


def _indexers(f: Fields, layers: int) -> list[bool]:
    words = f.words("indexer_types", ("full", "shared"), layers)
    if words:
        return [w == "full" for w in words]
    letters = f.letters("index_topk_pattern", "FS", layers)
    if letters:
        return [c == "F" for c in letters]
    every = f.integer("index_topk_freq", most=MOST_LAYERS, default=1)
    offset = f.integer("index_skip_topk_offset", most=MOST_LAYERS, least=0, default=2)
    return [max(i - offset + 1, 0) % every == 0 for i in range(layers)]


def _dense(f: Fields, name: str, *, n_norms: int) -> Model:
    bias = f.flag("attention_bias", default=True)
    attention = grouped_query(f, bias_qkv=bias, head_dim_default=128)
    block = Block(attention, Mlp(f.integer("intermediate_size", most=MOST_WIDTH)), n_norms=n_norms)
    return model_of([block] * depth(f), **common(f, name))


def _sparse(f: Fields, name: str, mixers: Sequence[Attention | LatentAttention], sparse: list[bool]) -> Model:
    moe = shared_and_routed(f)
    mlp = moe if all(sparse) else Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    blocks = [Block(mixer, moe if s else mlp) for mixer, s in zip(mixers, sparse)]
    mtp = multi_token(f, "num_nextn_predict_layers", "num_mtp_layers")
    return model_of(blocks, mtp_layers=mtp, **common(f, name))
