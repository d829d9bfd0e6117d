"""Released config.json files of the hybrid, sparse and older families read as their presets,
layer by layer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from meshwright.model import config_json, params, presets
from test_model_config_json import Held, held  # noqa: F401

Config = dict[str, Any]


def _shape(
    kind: str, width: int, ff: int, layers: int, heads: int, kv: int, vocab: int, **rest: Any
) -> Config:
    """The keys that most files share, then `rest`."""
    return {
        "model_type": kind, "hidden_size": width, "intermediate_size": ff, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab, **rest,
    }  # fmt: skip


_NEMOTRON_H = {
    "head_dim": 128, "ssm_state_size": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4,
    "expand": 2,
    "attention_bias": False, "mlp_bias": False, "use_bias": False, "use_conv_bias": True,
    "mamba_proj_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS_H = {"n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_QWEN35 = {
    "full_attention_interval": 4, "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128, "mtp_num_hidden_layers": 1,
    "attention_bias": False,
}  # fmt: skip
_GLM4_MOE = {
    "attention_bias": True, "head_dim": 128, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
_GLM5 = _shape(
    "glm_moe_dsa", 6144, 12288, 78, 64, 64, 154880, q_lora_rank=2048, qk_nope_head_dim=192, v_head_dim=256,
    n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3,
    index_n_heads=32, index_head_dim=128, index_topk=2048, num_nextn_predict_layers=1, **_LATENT,
)  # fmt: skip
_JAMBA = {
    "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
    "mamba_proj_bias": False, "num_experts": 16, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA4 = {
    "head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "use_qk_norm": True,
    "attention_bias": False, "attention_chunk_size": 8192, "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA3 = {"head_dim": 256, "model_type": "gemma3_text", "sliding_window": 1024, "vocab_size": 262144}
_GEMMA4 = {
    "head_dim": 256, "global_head_dim": 512, "sliding_window": 1024, "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "attention_k_eq_v": True, "tie_word_embeddings": True,
}  # fmt: skip
_PLAIN_MAMBA = {"conv_kernel": 4, "expand": 2, "use_bias": False, "use_conv_bias": True}
_M2 = _shape(
    "minimax_m2", 3072, 1536, 62, 48, 8, 200064, head_dim=128, num_local_experts=256, num_experts_per_tok=8,
    attn_type_list=[1] * 62, num_mtp_modules=3, use_mtp=True, shared_intermediate_size=0,
)  # fmt: skip

_LING = {
    "head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "num_shared_experts": 1,
    "num_nextn_predict_layers": 0, "use_bias": False, "use_qkv_bias": False, "use_qk_norm": True,
    "tie_word_embeddings": False,
}  # fmt: skip
_V4 = {
    "head_dim": 512, "hc_mult": 4, "index_head_dim": 128, "index_n_heads": 64, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "num_hash_layers": 3, "num_key_value_heads": 1, "num_nextn_predict_layers": 1,
    "o_lora_rank": 1024, "qk_rope_head_dim": 64, "sliding_window": 128, "vocab_size": 129280,
}  # fmt: skip

RELEASED: dict[str, Config] = {
    "Qwen3-Next-80B-A3B": _shape(
        "qwen3_next", 2048, 5120, 48, 16, 2, 151936, decoder_sparse_step=1, mlp_only_layers=[],
        num_experts=512,
        num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
        linear_num_value_heads=32, tie_word_embeddings=False, **(_QWEN35 | {"mtp_num_hidden_layers": None}),
    ),
    "Qwen3.5-4B": {
        "model_type": "qwen3_5", "tie_word_embeddings": True,
        "text_config": _shape("qwen3_5_text", 2560, 9216, 32, 16, 4, 248320, linear_num_value_heads=32,
            **_QWEN35),
    },
    "Qwen3.5-27B": {
        "model_type": "qwen3_5", "tie_word_embeddings": False,
        "text_config": _shape("qwen3_5_text", 5120, 17408, 64, 24, 4, 248320, linear_num_value_heads=48,
            **_QWEN35),
    },
    "Qwen3.5-35B-A3B": {
        "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
        "text_config": _shape(
            "qwen3_5_moe_text", 2048, 512, 40, 16, 2, 248320, linear_num_value_heads=32, num_experts=256,
            num_experts_per_tok=8, moe_intermediate_size=512, shared_expert_intermediate_size=512, **_QWEN35,
        ),
    },
    "Qwen3.5-397B-A17B": {
        "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
        "text_config": _shape(
            "qwen3_5_moe_text", 4096, 1024, 60, 32, 2, 248320, linear_num_value_heads=64, num_experts=512,
            num_experts_per_tok=10, moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
                **_QWEN35,
        ),
    },
    "Qwen1.5-MoE-A2.7B": _shape(
        "qwen2_moe", 2048, 5632, 24, 16, 16, 151936, decoder_sparse_step=1, moe_intermediate_size=1408,
        num_experts=60, num_experts_per_tok=4, shared_expert_intermediate_size=5632, sliding_window=32768,
        max_window_layers=21, use_sliding_window=False, tie_word_embeddings=False,
    ),
    "Qwen2-57B-A14B": _shape(
        "qwen2_moe", 3584, 18944, 28, 28, 4, 151936, decoder_sparse_step=1, moe_intermediate_size=2560,
        num_experts=64, num_experts_per_tok=8, shared_expert_intermediate_size=20480, sliding_window=65536,
        max_window_layers=28, use_sliding_window=False, tie_word_embeddings=False,
    ),
    "Kimi-Linear-48B-A3B": _shape(
        "kimi_linear", 2304, 9216, 27, 32, 32, 163840, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, num_experts=256, num_experts_per_token=8, num_shared_experts=1,
        moe_intermediate_size=1024, moe_layer_freq=1, first_k_dense_replace=1, num_expert_group=1,
            topk_group=1,
        num_nextn_predict_layers=0, tie_word_embeddings=False,
        linear_attn_config={
            "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
            "full_attn_layers": [5, 9, 13, 17, 21, 25],
            "kda_layers": [i for i in range(1, 28) if i not in (5, 9, 13, 17, 21, 25)],
        },
    ),
    "Kimi-K2.5": {
        "model_type": "kimi_k25",
        "text_config": _shape(
            "kimi_k2", 7168, 18432, 61, 64, 64, 163840, q_lora_rank=1536, qk_nope_head_dim=128,
            v_head_dim=128,
            n_routed_experts=384, num_experts_per_tok=8, moe_intermediate_size=2048, moe_layer_freq=1,
            first_k_dense_replace=1, num_nextn_predict_layers=0, **_LATENT,
        ),
    },
    "GLM-4.5": _shape(
        "glm4_moe", 5120, 12288, 92, 96, 8, 151552, n_routed_experts=160, moe_intermediate_size=1536,
        first_k_dense_replace=3, use_qk_norm=True, **_GLM4_MOE,
    ),
    "GLM-4.5-Air": _shape(
        "glm4_moe", 4096, 10944, 46, 96, 8, 151552, n_routed_experts=128, moe_intermediate_size=1408,
        first_k_dense_replace=1, use_qk_norm=False, **_GLM4_MOE,
    ),
    "GLM-4.7-Flash": _shape(
        "glm4_moe_lite", 2048, 10240, 47, 20, 20, 154880, q_lora_rank=768, qk_nope_head_dim=192,
        v_head_dim=256,
        n_routed_experts=64, num_experts_per_tok=4, moe_intermediate_size=1536, first_k_dense_replace=1,
        attention_bias=False, **_LATENT,
    ),
    "GLM-5": _GLM5,
    "GLM-5.2": _GLM5 | {"index_topk_freq": 4, "index_skip_topk_offset": 3},
    "Gemma-2B": _shape("gemma", 2048, 16384, 18, 8, 1, 256000, head_dim=256),
    "Gemma-7B": _shape("gemma", 3072, 24576, 28, 16, 16, 256000, head_dim=256),
    "Gemma-2-2B": _shape("gemma2", 2304, 9216, 26, 8, 4, 256000, head_dim=256, sliding_window=4096),
    "Gemma-2-27B": _shape("gemma2", 4608, 36864, 46, 32, 16, 256000, head_dim=128, sliding_window=4096),
    "Gemma-3-1B": _shape(
        "gemma3_text", 1152, 6912, 26, 4, 1, 262144, head_dim=256, sliding_window=512,
        sliding_window_pattern=6,
    ),
    "Gemma-3-4B": {  # the released text part names no heads
        "model_type": "gemma3",
        "text_config": _GEMMA3 | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
    },
    "Gemma-3-27B": {
        "model_type": "gemma3",
        "text_config": _GEMMA3 | {
            "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "head_dim": 128,
            "num_hidden_layers": 62, "num_key_value_heads": 16,
        },
    },
    "Gemma-4-31B": {
        "model_type": "gemma4",
        "text_config": _shape(
            "gemma4_text", 5376, 21504, 60, 32, 16, 262144, num_global_key_value_heads=4,
            enable_moe_block=False,
            **_GEMMA4,
        ),
    },
    "Gemma-4-26B-A4B": {
        "model_type": "gemma4",
        "text_config": _shape(
            "gemma4_text", 2816, 2112, 30, 16, 8, 262144, num_global_key_value_heads=2, enable_moe_block=True,
            num_experts=128, top_k_experts=8, moe_intermediate_size=704, **_GEMMA4,
        ),
    },
    "Phi-2": _shape("phi", 2560, 10240, 32, 32, 32, 51200, qk_layernorm=False, tie_word_embeddings=False),
    "Phi-3-mini-4k": _shape(
        "phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047, max_position_embeddings=4096,
    ),
    "Phi-4": _shape("phi3", 5120, 17920, 40, 40, 10, 100352, sliding_window=None),
    "Phi-3.5-MoE": _shape(
        "phimoe", 4096, 6400, 32, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2,
        attention_bias=True,
        lm_head_bias=True, sliding_window=131072, max_position_embeddings=131072, tie_word_embeddings=False,
    ),
    "Nemotron-4-15B": _shape("nemotron", 6144, 24576, 32, 48, 8, 256000, attention_bias=False,
        mlp_bias=False),
    "Nemotron-4-340B": _shape("nemotron", 18432, 73728, 96, 96, 8, 256000, head_dim=192),
    "Nemotron-H-8B": _shape(
        "nemotron_h", 4096, 21504, 52, 32, 8, 131072, mamba_num_heads=128,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", **_NEMOTRON_H,
    ),
    "Nemotron-Nano-9B-v2": _shape(
        "nemotron_h", 4480, 15680, 56, 40, 8, 131072, mamba_num_heads=128,
        hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        **(_NEMOTRON_H | {"mamba_head_dim": 80}),
    ),
    "Nemotron-3-Nano-30B-A3B": _shape(
        "nemotron_h", 2688, 1856, 52, 32, 2, 131072, mamba_num_heads=64, n_routed_experts=128,
        num_experts_per_tok=6, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", **_NEMOTRON_H,
        **_EXPERTS_H,
    ),
    "Nemotron-3-Super-120B-A12B": _shape(
        "nemotron_h", 4096, 2688, 88, 32, 2, 131072, mamba_num_heads=128, n_routed_experts=512,
        num_experts_per_tok=22, moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376,
        moe_latent_size=1024, num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E",
        hybrid_override_pattern=(
            "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
        ),
        **_NEMOTRON_H, **_EXPERTS_H,
    ),
    "Jamba-1.5-Mini": _shape("jamba", 4096, 14336, 32, 32, 8, 65536, mamba_dt_rank=256, **_JAMBA),
    "Jamba-1.5-Large": _shape("jamba", 8192, 24576, 72, 64, 8, 65536, mamba_dt_rank="auto", **_JAMBA),
    "Zamba2-7B": _shape(
        "zamba2", 3584, 14336, 81, 32, 32, 32000, attention_head_dim=224, n_mamba_heads=112, mamba_d_state=64,
        mamba_d_conv=4, mamba_expand=2, mamba_ngroups=2, mamba_headdim=64, num_mem_blocks=2, adapter_rank=128,
        use_shared_attention_adapter=False, add_bias_linear=False, tie_word_embeddings=True,
        layers_block_type=[
            "hybrid" if i in (6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71,
            77) else "mamba" for i in range(81)
        ],
    ),
    "Bamba-9B": _shape(
        "bamba", 4096, 14336, 32, 32, 8, 128256, attn_layer_indices=[9, 18, 27], mamba_n_heads=128,
        mamba_d_head=64, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4, mamba_expand=2,
        mamba_conv_bias=True, mamba_proj_bias=False, attention_bias=False, tie_word_embeddings=False,
    ),
    "Granite-4.0-H-Small": _shape(
        "granitemoehybrid", 4096, 768, 40, 32, 8, 100352, num_local_experts=72, num_experts_per_tok=10,
        shared_intermediate_size=1536, mamba_n_heads=128, mamba_d_head=64, mamba_n_groups=1,
            mamba_d_state=128,
        mamba_d_conv=4, mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False, attention_bias=False,
        tie_word_embeddings=True,
        layer_types=["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    ),
    "Falcon-Mamba-7B": {
        "model_type": "falcon_mamba", "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 64,
        "state_size": 16, "time_step_rank": 256, "vocab_size": 65024, "tie_word_embeddings": False,
        **(_PLAIN_MAMBA | {"expand": 16}),
    },
    "Mamba-2.8b": {
        "model_type": "mamba", "hidden_size": 2560, "intermediate_size": 5120, "num_hidden_layers": 64,
        "state_size": 16, "time_step_rank": 160, "vocab_size": 50280, **_PLAIN_MAMBA,
    },
    "Mamba2-2.7b": {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 128,
        "num_heads": 80,
        "head_dim": 64, "n_groups": 1, "vocab_size": 50288, "tie_word_embeddings": True, **_PLAIN_MAMBA,
    },
    "Codestral-Mamba-7B": {
        "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "state_size": 128,
        "num_heads": 128, "head_dim": 64, "n_groups": 8, "vocab_size": 32768, "tie_word_embeddings": False,
        **_PLAIN_MAMBA,
    },
    "Mamba2-8B": {
        "model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 56, "state_size": 128,
        "num_heads": 128, "head_dim": 64, "n_groups": 8, "vocab_size": 256000, "tie_word_embeddings": False,
        **_PLAIN_MAMBA,
    },
    "MiniMax-Text-01": _shape(
        "minimax_text_01", 6144, 9216, 80, 64, 8, 200064, head_dim=128, num_local_experts=32,
        num_experts_per_tok=2, attn_type_list=([0] * 7 + [1]) * 10, shared_intermediate_size=0,
        tie_word_embeddings=False, sliding_window=None,
    ),
    "MiniMax-M2": _M2,
    "MiniMax-M2.5": _M2,
    "MiniMax-M3": {
        "model_type": "minimax_m3_vl",
        "text_config": _shape(
            "minimax_m3_vl_text", 6144, 3072, 60, 64, 4, 200064, head_dim=128, num_local_experts=128,
            num_experts_per_tok=4, dense_intermediate_size=12288, shared_intermediate_size=3072,
            moe_layer_freq=[0] * 3 + [1] * 57, num_nextn_predict_layers=1, sparse_attention_config={
                "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_num_index_heads": 4,
                "sparse_index_dim": 128, "sparse_block_size": 128, "sparse_topk_blocks": 16,
            },
        ),
    },
    "MiMo-V2-Flash": _shape(
        "mimo_v2_flash", 4096, 16384, 48, 64, 4, 152576, head_dim=192, v_head_dim=128, attention_bias=False,
        swa_num_key_value_heads=8, sliding_window=128, sliding_window_size=128, n_routed_experts=256,
        n_shared_experts=None, num_experts_per_tok=8, moe_intermediate_size=2048, n_group=1, topk_group=1,
        hybrid_layer_pattern=[int(i > 0 and (i + 1) % 6 != 0) for i in range(48)],
        moe_layer_freq=[0] + [1] * 47, tie_word_embeddings=False,
    ),
    "LFM2.5-8B-A1B": _shape(
        "lfm2_moe", 2048, 7168, 24, 32, 8, 128000, conv_L_cache=3, conv_bias=False,
        moe_intermediate_size=1792,
        num_experts=32, num_experts_per_tok=4, num_dense_layers=2,
        layer_types=[{"C": "conv", "A": "full_attention"}[c] for c in "CCACCCACCCACCCACCCACCACC"],
    ),
    "Llama-4-Scout-17B-16E": {
        "model_type": "llama4",
        "text_config": _shape(
            "llama4_text", 5120, 8192, 48, 40, 8, 202048, num_local_experts=16, interleave_moe_layer_step=1,
            no_rope_layers=[], **_LLAMA4,
        ),
    },
    "Llama-4-Maverick-17B-128E": {
        "model_type": "llama4",
        "text_config": _shape(
            "llama4_text", 5120, 8192, 48, 40, 8, 202048, num_local_experts=128, interleave_moe_layer_step=2,
            no_rope_layers=[1, 1, 1, 0] * 12, **_LLAMA4,
        ),
    },
    "OLMo-2-7B": _shape("olmo2", 4096, 11008, 32, 32, 32, 100352),
    "OLMo-3-32B": _shape(
        "olmo3", 5120, 27648, 64, 40, 8, 100278, sliding_window=4096,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 16,
    ),
    "Falcon-7B": {
        "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True,
        "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
        "parallel_attn": True, "vocab_size": 65024,
    },
    "Falcon-40B": {
        "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 8192, "multi_query": True,
        "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
        "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024,
    },
    "Falcon-180B": {
        "model_type": "falcon", "alibi": False, "bias": False, "hidden_size": 14848, "multi_query": True,
        "new_decoder_architecture": True, "num_attention_heads": 232, "num_hidden_layers": 80,
        "num_kv_heads": 8, "parallel_attn": True, "vocab_size": 65024,
    },
    "GPT-NeoX-20B": _shape("gpt_neox", 6144, 24576, 44, 64, 64, 50432, tie_word_embeddings=False),
    "GPT-J-6B": {
        "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
        "n_positions": 2048,
        "rotary_dim": 64, "tie_word_embeddings": False, "vocab_size": 50400,
    },
    "MPT-30B": {
        "model_type": "mpt", "attn_config": {"alibi": True, "attn_type": "multihead_attention",
        "qk_ln": False},
        "d_model": 7168, "expansion_ratio": 4, "n_heads": 56, "n_layers": 48, "no_bias": True,
        "vocab_size": 50368,
    },
    "DBRX": {
        "model_type": "dbrx", "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000.0},
        "d_model": 6144, "n_heads": 48, "n_layers": 40, "tie_word_embeddings": False, "vocab_size": 100352,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "Hunyuan-Large": _shape(
        "hunyuan", 6400, 18304, 64, 80, 8, 128512, attention_bias=False, cla_share_factor=2, use_cla=True,
        moe_topk=1, num_experts=16, num_shared_expert=1, use_mixed_mlp_moe=True, use_qk_norm=True,
        tie_word_embeddings=True,
    ),
    "Step-3": {
        "model_type": "step3_vl",
        "text_config": {
            "model_type": "step3_text", "hidden_size": 7168, "intermediate_size": 18432, "head_dim": 256,
            "num_attention_heads": 64, "num_attention_groups": 1, "num_hidden_layers": 61,
            "vocab_size": 128815, "share_q_dim": 2048, "moe_num_experts": 48, "moe_top_k": 3,
            "moe_intermediate_size": 5120, "share_expert_dim": 5120,
            "moe_layers_enum": ",".join(map(str, range(4, 60))),
        },
    },
    "Ling-1T": _shape(
        "bailing_moe_v2", 8192, 18432, 80, 64, 8, 157184, first_k_dense_replace=4, num_experts=256,
        moe_intermediate_size=2048, **_LING,
    ),
    "Ling-mini-2.0": _shape(
        "bailing_moe_v2", 2048, 5120, 20, 16, 4, 157184, first_k_dense_replace=1, num_experts=256,
        moe_intermediate_size=512, **_LING,
    ),
    "DeepSeek-V4-Flash": {
        "model_type": "deepseek_v4", "hidden_size": 4096, "moe_intermediate_size": 2048,
        "num_attention_heads": 64, "num_hidden_layers": 43, "n_routed_experts": 256, "q_lora_rank": 1024,
        "o_groups": 8, "index_topk": 512, "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0], **_V4,
    },
    "DeepSeek-V4-Pro": {
        "model_type": "deepseek_v4", "hidden_size": 7168, "moe_intermediate_size": 3072,
        "num_attention_heads": 128, "num_hidden_layers": 61, "n_routed_experts": 384, "q_lora_rank": 1536,
        "o_groups": 16, "index_topk": 1024, "compress_ratios": [128, 128] + [4, 128] * 29 + [4, 0], **_V4,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_file_is_the_preset(name: str) -> None:
    read, preset = config_json.read(RELEASED[name], name), presets.load(name)
    assert [read.blocks[k] for k in read.pattern] == [preset.blocks[k] for k in preset.pattern]
    # Everything else that a model says of itself, but where it came from.
    assert replace(read, family="", source="") == replace(preset, family="", source="")
    assert params.total_params(read) == presets.figures(name).total
    assert params.active_params(read) == presets.figures(name).active


# Types that no class of the library is registered for; their text is read by another's.
_NO_CLASS = {"bailing_moe_v2", "hunyuan", "kimi_k25", "minimax_text_01", "step3_vl"}
_SPELLED = [n for n, c in RELEASED.items() if c["model_type"] not in _NO_CLASS]


@pytest.mark.parametrize("name", _SPELLED)
def test_the_file_as_the_library_writes_it_reads_the_same(name: str) -> None:
    import transformers

    values = {k: v for k, v in RELEASED[name].items() if k != "model_type"}
    written = transformers.AutoConfig.for_model(RELEASED[name]["model_type"], **values).to_json_string()
    again, read = config_json.read(json.loads(written), name), config_json.read(RELEASED[name], name)
    assert replace(again, family="", mtp_layers=0) == replace(read, family="", mtp_layers=0)


# One of each family and size that is quick to lay out; the presets hold the counts of all.
_LAID_OUT = [
    "Qwen3.5-35B-A3B", "Qwen1.5-MoE-A2.7B", "Kimi-Linear-48B-A3B", "GLM-4.5-Air", "GLM-4.7-Flash", "GLM-5.2",
    "Gemma-2B", "Gemma-2-2B", "Gemma-3-4B", "Gemma-4-26B-A4B", "Phi-2", "Phi-4", "Phi-3.5-MoE",
    "Nemotron-4-15B", "Nemotron-Nano-9B-v2", "Nemotron-3-Nano-30B-A3B", "Jamba-1.5-Mini", "Zamba2-7B",
    "Bamba-9B", "Granite-4.0-H-Small", "Falcon-Mamba-7B", "Mamba-2.8b", "Mamba2-2.7b", "Mamba2-8B",
    "MiniMax-M2", "MiMo-V2-Flash", "LFM2.5-8B-A1B", "Llama-4-Maverick-17B-128E", "OLMo-3-32B", "Falcon-7B",
    "Falcon-40B", "GPT-NeoX-20B", "GPT-J-6B", "MPT-30B", "DBRX",
]  # fmt: skip


@pytest.mark.parametrize("name", _LAID_OUT)
def test_a_released_file_counts_as_its_class(name: str, held: Held) -> None:  # noqa: F811
    values = RELEASED[name].get("text_config", RELEASED[name])
    total, _ = held(values["model_type"], values)
    assert params.total_params(config_json.read(values)) == total
