"""The model behind a measured run: a preset cut to the depth stated, or a decoder from the shape columns.

What the columns leave out is filled by the habits of the program's time, never by a measured value, and every
value filled in is named with its reason.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files

from meshwright.calibrate.rows import Run
from meshwright.errors import InputError
from meshwright.model import presets
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.units import counted

GPT_ERA = (
    "megatron-lm", "megatron-deepspeed", "megatron-zb", "deepspeed", "oneflow", "colossalai", "metaseq",
    "megascale", "levanter", "pytorch ddp",
)  # fmt: skip
GPT2_VOCAB = 50257
HEAD_WIDTHS = (128, 96, 80, 64, 112, 72, 160)  # in the order in which GPT-like models use them


@dataclass(frozen=True, slots=True)
class Shaped:
    """A model and what of it was not stated: {field: because}."""

    model: Model
    derived: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NoShape:
    """Why there is no model: `missing` cells, or a name that is stated but that nothing here knows."""

    missing: bool
    detail: str


def shape(run: Run) -> Shaped | NoShape:
    """The model of `run`."""
    return _shape(
        run.model, run.noted_model, run.framework or "", run.n_layers, run.d_model, run.n_heads,
        run.n_kv_heads, run.d_head, run.d_ff, run.vocab, run.gated_mlp, run.n_experts, run.top_k, run.tp or 1,
        run.seq_len, bool(re.search(r"\bmla\b|_mla\b|mamba|hybrid_", run.notes, re.IGNORECASE)),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _shape(
    name: str | None, noted: str, framework: str, n_layers: int | None, d_model: int | None,
    n_heads: int | None, n_kv_heads: int | None, d_head: int | None, d_ff: int | None, vocab: int | None,
    gated: int | None, n_experts: int | None, top_k: int | None, tp: int, seq_len: int | None,
    not_attention: bool,
) -> Shaped | NoShape:  # fmt: skip
    full = bool(n_layers and d_model)
    preset = _preset(name, noted, alone=not full)
    if preset is not None:
        return _cut(_predicting(preset, name or noted, framework), n_layers, vocab, "" if name else noted)
    if not full:
        if name:
            return NoShape(False, f"model {name!r} is not known and its layers and width are not given")
        return NoShape(True, "neither a model nor its layers and width are given")
    if not_attention:
        return NoShape(True, "the notes name latent attention or a state space, whose widths have no column")
    assert n_layers is not None
    assert d_model is not None
    derived: list[tuple[str, str]] = []
    heads, width = _heads(d_model, n_heads, d_head, tp, derived)
    kv_heads = n_kv_heads or heads
    old = framework in GPT_ERA
    is_gated = _gating(gated, framework, noted, n_layers, d_model, d_ff, n_experts, derived)
    if d_ff is None:
        d_ff = _feed_forward(d_model, is_gated, derived)
    if vocab is None:
        step = 128 * tp
        vocab = -(-GPT2_VOCAB // step) * step
        derived.append(("vocab", f"the GPT-2 vocabulary {GPT2_VOCAB} padded to a multiple of 128 x tp {tp}"))
    gpt = old and (not is_gated or "swiglu" in noted.lower())  # the program's own GPT, one switch changed
    bias = gpt and "disable_bias" not in noted
    rotary = not gpt and not (framework == "llm-foundry" and not is_gated)  # learned positions, ALiBi
    attention = Attention(heads, kv_heads, width, bias_qkv=bias, bias_out=bias, rotary=rotary)
    if n_experts:
        ffn: Mlp | Moe = Moe(n_experts, top_k or 1, d_ff, gated=is_gated)
    else:
        ffn = Mlp(d_ff, gated=is_gated, bias=bias)
    model = Model(
        name=name or noted or f"{counted(n_layers, 'layer')} of {d_model}",
        d_model=d_model,
        vocab=vocab,
        blocks=(Block(attention, ffn),),
        pattern=(0,) * n_layers,
        tied_embeddings=(gpt and "untie" not in noted) or (framework == "llm-foundry" and not is_gated),
        norm="rmsnorm" if is_gated else "layernorm",
        n_positions=(seq_len or 0) if gpt else 0,
        family="columns",
        source="shape columns of the table of runs",
    )
    return Shaped(model, tuple(derived))


# How often a program runs a model's module for predicting further tokens, where its card says otherwise.
# Sources: Megatron-Bridge's recipes (mtp_num_layers 2, one module repeated), and FLOPs printed beside the
# runs: those of AutoModel hold no such module.
_PREDICTED = {
    ("megatron-core", "Nemotron-3-Super-120B-A12B"): 2,
    ("megatron-core", "Nemotron-3-Ultra-550B-A55B"): 2,
    ("megatron-core", "nemotron3.5-lightning"): 2,
}


def _predicting(model: Model, name: str, framework: str) -> Model:
    """The model with as many multi-token predictions as the program trains."""
    times = 0 if framework == "automodel" else _PREDICTED.get((framework, name), model.mtp_layers)
    return model if times == model.mtp_layers else replace(model, mtp_layers=times)


def _preset(name: str | None, noted: str, *, alone: bool) -> Model | None:
    """The preset that the model cell names, or the notes: by the list of spellings, or (where the shape
    columns are empty, `alone`) by the name itself."""
    if name:
        return load(name)
    spelled = re.split(r"\s*\(", noted)[0]
    if spelled in noted_models():
        return load(noted_models()[spelled])
    return load(spelled) if alone and spelled else None


@cache
def load(name: str) -> Model | None:
    """The preset called `name`; None where there is none."""
    try:
        return presets.load(name)
    except InputError:
        return None


@cache
def noted_models() -> dict[str, str]:
    """Spellings of models in the notes of the shipped tables, and the preset that each one means."""
    text = files("meshwright.calibrate").joinpath("runs/noted-models.csv").read_text(encoding="utf-8")
    return {row["noted"]: row["preset"] for row in csv.DictReader(text.splitlines())}


def _cut(model: Model, n_layers: int | None, vocab: int | None, noted: str) -> Shaped:
    """A preset with the depth and vocabulary that the row states."""
    derived = [("model", f"the notes call it {noted!r}")] if noted else []
    if n_layers and n_layers != model.n_layers:
        model = replace(model.with_layers(n_layers), name=f"{model.name}, {counted(n_layers, 'layer')}")
    if vocab and vocab != model.vocab:
        model = replace(model, vocab=vocab)
    return Shaped(model, tuple(derived))


def _heads(
    d_model: int, n_heads: int | None, d_head: int | None, tp: int, derived: list[tuple[str, str]]
) -> tuple[int, int]:
    """Query heads and their width; without a count, a usual width that leaves every tp rank whole heads."""
    if n_heads:
        return n_heads, d_head or max(1, d_model // n_heads)
    for width in (d_head,) if d_head else HEAD_WIDTHS:
        if d_model % width == 0 and (d_model // width) % tp == 0:
            because = f"{d_model} / {width}: a usual head width that gives each of {tp} tp ranks whole heads"
            derived.append(("n_heads", because))
            return d_model // width, width
    derived.append(("n_heads", f"one head a tp rank: no usual width divides {d_model} / {tp}"))
    return tp, max(1, d_model // tp)


def _gating(
    gated: int | None, framework: str, noted: str, n_layers: int, d_model: int, d_ff: int | None,
    n_experts: int | None, derived: list[tuple[str, str]],
) -> bool:  # fmt: skip
    """Whether the MLP has three matrices: as stated, as the size in the name says, else by the time."""
    if "swiglu" in noted.lower():
        derived.append(("gated_mlp", "the run is named for SwiGLU"))
        return True
    if gated is not None:
        return bool(gated)
    size = re.search(r"(\d+(?:\.\d+)?)\s?B\b", noted)
    if size and d_ff and not n_experts:
        # Attention 4 D^2 a layer; the MLP has 2 or 3 matrices of D x F. The printed size tells which.
        counts = {m: n_layers * d_model * (4 * d_model + m * d_ff) / 1e9 for m in (2, 3)}
        m = min(counts, key=lambda n: abs(counts[n] - float(size.group(1))))
        because = f"{m} matrices give {counts[m]:.1f} B in the layers, the name says {size.group(0)}"
        derived.append(("gated_mlp", because))
        return m == 3
    is_gated = framework not in GPT_ERA and framework != "llm-foundry"
    usual = "usual" if is_gated else "not yet usual"
    derived.append(("gated_mlp", f"{usual} in models of {framework or 'this program'}"))
    return is_gated


def _feed_forward(d_model: int, is_gated: bool, derived: list[tuple[str, str]]) -> int:
    if is_gated:
        derived.append(
            ("d_ff", "8/3 of d_model, to a multiple of 256: as large as two matrices of 4 x d_model")
        )
        return -(-8 * d_model // 3 // 256) * 256
    derived.append(("d_ff", "4 x d_model, as in GPT"))
    return 4 * d_model
