#!/usr/bin/env python3
"""Runs golden models as GGUF files that the gguf package has written.

usage: gguf_models.py SPILLWAY          (the built command)

The package gives the names of tensors and keys and the blocks of quantized types; the order of the
rows of q and k, the norms of Gemma and the factors of Llama 3's rope are written here, as the
converter of llama.cpp does it. In float32 the logits of the last token are those of transformers
within 1e-5 of the largest, and the greedy tokens are the same. A file that `spillway quantize` writes gives the
bits of the package's file with the same blocks. With matrices in other types (where the
width is a multiple of 32), the logits are those of the same file with these matrices dequantized by the package, bit for bit.
Exit 77 where gguf or numpy are missing.
"""
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import gguf
    import numpy as np
except ImportError:
    print("skipped: gguf or numpy is not installed")
    sys.exit(77)

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3", "gemma2": "gemma2", "phi3": "phi3",
                 "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
                 "gpt_oss": "gpt-oss", "granite": "granite", "granitemoe": "granitemoe", "olmo2": "olmo2", "olmo3": "olmo2",
                 "olmoe": "olmoe", "smollm3": "smollm3", "glm": "chatglm", "glm4": "glm4", "glm4_moe": "glm4moe", "cohere": "command-r", "cohere2": "cohere2",
                 "ministral3": "mistral3", "olmo": "olmo", "phi": "phi2", "stablelm": "stablelm", "starcoder2": "starcoder2",
                 "llama4_text": "llama4", "gemma4_text": "gemma4", "gemma": "gemma", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5",
                 "exaone4": "exaone4", "arcee": "arcee", "hunyuan_v1_dense": "hunyuan-dense", "ernie4_5_moe": "ernie4_5-moe",
                 "dots1": "dots1", "minimax_m2": "minimax-m2", "granitemoeshared": "granitemoe", "granitemoehybrid": "granite", "nemotron": "nemotron", "exaone_moe": "exaone-moe", "mellum": "mellum", "jais2": "jais2", "iquestcoder": "llama",
                 "hunyuan_v1_moe": "hunyuan-moe", "solar_open": "glm4moe"}
PERMUTED = ("llama", "granite", "granitemoe", "smollm3", "mistral3", "olmo", "arcee")  # rows of q and k
GEMMA4 = ["gemma4_plain", "gemma4_global_heads", "gemma4_inputs", "gemma4_shared", "gemma4_shared_only", "gemma4_moe", "gemma4_moe_all"]
NEW = ["granitemoeshared_plain", "granitemoehybrid_plain", "granitemoehybrid_experts", "arcee_plain", "arcee_bias", "hunyuan_plain",
       "ernie4_5_moe_plain", "dots1_plain", "minimax_m2_plain", "hunyuan_moe_plain", "nemotron_plain", "jais2_plain", "exaone_moe_pattern", "mellum_plain", "iquestcoder_plain", "nemotron_bias", "solar_open_plain"]
EXACT = ["llama_plain", "llama_biases", "llama_mqa_head_dim", "llama_linear", "llama_llama3_old_keys", "mistral_null_window",
         "qwen2_bias", "qwen2_yarn", "qwen3_qk_norm", "gemma3_window_140", "gemma2_plain", "phi3_window", "phi3_partial", "phi3_long_short", "phi3_long_long", "mixtral_joined",
         "qwen2_moe_shared", "qwen3_moe_plain", "gpt_oss_plain", "granite_plain", "granitemoe_plain", "olmo2_plain", "olmo3_listed", "olmo3_pattern",
         "olmoe_plain", "smollm3_plain", "glm_plain", "glm4_plain", "glm4_moe_plain", "glm4_moe_groups", "cohere_plain", "cohere_norms", "cohere2_listed", "ministral3_grows",
         "olmo_plain", "olmo_clip", "phi_plain", "phi_plain joined", "stablelm_plain", "stablelm_norms", "starcoder2_plain",
         "gemma_plain", "gemma_defaults", "seed_oss_plain", "seed_oss_no_bias", "ernie4_5_plain", "ernie4_5_bias", "exaone4_pattern",
         "exaone4_full", "llama4_defaults", *GEMMA4, *NEW]
QUANTIZED = [*GEMMA4, *NEW, "gemma_plain", "seed_oss_plain", "ernie4_5_plain", "exaone4_pattern", "exaone4_full", "llama4_defaults", "mixtral_joined", "qwen2_moe_shared", "qwen3_moe_plain", "gpt_oss_plain", "granitemoe_plain", "olmoe_plain", "glm4_moe_plain", "glm4_moe_groups",
             "gemma2_plain", "phi3_partial", "phi3_long_short", "phi3_long_long", "granite_plain", "olmo2_plain", "olmo3_listed",
             "olmo3_pattern", "glm_plain", "smollm3_plain", "glm4_plain", "cohere_plain",
             "cohere2_listed", "ministral3_grows", "olmo_clip", "phi_plain", "stablelm_plain", "starcoder2_plain"]
THETAS = {"gemma3_text": 1e6, "ernie4_5": 5e5, "ernie4_5_moe": 5e5, "minimax_m2": 5e6, "solar_open": 1e6}
LIKE = {"mellum": "qwen3moe"}  # architectures that the package does not know, and one with the same tensors
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]


def load(path):
    """All tensors in float32. numpy has no bf16."""
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8:8 + header_bytes])
    data = path.read_bytes()[8 + header_bytes:]
    for name, its in header.items():
        if name == "__metadata__":
            continue
        raw = data[its["data_offsets"][0]:its["data_offsets"][1]]
        if its["dtype"] == "BF16":
            x = (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(raw, dtype={"F32": "<f4", "F16": "<f2", "F64": "<f8"}[its["dtype"]])
        yield name, x.reshape(its["shape"]).astype(np.float32)


def permute(rows, heads):
    """Rows of a llama q or k matrix: the halves of each head, interleaved."""
    head = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return head.swapaxes(1, 2).reshape(rows.shape)


def rope_factors(config, head_dim):
    scaling = config["rope_scaling"]
    original = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * config.get("rope_theta", 10000.0) ** (i / head_dim)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


def full_rope(config):
    """Of layers without a window."""
    default = dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6)
    return config.get("rope_parameters", {}).get("full_attention", default)


def still_factors(config):
    """Pairs of channels that do not turn have an enormous one."""
    rope, pairs = full_rope(config), config["global_head_dim"] // 2
    turned = int(rope.get("partial_rotary_factor", 1.0) * pairs)
    return np.array([rope.get("factor", 1.0)] * turned + [1e30] * (pairs - turned), dtype=np.float32)


def gemma4_kinds(config):
    """Whether a layer has a window: the last one has none, whatever the config says."""
    return [kind == "sliding_attention" for kind in config["layer_types"][:-1]] + [False]


def write_gemma4_keys(writer, config):
    slides = gemma4_kinds(config)
    n, shared, width = len(slides), config["num_kv_shared_layers"], config["intermediate_size"]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config.get("rope_parameters", {}).get("sliding_attention", {}).get("rope_theta", 1e4))
    if config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([width if i < n - shared else 2 * width for i in range(n)])
    if config.get("num_global_key_value_heads"):
        writer.add_head_count_kv([config["num_key_value_heads"] if its else config["num_global_key_value_heads"] for its in slides])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def write_keys(writer, config, architecture, head_dim):
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    width = config.get("intermediate_size", 1280)
    if config.get("num_local_experts") == 0:
        width = config["shared_intermediate_size"]
    writer.add_feed_forward_length(config.get("intermediate_size_mlp", width))
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    eps = config.get("layer_norm_eps", config.get("norm_epsilon", config.get("norm_eps", 1e-5 if architecture == "olmo" else None)))
    if eps:
        writer.add_layer_norm_eps(eps)
    else:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if architecture == "gemma4":
        scaling = full_rope(config)
    if architecture == "mellum":
        scaling = scaling["full_attention"]
    theta = scaling.get("rope_theta") or config.get("rope_theta", THETAS.get(config["model_type"], 1e4))
    writer.add_rope_freq_base(theta * (scaling.get("alpha") or 1) ** (head_dim / (head_dim - 2)))
    if architecture == "gemma2":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_attn_logit_softcapping(config.get("attn_logit_softcapping", 50.0))
        writer.add_final_logit_softcapping(config.get("final_logit_softcapping", 30.0))
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
    glm = config["model_type"].startswith("glm")
    part = config.get("rotary_dim", head_dim) / head_dim
    writer.add_rope_dimension_count(int(head_dim * config.get("partial_rotary_factor", 0.5 if glm or architecture == "nemotron" else part)))
    if architecture == "gemma4":
        write_gemma4_keys(writer, config)
    if architecture == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture.startswith("granite"):
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "glm4moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 0))
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if architecture in ("dots1", "minimax-m2", "exaone-moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture == "dots1":
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if architecture == "minimax-m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "exaone-moe":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([(i + 1) % 4 != 0 for i in range(config["num_hidden_layers"])])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(True)
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    if architecture == "mellum":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if architecture == "hunyuan-moe":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_count(1)
    if architecture == "ernie4_5-moe":
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_expert_shared_feed_forward_length(config["moe_num_shared_experts"] * config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    if "mamba_n_heads" in config:  # the converter writes these keys in models without such layers, too
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(128)
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
    if "shared_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    if architecture == "llama4":
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "phi3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or config.get("moe_num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config.get("moe_k") or config.get("moe_topk", [0])[0] or config["top_k_experts"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if config.get("clip_qkv"):
        writer.add_clamp_kqv(config["clip_qkv"])
    if architecture == "cohere2":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config["model_type"] == "olmo3":
        kinds = config.get("layer_types", ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * config["num_hidden_layers"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds[:config["num_hidden_layers"]]])
        writer.add_rope_freq_base_swa(500000.0)  # rope_theta outside of rope_parameters is that of full layers only
    if architecture == "exaone4" and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([(i + 1) % 4 != 0 for i in range(config["num_hidden_layers"])])
    if architecture == "stablelm":
        writer.add_parallel_residual(config.get("use_parallel_residual", False))
    if architecture == "mistral3":
        writer.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
        writer.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "longrope":  # no type: the tensors tell
        original = config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        factor = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "attention_factor" in scaling:
            writer.add_rope_scaling_yarn_attn_factor(scaling["attention_factor"])
    return kind


def stacked(tensors, path):
    """Experts as one tensor for each role, whatever the folder has."""
    stacks = {}
    for name, x in tensors:
        each = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name) or re.fullmatch(r"(.*_layernorm)\.norms\.(\d+)\.(.*)", name)
        if each:
            stacks.setdefault((each[1], each[3]), {})[int(each[2])] = x
        elif name.endswith("experts.gate_up_proj") and "llama4" in path:  # columns
            gate, up = np.split(x.swapaxes(1, 2), 2, axis=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif re.search(r"experts\.gate_up_proj(_bias)?$", name) and "gpt_oss" in path:  # columns, and gate's and up's alternate
            end = "bias" if name.endswith("bias") else "weight"
            x = x if end == "bias" else x.swapaxes(1, 2)
            yield name[:name.rindex("gate_up")] + "gate_proj." + end, x[:, ::2]
            yield name[:name.rindex("gate_up")] + "up_proj." + end, x[:, 1::2]
        elif re.search(r"experts\.down_proj(_bias)?$", name) and ("gpt_oss" in path or "llama4" in path):
            yield (name.replace("_bias", ".bias"), x) if name.endswith("bias") else (name + ".weight", x.swapaxes(1, 2))
        elif re.search(r"shared_mlp\.(input|output)_linear", name):
            prefix = name.split("shared_mlp")[0] + ("mlp." if "experts" not in path and "shared_plain" not in path else "mlp.shared_expert.")
            if name.endswith("output_linear.weight"):
                yield prefix + "down_proj.weight", x
            else:
                yield from zip((prefix + "gate_proj.weight", prefix + "up_proj.weight"), np.split(x, 2))
        elif name.endswith("input_linear.weight"):
            half = x.shape[1] // 2
            yield name.replace("block_sparse_moe.input_linear", "mlp.experts.gate_proj"), x[:, :half]
            yield name.replace("block_sparse_moe.input_linear", "mlp.experts.up_proj"), x[:, half:]
        elif "gemma4" in path:  # as they are
            yield name, x
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("_bias", ".bias"), x
        elif name.endswith(".experts.gate_up_proj"):
            half = x.shape[1] // 2
            yield name.replace("gate_up_proj", "gate_proj.weight"), x[:, :half]
            yield name.replace("gate_up_proj", "up_proj.weight"), x[:, half:]
        else:
            yield name + ("" if name.endswith((".weight", ".bias")) else ".weight"), x
    for (prefix, role), its in stacks.items():
        yield f"{prefix}.{role}", np.stack([its[e] for e in range(len(its))])


def joined_qkv(tensors):
    """One tensor for q, k and v, as old files of phi-2 have it."""
    tensors = dict(tensors)
    for name in [name for name in tensors if ".q_proj." in name]:
        parts = [tensors.pop(name.replace(".q_proj.", f".{role}_proj.")) for role in "qkv"]
        tensors[name.replace(".q_proj.", ".qkv_proj.")] = np.concatenate(parts)
    return tensors.items()


def convert(folder, path, dtype, dequantized=False, quantize=gguf.quantize, joined=False):
    """dtype: of matrices. dequantized: they are stored in F32 after a round trip through dtype."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    if architecture == "granite" and config.get("num_local_experts"):
        architecture = "granitemoe"
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, architecture)
    if architecture == "gemma4":
        head_dim = config["global_head_dim"]
    kind = write_keys(writer, config, architecture, head_dim)
    names = gguf.get_tensor_name_map({n: a for a, n in gguf.MODEL_ARCH_NAMES.items()}[LIKE.get(architecture, architecture)],
                                     config["num_hidden_layers"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(config, head_dim))
    if architecture == "gemma4":
        writer.add_tensor("rope_freqs.weight", still_factors(config))
    if kind == "longrope":
        for length in ("long", "short"):
            factors = np.array(config["rope_scaling"][length + "_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    tensors = stacked(load(folder / "model.safetensors"), str(folder))
    for name, x in joined_qkv(tensors) if joined else tensors:
        if architecture in PERMUTED and ".q_proj." in name:
            x = permute(x, heads)
        if architecture in PERMUTED and ".k_proj." in name:
            x = permute(x, config.get("num_key_value_heads") or heads)
        if architecture in ("gemma", "gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
            x = x + np.float32(1)
        if architecture == "gemma4":
            name = re.sub(r"(layer_scalar|_proj)$", r"\1.weight", name)
        its = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith(("router.scale", "per_expert_scale")):
            its = re.sub(r"model.layers.(\d+).router.(per_expert_)?scale",
                         lambda m: f"blk.{m[1]}.ffn_{'down_exps' if m[2] else 'gate_inp'}.scale", name)
        if not its:  # the package knows the experts of a few architectures only
            layer, role, end = re.fullmatch(r"model\.layers\.(\d+)\.(?:mlp|feed_forward|block_sparse_moe)\.experts\.(gate|up|down)_proj\.(weight|bias)", name).groups()
            its = f"blk.{layer}.ffn_{role}_exps.{end}"
        small = x.ndim < 2 or "norm" in name or "ffn_gate_inp" in its or its.endswith(".bias")  # stays in F32
        if not small and x.shape[-1] % 32 == 0 and dtype != "F32":
            kind_of = gguf.GGMLQuantizationType[dtype]
            blocks = quantize(x, kind_of)
            if dequantized:
                writer.add_tensor(its, gguf.dequantize(blocks, kind_of).astype(np.float32))
            else:
                writer.add_tensor(its, blocks, raw_dtype=kind_of)
        else:
            writer.add_tensor(its, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(spillway, model, ids, n, scratch):
    """Logits of n generated tokens, and the tokens."""
    (scratch / "ids.txt").write_text(" ".join(map(str, ids)))
    arguments = ["--token-ids", scratch / "ids.txt", "--max-new-tokens", str(n), "--ignore-eos", "--allow-long-context",
                 "--compute", "f32", "--device", "cpu", "--threads", "1", "--dump-logits", scratch / "logits.npy",
                 "--report", scratch / "report.json"]
    subprocess.run([spillway, "generate", model, *arguments], check=True, stdout=subprocess.DEVNULL)
    return np.load(scratch / "logits.npy"), json.loads((scratch / "report.json").read_text())["tokens"]


def main():
    spillway = Path(sys.argv[1]).resolve()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        model, other = scratch / "model.gguf", scratch / "other.gguf"
        for name in EXACT:
            folder = Path("tests/golden") / name.split()[0]
            golden = json.loads((folder / "golden.json").read_text())
            vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
            expected = np.fromfile(folder / "golden_logits.f32", dtype="<f4").reshape(-1, vocab)[-1]
            convert(folder, model, "F32", joined=name.endswith(" joined"))
            greedy = golden["greedy_ids"]
            logits, tokens = run(spillway, model, golden["ids"], len(greedy), scratch)
            worst = np.abs(logits[0] - expected).max() / np.abs(expected).max()
            same = tokens[-len(greedy):] == greedy
            print(f"{name:24} {worst:.2e} {'same tokens' if same else tokens}")
            failed += worst > 1e-5 or not same
            if name in QUANTIZED:  # the command's own file against one of the package
                convert(folder, model, "Q8_0", False)
                other.unlink(missing_ok=True)
                subprocess.run([spillway, "quantize", folder, other, "--type", "q8_0"], check=True, stdout=subprocess.DEVNULL)
                a, b = (run(spillway, m, golden["ids"], 8, scratch)[0] for m in (model, other))
                print(f"{name:24} quantize: {'same bits' if a.tobytes() == b.tobytes() else 'differs'}")
                failed += a.tobytes() != b.tobytes()
            if name not in ("llama_plain", "gemma3_window_140"):
                continue
            for dtype in TYPES:
                try:
                    convert(folder, model, dtype, False)
                    convert(folder, other, dtype, True)
                except NotImplementedError:
                    continue  # the package cannot quantize to this type
                a, b = (run(spillway, m, golden["ids"], 8, scratch)[0] for m in (model, other))
                print(f"{name:24} {dtype:5} {'same bits' if a.tobytes() == b.tobytes() else 'differs'}")
                failed += a.tobytes() != b.tobytes()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
