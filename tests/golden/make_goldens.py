#!/usr/bin/env python3
"""Makes the golden models of this folder: tiny random Hugging Face folders, one per key combination
that a supported family's config.json can carry, with the logits transformers computes for them.

    python3 tests/golden/make_goldens.py [CASE ...]       needs torch, transformers, safetensors

A case is a folder:
    config.json, generation_config.json (some), model.safetensors or shards with an index
    golden.json            ids, positions, argmax and margin of every position, a greedy continuation
    golden_logits.f32      little-endian float32 [len(positions), vocab]: transformers' forward of the
                           whole sequence, float32, eager attention
    golden_bf16_logits.f32 the same from a bfloat16 model (the cases with "bf16" in golden.json)
    golden_mtp_logits.f32  [len(mtp positions), 3, vocab]: what the MTP layer of the folder gives at each
                           of these positions, and for two drafts after it (the cases with "mtp")
and rope.json holds inverse frequencies for configs of every rope kind.

The weights come from one seed per case (its name) and are what the file stores: where the stored
type is 16 bits, the float32 reference runs on the widened values. Scales are chosen so that attention
is far from uniform and logits spread over several units. Rerunning gives the same weights and ids;
logits may differ in their last bits between machines, because torch's matrix products do.
"""

import copy
import hashlib
import json
import shutil
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.modeling_layers import MtpLayer
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
GREEDY_TOKENS = 12


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


BASE = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=96, max_position_embeddings=1024, rms_norm_eps=1e-5,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
LLAMA = BASE | dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu",
                    rope_theta=10000.0, torch_dtype="float32")
MISTRAL = BASE | dict(model_type="mistral", architectures=["MistralForCausalLM"], hidden_act="silu",
                      rope_theta=10000.0, torch_dtype="float32")
QWEN2 = BASE | dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_act="silu",
                    rms_norm_eps=1e-6, rope_theta=1000000.0, max_window_layers=3,
                    use_sliding_window=False, sliding_window=32, torch_dtype="float32")
QWEN3 = QWEN2 | dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=16,
                     attention_bias=False, rope_theta=1000000)
GEMMA3 = BASE | dict(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], head_dim=16,
                     hidden_activation="gelu_pytorch_tanh", num_hidden_layers=4, rms_norm_eps=1e-6,
                     num_key_value_heads=1, query_pre_attn_scalar=16, sliding_window=16,
                     attn_logit_softcapping=None, final_logit_softcapping=None,
                     tie_word_embeddings=True, torch_dtype="float32")
GEMMA = BASE | dict(model_type="gemma", architectures=["GemmaForCausalLM"], hidden_act="gelu", head_dim=16, rms_norm_eps=1e-6,
                    num_hidden_layers=2, tie_word_embeddings=True, rope_theta=10000.0, pad_token_id=0, torch_dtype="float32")
GEMMA2 = without(GEMMA3, "attn_logit_softcapping", "final_logit_softcapping") | dict(
    model_type="gemma2", architectures=["Gemma2ForCausalLM"], num_hidden_layers=3)
PHI3 = BASE | dict(model_type="phi3", architectures=["Phi3ForCausalLM"], hidden_act="silu", rope_theta=10000.0,
                   num_hidden_layers=2, pad_token_id=0, torch_dtype="float32")
LONGROPE = dict(max_position_embeddings=1024, original_max_position_embeddings=70, rope_scaling=dict(
    type="longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[1.5, 3.0, 5.0, 9.0]))
SMOLLM3 = LLAMA | dict(model_type="smollm3", architectures=["SmolLM3ForCausalLM"], num_hidden_layers=4,
                       use_sliding_window=False, pad_token_id=0)
OLMO2 = BASE | dict(model_type="olmo2", architectures=["Olmo2ForCausalLM"], hidden_act="silu", rope_theta=50000.0,
                    num_hidden_layers=2, pad_token_id=0, torch_dtype="float32")
SEED_OSS = LLAMA | dict(model_type="seed_oss", architectures=["SeedOssForCausalLM"], attention_bias=True, head_dim=16,
                        num_hidden_layers=2, pad_token_id=0)
ERNIE4_5 = LLAMA | dict(model_type="ernie4_5", architectures=["Ernie4_5ForCausalLM"], use_bias=False, head_dim=16,
                        num_hidden_layers=2, tie_word_embeddings=True, pad_token_id=0)
EXAONE4 = OLMO2 | dict(model_type="exaone4", architectures=["Exaone4ForCausalLM"], num_hidden_layers=5, sliding_window=20)
OLMOE = OLMO2 | dict(model_type="olmoe", architectures=["OlmoeForCausalLM"], num_experts=6, num_experts_per_tok=2,
                     intermediate_size=20)
MIXTRAL = MISTRAL | dict(model_type="mixtral", architectures=["MixtralForCausalLM"],
                         num_local_experts=5, num_experts_per_tok=2, sliding_window=None,
                         intermediate_size=24, num_hidden_layers=2)
QWEN2_MOE = QWEN2 | dict(model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"],
                         num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
                         shared_expert_intermediate_size=28, num_hidden_layers=2)
QWEN3_MOE = QWEN3 | dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"],
                         num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20,
                         norm_topk_prob=True, num_hidden_layers=2)
GRANITE = LLAMA | dict(model_type="granite", architectures=["GraniteForCausalLM"], num_hidden_layers=2,
                       attention_multiplier=0.2, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=3.0)
GRANITEMOE = GRANITE | dict(model_type="granitemoe", architectures=["GraniteMoeForCausalLM"], num_local_experts=5,
                            num_experts_per_tok=2, intermediate_size=24, logits_scaling=0.5)
GRANITEMOESHARED = GRANITEMOE | dict(model_type="granitemoeshared", architectures=["GraniteMoeSharedForCausalLM"],
                                     shared_intermediate_size=20)
GRANITE_HYBRID = GRANITE | dict(model_type="granitemoehybrid", architectures=["GraniteMoeHybridForCausalLM"], num_local_experts=0,
                                num_experts_per_tok=0, intermediate_size=24, shared_intermediate_size=40, mamba_n_heads=4,
                                layer_types=["attention"] * 2, position_embedding_type="rope")
ARCEE = LLAMA | dict(model_type="arcee", architectures=["ArceeForCausalLM"], hidden_act="relu2", num_hidden_layers=2)
GLM = BASE | dict(model_type="glm", architectures=["GlmForCausalLM"], hidden_act="silu", head_dim=16, pad_token_id=0,
                  rope_theta=10000.0, num_hidden_layers=2, rms_norm_eps=1.5625e-7, torch_dtype="float32")
GLM4 = GLM | dict(model_type="glm4", architectures=["Glm4ForCausalLM"])
GLM4_MOE = GLM | dict(model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"], n_routed_experts=6,
                      num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=20, first_k_dense_replace=1,
                      routed_scaling_factor=1.5, n_group=1, topk_group=1, norm_topk_prob=True, use_qk_norm=False,
                      num_hidden_layers=3, rms_norm_eps=1e-5)
HUNYUAN = LLAMA | dict(model_type="hunyuan_v1_dense", architectures=["HunYuanDenseV1ForCausalLM"], head_dim=16, num_hidden_layers=2,
                       pad_token_id=0, rope_scaling=dict(type="dynamic", alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0,
                                                         mscale=1.0, mscale_all_dim=1.0))
HUNYUAN_MOE = HUNYUAN | dict(model_type="hunyuan_v1_moe", architectures=["HunYuanMoEV1ForCausalLM"], num_experts=6, moe_topk=[2, 2],
                             intermediate_size=20)
NEMOTRON = without(BASE, "rms_norm_eps") | dict(model_type="nemotron", architectures=["NemotronForCausalLM"], hidden_act="relu2", norm_eps=1e-5,
                          rope_theta=10000.0, num_hidden_layers=2, torch_dtype="float32")
INTERNLM3 = LLAMA | dict(model_type="internlm3", architectures=["InternLM3ForCausalLM"], head_dim=16, num_hidden_layers=2)
IQUESTCODER = INTERNLM3 | dict(model_type="iquestcoder", architectures=["IQuestCoderForCausalLM"])
JAIS2 = without(BASE, "rms_norm_eps") | dict(model_type="jais2", architectures=["Jais2ForCausalLM"], hidden_act="relu2",
                                             layer_norm_eps=1e-5, rope_theta=500000.0, num_hidden_layers=2, torch_dtype="float32")
EXAONE_MOE = EXAONE4 | dict(model_type="exaone_moe", architectures=["ExaoneMoeForCausalLM"], num_experts=6, num_experts_per_tok=2,
                            num_shared_experts=1, moe_intermediate_size=20, first_k_dense_replace=1, n_group=1, topk_group=1)
MELLUM = without(LLAMA, "rope_theta") | dict(
    model_type="mellum", architectures=["MellumForCausalLM"], num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
    head_dim=16, sliding_window=20, num_hidden_layers=4, layer_types=["full_attention"] + ["sliding_attention"] * 3,
    rope_parameters=dict(full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=32),
                         sliding_attention=dict(rope_type="default", rope_theta=500000.0)))
SOLAR_OPEN = without(LLAMA, "intermediate_size", "rope_theta") | dict(
    model_type="solar_open", architectures=["SolarOpenForCausalLM"], n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1,
    moe_intermediate_size=20, head_dim=16, routed_scaling_factor=1.5, n_group=1, topk_group=1, norm_topk_prob=True,
    num_hidden_layers=2)
ERNIE4_5_MOE = without(ERNIE4_5, "use_bias", "rope_theta") | dict(
    model_type="ernie4_5_moe", architectures=["Ernie4_5_MoeForCausalLM"], moe_num_experts=6, moe_k=2,
    moe_num_shared_experts=2, moe_intermediate_size=20, moe_layer_start_index=1, moe_layer_interval=1)
DOTS1 = LLAMA | dict(model_type="dots1", architectures=["Dots1ForCausalLM"], n_routed_experts=6, num_experts_per_tok=2,
                     n_shared_experts=1, moe_intermediate_size=20, first_k_dense_replace=1, routed_scaling_factor=1.5,
                     n_group=1, topk_group=1, norm_topk_prob=True, sliding_window=None, num_hidden_layers=2)
MINIMAX_M2 = without(LLAMA, "rope_theta") | dict(
    model_type="minimax_m2", architectures=["MiniMaxM2ForCausalLM"], num_local_experts=6, num_experts_per_tok=2,
    intermediate_size=20, head_dim=16, rotary_dim=8, num_hidden_layers=2)
QWEN3_5 = without(BASE, "bos_token_id") | dict(
    model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], hidden_act="silu", head_dim=16, num_hidden_layers=4, rms_norm_eps=1e-6,
    eos_token_id=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_section=[1, 1, 0],
                         mrope_interleaved=True), torch_dtype="float32")
QWEN3_5_MOE = without(QWEN3_5, "intermediate_size") | dict(
    model_type="qwen3_5_moe_text", architectures=["Qwen3_5MoeForCausalLM"], num_experts=6, num_experts_per_tok=3,
    moe_intermediate_size=20, shared_expert_intermediate_size=28)
QWEN3_NEXT = without(QWEN3_5, "rope_parameters") | dict(
    model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], rope_theta=10000.0, partial_rotary_factor=0.25, num_experts=6,
    num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=28)
LFM2 = without(BASE, "rms_norm_eps", "tie_word_embeddings") | dict(
    model_type="lfm2", architectures=["Lfm2ForCausalLM"], norm_eps=1e-5, num_hidden_layers=4, intermediate_size=64, block_multiple_of=8,
    rope_theta=1000000.0, tie_embedding=True, full_attn_idxs=[1, 3], pad_token_id=0, torch_dtype="float32")
LFM2_MOE = without(LFM2, "full_attn_idxs", "block_multiple_of") | dict(
    model_type="lfm2_moe", architectures=["Lfm2MoeForCausalLM"], num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
    num_dense_layers=1, layer_types=["conv", "conv", "full_attention", "conv"])
GPT_OSS = BASE | dict(model_type="gpt_oss", architectures=["GptOssForCausalLM"], hidden_act="silu", head_dim=16,
                      intermediate_size=24, num_local_experts=6, num_experts_per_tok=2, sliding_window=24,
                      num_hidden_layers=4, rope_theta=150000, attention_bias=True, swiglu_limit=7.0,
                      max_position_embeddings=2048, rope_scaling=dict(
                          rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                          original_max_position_embeddings=64), torch_dtype="float32")
MINISTRAL3 = MISTRAL | dict(model_type="ministral3", architectures=["Ministral3ForCausalLM"], head_dim=16,
                            num_hidden_layers=2, sliding_window=None, pad_token_id=0)
YARN_GROWS = dict(rope_type="yarn", rope_theta=100000.0, factor=4.0, original_max_position_embeddings=32,
                  mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3)
NO_EPS = without(BASE, "rms_norm_eps")
STARCODER2 = NO_EPS | dict(model_type="starcoder2", architectures=["Starcoder2ForCausalLM"], norm_epsilon=1e-5,
                           hidden_act="gelu_pytorch_tanh", rope_theta=100000.0, num_hidden_layers=2, sliding_window=None,
                           torch_dtype="float32")
COHERE = NO_EPS | dict(model_type="cohere", architectures=["CohereForCausalLM"], hidden_act="silu", layer_norm_eps=1e-5,
                       rope_theta=10000.0, logit_scale=0.3, num_hidden_layers=2, pad_token_id=0,
                       tie_word_embeddings=True, torch_dtype="float32")
COHERE2 = COHERE | dict(model_type="cohere2", architectures=["Cohere2ForCausalLM"], sliding_window=20, num_hidden_layers=5)
STABLELM = NO_EPS | dict(model_type="stablelm", architectures=["StableLmForCausalLM"], hidden_act="silu",
                         layer_norm_eps=1e-5, rope_theta=10000.0, num_hidden_layers=2, partial_rotary_factor=0.25,
                         use_qkv_bias=False, torch_dtype="float32")
OLMO = NO_EPS | dict(model_type="olmo", architectures=["OlmoForCausalLM"], hidden_act="silu", rope_theta=10000.0,
                     num_hidden_layers=2, pad_token_id=0, torch_dtype="float32")
PHI = NO_EPS | dict(model_type="phi", architectures=["PhiForCausalLM"], hidden_act="gelu_new", layer_norm_eps=1e-5,
                    rope_theta=10000.0, num_hidden_layers=2, partial_rotary_factor=0.5, torch_dtype="float32")
GEMMA4 = BASE | dict(model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], num_hidden_layers=4, head_dim=16,
                     global_head_dim=32, num_key_value_heads=2, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
                     sliding_window=20, layer_types=["sliding_attention", "full_attention"] * 2,
                     hidden_size_per_layer_input=0, num_kv_shared_layers=0, tie_word_embeddings=True,
                     pad_token_id=0, torch_dtype="float32")
GEMMA4_INPUTS = GEMMA4 | dict(hidden_size_per_layer_input=8, vocab_size_per_layer_input=100)
GEMMA4_MOE = GEMMA4 | dict(enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=20)
OLMO3 = OLMO2 | dict(model_type="olmo3", architectures=["Olmo3ForCausalLM"], num_hidden_layers=5, sliding_window=20)
LLAMA4 = BASE | dict(model_type="llama4_text", architectures=["Llama4ForCausalLM"], hidden_act="silu", head_dim=16,
                     num_hidden_layers=4, intermediate_size=24, intermediate_size_mlp=40, num_local_experts=4,
                     num_experts_per_tok=1, attention_chunk_size=16, floor_scale=8, attn_scale=0.3, pad_token_id=0,
                     rope_theta=500000.0, torch_dtype="float32")
RECURRENT_GEMMA = without(BASE, "max_position_embeddings", "num_key_value_heads") | dict(
    model_type="recurrent_gemma", architectures=["RecurrentGemmaForCausalLM"], num_hidden_layers=5, num_key_value_heads=1, lru_width=None,
    hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, attention_window_size=20, intermediate_size=80, tie_word_embeddings=True,
    rope_theta=10000.0, partial_rotary_factor=0.5, conv1d_width=4, logits_soft_cap=30.0, torch_dtype="float32",
    block_types=["recurrent", "recurrent", "attention"])
MUSE_TEXT = without(LLAMA, "rope_theta", "hidden_act", "architectures", "torch_dtype") | dict(
    model_type="muse_glimmer_text", head_dim=16, num_hidden_layers=5, sliding_window=20)
MUSE_PARTS = dict(out_hidden_size=64, projector_hidden_size=16, vision_config=dict(
    num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, patch_size=2, pos_emb_height=4, pos_emb_width=4))


def muse(dtype="float32", **text):
    return MUSE_PARTS | dict(model_type="muse_glimmer", architectures=["MuseGlimmerForConditionalGeneration"], torch_dtype=dtype,
                             text_config=MUSE_TEXT | text)


WRAPPERS = {"gemma3": "Gemma3ForConditionalGeneration", "llama4": "Llama4ForConditionalGeneration",
            "mistral3": "Mistral3ForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
            "qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
            "qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
            "smolvlm": "SmolVLMForConditionalGeneration"}
# Layers with a state.
MAMBA = dict(model_type="mamba", architectures=["MambaForCausalLM"], hidden_size=32, num_hidden_layers=3, state_size=16, expand=2,
             conv_kernel=4, use_bias=False, use_conv_bias=True, hidden_act="silu", time_step_rank=2, layer_norm_epsilon=1e-5,
             residual_in_fp32=True, vocab_size=96, bos_token_id=1, eos_token_id=2, pad_token_id=0, torch_dtype="float32")
MAMBA2 = without(MAMBA, "time_step_rank") | dict(model_type="mamba2", architectures=["Mamba2ForCausalLM"], num_heads=8, head_dim=8,
                                                 n_groups=2, chunk_size=64, tie_word_embeddings=False)
GRANITE_MAMBA = GRANITE_HYBRID | dict(num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"], mamba_n_heads=4, mamba_d_head=16,
                                      mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_n_groups=1, mamba_chunk_size=64,
                                      position_embedding_type=None)
FALCON_H1 = BASE | dict(
    model_type="falcon_h1", architectures=["FalconH1ForCausalLM"], num_hidden_layers=2, head_dim=16, hidden_act="silu",
    mamba_d_ssm=48, mamba_n_heads=6, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=64,
    mamba_rms_norm=False, rope_theta=100000.0, embedding_multiplier=3.0, lm_head_multiplier=0.5, key_multiplier=0.6,
    attention_in_multiplier=1.2, attention_out_multiplier=0.7, ssm_in_multiplier=1.3, ssm_out_multiplier=0.8,
    ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8], mlp_multipliers=[1.4, 0.6], torch_dtype="float32")
# transformers bounds dt from below by time_step_min, but not where it decodes with a cache.
NEMOTRON_H = without(BASE, "rms_norm_eps", "num_hidden_layers") | dict(
    model_type="nemotron_h", architectures=["NemotronHForCausalLM"], hybrid_override_pattern="M-*EM", head_dim=16,
    mamba_num_heads=4, mamba_head_dim=8, n_groups=2, ssm_state_size=16, conv_kernel=4, chunk_size=64, use_conv_bias=True,
    mlp_hidden_act="relu2", layer_norm_epsilon=1e-5, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20,
    moe_shared_expert_intermediate_size=24, routed_scaling_factor=1.5, n_group=1, topk_group=1, norm_topk_prob=True,
    time_step_min=1e-30, pad_token_id=0, torch_dtype="float32")
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)




# name: (config.json, tokens, stored type, more: shards=N, hub=True, mxfp4=True, bf16=True, rows=True, like="CASE", generation={...}, wrap="gemma3")
CASES = {
    "llama_plain": (LLAMA, 150, "f32",
                    dict(generation=dict(bos_token_id=1, eos_token_id=[2, 5, 7]))),
    "llama_mha_tied": (without(LLAMA, "num_key_value_heads") | dict(tie_word_embeddings=True),
                       40, "bf16", {}),
    "llama_mqa_head_dim": (LLAMA | dict(num_key_value_heads=1, head_dim=16), 140, "bf16", {}),
    "llama_odd_sizes": (LLAMA | dict(hidden_size=36, intermediate_size=43, vocab_size=101,
                                     num_attention_heads=3, num_key_value_heads=1, head_dim=12),
                        70, "bf16", {}),
    "llama_llama3_old_keys": (LLAMA | dict(rope_theta=500000.0, head_dim=16, rope_scaling=LLAMA3_ROPE,
                                           tie_word_embeddings=True), 200, "f32", {}),
    "llama_llama3_new_keys": (without(LLAMA, "rope_theta", "torch_dtype") | dict(
        dtype="bfloat16", head_dim=16, rope_parameters=LLAMA3_ROPE | dict(rope_theta=500000.0,
                                                                         factor=32.0)),
        100, "bf16", dict(bf16=True)),
    "llama_linear": (LLAMA | dict(rope_scaling=dict(type="linear", factor=4.0)), 60, "bf16", {}),
    "llama_dynamic_within": (LLAMA | dict(rope_scaling=dict(type="dynamic", factor=2.0),
                                          max_position_embeddings=128), 100, "bf16", {}),
    "llama_dynamic_past": (LLAMA | dict(rope_scaling=dict(rope_type="dynamic", factor=2.0),
                                        max_position_embeddings=64), 150, "bf16", {}),
    "llama_biases": (LLAMA | dict(attention_bias=True, mlp_bias=True), 130, "f32", {}),
    "llama_gelu": (LLAMA | dict(hidden_act="gelu", num_key_value_heads=None, head_dim=None), 40,
                   "bf16", {}),
    "llama_sharded": (LLAMA, 40, "f32", dict(shards=3)),
    "llama_f16": (LLAMA | dict(torch_dtype="float16", hidden_size=64, num_attention_heads=8,
                               num_key_value_heads=4), 130, "f16", {}),
    "llama_700": (LLAMA | dict(torch_dtype="bfloat16"), 700, "bf16", dict(bf16=True)),
    "mistral_window": (MISTRAL | dict(sliding_window=16), 90, "f32", {}),
    "mistral_window_128": (MISTRAL | dict(sliding_window=128), 300, "bf16", {}),
    "mistral_window_200": (MISTRAL | dict(sliding_window=200, torch_dtype="bfloat16"), 700, "bf16",
                           dict(bf16=True)),
    "mistral_null_window": (MISTRAL | dict(sliding_window=None, head_dim=24), 60, "bf16", {}),
    "qwen2_bias": (QWEN2 | dict(tie_word_embeddings=True), 140, "f32", {}),
    "qwen2_max_window_layers": (QWEN2 | dict(num_hidden_layers=4, max_window_layers=2,
                                             use_sliding_window=True, torch_dtype="bfloat16"),
                                150, "bf16", dict(bf16=True)),
    "qwen2_layer_types": (without(QWEN2, "rope_theta") | dict(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=20,
        use_sliding_window=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        100, "bf16", {}),
    "qwen2_yarn": (QWEN2 | dict(max_position_embeddings=128, rope_scaling=dict(
        type="yarn", factor=4.0, original_max_position_embeddings=32)), 120, "bf16", {}),
    "qwen2_yarn_new_keys": (without(QWEN2, "rope_theta") | dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=64,
        beta_fast=16.0, beta_slow=2.0, truncate=False, attention_factor=1.25)), 80, "bf16", {}),
    "qwen3_qk_norm": (QWEN3 | dict(tie_word_embeddings=True), 140, "f32", {}),
    "qwen3_bias_sliding": (QWEN3 | dict(attention_bias=True, use_sliding_window=True,
                                        max_window_layers=1, sliding_window=24,
                                        torch_dtype="bfloat16"), 100, "bf16", dict(bf16=True)),
    "smollm3_plain": (SMOLLM3 | dict(attention_bias=True, mlp_bias=True), 50, "bf16", {}),
    "smollm3_sliding": (SMOLLM3 | dict(no_rope_layers=[0, 1, 1, 0], use_sliding_window=True, sliding_window=20,
                                       rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32),
                                       max_position_embeddings=128, torch_dtype="bfloat16"),
                        90, "bf16", dict(bf16=True)),
    "gemma_plain": (GEMMA | dict(torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "gemma_defaults": (without(GEMMA, "hidden_act", "rope_theta", "rms_norm_eps") | dict(attention_bias=True, num_key_value_heads=4),
                       40, "f32", {}),
    "seed_oss_plain": (SEED_OSS, 140, "bf16", {}),
    "seed_oss_no_bias": (without(SEED_OSS, "attention_bias") | dict(attention_bias=False, mlp_bias=True), 40, "f32", {}),
    "ernie4_5_plain": (ERNIE4_5 | dict(torch_dtype="bfloat16"), 140, "bf16", dict(bf16=True)),
    "ernie4_5_bias": (without(ERNIE4_5, "rope_theta") | dict(use_bias=True, tie_word_embeddings=False), 40, "f32", {}),
    "exaone4_pattern": (EXAONE4 | dict(rope_scaling=LLAMA3_ROPE), 150, "bf16", {}),
    "exaone4_listed": (EXAONE4 | dict(num_hidden_layers=3, sliding_window_pattern="LG", layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"]), 60, "f32", {}),
    "exaone4_full": (EXAONE4 | dict(num_hidden_layers=2, sliding_window=None, sliding_window_pattern=None, torch_dtype="bfloat16",
                                    layer_types=["full_attention"] * 2), 140, "bf16", dict(bf16=True)),
    "olmo2_plain": (OLMO2 | dict(torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "olmo2_bias": (OLMO2 | dict(attention_bias=True, num_key_value_heads=None), 40, "bf16", {}),
    "olmoe_plain": (OLMOE, 60, "bf16", dict(hub=True)),
    "olmoe_norm": (OLMOE | dict(norm_topk_prob=True, clip_qkv=None), 40, "bf16", dict(hub=True)),
    "olmo3_pattern": (OLMO3 | dict(rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.1386)), 70, "bf16", {}),
    "olmo3_listed": (OLMO3 | dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"],
                                  attention_bias=True), 40, "bf16", {}),
    "olmoe_clip": (OLMOE | dict(clip_qkv=0.7), 40, "bf16", dict(hub=True)),
    "ministral_layer_types": (MISTRAL | dict(model_type="ministral", architectures=["MinistralForCausalLM"],
                                             sliding_window=20, pad_token_id=0, head_dim=16, layer_types=[
                                                 "sliding_attention", "full_attention", "sliding_attention"]),
                              60, "bf16", {}),
    "ministral3_grows": (without(MINISTRAL3, "rope_theta") | dict(rope_parameters=YARN_GROWS, torch_dtype="bfloat16"),
                         150, "bf16", dict(bf16=True)),
    "ministral3_window": (MINISTRAL3 | dict(sliding_window=24, rope_scaling=without(YARN_GROWS, "rope_theta", "mscale")
                                            | dict(mscale_all_dim=0.5)), 80, "bf16", {}),
    "ministral3_absent": (without(MINISTRAL3, "rope_theta", "head_dim") | dict(
        num_attention_heads=2, num_key_value_heads=1, head_dim=128, num_hidden_layers=1), 40, "bf16", {}),
    "mistral3_wrapped": (without(MINISTRAL3, "rope_theta") | dict(rope_parameters=YARN_GROWS), 50, "bf16",
                         dict(wrap="mistral3")),
    "starcoder2_plain": (STARCODER2 | dict(tie_word_embeddings=True, torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "starcoder2_window": (STARCODER2 | dict(use_bias=False, sliding_window=24, hidden_act="gelu"), 60, "bf16", {}),
    "cohere_plain": (COHERE | dict(torch_dtype="bfloat16"), 60, "bf16", dict(bf16=True)),
    "cohere_norms": (COHERE | dict(use_qk_norm=True, attention_bias=True, logit_scale=0.0625),
                     60, "bf16", {}),
    "cohere2_pattern": (COHERE2 | dict(num_hidden_layers=4, tie_word_embeddings=False, torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "cohere2_listed": (COHERE2 | dict(num_hidden_layers=2, attention_bias=True, layer_types=[
        "full_attention", "sliding_attention"]), 40, "bf16", {}),
    "cohere2_every_2nd": (COHERE2 | dict(num_hidden_layers=3, sliding_window_pattern=2, head_dim=16), 40, "bf16", {}),
    "stablelm_plain": (STABLELM | dict(use_qkv_bias=True, torch_dtype="bfloat16"), 60, "bf16", dict(bf16=True)),
    "stablelm_norms": (STABLELM | dict(qk_layernorm=True, use_parallel_residual=True, partial_rotary_factor=0.5),
                       60, "bf16", {}),
    "olmo_plain": (OLMO | dict(torch_dtype="bfloat16"), 60, "bf16", dict(bf16=True)),
    "olmo_clip": (OLMO | dict(clip_qkv=0.7, attention_bias=True), 60, "bf16", {}),
    "phi_plain": (PHI | dict(torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "phi_norms": (PHI | dict(qk_layernorm=True, num_key_value_heads=None), 40, "bf16", {}),
    "granite_plain": (GRANITE | dict(attention_bias=True, mlp_bias=True), 50, "bf16", {}),
    "granite_neutral": (without(GRANITE, "attention_multiplier", "residual_multiplier", "embedding_multiplier")
                        | dict(tie_word_embeddings=True), 40, "bf16", {}),
    "granitemoe_plain": (GRANITEMOE, 50, "bf16", dict(hub=True)),
    "granitemoeshared_plain": (GRANITEMOESHARED, 50, "bf16", dict(hub=True)),
    "granitemoehybrid_plain": (GRANITE_HYBRID | dict(tie_word_embeddings=True, torch_dtype="bfloat16"), 140, "bf16", dict(bf16=True)),
    "granitemoehybrid_experts": (GRANITE_HYBRID | dict(num_local_experts=5, num_experts_per_tok=2, attention_bias=True,
                                                       position_embedding_type=None), 50, "bf16", dict(hub=True)),
    "granitemoehybrid_mamba": (GRANITE_MAMBA, 1000, "bf16", {}),
    "granitemoehybrid_mamba_experts": (without(GRANITE_MAMBA, "layer_types", "mamba_d_head") | dict(
        layers_block_type=["linear_attention", "full_attention", "mamba"], num_local_experts=5, num_experts_per_tok=2, mamba_n_groups=2,
        mamba_proj_bias=True, mamba_conv_bias=False, position_embedding_type="rope"), 140, "bf16", dict(hub=True)),
    "granitemoehybrid_all_mamba": (without(GRANITE_MAMBA, "layer_types") | dict(mamba_d_head="auto", num_hidden_layers=2), 70, "f32", {}),
    "mamba_plain": (MAMBA, 1000, "bf16", {}),
    "mamba_biases": (MAMBA | dict(use_bias=True, use_conv_bias=False, time_step_rank="auto", state_size=8, expand=3, conv_kernel=3,
                                  hidden_act="gelu_pytorch_tanh", tie_word_embeddings=False, num_hidden_layers=2), 140, "f32", dict(hub=True)),
    "mamba2_plain": (MAMBA2, 1000, "bf16", {}),
    "mamba2_biases": (MAMBA2 | dict(use_bias=True, use_conv_bias=False, n_groups=1, conv_kernel=3, state_size=12, hidden_act="gelu_pytorch_tanh",
                                    tie_word_embeddings=True, num_hidden_layers=2), 140, "f32", dict(hub=True)),
    "falcon_h1_plain": (FALCON_H1, 1000, "bf16", {}),
    "falcon_h1_norm": (FALCON_H1 | dict(mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=2, mamba_conv_bias=False,
                                        mamba_proj_bias=True, projectors_bias=True, attention_bias=True, mlp_bias=True), 140, "f32", {}),
    "falcon_h1_norm_first": (without(FALCON_H1, "head_dim", "mamba_d_head") | dict(
        mamba_rms_norm=True, mamba_d_ssm=None, mamba_n_heads=4, mamba_n_groups=2, tie_word_embeddings=True), 70, "bf16", {}),
    "nemotron_h_plain": (NEMOTRON_H, 1000, "bf16", dict(hub=True)),
    "nemotron_h_latent": (without(NEMOTRON_H, "hybrid_override_pattern") | dict(
        layers_block_type=["moe", "mamba", "attention", "mlp"], moe_latent_size=16, mlp_bias=True, use_bias=True, use_conv_bias=False,
        n_groups=1, n_routed_experts=12, num_experts_per_tok=3, n_group=4, topk_group=2), 140, "bf16", dict(hub=True)),
    "nemotron_h_dense": (NEMOTRON_H | dict(hybrid_override_pattern="*-M-", mlp_hidden_act="silu", mamba_hidden_act="relu",
                                           tie_word_embeddings=True), 70, "f32", {}),
    "arcee_plain": (ARCEE | dict(torch_dtype="bfloat16", rope_scaling=dict(
        rope_type="yarn", factor=20.0, original_max_position_embeddings=32, mscale=1.0, beta_fast=32.0, beta_slow=1.0)),
                    140, "bf16", dict(bf16=True)),
    "arcee_bias": (without(ARCEE, "hidden_act") | dict(attention_bias=True, mlp_bias=True, head_dim=16, tie_word_embeddings=True),
                   40, "f32", {}),
    "glm_plain": (GLM, 60, "bf16", {}),
    "qwen3_5_plain": (QWEN3_5, 1000, "bf16", {}),
    "qwen3_5_keys": (without(QWEN3_5, "rope_parameters") | dict(
        num_hidden_layers=3, layer_types=["full_attention", "linear_attention", "linear_attention"], attention_bias=True,
        linear_value_head_dim=24, linear_num_key_heads=1, linear_num_value_heads=3, linear_conv_kernel_dim=3, partial_rotary_factor=0.5,
        rope_theta=50000.0, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh",
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)), 65, "f32", {}),
    "qwen3_5_bf16": (QWEN3_5 | dict(num_hidden_layers=2, full_attention_interval=2, linear_num_key_heads=4, torch_dtype="bfloat16"),
                     140, "bf16", dict(bf16=True)),
    "qwen3_5_wrapped": (QWEN3_5 | dict(num_hidden_layers=2, full_attention_interval=2, mtp_num_hidden_layers=1), 64, "bf16",
                        dict(wrap="qwen3_5")),
    "qwen3_5_mtp": (QWEN3_5 | dict(num_hidden_layers=2, full_attention_interval=2, mtp_num_hidden_layers=1), 140, "f32", dict(mtp=True)),
    "qwen3_5_moe_mtp": (QWEN3_5_MOE | dict(num_hidden_layers=2, full_attention_interval=2, mtp_num_hidden_layers=1), 140, "bf16",
                        dict(mtp=True)),
    "qwen3_next_mtp": (QWEN3_NEXT | dict(num_hidden_layers=2, full_attention_interval=2), 140, "bf16", dict(mtp=True)),
    "qwen3_5_moe_plain": (QWEN3_5_MOE | dict(num_hidden_layers=2, full_attention_interval=2), 128, "bf16", dict(hub=True)),
    "qwen3_5_moe_wrapped": (QWEN3_5_MOE | dict(num_hidden_layers=2, full_attention_interval=2), 40, "bf16", dict(wrap="qwen3_5_moe")),
    "qwen3_next_plain": (QWEN3_NEXT, 257, "bf16", dict(hub=True)),
    "qwen3_next_dense": (QWEN3_NEXT | dict(
        num_hidden_layers=3, full_attention_interval=3, mlp_only_layers=[1], decoder_sparse_step=2, norm_topk_prob=False,
        attention_bias=True, linear_num_key_heads=4, linear_value_head_dim=20, tie_word_embeddings=True), 65, "bf16", dict(hub=True)),
    "lfm2_plain": (LFM2, 1000, "bf16", {}),
    "lfm2_listed": (without(LFM2, "full_attn_idxs", "tie_embedding") | dict(
        num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], conv_bias=True, conv_L_cache=4, tie_word_embeddings=False,
        block_auto_adjust_ff_dim=False, block_ff_dim=40, head_dim=16, torch_dtype="bfloat16"), 140, "bf16", dict(bf16=True)),
    "lfm2_rounded": (LFM2 | dict(num_hidden_layers=2, full_attn_idxs=[0], block_ffn_dim_multiplier=1.3, block_multiple_of=16), 40, "bf16", {}),
    "lfm2_moe_plain": (LFM2_MOE, 140, "bf16", dict(hub=True)),
    "lfm2_moe_no_bias": (LFM2_MOE | dict(use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.5, conv_bias=True,
                                         num_dense_layers=0, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]),
                         40, "bf16", dict(hub=True)),
    "glm4_plain": (GLM4 | dict(torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "glm4_no_bias": (GLM4 | dict(attention_bias=False, partial_rotary_factor=1.0), 40, "bf16", {}),
    "glm4_moe_plain": (GLM4_MOE, 60, "bf16", dict(hub=True)),
    "glm4_moe_mtp": (GLM4_MOE | dict(num_hidden_layers=2, num_nextn_predict_layers=1, use_qk_norm=True), 140, "bf16", dict(mtp=True)),
    "glm4_moe_mtp_dense": (GLM4_MOE | dict(num_hidden_layers=2, num_nextn_predict_layers=1, use_qk_norm=True, first_k_dense_replace=3,
                                           partial_rotary_factor=1.0), 140, "f32", dict(mtp=True)),
    "glm4_moe_groups": (GLM4_MOE | dict(n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=3),
                        90, "bf16", {}),
    "glm4_moe_norms": (GLM4_MOE | dict(use_qk_norm=True, attention_bias=True, n_shared_experts=2,
                                       norm_topk_prob=False, first_k_dense_replace=0), 40, "bf16", dict(hub=True)),
    "hunyuan_plain": (HUNYUAN | dict(tie_word_embeddings=True, torch_dtype="bfloat16"), 140, "bf16", dict(bf16=True)),
    "hunyuan_bias": (without(HUNYUAN, "rope_scaling") | dict(attention_bias=True, num_key_value_heads=None, head_dim=8,
                                                             rope_scaling=dict(type="dynamic", factor=2.0),
                                                             max_position_embeddings=32), 60, "f32", {}),
    "hunyuan_moe_plain": (HUNYUAN_MOE, 60, "bf16", dict(hub=True)),
    "nemotron_plain": (NEMOTRON, 140, "bf16", {}),
    "nemotron_bias": (without(NEMOTRON, "hidden_act") | dict(attention_bias=True, mlp_bias=True, head_dim=16, partial_rotary_factor=0.25),
                      40, "f32", {}),
    "internlm3_plain": (INTERNLM3 | dict(rope_scaling=dict(rope_type="dynamic", factor=6.0), max_position_embeddings=64), 90, "bf16", {}),
    "iquestcoder_plain": (IQUESTCODER | dict(attention_bias=True), 40, "bf16", {}),
    "jais2_plain": (JAIS2 | dict(torch_dtype="bfloat16"), 140, "bf16", dict(bf16=True)),
    "exaone_moe_pattern": (EXAONE_MOE | dict(routed_scaling_factor=1.5), 60, "bf16", dict(hub=True)),
    "exaone_moe_listed": (EXAONE_MOE | dict(num_hidden_layers=3, mlp_layer_types=["sparse", "dense", "sparse"], norm_topk_prob=False,
                                            layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
                          40, "bf16", dict(hub=True)),
    "exaone_moe_mtp": (EXAONE_MOE | dict(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], num_nextn_predict_layers=1,
                                         mlp_layer_types=["dense", "sparse"], mtp_layer_types=["full_attention"], mtp_sliding_windows=[0]),
                       140, "f32", dict(mtp=True)),
    "mellum_plain": (MELLUM, 60, "bf16", dict(hub=True)),
    "mellum_full": (without(MELLUM, "rope_parameters", "layer_types") | dict(
        num_hidden_layers=2, mlp_layer_types=["dense", "sparse"], attention_bias=True, norm_topk_prob=False), 40, "bf16", dict(hub=True)),
    "solar_open_plain": (SOLAR_OPEN, 60, "bf16", dict(hub=True)),
    "ernie4_5_moe_plain": (ERNIE4_5_MOE, 60, "bf16", dict(hub=True)),
    "ernie4_5_moe_some_layers": (ERNIE4_5_MOE | dict(num_hidden_layers=5, moe_layer_interval=2, moe_layer_start_index=0,
                                                     moe_layer_end_index=2, moe_num_shared_experts=1, tie_word_embeddings=False),
                                 40, "bf16", dict(hub=True)),
    "dots1_plain": (DOTS1, 60, "bf16", dict(hub=True)),
    "dots1_window": (DOTS1 | dict(num_hidden_layers=3, sliding_window=20, max_window_layers=1, first_k_dense_replace=0, head_dim=16,
                                  n_shared_experts=2, norm_topk_prob=False, attention_bias=True), 60, "bf16", dict(hub=True)),
    "minimax_m2_plain": (MINIMAX_M2, 60, "bf16", dict(hub=True)),
    "minimax_m2_whole": (without(MINIMAX_M2, "rotary_dim") | dict(rope_theta=10000.0, tie_word_embeddings=True), 40, "bf16",
                         dict(hub=True)),
    "gpt_oss_plain": (GPT_OSS, 150, "bf16", {}),
    "gpt_oss_no_bias": (without(GPT_OSS, "rope_scaling", "swiglu_limit") | dict(
        attention_bias=False, num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"]),
        60, "bf16", {}),
    "gpt_oss_mxfp4": (GPT_OSS | dict(hidden_size=64, intermediate_size=32, num_hidden_layers=2), 60, "bf16",
                      dict(mxfp4=True)),
    "phi3_window": (PHI3 | dict(sliding_window=20), 60, "bf16", {}),
    "phi3_partial": (PHI3 | dict(partial_rotary_factor=0.75, num_attention_heads=2, num_key_value_heads=1,
                                 tie_word_embeddings=True, torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "phi3_long_short": (PHI3 | LONGROPE, 64, "bf16", {}),
    "phi3_long_long": (PHI3 | LONGROPE | dict(partial_rotary_factor=0.75, num_attention_heads=2, num_key_value_heads=1,
                                              rope_scaling=LONGROPE["rope_scaling"] | dict(
                                                  short_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 4.5],
                                                  long_factor=[1.5, 3.0, 5.0, 7.0, 9.0, 11.0])), 90, "bf16", {}),
    "gemma2_plain": (GEMMA2 | dict(attention_bias=True), 60, "bf16", {}),
    "gemma2_caps": (GEMMA2 | dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0, query_pre_attn_scalar=24,
                                  sliding_window=140, torch_dtype="bfloat16"), 300, "bf16", dict(bf16=True)),
    "gemma2_no_caps": (GEMMA2 | dict(
        attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"]), 40, "bf16", {}),
    "gemma3_old_keys": (GEMMA3 | dict(sliding_window_pattern=3, num_hidden_layers=5,
                                      query_pre_attn_scalar=24, rope_theta=1000000,
                                      rope_local_base_freq=10000,
                                      rope_scaling=dict(rope_type="linear", factor=8.0)),
                        100, "f32", dict(generation=dict(eos_token_id=[1, 9]))),
    "gemma3_new_keys": (GEMMA3 | dict(
        final_logit_softcapping=6.0, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=500000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=20000.0))),
        60, "bf16", {}),
    "gemma3_window_140": (GEMMA3 | dict(sliding_window=140, attention_bias=True,
                                        sliding_window_pattern=2, torch_dtype="bfloat16"),
                          400, "bf16", dict(bf16=True)),
    "gemma4_plain": (GEMMA4 | dict(final_logit_softcapping=6.0, tie_word_embeddings=False), 60, "bf16", {}),
    "gemma4_global_heads": (GEMMA4 | dict(
        attention_k_eq_v=True, num_global_key_value_heads=1, attention_bias=True, num_hidden_layers=3,
        layer_types=["sliding_attention"] * 3, rope_parameters=dict(
            full_attention=dict(rope_type="proportional", partial_rotary_factor=0.5, rope_theta=5e5, factor=2.0),
            sliding_attention=dict(rope_type="default", rope_theta=2e4))), 60, "bf16", {}),
    "gemma4_inputs": (GEMMA4_INPUTS | dict(sliding_window=140, num_hidden_layers=2, torch_dtype="bfloat16",
                                           layer_types=["sliding_attention", "full_attention"]), 300, "bf16", dict(bf16=True)),
    "gemma4_shared": (GEMMA4_INPUTS | dict(
        num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, num_kv_shared_layers=3,
        use_double_wide_mlp=True), 150, "bf16", {}),
    "gemma4_shared_only": (GEMMA4 | dict(num_hidden_layers=5, num_kv_shared_layers=3, global_head_dim=8,
                                         layer_types=["full_attention", "sliding_attention"] * 2 + ["full_attention"],
                                         sliding_window=140), 300, "bf16", {}),
    "gemma4_moe": (GEMMA4_MOE, 60, "bf16", {}),
    "gemma4_moe_all": (GEMMA4_MOE | dict(
        num_hidden_layers=5, num_kv_shared_layers=2, hidden_size_per_layer_input=8, vocab_size_per_layer_input=96,
        layer_types=["sliding_attention", "full_attention"] * 2 + ["full_attention"], attention_k_eq_v=True,
        num_experts=13, top_k_experts=3), 60, "bf16", {}),
    "mixtral_window": (MIXTRAL | dict(sliding_window=20), 70, "bf16", dict(hub=True)),
    "mixtral_joined": (MIXTRAL | dict(head_dim=16), 150, "bf16", {}),
    # every row has every expert: no rounding makes a row choose another one
    "mixtral_all_kept": (MIXTRAL | dict(num_local_experts=3, num_experts_per_tok=3, torch_dtype="bfloat16"),
                         100, "bf16", dict(bf16=True, hub=True)),
    "qwen2_moe_shared": (QWEN2_MOE, 60, "bf16", dict(hub=True)),
    "qwen2_moe_some_layers": (QWEN2_MOE | dict(
        num_hidden_layers=5, mlp_only_layers=[3], decoder_sparse_step=2, norm_topk_prob=True,
        qkv_bias=False, use_sliding_window=True, sliding_window=24, max_window_layers=3),
        80, "bf16", dict(hub=True)),
    "qwen3_moe_plain": (QWEN3_MOE, 150, "bf16", dict(hub=True)),
    "qwen3_moe_sliding": (QWEN3_MOE | dict(
        norm_topk_prob=False, attention_bias=True, num_experts=13, num_experts_per_tok=1,
        use_sliding_window=True, sliding_window=32), 90, "bf16", dict(hub=True)),
    "llama4_plain": (LLAMA4, 90, "bf16", {}),
    "llama4_dense": (without(LLAMA4, "floor_scale", "attn_scale") | dict(
        num_hidden_layers=3, use_qk_norm=False, attn_temperature_tuning=False, attention_bias=True,
        interleave_moe_layer_step=2, num_experts_per_tok=2, no_rope_layers=[1, 0, 1],
        rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
                          original_max_position_embeddings=32)), 60, "bf16", {}),
    "llama4_listed": (LLAMA4 | dict(moe_layers=[1], no_rope_layers=[], no_rope_layer_interval=2, layer_types=[
        "full_attention", "chunked_attention", "chunked_attention", "full_attention"],
        attention_chunk_size=20, tie_word_embeddings=True), 50, "bf16", {}),
    # every row has every expert: no rounding makes a row choose another one
    "llama4_chunk_140": (LLAMA4 | dict(attention_chunk_size=140, num_local_experts=2, num_experts_per_tok=2,
                                       num_hidden_layers=2, no_rope_layer_interval=2, floor_scale=100,
                                       torch_dtype="bfloat16"), 400, "bf16", dict(bf16=True)),
    "llama4_defaults": (without(LLAMA4, "attention_chunk_size", "floor_scale", "attn_scale") | dict(
        interleave_moe_layer_step=2, num_experts_per_tok=2, num_hidden_layers=5), 60, "bf16", {}),
    "llama4_wrapped": (LLAMA4 | dict(num_hidden_layers=2, attention_chunk_size=None), 40, "bf16", dict(wrap="llama4")),
    "smolvlm_wrapped": (LLAMA | dict(num_hidden_layers=2), 40, "bf16", dict(wrap="smolvlm")),
    "qwen2_5_vl_flat": (QWEN2 | dict(num_hidden_layers=2), 40, "bf16", dict(wrap="qwen2_5_vl")),
    "qwen3_vl_wrapped": (without(QWEN3, "use_sliding_window", "sliding_window", "max_window_layers") | dict(num_hidden_layers=2),
                         40, "bf16", dict(wrap="qwen3_vl")),
    "qwen3_vl_moe_wrapped": (without(QWEN3_MOE, "use_sliding_window", "sliding_window", "max_window_layers"), 40, "bf16",
                             dict(wrap="qwen3_vl_moe")),
    "qwen3_vl_moe_rows": (without(QWEN3_MOE, "use_sliding_window", "sliding_window", "max_window_layers"), 40, "bf16",
                          dict(wrap="qwen3_vl_moe", rows=True, like="qwen3_vl_moe_wrapped")),
    "recurrent_gemma_plain": (RECURRENT_GEMMA | dict(torch_dtype="bfloat16"), 150, "bf16", dict(bf16=True)),
    "recurrent_gemma_1000": (without(RECURRENT_GEMMA, "block_types", "num_key_value_heads", "rope_theta", "partial_rotary_factor") | dict(
        num_hidden_layers=3, attention_window_size=140, lru_width=48, tie_word_embeddings=False), 1000, "f32", {}),
    "recurrent_gemma_keys": (without(RECURRENT_GEMMA, "rope_theta", "partial_rotary_factor") | dict(
        num_hidden_layers=4, block_types=["attention", "recurrent", "recurrent"], attention_bias=True, num_key_value_heads=2, lru_width=24,
        conv1d_width=2, hidden_activation="silu", rms_norm_eps=1e-3, intermediate_size=75, logits_soft_cap=2.0, tie_word_embeddings=False,
        head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=500000.0, partial_rotary_factor=0.25)), 60, "bf16", {}),
    "muse_glimmer_plain": (muse(), 150, "bf16", {}),
    "muse_glimmer_listed": (muse(
        attention_bias=True, rms_norm_eps=1e-2, post_norm_eps=1e-3, qk_scale_factor=2.0, output_multiplier=0.7, final_logit_softcapping=3.0,
        hidden_activation="gelu_pytorch_tanh", layer_rope_theta=[10000.0, 0, 500000, 0, 10000.0],
        layer_types=["full_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=500000.0)), 60, "f32", {}),
    "muse_glimmer_window_140": (muse("bfloat16", sliding_window=140, num_hidden_layers=2, num_key_value_heads=1, layer_rope_theta=None,
                                     layer_types=None, qk_scale_factor=1.1), 300, "bf16", dict(bf16=True)),
    "gemma3_wrapped": (GEMMA3 | dict(sliding_window_pattern=2, num_hidden_layers=2), 50, "bf16",
                       dict(wrap="gemma3")),
}


def seed_of(name):
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def random_weights(model, config, generator, usual_norms=False):
    """{name: tensor}: biases and norms are random too, or a missing one would not show. usual_norms: none is small."""
    weights = {}
    gemma = config.model_type in ("gemma2", "gemma3_text", "recurrent_gemma", "muse_glimmer_text")  # norms have weights less 1
    delta = config.model_type.startswith(("qwen3_5", "qwen3_next"))
    small = gemma or config.model_type == "gemma4_text"
    extra = [(name, b) for name, b in model.named_buffers()
             if name.endswith(("e_score_correction_bias", "layer_scalar", "expert_bias"))]
    for name, parameter in sorted([*model.named_parameters(), *extra]):
        if "vision" in name:
            continue
        values = torch.randn(parameter.shape, generator=generator)
        if small and not gemma and not usual_norms and ("q_norm" in name or "k_norm" in name):  # scores are not scaled
            values = values * 0.1 + 0.5
        elif "post_per_layer_input_norm" in name and not usual_norms:  # of small numbers: it makes their errors large, too
            values = values * 0.06 + 0.3
        elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            values = values * 0.2 + 1.0
        elif name.endswith("dt_bias") or name.endswith("dt_proj.bias"):  # steps from small to large: slow and fast decays
            values = values * 1.5 - 2
        elif name.endswith("recurrent_param"):  # as initialized: most states remember tens of tokens, some thousands
            values = values - 4
        elif name.endswith("bias"):
            values = values * 0.4
        elif name.endswith(("A_log", ".D")):
            values = values * 0.7
        elif "conv1d" in name:
            values = values * 0.5
        elif "norm" in name:
            less_one = gemma and name != "model.language_model.norm.weight" or delta and "linear_attn" not in name
            values = values * 0.2 + (0.0 if less_one else 1.0)
        elif name.endswith("A_log"):  # what a head keeps of its state after a token: nearly all, or little
            values = values * 1.5 - 2
        elif name.endswith("sinks"):
            values = values * 2
        elif "embed_tokens_per_layer" in name:  # scaled like the embedding
            values = values * 0.4
        elif "embed_tokens" in name or "embeddings" in name:  # tied: small, or every token would only predict itself
            values = values * (0.2 if small else 0.4 if config.tie_word_embeddings else 1.0)
        else:  # gains that keep rounding errors from growing with every layer
            gain = 1.3 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 0.8
            inputs = parameter.shape[1]  # of stacked experts: [experts][outputs][inputs], but gpt_oss has the other order
            values = values * gain / inputs ** 0.5
        weights[name] = values
    return weights


MTP_CHAIN = 3


def mtp_layer(model):
    """The class that transformers has for MTP layers, with the model's layers and norms, as its last layer."""
    config, base = copy.deepcopy(model.config), model.get_decoder()
    if getattr(config, "layer_types", None):
        config.layer_types = [*config.layer_types, "full_attention"]
    if config.model_type == "exaone_moe":  # the only family here whose layer has no experts, though others have
        config.mlp_layer_types = [*config.mlp_layer_types, "dense"]
    norm = type(base.layers[-1].input_layernorm)
    return MtpLayer(config, type(base.layers[-1]), norm, config.num_hidden_layers)


def mtp_name(name, config):
    """Of a parameter of mtp_layer: as released folders call it."""
    glm = config.model_type == "glm4_moe"
    parts = {"mtp_block.": "" if glm else "layers.0.", "post_norm.": "shared_head.norm." if glm else "norm."}
    if not glm:
        parts |= {"enorm.": "pre_fc_norm_embedding.", "hnorm.": "pre_fc_norm_hidden.", "eh_proj.": "fc."}
    for part, its in parts.items():
        if name.startswith(part):
            name = its + name[len(part):]
            break
    return (f"model.layers.{config.num_hidden_layers}." if glm else "mtp.") + name


@torch.no_grad()
def mtp_logits(model, layer, ids, positions):
    """[len(positions), MTP_CHAIN, vocab]. Position 0 has no hidden state before it: zeros. The drafts are the next ids."""
    base = model.get_decoder()
    hidden = base(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state  # after the last norm
    out = []
    for p in positions:
        before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :p]], 1)
        for i in range(MTP_CHAIN):
            n = p + i + 1
            embeds = base.embed_tokens(torch.tensor([ids[:n]]))
            at = torch.arange(n)[None]
            mask = torch.full((n, n), torch.finfo(embeds.dtype).min, dtype=embeds.dtype).triu(1)[None, None]
            rows = layer(embeds, before, position_embeddings=base.rotary_emb(embeds, position_ids=at), attention_mask=mask,
                         position_ids=at, cache=None)
            out.append(model.lm_head(rows[0, -1]))
            before = torch.cat([before, rows[:, -1:]], 1)
    return torch.stack(out).view(len(positions), MTP_CHAIN, -1)


def quiet(weights):
    """Layers change the residual stream little."""
    for key in weights:
        if key.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")):
            weights[key] = weights[key] * 0.15
    return weights


def agreeing(weights, its, generator):
    """Of a model with quiet layers: the MTP layer often finds the token likely that the model does, and not always."""
    n = its["eh_proj.weight"].shape[0]
    its = quiet(its)
    its["eh_proj.weight"] = torch.cat([torch.eye(n), 0.05 * torch.randn((n, n), generator=generator)], 1)
    its["post_norm.weight"] = weights["model.norm.weight"].float().clone()
    return its


def add_mtp(folder, weights, ids, generator, stored):
    """Gives the folder an MTP layer, and returns what golden.json has of it."""
    model = load(folder, torch.float32)
    layer = mtp_layer(model).eval()
    layer.config._attn_implementation = layer.config._experts_implementation = "eager"
    its = agreeing(weights, random_weights(layer, model.config, generator), generator)
    its = {key: value.to(DTYPES[stored]) for key, value in its.items()}
    save_weights(folder, weights | {mtp_name(key, model.config): value for key, value in its.items()}, 1)
    layer.load_state_dict({key: value.float() for key, value in its.items()})
    positions = [1, 2, 40, 100, 124, 129, 136]
    logits = mtp_logits(model, layer, ids, positions)
    exact = mtp_logits(load(folder, torch.float64), layer.double(), ids, positions)
    write_logits(folder / "golden_mtp_logits.f32", logits, list(range(len(positions))))
    return dict(positions=positions, chain=MTP_CHAIN, logits_file="golden_mtp_logits.f32",
                max_abs_difference_to_float64=float((logits.double() - exact).abs().max()))


def mxfp4_experts(weights, generator):
    """Gives the experts in `weights` values that MXFP4 has, and returns their stored parts."""
    packed = {}
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        n, k, rows = weights[name].shape
        blocks = torch.randint(0, 256, (n, rows, k // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 124, (n, rows, k // 32), generator=generator, dtype=torch.uint8)
        packed |= {name + "_blocks": blocks, name + "_scales": scales}
        weights[name] = convert_moe_packed_tensors(blocks, scales).to(weights[name].dtype)
    return packed


def save_weights(folder, weights, n_shards):
    names = sorted(weights)
    if n_shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(n_shards):
        file = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
        part = {name: weights[name] for name in names[i::n_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in weights.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def save_as_on_hub(folder, config, weights):
    """The names of released files, where they differ from those in memory: a tensor for each expert."""
    model = AutoModelForCausalLM.from_config(config).to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights, strict=False)  # a tied head is missing
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


QWEN_VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, out_hidden_size=32, patch_size=14,
                   num_position_embeddings=16, deepstack_visual_indexes=[], fullatt_block_indexes=[0])


def wrap_qwen(folder, kind, text, weights, rows):
    """Positions of images have three numbers, those of a text have one: the text model is Qwen2, Qwen3 or Qwen3-MoE."""
    sections = dict(mrope_section=[2, 1, 1] if "head_dim" not in text else [4, 2, 2])
    whole = dict(model_type=kind, architectures=[WRAPPERS[kind]], vision_config=QWEN_VISION, torch_dtype="float32")
    if kind == "qwen2_5_vl":  # the keys of the text model are beside the others
        save_weights(folder, weights, 1)
        write_json(folder / "config.json", text | whole | dict(rope_scaling=dict(type="mrope", **sections)))
        return
    if kind.startswith("qwen3_5"):
        rows, sections = True, {}
        weights = weights | {"mtp.norm.weight": torch.ones(32), "model.visual.merger.norm.weight": torch.ones(16)}
    for key in [key for key in weights if "experts." in key and not rows]:  # [expert][column of x][row], as released files
        weights[key] = weights[key].transpose(1, 2).contiguous()
    names = {key: key if key.startswith(("mtp.", "model.visual.")) else key.replace("model.", "model.language_model.", 1) for key in weights}
    save_weights(folder, {names[key]: value for key, value in weights.items()}, 1)
    text = text | dict(model_type=kind + "_text")
    if sections:
        text["rope_scaling"] = dict(rope_type="default", mrope_interleaved=True, **sections)
    write_json(folder / "config.json", whole | dict(text_config=text))


def check_wrapped(folder, ids, logits):
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    difference = float((forward(model, ids) - logits).abs().max())
    print(f"{folder.name}: the whole model differs by {difference:.2g}")
    assert difference < 1e-5 * float(logits.abs().max())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def class_of(config):
    return AutoModelForImageTextToText if config.model_type == "muse_glimmer" else AutoModelForCausalLM


def load(folder, dtype):
    kind = class_of(AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


@torch.no_grad()
def forward(model, ids):
    """[n_tokens, vocab] of the whole sequence, with no cache. The hidden states are asked for because
    transformers 5.24 fails without them if layers share KV and get no numbers of their own."""
    return model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).logits[0]


def margins(logits):
    top = logits.float().topk(2, dim=-1).values
    return [float(f"{value:.5g}") for value in (top[:, 0] - top[:, 1]).tolist()]


def positions_of(n, window, has_state):
    """Where a wrong window, tile (128) or split (512) border would show, and the ends; with a state, borders of
    transformers' chunks of tokens."""
    wanted = {63, 64, 65, 257} if has_state else set()
    wanted |= {0, 1, 2, n // 2, n - 2, n - 1, 127, 128, 129, 255, 256, 511, 512, 513, 640}
    if window:
        wanted |= {window - 1, window, window + 1, window + 128}
    return sorted(p for p in wanted if 0 <= p < n)


def greedy(model, ids):
    """A fresh whole-sequence forward per token: what a run must give however it caches."""
    ids, out, gaps = list(ids), [], []
    for _ in range(GREEDY_TOKENS):
        last = forward(model, ids)[-1:]
        out.append(int(last.argmax()))
        gaps += margins(last)
        ids.append(out[-1])
    return out, gaps


def write_logits(path, logits, positions):
    path.write_bytes(logits[positions].float().contiguous().numpy().astype("<f4").tobytes())


def make_case(name):
    config_json, n_tokens, stored, more = CASES[name]
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write_json(folder / "config.json", config_json)
    if "generation" in more:
        write_json(folder / "generation_config.json", more["generation"])
    config = AutoConfig.from_pretrained(folder)
    generator = torch.Generator().manual_seed(seed_of(more.get("like", name)))
    text = config.get_text_config()
    weights = random_weights(class_of(config).from_config(config), text, generator)
    if more.get("mtp"):
        weights = quiet(weights)
    weights = {key: value.to(DTYPES[stored]) for key, value in weights.items()}
    packed = mxfp4_experts(weights, generator) if more.get("mxfp4") else {}
    if more.get("hub"):
        save_as_on_hub(folder, config, weights)
        write_json(folder / "config.json", config_json)
    else:
        save_weights(folder, weights, more.get("shards", 1))
    ids = torch.randint(3, text.vocab_size, (n_tokens,), generator=generator).tolist()
    ids[0] = 1

    model = load(folder, torch.float32)
    logits = forward(model, ids)
    exact = forward(load(folder, torch.float64), ids)
    keys = config_json.get("text_config", config_json)
    window = keys.get("sliding_window") or keys.get("attention_chunk_size") or keys.get("attention_window_size")
    positions = positions_of(n_tokens, window, any(name.endswith(("A_log", "conv.conv.weight", "recurrent_param")) for name in weights))
    greedy_ids, greedy_margins = greedy(model, ids)
    # chunks and single tokens of a gated delta net differ by that in transformers itself
    tolerance = dict(tolerance=5e-5) if config.model_type.startswith(("qwen3_5", "qwen3_next")) else {}
    golden = dict(case=name, stored=stored, **tolerance, ids=ids, positions=positions,
                  logits_file="golden_logits.f32", argmax=logits.argmax(-1).tolist(),
                  margin=margins(logits), greedy_ids=greedy_ids, greedy_margin=greedy_margins,
                  max_abs_logit=float(logits.abs().max()),
                  max_abs_difference_to_float64=float((logits.double() - exact).abs().max()))
    write_logits(folder / "golden_logits.f32", logits, positions)
    if more.get("bf16"):
        half = forward(load(folder, torch.bfloat16), ids)
        golden["bf16"] = dict(logits_file="golden_bf16_logits.f32", argmax=half.argmax(-1).tolist(),
                              margin=margins(half),
                              max_abs_difference_to_f32=float((half.float() - logits).abs().max()))
        write_logits(folder / "golden_bf16_logits.f32", half, positions)
    if more.get("mtp"):
        golden["mtp"] = add_mtp(folder, weights, ids, generator, stored)
    if packed:  # as the released files of gpt-oss have their experts
        kept = {key: value for key, value in weights.items() if key + "_blocks" not in packed}
        save_weights(folder, kept | packed, 1)
        write_json(folder / "config.json", config_json | dict(quantization_config=dict(
            quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])))
    if more.get("wrap", "").startswith("qwen"):
        wrap_qwen(folder, more["wrap"], config_json, weights, more.get("rows"))
        check_wrapped(folder, ids, logits)
    elif more.get("wrap"):  # as the multimodal checkpoints store their decoder
        names = {key: "language_model." + key for key in weights}
        if more["wrap"] == "smolvlm":
            names = {key: key.replace("model.", "model.text_model.", 1) if key.startswith("model.") else key for key in weights}
        save_weights(folder, {names[key]: value for key, value in weights.items()}, 1)
        write_json(folder / "config.json",
                   dict(model_type=more["wrap"], architectures=[WRAPPERS[more["wrap"]]],
                        text_config=config_json, eos_token_id=[1, 3], torch_dtype="float32"))
    write_golden(folder / "golden.json", golden)
    print(f"{name}: logits up to {golden['max_abs_logit']:.2f}, float32 against float64 "
          f"{golden['max_abs_difference_to_float64']:.2g}, least greedy margin "
          f"{min(greedy_margins):.3g}, bf16 against float32 "
          f"{golden.get('bf16', {}).get('max_abs_difference_to_f32', 0):.2g}")


def write_golden(path, golden):
    """One line per key: lists of hundreds of numbers read badly one per line."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


ROPE_CASES = [
    ({}, 0), ({"rope_theta": 500000.0}, 0), ({"rope_theta": 1000000}, 0),
    ({"rope_scaling": {"type": "linear", "factor": 3.0}}, 0),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 100),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 128),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 129),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}, "rope_theta": 5e6}, 701),
    ({"rope_scaling": LLAMA3_ROPE}, 0),
    ({"rope_parameters": LLAMA3_ROPE | {"factor": 32.0, "rope_theta": 500000.0,
                                        "original_max_position_embeddings": 8192}}, 0),
    ({"rope_parameters": LLAMA3_ROPE | {"low_freq_factor": 2.0, "high_freq_factor": 2.0}}, 0),
    ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
      "rope_theta": 1000000.0}, 0),
    ({"rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 32}}, 0),
    ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64,
                          "short_factor": [1 + i / 7 for i in range(40)], "long_factor": [2 + i for i in range(40)]}}, 1),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "truncate": False, "rope_theta": 1e4,
                          "mscale": 0.7, "mscale_all_dim": 0.4, "beta_fast": 20, "beta_slow": 2}}, 0),
]


def make_rope():
    """Frequencies for head sizes 64, 80 and 128, after a forward of `length` positions."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    out = []
    for i, (keys, length) in enumerate(ROPE_CASES):
        head_dim = (64, 80, 128)[i % 3]
        text = without(LLAMA, "rope_theta") | {"head_dim": head_dim, "max_position_embeddings": 128}
        text |= keys
        config = AutoConfig.for_model(**json.loads(json.dumps(text)))
        rope = LlamaRotaryEmbedding(config)
        rope(torch.zeros(1), torch.arange(length or 1)[None])
        out.append({"config": text, "length": length, "attention_scaling": float(rope.attention_scaling),
                    "inv_freq": rope.inv_freq.tolist()})
    lines = ",\n".join(json.dumps(entry) for entry in out)
    (HERE / "rope.json").write_text(f"[\n{lines}\n]\n")
    print(f"rope.json: {len(out)} configs")


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    wanted = sys.argv[1:] or ["rope", *CASES]
    for name in wanted:
        if name == "rope":
            make_rope()
        else:
            make_case(name)


if __name__ == "__main__":
    main()
