"""Step-3 (text): queries through a normed factor, one key/value head, experts in the layers listed."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.experts import routed
from meshwright.model.readers.fields import MOST_HEADS, MOST_WIDTH, Fields, model_of, shown
from meshwright.model.records import Attention, Block, Mlp, Model


def step3(f: Fields, name: str) -> Model:
    """`Step3ForCausalLM` as inference engines lay it out; no class of the library reads it."""
    layers = depth(f)
    heads = f.integer("num_attention_heads", most=MOST_HEADS)
    groups = f.integer("num_attention_groups", "num_key_value_heads", most=MOST_HEADS, default=1)
    key = f.spelled("num_attention_groups", "num_key_value_heads")
    f.rule(
        heads % groups == 0,
        f"num_attention_heads {heads} is not a multiple of {key} {groups}",
        "num_attention_heads",
        key,
    )
    attention = Attention(
        heads,
        groups,
        f.integer("head_dim", most=MOST_WIDTH, default=256),
        q_lora_rank=f.integer("share_q_dim", most=MOST_WIDTH),
    )
    moe = routed(f, "moe_num_experts", width_key="moe_intermediate_size", top_k_keys=("moe_top_k",))
    moe = replace(moe, shared_d_ff=f.integer("share_expert_dim", most=MOST_WIDTH, default=moe.d_ff))
    sparse = _sparse(f, layers)
    mlp = moe if len(sparse) == layers else Mlp(f.integer("intermediate_size", most=MOST_WIDTH))
    return model_of([Block(attention, moe if i in sparse else mlp) for i in range(layers)], **common(f, name))


def _sparse(f: Fields, layers: int) -> frozenset[int]:
    """Layers with experts, a text of numbers; all but the first where the file is silent."""
    key = "moe_layers_enum"
    value = f.values.get(key)
    if value is None:
        return frozenset(range(1, layers))
    words = [w.strip() for w in value.split(",")] if isinstance(value, str) else []
    if not words or not all(w.isascii() and w.isdigit() and len(w) < 9 for w in words):
        f.fault("MW842", f"{key} = {shown(value)} is not text of layer numbers, as in '4,5,6'", key)
        return frozenset()
    numbers = frozenset(map(int, words))
    f.rule(
        max(numbers) < layers,
        f"{key} names layer {max(numbers)}, num_hidden_layers says {layers}",
        key,
        "num_hidden_layers",
    )
    return numbers
