"""Mamba, Falcon-Mamba and Mamba-2: a state space in every layer and nothing else."""

from __future__ import annotations

from meshwright.model.readers.dense import common, depth
from meshwright.model.readers.fields import MOST_HEADS, MOST_WIDTH, Fields, model_of
from meshwright.model.records import Block, Mamba1, Mamba2, Model


def mamba(f: Fields, name: str) -> Model:
    """`MambaForCausalLM`."""
    return _pure(f, name, _channels(f), tied_default=True)


def falcon_mamba(f: Fields, name: str) -> Model:
    """`FalconMambaForCausalLM`: time step, B and C are normalised, without weights."""
    return _pure(f, name, _channels(f, inner_norms=True), tied_default=True)


def mamba2(f: Fields, name: str) -> Model:
    """`Mamba2ForCausalLM`."""
    plain(f, biases=("use_bias",), conv="use_conv_bias")
    mixer = heads_of_width(
        f,
        heads_key="num_heads",
        heads=f.integer("num_heads", most=MOST_HEADS),
        head_dim=f.integer("head_dim", most=MOST_WIDTH, default=64),
        groups_key="n_groups",
        groups=f.integer("n_groups", most=MOST_HEADS, default=8),
        d_state=f.integer("state_size", most=MOST_WIDTH, default=128),
        d_conv=f.integer("conv_kernel", most=MOST_WIDTH, default=4),
    )
    width = f.integer("hidden_size", most=MOST_WIDTH)
    expand = f.integer("expand", most=MOST_WIDTH, default=2)
    f.rule(
        expand * width == mixer.d_inner,
        f"expand {expand} x hidden_size {width} = {expand * width}, "
        f"but num_heads {mixer.n_heads} x head_dim {mixer.head_dim} = {mixer.d_inner}",
        "expand",
        "hidden_size",
        "num_heads",
        "head_dim",
    )
    return _pure(f, name, mixer, tied_default=False)


def prefixed(f: Fields, *, heads_key: str, d_state: int, width_key: str = "mamba_d_head") -> Mamba2:
    """Mamba-2 as hybrids spell it (`mamba_d_state` and so on); the head width may be left to follow."""
    width = f.integer("hidden_size", most=MOST_WIDTH)
    expand = f.integer("mamba_expand", most=MOST_WIDTH, default=2)
    heads = f.integer(heads_key, most=MOST_HEADS, default=128)
    inner = expand * width
    f.rule(
        inner % heads == 0,
        f"mamba_expand {expand} x hidden_size {width} = {inner} is not a multiple of {heads_key} {heads}",
        "mamba_expand",
        "hidden_size",
        heads_key,
    )
    head_dim = f.auto(width_key, most=MOST_WIDTH, otherwise=max(1, inner // heads))
    f.rule(
        heads * head_dim == inner or inner % heads != 0,
        f"{heads_key} {heads} x {width_key} {head_dim} = {heads * head_dim}, "
        f"but mamba_expand {expand} x hidden_size {width} = {inner}",
        heads_key,
        width_key,
        "mamba_expand",
        "hidden_size",
    )
    groups_key = f.spelled("mamba_n_groups", "mamba_ngroups")
    return heads_of_width(
        f,
        heads_key=heads_key,
        heads=heads,
        head_dim=head_dim,
        groups_key=groups_key,
        groups=f.integer(groups_key, most=MOST_HEADS, default=1),
        d_state=f.integer("mamba_d_state", most=MOST_WIDTH, default=d_state),
        d_conv=f.integer("mamba_d_conv", most=MOST_WIDTH, default=4),
    )


def heads_of_width(
    f: Fields,
    *,
    heads_key: str,
    heads: int,
    head_dim: int,
    groups_key: str,
    groups: int,
    d_state: int,
    d_conv: int,
) -> Mamba2:
    """Mamba-2 of `heads` heads, whose B and C are shared by groups of them."""
    f.rule(
        heads % groups == 0,
        f"{heads_key} {heads} is not a multiple of {groups_key} {groups}",
        heads_key,
        groups_key,
    )
    return Mamba2(heads * head_dim, d_state, d_conv, n_heads=heads, head_dim=head_dim, n_groups=groups)


def plain(f: Fields, *, biases: tuple[str, ...], conv: str) -> None:
    """Refuse state spaces with biases on their projections, or without one on the convolution."""
    for key in biases:
        f.unsupported(f.flag(key, default=False), key, "biases on the projections are not modelled")
    bare = not f.flag(conv, default=True)
    f.unsupported(bare, conv, "a convolution without a bias is not modelled")


def _channels(f: Fields, *, inner_norms: bool = False) -> Mamba1:
    """Mamba-1; `intermediate_size` beats `expand` where a file has both (Falcon-Mamba's differ)."""
    plain(f, biases=("use_bias",), conv="use_conv_bias")
    width = f.integer("hidden_size", most=MOST_WIDTH)
    expand = f.integer("expand", most=MOST_WIDTH, default=2)
    return Mamba1(
        d_inner=f.integer("intermediate_size", most=MOST_WIDTH, default=expand * width),
        d_state=f.integer("state_size", most=MOST_WIDTH, default=16),
        d_conv=f.integer("conv_kernel", most=MOST_WIDTH, default=4),
        dt_rank=f.auto("time_step_rank", most=MOST_WIDTH, otherwise=-(-width // 16)),
        inner_norms=inner_norms,
        inner_norm_weights=not inner_norms,
    )


def _pure(f: Fields, name: str, mixer: Mamba1 | Mamba2, *, tied_default: bool) -> Model:
    block = Block(mixer, None, n_norms=1)
    return model_of([block] * depth(f), **common(f, name, tied_default=tied_default))
