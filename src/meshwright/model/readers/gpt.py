"""GPT-2, OPT and BLOOM: layernorms and biases everywhere, a plain MLP, a head tied to the embedding."""

from __future__ import annotations

from meshwright.model.readers.dense import split_heads
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


def gpt2(f: Fields, name: str) -> Model:
    """`GPT2LMHeadModel`: learned positions; the MLP is four times the width unless `n_inner` says."""
    width = f.integer("n_embd", "hidden_size", most=MOST_WIDTH)
    cross = f.flag("add_cross_attention", default=False)
    f.unsupported(cross, "add_cross_attention", "an encoder beside the decoder is not modelled")
    return _decoder(
        f,
        name,
        width=width,
        heads=f.integer("n_head", "num_attention_heads", most=MOST_HEADS),
        keys=(f.spelled("n_embd", "hidden_size"), f.spelled("n_head", "num_attention_heads")),
        d_ff=f.integer("n_inner", most=MOST_WIDTH, default=4 * width),
        layers=f.integer("n_layer", "num_hidden_layers", most=MOST_LAYERS),
        n_positions=f.integer("n_positions", "max_position_embeddings", most=MOST_POSITIONS),
    )


def opt(f: Fields, name: str) -> Model:
    """`OPTForCausalLM`: two more rows than positions; a narrower embedding (350M) is refused."""
    width = f.integer("hidden_size", most=MOST_WIDTH)
    narrow = f.integer("word_embed_proj_dim", most=MOST_WIDTH, default=width)
    f.unsupported(
        narrow != width and "hidden_size" not in f.faulty,
        "word_embed_proj_dim",
        f"an embedding of another width than hidden_size {width} is not modelled",
    )
    affine = f.flag("layer_norm_elementwise_affine", default=True)
    f.unsupported(not affine, "layer_norm_elementwise_affine", "norms without weights are not modelled")
    before = f.flag("do_layer_norm_before", default=True)
    removed = f.flag("_remove_final_layer_norm", default=False)
    return _decoder(
        f,
        name,
        width=width,
        heads=f.integer("num_attention_heads", most=MOST_HEADS),
        keys=("hidden_size", "num_attention_heads"),
        d_ff=f.integer("ffn_dim", most=MOST_WIDTH),
        layers=f.integer("num_hidden_layers", most=MOST_LAYERS),
        n_positions=f.integer("max_position_embeddings", most=MOST_POSITIONS) + 2,
        bias=f.flag("enable_bias", default=True),
        final_norm=before and not removed,
    )


def bloom(f: Fields, name: str) -> Model:
    """`BloomForCausalLM`: no positions table (ALiBi), a norm after the embedding, an MLP of four widths."""
    width = f.integer("n_embed", "hidden_size", most=MOST_WIDTH)
    return _decoder(
        f,
        name,
        width=width,
        heads=f.integer("n_head", "num_attention_heads", most=MOST_HEADS),
        keys=(f.spelled("n_embed", "hidden_size"), f.spelled("n_head", "num_attention_heads")),
        d_ff=4 * width,
        layers=f.integer("n_layer", "num_hidden_layers", most=MOST_LAYERS),
        n_positions=0,
        embedding_norm=True,
    )


def _decoder(
    f: Fields,
    name: str,
    *,
    width: int,
    heads: int,
    keys: tuple[str, str],
    d_ff: int,
    layers: int,
    n_positions: int,
    bias: bool = True,
    final_norm: bool = True,
    embedding_norm: bool = False,
) -> Model:
    head_dim = split_heads(f, width, heads, *keys)
    attention = Attention(heads, heads, head_dim, bias_qkv=bias, bias_out=bias, rotary=False)
    return model_of(
        [Block(attention, Mlp(d_ff, gated=False, bias=bias))] * layers,
        name=name,
        d_model=width,
        vocab=f.integer("vocab_size", most=MOST_VOCAB),
        tied_embeddings=f.flag("tie_word_embeddings", default=True),
        norm="layernorm",
        n_positions=n_positions,
        final_norm=final_norm,
        embedding_norm=embedding_norm,
        family=str(f.values.get("model_type")),
        source=f.where,
    )
