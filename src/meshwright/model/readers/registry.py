"""Which function reads which `model_type`; a new family adds a file and its rows here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from meshwright.model.readers import (
    bailing,
    databricks,
    deepseek,
    deepseek_v4,
    dense,
    experts,
    falcon,
    gemma,
    glm,
    gpt,
    hunyuan,
    hybrid,
    kimi,
    kindred,
    lfm,
    llama4,
    mamba,
    mimo,
    minimax,
    nemotron,
    olmo,
    phi,
    qwen,
    step,
    zamba,
)
from meshwright.model.readers.fields import Fields
from meshwright.model.records import Model

Reader = Callable[[Fields, str], Model]


def text_of(reader: Reader) -> Reader:
    """A reader of the text part of a model with several: `text_config`, or the file itself without one.

    Whether the head is tied to the embedding is for the whole model to say, where it does.
    """

    def read(f: Fields, name: str) -> Model:
        inner = f.part("text_config", "model_type")
        if inner is None:
            return reader(f, name)
        tied = f.values.get("tie_word_embeddings")
        values = inner.values if tied is None else {**inner.values, "tie_word_embeddings": tied}
        return reader(replace(inner, values=values), name)

    return read


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "bailing_moe": bailing.bailing_moe,
        "bailing_moe_v2": bailing.bailing_moe,
        "bamba": hybrid.bamba,
        "bloom": gpt.bloom,
        "cohere": kindred.cohere,
        "cohere2": kindred.cohere2,
        "dbrx": databricks.dbrx,
        "deepseek_v2": deepseek.deepseek_v2,
        "deepseek_v3": deepseek.deepseek_v3,
        "deepseek_v32": deepseek.deepseek_v32,
        "deepseek_v4": deepseek_v4.deepseek_v4,
        "ernie4_5": kindred.ernie4_5,
        "exaone4": kindred.exaone4,
        "falcon": falcon.falcon,
        "falcon_mamba": mamba.falcon_mamba,
        "gemma": gemma.gemma,
        "gemma2": gemma.gemma2,
        "gemma3": text_of(gemma.gemma3),
        "gemma3_text": gemma.gemma3,
        "gemma4": text_of(gemma.gemma4),
        "gemma4_text": gemma.gemma4,
        "glm": glm.glm,
        "glm4": glm.glm4,
        "glm4_moe": glm.glm4_moe,
        "glm4_moe_lite": glm.glm4_moe_lite,
        "glm_moe_dsa": glm.glm_moe_dsa,
        "gpt2": gpt.gpt2,
        "gpt_neox": falcon.gpt_neox,
        "gpt_oss": experts.gpt_oss,
        "gptj": falcon.gptj,
        "granite": kindred.granite,
        "granitemoe": kindred.granitemoe,
        "granitemoehybrid": hybrid.granitemoehybrid,
        "hunyuan": hunyuan.hunyuan,
        "hunyuan_v1_dense": hunyuan.hunyuan_dense,
        "hunyuan_v1_moe": hunyuan.hunyuan_moe,
        "jamba": hybrid.jamba,
        "kimi_k2": deepseek.deepseek_v3,
        "kimi_k25": text_of(deepseek.deepseek_v3),
        "kimi_linear": kimi.kimi_linear,
        "lfm2_moe": lfm.lfm2_moe,
        "llama": dense.llama,
        "llama4": text_of(llama4.llama4),
        "llama4_text": llama4.llama4,
        "mamba": mamba.mamba,
        "mamba2": mamba.mamba2,
        "mimo_v2_flash": mimo.mimo_v2_flash,
        "minimax": minimax.minimax,
        "minimax_m2": minimax.minimax_m2,
        "minimax_m3_vl": text_of(minimax.minimax_m3),
        "minimax_m3_vl_text": minimax.minimax_m3,
        "minimax_text_01": minimax.minimax,
        "ministral": kindred.ministral,
        "mistral": dense.mistral,
        "mistral3": text_of(dense.mistral),
        "mixtral": experts.mixtral,
        "mpt": databricks.mpt,
        "nemotron": nemotron.nemotron,
        "nemotron_h": nemotron.nemotron_h,
        "olmo2": olmo.olmo2,
        "olmo3": olmo.olmo3,
        "olmoe": olmo.olmoe,
        "opt": gpt.opt,
        "phi": phi.phi,
        "phi3": phi.phi3,
        "phimoe": phi.phimoe,
        "qwen2": dense.qwen2,
        "qwen2_moe": qwen.qwen2_moe,
        "qwen3": dense.qwen3,
        "qwen3_5": text_of(qwen.qwen3_5),
        "qwen3_5_moe": text_of(qwen.qwen3_5_moe),
        "qwen3_5_moe_text": qwen.qwen3_5_moe,
        "qwen3_5_text": qwen.qwen3_5,
        "qwen3_moe": experts.qwen3_moe,
        "qwen3_next": qwen.qwen3_next,
        "seed_oss": kindred.seed_oss,
        "smollm3": kindred.smollm3,
        "stablelm": kindred.stablelm,
        "starcoder2": kindred.starcoder2,
        "step3_text": step.step3,
        "step3_vl": text_of(step.step3),
        "zamba2": zamba.zamba2,
    }
)
