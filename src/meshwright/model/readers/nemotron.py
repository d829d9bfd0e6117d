"""Nemotron-4 (dense) and Nemotron-H (hybrid): layernorms or rmsnorms, plain MLPs with squared ReLU."""

from __future__ import annotations

from dataclasses import replace

from meshwright.model.readers.dense import common, depth, grouped_query
from meshwright.model.readers.experts import grouped, multi_token, routed
from meshwright.model.readers.fields import MOST_HEADS, MOST_LAYERS, MOST_WIDTH, Fields, model_of
from meshwright.model.readers.mamba import heads_of_width, plain
from meshwright.model.records import Block, Mamba2, Mlp, Model, Moe

# How a layer's kind is written: the letters of the released files and the words of the class.
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_WORDS = tuple(_LETTERS.values())


def nemotron(f: Fields, name: str) -> Model:
    """`NemotronForCausalLM`: layernorms with biases, an MLP of two matrices."""
    bias = f.flag("attention_bias", default=False)
    attention = grouped_query(f, bias_qkv=bias, bias_out=bias, kv_required=False)
    width = f.integer("intermediate_size", most=MOST_WIDTH)
    mlp = Mlp(width, gated=False, bias=f.flag("mlp_bias", default=False))
    return model_of([Block(attention, mlp)] * depth(f), norm="layernorm", **common(f, name))


def nemotron_h(f: Fields, name: str) -> Model:
    """`NemotronHForCausalLM`: a layer is a norm and one part: state space, attention, MLP or experts.

    The class keeps a head of its own, whatever `tie_word_embeddings` says.
    """
    words = _kinds(f)
    made = {word: _block(f, word) for word in dict.fromkeys(words)}
    mtp = multi_token(f, "num_nextn_predict_layers")
    rest = common(f, name) | {"tied_embeddings": False}
    return model_of([made[word] for word in words], mtp_layers=mtp, **rest)


def _kinds(f: Fields) -> list[str]:
    """The word of each layer; its depth is the list's, which `num_hidden_layers` must match where given."""
    listed = f.spelled("layers_block_type", "layer_types", "hybrid_override_pattern")
    value = f.values.get(listed)
    own = len(value) if isinstance(value, list | tuple | str) else 0
    told = f.integer("num_hidden_layers", most=MOST_LAYERS, default=max(1, own))
    if value is None:
        f.fault(
            "MW841",
            "hybrid_override_pattern is missing",
            "hybrid_override_pattern",
            hint="give hybrid_override_pattern (M state space, * attention, - MLP, E experts) or "
            "layers_block_type",
        )
        return ["linear_attention"]
    if listed == "hybrid_override_pattern":
        letters = f.letters(listed, "".join(_LETTERS), told)
        return [_LETTERS[c] for c in letters] if letters else ["linear_attention"]
    return f.words(listed, _WORDS, told) or ["linear_attention"]


def _block(f: Fields, word: str) -> Block:
    match word:
        case "linear_attention":
            return Block(_state_space(f), None, n_norms=1)
        case "full_attention":
            # The class has no biases here, whatever attention_bias says.
            return Block(grouped_query(f, head_dim_default=128), None, n_norms=1)
        case "mlp":
            bias = f.flag("mlp_bias", default=False)
            width = f.integer("intermediate_size", most=MOST_WIDTH)
            return Block(None, Mlp(width, gated=False, bias=bias), n_norms=1)
        case _:
            return Block(None, _experts(f), n_norms=1)


def _state_space(f: Fields) -> Mamba2:
    plain(f, biases=("use_bias", "mamba_proj_bias"), conv=f.spelled("use_conv_bias", "mamba_conv_bias"))
    groups_key = f.spelled("n_groups", "mamba_n_groups")
    return heads_of_width(
        f,
        heads_key="mamba_num_heads",
        heads=f.integer("mamba_num_heads", most=MOST_HEADS),
        head_dim=f.integer("mamba_head_dim", most=MOST_WIDTH, default=64),
        groups_key=groups_key,
        groups=f.integer(groups_key, most=MOST_HEADS, default=8),
        d_state=f.integer("ssm_state_size", most=MOST_WIDTH, default=128),
        d_conv=f.integer("conv_kernel", "mamba_d_conv", most=MOST_WIDTH, default=4),
    )


def _experts(f: Fields) -> Moe:
    bias = f.flag("mlp_bias", default=False)
    f.unsupported(bias, "mlp_bias", "biases on the shared expert alone are not modelled")
    moe = routed(f, "n_routed_experts", "num_local_experts", width_key="moe_intermediate_size")
    moe = grouped(f, moe, groups_keys=("n_group",), experts_key="n_routed_experts")
    return replace(
        moe,
        gated=False,
        shared_d_ff=f.integer("moe_shared_expert_intermediate_size", most=MOST_WIDTH),
        latent_dim=f.integer("moe_latent_size", most=MOST_WIDTH, default=0),
    )
