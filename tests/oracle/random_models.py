#!/usr/bin/env python3
"""Compares all logits of random models with transformers (float32, eager attention).

usage: random_models.py TEST_GOLDENS [COUNT [FAMILY ...]]        (the built test_goldens; 8 models of all families)

Every round draws a model of any family: sizes, biases, windows, layer_types, rope, activation, experts, an
output matrix that is tied, not tied, tied in config.json but different in the file, or alone in the
file; the type of the stored weights; a multimodal wrapper; names without a prefix; shards. transformers
loads the folder itself, and computes a prompt that is longer than the window; test_goldens wants each
logit within 1e-5 of the largest one of its row. Some models make rounding errors that large, in float32 on
either side: such a model is compared with transformers in float64, and printed. Spillway must be within 1e-5
of that; or a row must be about as far from it as a row of transformers in float32 (NEAR, of the geometric
mean of rows), and its worst row, which is chance, at most WORST times as far as the worst one there. A model
can fail where two experts have equal scores in float32: its folder is kept, and the scores of its router tell.
Exit 77 where torch or transformers are missing.
SPW_SEED repeats a run. A folder that failed is kept.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError:
    print("skipped: torch or transformers is not installed")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
from make_goldens import MUSE_PARTS, class_of, random_weights, save_as_on_hub, save_weights, write_json  # noqa: E402

STORED = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCH = 24  # models between two runs of test_goldens
NEAR, WORST = 2, 10


def draw_rope(draw):
    """Keys of config.json, in either generation."""
    kind = draw.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    theta = draw.choice([10000.0, 500000.0, 1000000])
    scaling = {"rope_type": kind}
    if kind != "default":
        scaling["factor"] = draw.choice([2.0, 4.0, 8.0])
    if kind == "llama3":
        scaling |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    if kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = draw.choice([32, 64, 256])
    if kind == "llama3" and draw.random() < 0.3:
        scaling["high_freq_factor"] = scaling["low_freq_factor"]
    if kind == "yarn":
        scaling |= draw_yarn(draw)
    if draw.random() < 0.5:
        return dict(rope_parameters=scaling | dict(rope_theta=theta))
    if draw.random() < 0.5:
        scaling["type"] = scaling.pop("rope_type")
    return dict(rope_theta=theta) | (dict(rope_scaling=scaling) if kind != "default" else {})


def draw_yarn(draw):
    """Keys that are rarely there."""
    keys = [dict(beta_fast=16.0, beta_slow=2.0), dict(truncate=draw.random() < 0.5), dict(attention_factor=1.25),
            dict(mscale=0.7, mscale_all_dim=0.4), dict(mscale=0.7), dict(factor=None)]
    return {key: value for some in keys if draw.random() < 0.25 for key, value in some.items()}


def draw_gemma_rope(draw):
    full = draw.choice([{}, dict(rope_type="linear", factor=8.0),
                        dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=draw.choice([32, 64]))])
    if draw.random() < 0.4:
        return dict(rope_theta=1000000, rope_local_base_freq=10000.0) | (
            dict(rope_scaling=full) if full else {})
    if draw.random() < 0.3:  # means nothing to transformers
        return dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=77.0))
    return dict(rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=500000.0) | full,
        sliding_attention=dict(rope_type="default", rope_theta=20000.0)))


def draw_layer_types(draw, n):
    return [draw.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


# Which keys a family has, as far as families differ. `window`: how sliding_window is switched on.
FAMILIES = {
    "llama": dict(bias=["attention_bias", "mlp_bias"]),
    "mistral": dict(window="all", listed=True),
    "ministral": dict(window="always", listed=True),
    "ministral3": dict(window="all"),
    "mixtral": dict(window="all", experts=("num_local_experts", "intermediate_size")),
    "qwen2": dict(window="use", listed=True, head_dim=False),
    "qwen3": dict(window="use", listed=True, bias=["attention_bias"]),
    "qwen2_moe": dict(window="use", bias=["qkv_bias"], experts=("num_experts", "moe_intermediate_size"), head_dim=False),
    "qwen3_moe": dict(window="use", bias=["attention_bias"], experts=("num_experts", "moe_intermediate_size")),
    "phi": dict(eps="layer_norm_eps", bias=["qk_layernorm"], partial=True, head_dim=False),
    "phi3": dict(window="all", partial=True, head_dim=False),
    "starcoder2": dict(window="all", eps="norm_epsilon", bias=["use_bias"]),
    "stablelm": dict(eps="layer_norm_eps", bias=["use_qkv_bias", "qk_layernorm", "use_parallel_residual"], partial=True,
                     head_dim=False),
    "cohere": dict(eps="layer_norm_eps", bias=["attention_bias", "use_qk_norm"]),
    "cohere2": dict(window="always", listed=True, eps="layer_norm_eps", bias=["attention_bias"]),
    "smollm3": dict(window="use", bias=["attention_bias", "mlp_bias"], head_dim=False),
    "olmo": dict(eps=None, bias=["attention_bias"], head_dim=False),
    "olmo2": dict(bias=["attention_bias"], head_dim=False),
    "olmo3": dict(window="always", listed=True, bias=["attention_bias"], head_dim=False),
    "olmoe": dict(bias=["attention_bias"], experts=("num_experts", "intermediate_size"), head_dim=False),
    "granite": dict(bias=["attention_bias", "mlp_bias"], head_dim=False),
    "granitemoe": dict(bias=["attention_bias"], experts=("num_local_experts", "intermediate_size"), head_dim=False),
    "gemma": dict(bias=["attention_bias"]),
    "seed_oss": dict(bias=["attention_bias", "mlp_bias"]),
    "ernie4_5": dict(bias=["use_bias"]),
    "exaone4": dict(window="all", listed=True),
    "granitemoeshared": dict(bias=["attention_bias"], experts=("num_local_experts", "intermediate_size"), head_dim=False),
    "granitemoehybrid": dict(bias=["attention_bias"], experts=("num_local_experts", "intermediate_size"), head_dim=False),
    "arcee": dict(bias=["attention_bias", "mlp_bias"]),
    "hunyuan_v1_dense": dict(bias=["attention_bias"]),
    "ernie4_5_moe": dict(experts=("moe_num_experts", "moe_intermediate_size"), hub=True),
    "dots1": dict(window="all", listed=True, bias=["attention_bias", "norm_topk_prob"],
                  experts=("n_routed_experts", "moe_intermediate_size")),
    "minimax_m2": dict(experts=("num_local_experts", "intermediate_size"), hub=True),
    "hunyuan_v1_moe": dict(bias=["attention_bias"], experts=("num_experts", "intermediate_size"), hub=True),
    "nemotron": dict(eps="norm_eps", bias=["attention_bias", "mlp_bias"], partial=True),
    "exaone_moe": dict(window="always", listed=True, bias=["norm_topk_prob"], hub=True,
                       experts=("num_experts", "moe_intermediate_size")),
    "mellum": dict(window="all", listed=True, bias=["attention_bias", "norm_topk_prob"],
                   experts=("num_experts", "moe_intermediate_size")),
    "internlm3": dict(bias=["attention_bias"]),
    "iquestcoder": dict(bias=["attention_bias", "mlp_bias"]),
    "jais2": dict(eps="layer_norm_eps", bias=["attention_bias", "mlp_bias"]),
    "solar_open": dict(bias=["attention_bias", "norm_topk_prob"], experts=("n_routed_experts", "moe_intermediate_size")),
    "glm": dict(bias=["attention_bias"], partial=True),
    "glm4": dict(bias=["attention_bias"], partial=True),
    "glm4_moe": dict(bias=["attention_bias", "use_qk_norm", "norm_topk_prob"], partial=True,
                     experts=("n_routed_experts", "moe_intermediate_size")),
    "gpt_oss": dict(window="always", listed=True, bias=["attention_bias"],
                    experts=("num_local_experts", "intermediate_size")),
    "llama4_text": dict(bias=["attention_bias", "use_qk_norm", "attn_temperature_tuning"],
                        experts=("num_local_experts", "intermediate_size")),
    "gemma2": dict(window="always", listed=True, bias=["attention_bias"]),
    "gemma3_text": dict(window="always", listed=True, bias=["attention_bias"]),
    "gemma4_text": dict(window="always", listed=True, bias=["attention_bias"]),
    "muse_glimmer_text": dict(window="always", listed=True, bias=["attention_bias"], inside="muse_glimmer"),
    "recurrent_gemma": dict(bias=["attention_bias"], partial=True),
    "qwen3_5_text": dict(bias=["attention_bias"], partial=True, delta=True),
    "qwen3_5_moe_text": dict(bias=["attention_bias"], partial=True, delta=True, experts=("num_experts", "moe_intermediate_size")),
    "qwen3_next": dict(bias=["attention_bias", "norm_topk_prob"], partial=True, delta=True,
                       experts=("num_experts", "moe_intermediate_size")),
    "mamba": dict(eps="layer_norm_epsilon", bias=["use_bias", "use_conv_bias"], head_dim=False, mamba=True),
    "mamba2": dict(eps="layer_norm_epsilon", bias=["use_bias", "use_conv_bias"], head_dim=False, mamba=True),
    "falcon_h1": dict(bias=["attention_bias", "mlp_bias", "mamba_conv_bias", "mamba_proj_bias", "projectors_bias", "mamba_rms_norm",
                            "mamba_norm_before_gate"], mamba=True),
    "nemotron_h": dict(eps="layer_norm_epsilon", bias=["mlp_bias", "use_bias", "use_conv_bias", "norm_topk_prob"], mamba=True,
                       experts=("n_routed_experts", "moe_intermediate_size")),
    "lfm2": dict(eps="norm_eps", bias=["conv_bias"]),
    "lfm2_moe": dict(eps="norm_eps", bias=["conv_bias", "norm_topk_prob", "use_expert_bias"],
                     experts=("num_experts", "moe_intermediate_size")),
}


def draw_gemma4(draw, config):
    for key in ("rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(key, None)
    config["hidden_activation"] = config.pop("hidden_act")
    kinds = [draw.choice(["full_attention", "sliding_attention"]) for _ in range(draw.randint(2, 6))] + ["full_attention"]
    stored = draw.choice([n for n in range(1, len(kinds) + 1) if set(kinds[:n]) == set(kinds)])
    heads = config["num_attention_heads"]
    config |= dict(
        num_hidden_layers=len(kinds), layer_types=kinds, num_kv_shared_layers=len(kinds) - stored,
        use_double_wide_mlp=draw.random() < 0.5, attention_k_eq_v=draw.random() < 0.5,
        global_head_dim=draw.choice([8, 16, 32]),
        num_global_key_value_heads=draw.choice([None] + [h for h in (1, 2, 3, 4) if heads % h == 0]),
        hidden_size_per_layer_input=draw.choice([0, 6, 8]), vocab_size_per_layer_input=config["vocab_size"] + draw.choice([0, 7]),
        final_logit_softcapping=draw.choice([None, 6.0]))
    if draw.random() < 0.7:
        config["rope_parameters"] = dict(
            full_attention=dict(rope_type="proportional", partial_rotary_factor=draw.choice([0.25, 0.5, 1.0]),
                                rope_theta=draw.choice([10000.0, 1000000.0])),
            sliding_attention=dict(rope_type="default", rope_theta=20000.0))
    if draw.random() < 0.4:
        config |= dict(enable_moe_block=True, num_experts=draw.randint(3, 9), top_k_experts=draw.randint(1, 3),
                       moe_intermediate_size=draw.randint(10, 40))


def draw_muse(draw, config):
    n = draw.randint(2, 6)
    config |= dict(
        hidden_activation=config.pop("hidden_act"), num_hidden_layers=n, post_norm_eps=draw.choice([1e-8, 1e-3]),
        qk_scale_factor=draw.choice([0.7, 2.0]), output_multiplier=draw.choice([0.2, 1.5]), final_logit_softcapping=draw.choice([3.0, 20.0]))
    if draw.random() < 0.5:
        config["layer_rope_theta"] = [draw.choice([0, 10000.0, 5]) for _ in range(n)]
    if "layer_types" in config:
        config["layer_types"] = draw_layer_types(draw, n)


def draw_recurrent(draw, config):
    partial = config.get("partial_rotary_factor") or config["rope_parameters"]["partial_rotary_factor"]
    for key in ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "max_position_embeddings"):
        config.pop(key, None)  # transformers has no scaled rope there
    heads = config["num_attention_heads"]
    config |= dict(
        hidden_activation=config.pop("hidden_act"), num_hidden_layers=draw.randint(2, 6), conv1d_width=draw.choice([2, 3, 4, 7]),
        lru_width=draw.choice([None, heads * 5, heads * 16, heads * 24]), attention_window_size=draw.choice([5, 16, 33, 128, 140]),
        logits_soft_cap=draw.choice([3.0, 30.0]), rope_theta=draw.choice([10000.0, 500000.0]), partial_rotary_factor=partial)
    if draw.random() < 0.7:
        config["block_types"] = [draw.choice(["recurrent", "recurrent", "attention"]) for _ in range(draw.randint(1, 7))]


def draw_mixed(draw, config, word):
    """Which layers have a state."""
    n = config["num_hidden_layers"]
    if draw.random() < 0.5 or config["model_type"] == "lfm2_moe":
        config["layer_types"] = [draw.choice([word, word, "full_attention"]) for _ in range(n)]
    elif word == "conv":
        config["full_attn_idxs"] = [i for i in range(n) if draw.random() < 0.4]
    else:
        config["full_attention_interval"] = draw.choice([1, 2, 3, 4])


def draw_delta(draw, config):
    keys = draw.choice([1, 2, 3])
    if config.get("hidden_act") == "gelu":  # convolutions have no such activation here
        config["hidden_act"] = "silu"
    config |= dict(linear_num_key_heads=keys, linear_num_value_heads=keys * draw.choice([1, 2, 3]),
                   linear_key_head_dim=draw.choice([8, 16, 20, 33]), linear_value_head_dim=draw.choice([8, 16, 20, 33]),
                   linear_conv_kernel_dim=draw.choice([2, 3, 4, 4, 7]))
    draw_mixed(draw, config, "linear_attention")
    if "num_experts" in config:
        config["shared_expert_intermediate_size"] = draw.randint(10, 40)
    if config["model_type"] == "qwen3_next":
        config |= dict(decoder_sparse_step=draw.choice([1, 1, 2]), mlp_only_layers=draw.choice([[], [0], [1, 7]]))


def draw_conv(draw, config):
    del config["hidden_act"]
    config["conv_L_cache"] = draw.choice([2, 3, 3, 4, 8])
    draw_mixed(draw, config, "conv")
    if config["model_type"] == "lfm2_moe":
        config |= dict(num_dense_layers=draw.randint(0, config["num_hidden_layers"]), routed_scaling_factor=draw.choice([1.0, 1.7]))
    else:
        config |= dict(block_auto_adjust_ff_dim=draw.random() < 0.7, block_multiple_of=draw.choice([1, 8, 20]),
                       block_ffn_dim_multiplier=draw.choice([1.0, 1.0, 1.3]))
    if draw.random() < 0.2 and config["model_type"] == "lfm2":
        config["block_ff_dim"] = draw.randint(20, 70)


CONVOLUTION_ACTS = ["silu", "silu", "gelu", "gelu_new", "relu", "quick_gelu", "gelu_pytorch_tanh"]


def draw_ssd(draw, config, heads, groups, state, width):
    """Under the names of the keys."""
    n = config.setdefault(heads, draw.choice([1, 2, 3, 4, 6]))
    config |= {groups: draw.choice([g for g in (1, 2, 3, 4) if n % g == 0]), state: draw.choice([4, 8, 12, 16, 20, 33]),
               width: draw.choice([2, 3, 4, 4, 7, 8])}
    return n


def draw_granite_mamba(draw, config):
    words = draw.choice([["attention"], ["mamba", "attention"], ["mamba", "linear_attention", "attention", "full_attention"]])
    config |= {draw.choice(["layer_types", "layers_block_type"]): [draw.choice(words) for _ in range(config["num_hidden_layers"])]}
    config |= dict(mamba_n_heads=config["num_attention_heads"], mamba_expand=draw.choice([1, 2]), mamba_conv_bias=draw.random() < 0.5,
                   mamba_proj_bias=draw.random() < 0.5, hidden_act=draw.choice(CONVOLUTION_ACTS))
    draw_ssd(draw, config, "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")


def draw_falcon_h1(draw, config):
    n = draw_ssd(draw, config, "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    config |= dict(mamba_d_ssm=n * draw.choice([4, 8, 12]), hidden_act=draw.choice(CONVOLUTION_ACTS))
    keys = ["embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier",
            "ssm_in_multiplier", "ssm_out_multiplier"]
    config |= {key: draw.uniform(0.4, 1.6) for key in keys if draw.random() < 0.6}
    config |= {key: [draw.uniform(0.4, 1.6) for _ in range(size)] for key, size in (("ssm_multipliers", 5), ("mlp_multipliers", 2))
               if draw.random() < 0.6}


def draw_nemotron_h(draw, config):
    """transformers bounds dt from below, but not where it decodes with a cache."""
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = [draw.choice("MM*-E") for _ in range(draw.randint(2, 6))]
    draw_ssd(draw, config, "mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel")
    config |= draw.choice([dict(hybrid_override_pattern="".join(pattern)), dict(layers_block_type=[words[x] for x in pattern])])
    config |= dict(mamba_head_dim=draw.choice([4, 8, 12]), mamba_hidden_act=draw.choice(CONVOLUTION_ACTS), time_step_min=1e-30,
                   mlp_hidden_act=draw.choice(["relu2", "relu2", "silu"]), moe_latent_size=draw.choice([None, 8, 12]),
                   moe_shared_expert_intermediate_size=draw.randint(10, 40), n_group=1, topk_group=1,
                   routed_scaling_factor=draw.choice([1.0, 1.7]))
    for key in ("hidden_act", "rope_theta", "rope_scaling", "rope_parameters"):
        config.pop(key, None)


def draw_mamba(draw, config):
    """The first Mamba, or the second one: no layer attends."""
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta", "rope_scaling", "rope_parameters",
                "max_position_embeddings"):
        config.pop(key, None)
    config |= dict(expand=draw.choice([1, 2, 3]), hidden_act=draw.choice(CONVOLUTION_ACTS))
    if config["model_type"] == "mamba":
        config |= dict(state_size=draw.choice([1, 4, 16, 33]), conv_kernel=draw.choice([2, 4, 4, 7]))
        config |= draw.choice([{}, dict(time_step_rank=draw.choice(["auto", 1, 5]))])
        return
    inner = config["expand"] * config["hidden_size"]
    config["head_dim"] = draw.choice([d for d in (2, 4, 8, 12) if inner % d == 0])
    config["num_heads"] = inner // config["head_dim"]
    draw_ssd(draw, config, "num_heads", "n_groups", "state_size", "conv_kernel")


def tolerance(config):
    """transformers computes a gated delta net in chunks, which differ by that from single tokens."""
    return 5e-5 if FAMILIES.get(config["model_type"], {}).get("delta") else 1e-5


# Keys of which tiny models can have the default.
DEFAULTS = ["rms_norm_eps", "layer_norm_eps", "norm_epsilon", "rope_theta", "hidden_act", "hidden_activation",
            "max_position_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "use_bias", "use_qkv_bias", "qk_layernorm",
            "use_qk_norm", "use_parallel_residual", "attn_temperature_tuning", "logit_scale", "clip_qkv", "norm_topk_prob",
            "decoder_sparse_step", "mlp_only_layers", "first_k_dense_replace", "n_shared_experts", "n_group", "topk_group",
            "routed_scaling_factor", "use_sliding_window", "max_window_layers", "sliding_window_pattern",
            "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping", "no_rope_layers",
            "no_rope_layer_interval", "attn_scale", "floor_scale", "interleave_moe_layer_step", "attention_multiplier",
            "embedding_multiplier", "residual_multiplier", "logits_scaling", "use_double_wide_mlp", "attention_k_eq_v",
            "rope_local_base_freq"]


def leave_out(draw, config):
    """Some keys are absent, and the default of the family holds."""
    for key in DEFAULTS:
        if key in config and draw.random() < 0.1:
            del config[key]


def draw_extra(draw, family, config):
    """Keys that one family has, or a few."""
    n = config["num_hidden_layers"]
    if family == "ministral3":
        config |= dict(rope_parameters=dict(
            rope_type="yarn", rope_theta=draw.choice([10000.0, 1000000.0]), factor=draw.choice([2.0, 8.0]),
            original_max_position_embeddings=draw.choice([16, 50, 128]), mscale=1.0,
            mscale_all_dim=draw.choice([0.5, 1.0]), llama_4_scaling_beta=draw.choice([0.1, 0.5])))
        config.pop("rope_theta", None)
        config.pop("rope_scaling", None)
    if family in ("cohere", "cohere2"):
        config["logit_scale"] = draw.choice([0.0625, 0.25, 0.3, 1.0])
    if family == "cohere2" and draw.random() < 0.5:
        config["sliding_window_pattern"] = draw.choice([2, 3])
    if family in ("olmo", "olmoe"):
        config["clip_qkv"] = draw.choice([None, 0.5, 1.0])
    if family in ("qwen2", "qwen3", "qwen2_moe"):
        config["max_window_layers"] = draw.randint(0, n)
    if family == "qwen2_moe":
        config["shared_expert_intermediate_size"] = draw.randint(10, 40)
    if family in ("qwen2_moe", "qwen3_moe"):
        config |= dict(norm_topk_prob=draw.random() < 0.5, decoder_sparse_step=draw.choice([1, 1, 2, n]))
        if draw.random() < 0.4:
            config["mlp_only_layers"] = [i for i in range(n + 1) if draw.random() < 0.4]
    if family == "llama4_text":
        chunk = draw.choice([None, 5, 16, 33, 128, 140])
        config |= dict(intermediate_size_mlp=draw.randint(20, 70), attention_chunk_size=chunk, attn_scale=draw.choice([0.1, 0.5]),
                       floor_scale=draw.choice([7, 50, 8192]), interleave_moe_layer_step=draw.choice([1, 2]),
                       no_rope_layer_interval=draw.choice([2, 3, 4]))
        if draw.random() < 0.5:
            config["no_rope_layers"] = [draw.randint(0, 1) for _ in range(n)]
        if draw.random() < 0.5:
            config["moe_layers"] = [i for i in range(n) if draw.random() < 0.5]
        if chunk and draw.random() < 0.5:
            config["layer_types"] = [draw.choice(["full_attention", "chunked_attention"]) for _ in range(n)]
    if family == "smollm3":
        config |= draw.choice([{}, dict(no_rope_layers=[draw.randint(0, 1) for _ in range(n)]),
                               dict(no_rope_layer_interval=draw.choice([1, 2, 3]))])
    if family.startswith("granite"):
        config |= dict(attention_multiplier=draw.choice([0.1, 0.3]), embedding_multiplier=draw.choice([1.0, 5.0]),
                       residual_multiplier=draw.choice([0.3, 1.0]), logits_scaling=draw.choice([0.5, 3.0]))
    if family == "exaone4" and not config["sliding_window"]:
        config["layer_types"] = ["full_attention"] * n  # transformers needs the list then
    elif family == "exaone4":
        config["sliding_window_pattern"] = draw.choice([2, 3, 4])
    if family in ("granitemoeshared", "granitemoehybrid"):
        config["shared_intermediate_size"] = draw.randint(10, 40)
    if family == "granitemoehybrid":
        config["position_embedding_type"] = draw.choice(["rope", None])
        draw_granite_mamba(draw, config)
        if draw.random() < 0.5:
            config |= dict(num_local_experts=0, num_experts_per_tok=0)
    if family in ("arcee", "nemotron", "jais2"):
        config["hidden_act"] = draw.choice(["relu2", "relu2", "silu"])
    if family == "hunyuan_v1_dense" and draw.random() < 0.5:
        config.pop("rope_parameters", None)
        config["rope_scaling"] = dict(type="dynamic", alpha=draw.choice([50.0, 1000.0]), factor=1.0)
    if family == "hunyuan_v1_moe":
        config["moe_topk"] = draw.choice([config["num_experts_per_tok"], [config["num_experts_per_tok"]] * n])
        del config["num_experts_per_tok"]
    if family in ("exaone_moe", "mellum") and draw.random() < 0.5:
        config["mlp_layer_types"] = [draw.choice(["dense", "sparse"]) for _ in range(n)]
    if family == "exaone_moe":
        config |= dict(num_shared_experts=draw.choice([1, 2]), first_k_dense_replace=draw.randint(0, n), n_group=1, topk_group=1,
                       routed_scaling_factor=draw.choice([1.0, 1.7]), sliding_window_pattern=draw.choice([2, 3, 4]))
    if family == "mellum":
        for key in ("rope_theta", "rope_scaling", "rope_parameters"):
            config.pop(key, None)
        if not config["sliding_window"]:
            config.pop("layer_types", None)
        config |= draw.choice([{}, dict(rope_parameters=dict(
            full_attention=dict(rope_type="yarn", factor=4.0, rope_theta=500000.0, original_max_position_embeddings=64),
            sliding_attention=dict(rope_type="default", rope_theta=20000.0)))])
    if family == "solar_open":
        config |= dict(n_shared_experts=draw.choice([1, 2]), n_group=1, topk_group=1, routed_scaling_factor=draw.choice([1.0, 1.7]))
    if family == "ernie4_5_moe":
        config["moe_k"] = config.pop("num_experts_per_tok")
        config |= dict(moe_num_shared_experts=draw.choice([1, 2]), moe_layer_interval=draw.choice([1, 1, 2]),
                       moe_layer_start_index=draw.randint(0, n - 1), moe_layer_end_index=draw.choice([-1, n - 1, n - 2]))
    if family == "minimax_m2" and draw.random() < 0.5:
        config.pop("rope_parameters", None)
        config["rotary_dim"] = draw.choice([4, config["head_dim"]])
    if family == "dots1":
        config |= dict(n_shared_experts=draw.choice([1, 2]), first_k_dense_replace=draw.randint(0, n), n_group=1, topk_group=1,
                       routed_scaling_factor=draw.choice([1.0, 1.7]), max_window_layers=draw.randint(0, n))
    if family == "glm4_moe":
        config |= dict(n_shared_experts=draw.choice([1, 2, 3]), first_k_dense_replace=draw.randint(0, n), n_group=1,
                       topk_group=1, routed_scaling_factor=draw.choice([1.0, 1.7]))
    if family in ("gemma2", "gemma3_text"):
        config |= dict(hidden_activation=config.pop("hidden_act"), query_pre_attn_scalar=draw.choice([8, 16, 24]),
                       final_logit_softcapping=draw.choice([None, 6.0, 30.0]))
    if family == "gemma2":
        config["attn_logit_softcapping"] = draw.choice([None, 3.0, 50.0])
    if family == "gemma3_text":
        config.pop("rope_theta", None)
        config.pop("rope_scaling", None)
        config.pop("rope_parameters", None)
        config |= draw_gemma_rope(draw)
        if "layer_types" not in config:
            config["sliding_window_pattern"] = draw.choice([2, 3])
    if family == "gemma4_text":
        draw_gemma4(draw, config)
    if family == "muse_glimmer_text":
        draw_muse(draw, config)
    if family == "recurrent_gemma":
        draw_recurrent(draw, config)
    if FAMILIES[family].get("delta"):
        draw_delta(draw, config)
    if family.startswith("lfm2"):
        draw_conv(draw, config)
    if family in ("mamba", "mamba2"):
        draw_mamba(draw, config)
    if family == "falcon_h1":
        draw_falcon_h1(draw, config)
    if family == "nemotron_h":
        draw_nemotron_h(draw, config)
    if family == "olmo3":
        config.pop("rope_parameters", None)
        config["rope_theta"] = draw.choice([10000.0, 500000.0])
        config["rope_scaling"] = draw.choice([None, dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=32, attention_factor=1.1386),
            dict(rope_type="linear", factor=4.0)])
    if family == "gpt_oss":
        config |= draw.choice([{}, draw_rope(draw)])


def draw_groups(draw, config):
    """Of experts, which are chosen first."""
    count = "num_experts" if "num_experts" in config else "n_routed_experts"
    size, n = draw.choice([2, 3, 5]), draw.choice([2, 3, 4])
    kept = draw.randint(1, n)
    config |= {count: size * n, "n_group": n, "topk_group": kept, "num_experts_per_tok": draw.randint(1, min(3, kept * size))}


def draw_longrope(draw, config):
    """Of phi3, whose rope has no other kinds."""
    for key in ("rope_scaling", "rope_parameters"):
        config.pop(key, None)
    config["rope_theta"] = 10000.0
    if draw.random() < 0.6:
        pairs = int(config["hidden_size"] // config["num_attention_heads"] * config["partial_rotary_factor"]) // 2
        config |= dict(original_max_position_embeddings=draw.choice([64, 400]), max_position_embeddings=1024,
                       rope_scaling={draw.choice(["type", "rope_type"]): draw.choice(["longrope", "longrope", "yarn"])} | dict(
                           short_factor=[1 + 0.3 * i for i in range(pairs)], long_factor=[1.5 + i for i in range(pairs)]))
        config["rope_scaling"] |= draw.choice([{}, {}, dict(factor=4.0), dict(attention_factor=1.2)])


def draw_partial(draw, head_dim):
    whole = [part for part in (0.25, 0.5, 0.75, 1.0) if head_dim * part >= 4 and head_dim * part % 2 == 0]
    return draw.choice(whole)


def draw_config(draw, family):
    facts = FAMILIES[family]
    heads = draw.choice([2, 3, 4])
    n = draw.randint(2, 4)
    config = dict(
        model_type=family, hidden_size=heads * draw.choice([8, 12, 16]), num_attention_heads=heads,
        num_key_value_heads=draw.choice([h for h in (1, 2, 3, 4) if heads % h == 0]),
        intermediate_size=draw.randint(20, 70), num_hidden_layers=n, vocab_size=draw.randint(60, 130),
        max_position_embeddings=draw.choice([128, 1024]), bos_token_id=1, eos_token_id=2, pad_token_id=0)
    if facts.get("eps", "rms_norm_eps"):
        config[facts.get("eps", "rms_norm_eps")] = draw.choice([1e-5, 1e-6])
    if facts.get("head_dim", True):
        config["head_dim"] = draw.choice([8, 16, 20])
    if family != "gpt_oss":
        config["hidden_act"] = draw.choice(["silu"] * 3 + ["gelu", "gelu_new", "relu", "quick_gelu", "gelu_pytorch_tanh"])
        config |= draw_rope(draw)
    if facts.get("partial"):
        config["partial_rotary_factor"] = draw_partial(draw, config.get("head_dim") or config["hidden_size"] // heads)
        if "rope_parameters" in config:
            config["rope_parameters"]["partial_rotary_factor"] = config.pop("partial_rotary_factor")
    config |= {key: draw.random() < 0.4 for key in facts.get("bias", [])}
    window = draw.choice([5, 16, 33, 128, 140])
    if "window" in facts:
        config["sliding_window"] = None if facts["window"] == "all" and draw.random() < 0.3 else window
    if facts.get("window") == "use":
        config["use_sliding_window"] = draw.random() < 0.7
    if facts.get("listed") and config["sliding_window"] and config.get("use_sliding_window", True) and draw.random() < 0.5:
        config["layer_types"] = draw_layer_types(draw, n)
    if "experts" in facts:
        count, width = facts["experts"]
        config |= {count: draw.randint(3, 9), width: draw.randint(10, 40), "num_experts_per_tok": draw.randint(1, 3)}
    if family == "phi3":
        config.setdefault("partial_rotary_factor", config.get("rope_parameters", {}).get("partial_rotary_factor"))
        draw_longrope(draw, config)
    draw_extra(draw, family, config)
    leave_out(draw, config)
    if "n_group" in config and draw.random() < 0.5:
        draw_groups(draw, config)
    if family == "internlm3":  # transformers wants both to be the same
        config["mlp_bias"] = config.get("attention_bias", False)
    if family == "dots1":
        config.setdefault("n_shared_experts", 1)  # transformers needs it
    if facts.get("window") == "use" and not config.get("use_sliding_window"):
        config.pop("layer_types", None)  # transformers refuses a list with windows then
    return config


def names_on_hub(config, weights):
    """A tensor for each expert, as released folders have them."""
    with tempfile.TemporaryDirectory() as folder:
        save_as_on_hub(Path(folder), config, weights)
        return load_file(Path(folder) / "model.safetensors")


def embedding_of(weights):
    return next(name for name in weights if name.endswith((".embed_tokens.weight", ".embeddings.weight")))


def draw_head(draw, weights, config):
    """What becomes of the output matrix; weights has both."""
    kind = draw.choice(["tied", "untied", "tied, differs", "tied, equal", "tied, head only"])
    if config["model_type"] == "nemotron_h":  # transformers does not tie it, whatever the key says
        kind = draw.choice(["untied", "tied, differs"])
    config["tie_word_embeddings"] = kind != "untied"
    embedding, head = embedding_of(weights), "lm_head.weight"
    if kind == "tied":
        del weights[head]
    if kind in ("tied, equal", "tied, head only"):
        weights[head] = weights[embedding].clone()
    if kind == "tied, head only":
        del weights[embedding]
    return kind


VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
WRAPPERS = {  # text models, the vision part, and keys
    "gemma3": (["gemma3_text"], "siglip_vision_model", dict(
        mm_tokens_per_image=4, boi_token_index=3, eoi_token_index=4, image_token_index=5)),
    "mistral3": (["mistral", "ministral3"], "pixtral", dict(image_token_index=5)),
    "aya_vision": (["cohere", "cohere2"], "siglip_vision_model", dict(image_token_index=5)),
    "cohere2_vision": (["cohere2"], "siglip_vision_model", dict(image_token_id=5, alignment_intermediate_size=16)),
    "internvl": (["llama", "qwen2", "qwen3"], "internvl_vision", dict(image_token_id=5)),
    "idefics3": (["llama"], None, dict(image_token_id=5)),
    "smolvlm": (["llama"], None, dict(image_token_id=5)),
    "llava": (["llama", "qwen2"], "clip_vision_model", dict(image_token_index=5)),
    "llava_next": (["llama", "mistral"], "clip_vision_model", dict(image_token_index=5)),
    "llava_onevision": (["qwen2"], "siglip_vision_model", dict(image_token_index=5)),
    "vipllava": (["llama"], "clip_vision_model", dict(image_token_index=5)),
    "muse_glimmer": (["muse_glimmer_text"], None, MUSE_PARTS),
}


def wrap(draw, config, weights):
    """As multimodal checkpoints are: text_config, and a tower for images beside it. Their names have either form."""
    name = draw.choice([name for name, its in WRAPPERS.items() if config["model_type"] in its[0]])
    vision, keys = WRAPPERS[name][1:]
    if config["model_type"] == "mistral":
        config.pop("layer_types", None)  # transformers ignores it there, and spillway refuses it
    whole = dict(model_type=name, text_config=config, eos_token_id=[1, 3], vision_config=VISION | (dict(model_type=vision) if vision else {}),
                 tie_word_embeddings=config["tie_word_embeddings"]) | keys
    if name in ("idefics3", "smolvlm"):
        return whole, {key.replace("model.", "model.text_model.", 1) if key.startswith("model.") else key: value
                       for key, value in weights.items()}
    if name not in ("cohere2_vision", "muse_glimmer") and draw.random() < 0.5:  # transformers does not know the older names there
        return whole, {"language_model." + key: value for key, value in weights.items()}
    return whole, {key.replace("model.", "model.language_model.", 1) if key.startswith("model.") else key: value
                   for key, value in weights.items()}


@torch.no_grad()
def reference(folder, ids, dtype=torch.float32):
    wrapped = "text_config" in json.loads((folder / "config.json").read_text())
    kind = transformers.AutoModelForImageTextToText if wrapped else transformers.AutoModelForCausalLM
    more = {} if wrapped else dict(experts_implementation="eager")
    model = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **more).eval()
    return model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).logits[0].to(dtype)


class Float64:
    """torch as the code of a model sees it, with float64 wherever that code asks for float32."""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def in_float64():
    modules = [m for name, m in sys.modules.items() if name.startswith("transformers.") and vars(m).get("torch") is torch]
    to_float = torch.Tensor.float
    try:
        torch.Tensor.float = torch.Tensor.double
        for module in modules:
            module.torch = Float64()
        yield
    finally:
        torch.Tensor.float = to_float
        for module in modules:
            module.torch = torch


def distance(got, expected):
    """Of the worst row, and the geometric mean of rows, as test_goldens measures them."""
    rows = (got.double() - expected).abs().amax(-1) / expected.abs().amax(-1)
    return rows.max().item(), rows.clamp(min=1e-12).log().mean().exp().item()


def fits(ours, theirs, limit):
    return ours[0] <= limit or (ours[1] <= NEAR * theirs[1] and ours[0] <= WORST * theirs[0])


def distances(program, folder):
    """Of spillway's and of transformers' logits in float32 from float64."""
    ids = json.loads((folder / "golden.json").read_text())["ids"]
    single = reference(folder, ids)
    with in_float64():
        exact = reference(folder, ids, torch.float64)
    (folder / "golden_logits.f32").write_bytes(exact.numpy().astype("<f4").tobytes())
    return run_batch(program, [folder])[0].get(str(folder)), distance(single, exact)


def rope_type(config):
    keys = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return keys.get("rope_type", keys.get("type", "by layer kind" if "full_attention" in keys else "default"))


def make_model(draw, folder, families):
    """Writes the folder; returns what was drawn, in words."""
    family = draw.choice(families)
    config = draw_config(draw, family)
    inside = FAMILIES[family].get("inside")  # transformers has no class for the text model alone
    whole = dict(model_type=inside, text_config=config) | MUSE_PARTS if inside else config
    plain = transformers.AutoConfig.for_model(**json.loads(json.dumps(
        whole | dict(tie_word_embeddings=False))))
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    weights = random_weights(class_of(plain).from_config(plain), plain.get_text_config(), generator, usual_norms=True)
    weights = {name.replace("model.language_model.", "model.", 1): value for name, value in weights.items()}
    if FAMILIES[family].get("hub") or ("experts" in FAMILIES[family] and draw.random() < 0.7):
        weights = names_on_hub(plain, weights)
    weights[embedding_of(weights)] *= 0.4  # tied: or every token would only predict itself
    head = draw_head(draw, weights, config)
    stored = draw.choice(list(STORED))
    weights = {name: value.to(STORED[stored]) for name, value in weights.items()}
    names = "plain"
    if any(family in its[0] for its in WRAPPERS.values()) and (inside or draw.random() < 0.5):
        config, weights = wrap(draw, config, weights)
        names = config["model_type"]
    elif family != "llama4_text" and not FAMILIES[family].get("mamba") and draw.random() < 0.25:  # transformers does not find such names there
        names = "no prefix"
        weights = {name.removeprefix("model."): value for name, value in weights.items()}
    folder.mkdir()
    write_json(folder / "config.json", config)
    save_weights(folder, weights, draw.choice([1, 1, 3]))
    n = draw.randint(150, 330)
    vocab = config.get("text_config", config)["vocab_size"]
    ids = [draw.randrange(6, vocab) for _ in range(n)]
    logits = reference(folder, ids)
    (folder / "golden_logits.f32").write_bytes(logits.numpy().astype("<f4").tobytes())
    write_json(folder / "golden.json", dict(ids=ids, positions=list(range(n)), tolerance=tolerance(config)))
    listed = "layer_types" in config.get("text_config", config)
    return dict(family=family, head=head, stored=stored, names=names, rope=rope_type(config.get("text_config", config)),
                kinds="layer_types" if listed else "by rule",
                act=config.get("text_config", config).get("hidden_act", "of another key"))


def run_batch(program, folders):
    """{folder: (error of the worst row, mean of rows)}; of those that could not be run the program's words."""
    done = subprocess.run([program, *map(str, folders)], capture_output=True, text=True)
    errors = {}
    for line in done.stderr.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in map(str, folders):
            errors[words[0]] = float(words[1]), float(words[2])
        elif "failed:" in line and " relative" not in line:
            print(line)
    return errors, done.returncode


def begin():
    """What draws, by SPW_SEED, which is printed. transformers says nothing more."""
    seed = int(os.environ.get("SPW_SEED") or random.getrandbits(40))
    print(f"SPW_SEED={seed}", flush=True)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return random.Random(seed)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    families = sys.argv[3:] or list(FAMILIES)
    draw = begin()
    place = Path(tempfile.mkdtemp(prefix="spw_random_models_"))
    seen, worst, n_further, bad, made = Counter(), 0.0, 0, [], 0
    while made < count:
        folders = {}
        for _ in range(min(BATCH, count - made)):
            folder = place / f"model{made}"
            folders[str(folder)] = make_model(draw, folder, families)
            made += 1
        errors, code = run_batch(sys.argv[1], folders)
        if code not in (0, 1):
            print(f"test_goldens ended with {code}")
            bad.append(str(code))
        for folder, what in folders.items():
            error, _ = errors.get(folder, (float("inf"), None))
            seen.update(f"{key}: {value}" for key, value in what.items())
            limit = tolerance(dict(model_type=what["family"]))
            passes = error <= limit
            if passes:
                worst = max(worst, error)
            elif folder in errors:
                ours, theirs = distances(sys.argv[1], Path(folder))
                n_further += 1
                print(f"{what}: {error:.2e}; worst and mean from float64 {ours[0]:.2e} {ours[1]:.2e}, "
                      f"transformers {theirs[0]:.2e} {theirs[1]:.2e}", flush=True)
                passes = fits(ours, theirs, limit)
            if passes:
                shutil.rmtree(folder)
            else:
                print(f"{folder}: {what}: {error}", flush=True)
                bad.append(folder)
    for key in sorted(seen):
        print(f"  {seen[key]:4} {key}")
    print(f"{made} models, {len(bad)} failed; {n_further} were compared in float64, the others are within {worst:.2e}")
    if not bad:
        place.rmdir()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
