"""One row of `models.csv`, with the structure of its family, made into a `Model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.model.patterns import fill, local_layers, written_out
from meshwright.model.records import (
    Attention,
    Block,
    KvFrom,
    LatentAttention,
    LinearAttention,
    Mamba1,
    Mamba2,
    Mixer,
    Mlp,
    Model,
    Moe,
    QkNorm,
    ShortConv,
    distinct,
)

Row = Mapping[str, str]
Traits = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer is: letters for its mixer and feed-forward, and where it stands among its like."""

    mixer: str
    ffn: str
    local: bool
    index: str  # F owns an indexer, S reuses one, . has none
    kv_below: bool
    compress: int


def model_from_row(row: Row, traits: Traits) -> Model:
    """The model that `row` of `models.csv` and `traits` of `structures.json` describe."""
    blocks, pattern = distinct(_block(layer, row, traits) for layer in _layers(row, traits))
    return Model(
        name=row["name"],
        d_model=_number(row, "hidden"),
        vocab=_number(row, "vocab"),
        blocks=blocks,
        pattern=pattern,
        tied_embeddings=row["tied_embeddings"] == "1",
        norm="layernorm" if row["norm"] == "layernorm" else "rmsnorm",
        norm_bias=traits.get("norm_bias", True),
        embedding_norm=traits.get("embedding_norm", False),
        head_bias=traits.get("head_bias", False),
        n_positions=_number(row, "learned_positions"),
        mtp_layers=_number(row, "mtp_layers"),
        residual_streams=traits.get("residual_streams", 1),
        shared_block=_shared_block(row) if "shared_at" in traits else None,
        shared_at=tuple(traits.get("shared_at", ())),
        shared_sets=traits.get("shared_sets", 1),
        shared_adapter_rank=traits.get("shared_adapter_rank", 0),
        family=row["family"],
        source=row["source"],
    )


def _number(row: Row, column: str) -> int:
    return int(row[column] or 0)


def _layers(row: Row, traits: Traits) -> list[_Layer]:
    n = _number(row, "layers")
    mixers, ffns = _letters(row, traits, n)
    window = row["window"] and not row["attn_kind"].startswith("mla")
    local = "g" * n
    if window:
        told = traits.get("globals")
        local = fill(told, n) if told else local_layers(row["local_global_pattern"], n)
    index = fill(traits.get("indexers", "F" if row["index_n_heads"] else "."), n)
    below = fill(traits.get("kv", "o"), n)
    first, cycle = traits.get("compress_first", []), traits.get("compress", [0])
    compress = [first[i] if i < len(first) else cycle[(i - len(first)) % len(cycle)] for i in range(n)]
    return [
        _Layer(mixers[i], ffns[i], local[i] == "l", index[i], below[i] == "b", compress[i]) for i in range(n)
    ]


def _letters(row: Row, traits: Traits, n: int) -> tuple[str, str]:
    """Mixer and feed-forward of each layer, `.` where there is none."""
    listed = written_out(row["layer_pattern"], n)
    if listed and set(listed) & set("-*E"):  # a list of single-part layers: M, * attention, - MLP, E experts
        mixers = "".join({"M": "M", "*": "A"}.get(c, ".") for c in listed)
        return mixers, "".join({"-": "D", "E": "E"}.get(c, ".") for c in listed)
    mixers = listed or fill(traits.get("mixers", "A"), n)
    at = set(traits.get("attention_at", ()))
    mixers = "".join("A" if i in at else m for i, m in enumerate(mixers))
    if "ffns" in traits:
        return mixers, fill(traits["ffns"], n)
    if row["n_experts"]:
        return mixers, fill("D" * _number(row, "n_dense_layers") + "(E)", n)
    return mixers, ("D" if _number(row, "ffn") else ".") * n


def _block(layer: _Layer, row: Row, traits: Traits) -> Block:
    mixer, ffn = _mixer(layer, row, traits), _ffn(layer, row, traits)
    parts = (mixer is not None) + (ffn is not None)
    return Block(
        mixer,
        ffn,
        n_norms=traits.get("n_norms", parts) if parts == 2 else parts,
        parallel=traits.get("parallel", False),
    )


def _mixer(layer: _Layer, row: Row, traits: Traits) -> Mixer | None:
    match layer.mixer:
        case "A":
            return _latent(layer, row) if row["kv_lora_rank"] else _attention(layer, row, traits)
        case "M":
            return _state_space(row, traits)
        case "L":
            kinds: Mapping[str, Any] = {"lightning_attention": "lightning"}
            return LinearAttention(
                kind=kinds.get(row["ssm_kind"], row["ssm_kind"]),
                n_k_heads=_number(row, "lin_k_heads"),
                n_v_heads=_number(row, "lin_v_heads"),
                k_dim=_number(row, "lin_k_dim"),
                v_dim=_number(row, "lin_v_dim"),
                d_conv=_number(row, "d_conv"),
            )
        case "C":
            return ShortConv(_number(row, "d_conv"))
        case _:
            return None


def _attention(layer: _Layer, row: Row, traits: Traits) -> Attention:
    far = bool(row["global_kv_heads"]) and not layer.local
    kv: KvFrom = "below" if layer.kv_below else "shared" if traits.get("kv_shared") else "own"
    if far:
        kv = traits.get("global_kv", kv)
    qk_norm: QkNorm = traits.get("qk_norm", "head") if row["qk_norm"] == "1" else "none"
    sinks = traits.get("sinks", "none")
    # An indexer of a compressed cache stands only where the cache is fine enough to choose from.
    indexed = layer.index == "F" and (not traits.get("compress") or layer.compress == min(traits["compress"]))
    return Attention(
        n_heads=_number(row, "heads"),
        n_kv_heads=_number(row, "global_kv_heads" if far else "kv_heads"),
        head_dim=_number(row, "global_head_dim" if far else "head_dim"),
        window=_number(row, "window") if layer.local else None,
        bias_qkv="qkv" in row["attn_bias"],
        bias_out="+o" in row["attn_bias"],
        qk_norm=qk_norm,
        output_gate=row["attn_output_gate"] == "1",
        sinks=sinks == "all" or (sinks == "local" and layer.local),
        rotary=not row["learned_positions"] and row["family"] not in ("bloom", "mpt"),
        v_head_dim=_number(row, "v_head_dim") or None,
        chunked="chunked" in row["attn_kind"] and layer.local,
        kv_from=kv,
        q_lora_rank=_number(row, "q_lora_rank") or None,
        o_groups=traits.get("o_groups", 0),
        o_lora_rank=traits.get("o_lora_rank", 0),
        compress_ratio=layer.compress,
        index_n_heads=_number(row, "index_n_heads") if indexed else 0,
        index_head_dim=_number(row, "index_head_dim") if indexed else 0,
        index_topk=_number(row, "index_topk") if indexed else 0,
    )


def _latent(layer: _Layer, row: Row) -> LatentAttention:
    owns = layer.index == "F"
    return LatentAttention(
        n_heads=_number(row, "heads"),
        q_lora_rank=_number(row, "q_lora_rank") or None,
        kv_lora_rank=_number(row, "kv_lora_rank"),
        qk_nope_dim=_number(row, "qk_nope_dim"),
        qk_rope_dim=_number(row, "qk_rope_dim"),
        v_head_dim=_number(row, "v_head_dim"),
        index_n_heads=_number(row, "index_n_heads") if owns else 0,
        index_head_dim=_number(row, "index_head_dim") if owns else 0,
        index_topk=_number(row, "index_topk"),
    )


def _state_space(row: Row, traits: Traits) -> Mamba1 | Mamba2:
    inner = _number(row, "expand") * _number(row, "hidden")
    if row["ssm_kind"] == "mamba1":
        return Mamba1(
            d_inner=inner,
            d_state=_number(row, "d_state"),
            d_conv=_number(row, "d_conv"),
            dt_rank=_number(row, "dt_rank"),
            inner_norms=traits.get("inner_norms", False),
            inner_norm_weights=traits.get("inner_norm_weights", True),
        )
    heads, width = _number(row, "ssm_nheads"), _number(row, "ssm_headdim")
    return Mamba2(
        d_inner=heads * width,
        d_state=_number(row, "d_state"),
        d_conv=_number(row, "d_conv"),
        n_heads=heads,
        head_dim=width,
        n_groups=_number(row, "ngroups"),
    )


def _ffn(layer: _Layer, row: Row, traits: Traits) -> Mlp | Moe | None:
    gated, bias = row["gated_mlp"] == "1", row["mlp_bias"] == "1"
    if layer.ffn == "D":
        return Mlp(_number(row, "ffn"), gated, bias)
    if layer.ffn != "E":
        return None
    beside = _number(row, "ffn") if traits.get("dense_beside_experts") else 0
    groups, topk_groups = traits.get("groups", (1, 1))
    return Moe(
        n_experts=_number(row, "n_experts"),
        top_k=_number(row, "top_k"),
        d_ff=_number(row, "expert_ffn"),
        gated=gated,
        bias=bias,
        shared_d_ff=_number(row, "shared_expert_ffn") + beside,
        shared_gate=traits.get("shared_gate", False),
        latent_dim=_number(row, "moe_latent_dim"),
        router_bias=traits.get("router_bias", False),
        router_scales=traits.get("router_scales", False),
        n_groups=groups,
        topk_groups=topk_groups,
    )


def _shared_block(row: Row) -> Block:
    """Zamba2's: attention over hidden state and embedding side by side, back to the width of the model."""
    attention = Attention(
        n_heads=_number(row, "heads"),
        n_kv_heads=_number(row, "kv_heads"),
        head_dim=_number(row, "head_dim"),
        d_in=2 * _number(row, "hidden"),
    )
    return Block(attention, Mlp(_number(row, "ffn"), row["gated_mlp"] == "1", row["mlp_bias"] == "1"))
