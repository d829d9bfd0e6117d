"""DeepSeek-V4: a window beside a compressed cache, grouped output, several residual streams."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.experts import multi_token, routed
from meshwright.model.readers.fields import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    model_of,
)
from meshwright.model.records import Attention, Block, Model

_PLAIN, _FINE, _COARSE = _WORDS = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
_MOST_STREAMS = 64


def deepseek_v4(f: Fields, name: str) -> Model:
    """`DeepseekV4ForCausalLM`: layers differ in how many tokens one compressed entry stands for.

    Only the finely compressed ones choose entries by an indexer. Layers that route by a hash of the token
    have the same weights, since the table of the hash is no parameter.
    """
    layers = depth(f)
    bias = f.flag("attention_bias", default=False)
    f.unsupported(bias, "attention_bias", "biases of this attention are not modelled")
    bias = f.flag("mlp_bias", default=False)
    f.unsupported(bias, "mlp_bias", "biases on experts are not modelled")
    moe = routed(
        f,
        "n_routed_experts",
        "num_local_experts",
        width_key=f.spelled("moe_intermediate_size", "intermediate_size"),
    )
    shared = f.integer("n_shared_experts", most=MOST_EXPERTS, least=0, default=1)
    f.unsupported(shared != 1, "n_shared_experts", "the class has one shared expert")
    moe = replace(moe, shared_d_ff=moe.d_ff)
    made = {word: Block(mixer, moe) for word, mixer in _mixers(f).items()}
    return model_of(
        [made[word] for word in _kinds(f, layers)],
        mtp_layers=multi_token(f, "num_nextn_predict_layers"),
        residual_streams=f.integer("hc_mult", most=_MOST_STREAMS, default=4),
        **common(f, name),
    )


def _kinds(f: Fields, layers: int) -> list[str]:
    """`layer_types`, else by `compress_ratios` (prediction layers may follow in it), else alternating."""
    words = f.words("layer_types", _WORDS, layers)
    if words:
        return words
    value = f.values.get("compress_ratios")
    if value is not None:
        by_ratio = dict(zip((0, 4, 128), _WORDS))
        fine = isinstance(value, list | tuple) and all(type(r) is int and r in by_ratio for r in value)
        if not fine or len(value) < layers:
            f.fault(
                "MW842",
                f"compress_ratios is not a list of 0, 4 or 128 for each of {layers} layers",
                "compress_ratios",
            )
            return [_PLAIN] * layers
        return [by_ratio[r] for r in value[:layers]]
    return [_COARSE if i < 2 or i % 2 == 0 else _FINE for i in range(layers)]


def _mixers(f: Fields) -> dict[str, Attention]:
    heads = f.integer("num_attention_heads", most=MOST_HEADS)
    kv = f.integer("num_key_value_heads", most=MOST_HEADS, default=1)
    f.unsupported(kv != 1, "num_key_value_heads", "the class has one key/value head")
    groups = f.integer("o_groups", most=MOST_HEADS, default=8)
    f.rule(
        heads % groups == 0,
        f"num_attention_heads {heads} is not a multiple of o_groups {groups}",
        "num_attention_heads",
        "o_groups",
    )
    plain = Attention(
        heads,
        1,
        f.integer("head_dim", most=MOST_WIDTH, default=512),
        window=f.integer("sliding_window", most=MOST_POSITIONS, default=128),
        sinks=True,
        kv_from="shared",
        q_lora_rank=f.integer("q_lora_rank", most=MOST_WIDTH, default=1024),
        o_groups=groups,
        o_lora_rank=f.integer("o_lora_rank", most=MOST_WIDTH, default=1024),
    )
    rates = f.part("compress_rates")

    def rate(word: str, older: str, default: int) -> int:
        if rates is not None:
            default = rates.integer(word, most=MOST_POSITIONS, default=default)
        return f.integer(older, most=MOST_POSITIONS, default=default)

    fine = replace(
        plain,
        compress_ratio=rate(_FINE, "compress_rate_csa", 4),
        index_n_heads=f.integer("index_n_heads", most=MOST_HEADS, default=64),
        index_head_dim=f.integer("index_head_dim", most=MOST_WIDTH, default=128),
        index_topk=f.integer("index_topk", most=MOST_POSITIONS, default=512),
    )
    coarse = replace(plain, compress_ratio=rate(_COARSE, "compress_rate_hca", 128))
    return {_PLAIN: plain, _FINE: fine, _COARSE: coarse}
