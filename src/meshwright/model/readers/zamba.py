"""Zamba2: Mamba-2 in every layer, and one attention block whose weights serve several layers."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.fields import MOST_LAYERS, MOST_WIDTH, Fields, model_of
from meshwright.model.readers.mamba import prefixed
from meshwright.model.records import Block, Mlp, Model

_WORDS = ("linear_attention", "hybrid")


def zamba2(f: Fields, name: str) -> Model:
    """`Zamba2ForCausalLM`: the shared block reads hidden state and embedding side by side, before its layers.

    `num_mem_blocks` sets of its weights take turns; each use has an adapter and an output matrix of its own.
    """
    layers, width = depth(f), f.integer("hidden_size", most=MOST_WIDTH)
    bias = f.flag("add_bias_linear", default=False)
    f.unsupported(bias, "add_bias_linear", "biases on the projections are not modelled")
    adapted = f.flag("use_shared_attention_adapter", default=False)
    f.unsupported(adapted, "use_shared_attention_adapter", "adapters on attention are not modelled")
    mamba = prefixed(
        f.filled(n_mamba_heads=8), heads_key="n_mamba_heads", d_state=64, width_key="mamba_headdim"
    )
    at = _shared_at(f, layers)
    d_ff = f.integer("intermediate_size", most=MOST_WIDTH, default=4 * width)
    head_dim = 2 * width // f.integer("num_attention_heads", most=2 * width)
    attention = grouped_query(f, kv_required=False, head_dim_default=max(1, head_dim))
    return model_of(
        [Block(mamba, None, n_norms=1)] * layers,
        shared_block=Block(replace(attention, d_in=2 * width), Mlp(d_ff)) if at else None,
        shared_at=at,
        shared_sets=min(max(1, len(at)), f.integer("num_mem_blocks", most=MOST_LAYERS, default=1)),
        shared_adapter_rank=f.integer("adapter_rank", most=MOST_WIDTH, default=128) if at else 0,
        **common(f, name, tied_default=True),
    )


def _shared_at(f: Fields, layers: int) -> tuple[int, ...]:
    """The layers before which the shared block runs."""
    words = f.words("layers_block_type", _WORDS, layers) or f.words("layer_types", _WORDS, layers)
    if words is not None:
        return tuple(i for i, word in enumerate(words) if word == "hybrid")
    listed = f.indices("hybrid_layer_ids", layers)
    if not listed and not f.faulty.intersection({"layers_block_type", "layer_types", "hybrid_layer_ids"}):
        f.fault(
            "MW841",
            "layers_block_type is missing",
            "layers_block_type",
            hint="add layers_block_type (mamba or hybrid for each layer) or hybrid_layer_ids",
        )
    return tuple(sorted(listed))
