#!/usr/bin/env python3
"""Makes a Hugging Face folder with random weights from any config.json of a supported family.

    tools/make_random_model.py path/to/config.json OUT [--layers N] [--dtype bf16|f16|f32]
        [--shard-bytes SIZE] [--tokenizer tokenizer.json] [--seed N]

For benchmarks and tests of size: the model has real shapes but no meaning. Standard library only. Matrices
are roughly normal with a deviation of 0.02 to 0.03, norms are near their neutral value, biases are small. One
block of random numbers is drawn once and written repeatedly from different offsets, so gigabytes take
seconds. The same arguments give the same bytes.
"""

import argparse
import json
import math
import os
import random
import shutil
import struct
import sys

BLOCK_ELEMENTS = 4 << 20
DEVIATION = 0.02
DTYPES = {"bf16": ("BF16", 2, "bfloat16"), "f16": ("F16", 2, "float16"), "f32": ("F32", 4, "float32")}

# What model/config/config_families.c says about a family, as far as tensors go: is there a bias on q, k, v; on o; on
# the mlp (None: the key decides); norms on q and k; four norms a layer; norms stored as an offset from
# 1; tied when the key is absent; what head sizes are when absent. With experts: the keys of their number and
# width, and their names; glm4_moe also has experts that every token uses, and dense layers before the others;
# those of gpt_oss are stacked.
FAMILIES = {
    "llama": dict(qkv=None, o=None, mlp=None, qk_norm=False, sandwich=False, tied=False),
    "mistral": dict(qkv=False, o=False, mlp=False, qk_norm=False, sandwich=False, tied=False,
                    n_kv_heads=8),
    "qwen2": dict(qkv=True, o=False, mlp=False, qk_norm=False, sandwich=False, tied=False,
                  n_kv_heads=32),
    "qwen3": dict(qkv=None, o=None, mlp=False, qk_norm=True, sandwich=False, tied=False,
                  n_kv_heads=32, head_dim=128),
    "gemma3_text": dict(qkv=None, o=None, mlp=False, qk_norm=True, sandwich=True, tied=True,
                        n_heads=8, n_kv_heads=4, head_dim=256, vocab=262208),
}
FAMILIES["ministral"] = FAMILIES["mistral"]
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
FAMILIES["mixtral"] = FAMILIES["mistral"] | dict(
    experts=("num_local_experts", "intermediate_size", "block_sparse_moe", ("w1", "w3", "w2")))
FAMILIES["qwen3_moe"] = FAMILIES["qwen3"] | dict(
    n_kv_heads=4, head_dim=None, experts=("num_experts", "moe_intermediate_size", "mlp", PROJECTIONS))
FAMILIES["glm4_moe"] = dict(qkv=None, o=False, mlp=False, qk_norm=None, sandwich=False, tied=False, n_heads=96,
                            n_kv_heads=8, experts=("n_routed_experts", "moe_intermediate_size", "mlp", PROJECTIONS))
FAMILIES["gpt_oss"] = dict(qkv=None, o=None, mlp=False, qk_norm=False, sandwich=False, tied=False, biased=True, n_heads=64,
                           n_kv_heads=8, head_dim=64, vocab=201088,
                           experts=("num_local_experts", "intermediate_size", "mlp", None))


def fail(text):
    sys.exit(f"make_random_model: {text}")


def size(text):
    """64MiB, 2GiB, 1.5G, plain bytes."""
    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    number = text.rstrip("KMGiB")
    unit = text[len(number):]
    unit = unit if unit in units else unit.removesuffix("B")
    try:
        value = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a size such as 64MiB or 2G")
    return value


def tensors(config):
    """[(name, shape, kind)], kind in matrix, norm, bias: in the order they are written."""
    family = FAMILIES[config["model_type"]]
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    vocab = config.get("vocab_size", family.get("vocab"))
    heads = config.get("num_attention_heads", family.get("n_heads"))
    kv_heads = config.get("num_key_value_heads", family.get("n_kv_heads")) or heads
    head_dim = config.get("head_dim", family.get("head_dim")) or hidden // heads
    bias = {part: config.get(key, family.get("biased", False)) if family[part] is None else family[part]
            for part, key in (("qkv", "attention_bias"), ("o", "attention_bias"), ("mlp", "mlp_bias"))}
    qk_norm = config.get("use_qk_norm", False) if family["qk_norm"] is None else family["qk_norm"]
    first_with_experts = config.get("first_k_dense_replace", 1) if config["model_type"] == "glm4_moe" else 0
    out = [("model.embed_tokens.weight", [vocab, hidden], "matrix")]

    def linear(name, rows, columns, with_bias):
        out.append((name + ".weight", [rows, columns], "matrix"))
        if with_bias:
            out.append((name + ".bias", [rows], "bias"))

    def mlp(at, width, names, with_bias=False):
        for name, rows, columns in zip(names, (width, width, hidden), (hidden, hidden, width)):
            linear(at + name, rows, columns, with_bias)

    def experts(at):
        count_key, width_key, part, names = family["experts"]
        count, width = config[count_key], config[width_key]
        if config["model_type"] == "gpt_oss":
            linear(f"{at}{part}.router", count, hidden, True)
            for name, rows, columns in (("gate_up_proj", hidden, 2 * width), ("down_proj", width, hidden)):
                out.append((f"{at}{part}.experts.{name}", [count, rows, columns], "matrix"))
                out.append((f"{at}{part}.experts.{name}_bias", [count, columns], "matrix"))
            return
        linear(f"{at}{part}.gate", count, hidden, False)
        for expert in range(count):
            mlp(f"{at}{part}.experts.{expert}.", width, names)
        if config["model_type"] == "glm4_moe":
            out.append((f"{at}{part}.gate.e_score_correction_bias", [count], "bias"))
            mlp(f"{at}{part}.shared_experts.", width * config.get("n_shared_experts", 1), names)

    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family["sandwich"]:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        out += [(f"{at}{norm}.weight", [hidden], "norm") for norm in norms]
        if qk_norm:
            out += [(f"{at}self_attn.{norm}.weight", [head_dim], "norm") for norm in ("q_norm", "k_norm")]
        linear(at + "self_attn.q_proj", heads * head_dim, hidden, bias["qkv"])
        linear(at + "self_attn.k_proj", kv_heads * head_dim, hidden, bias["qkv"])
        linear(at + "self_attn.v_proj", kv_heads * head_dim, hidden, bias["qkv"])
        linear(at + "self_attn.o_proj", hidden, heads * head_dim, bias["o"])
        if config["model_type"] == "gpt_oss":
            out.append((at + "self_attn.sinks", [heads], "bias"))
        if "experts" in family and layer >= first_with_experts:
            experts(at)
        else:
            mlp(at + "mlp.", intermediate, PROJECTIONS, bias["mlp"])
    out.append(("model.norm.weight", [hidden], "norm"))
    if not config.get("tie_word_embeddings", family["tied"]):
        out.append(("lm_head.weight", [vocab, hidden], "matrix"))
    return out


def encode(values, dtype):
    """Floats to little-endian bytes."""
    if dtype == "f32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "f16":
        return struct.pack(f"<{len(values)}e", *values)
    words = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return struct.pack(f"<{len(values)}H", *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))


def magnitude(high, dtype):
    """The smallest value whose most significant byte is `high`, sign apart."""
    if dtype == "f16":
        return struct.unpack("<e", bytes([0, high]))[0]
    return struct.unpack("<f", bytes([0, 0, 0, high]))[0]


def random_block(source, dtype):
    """About normal numbers without computing one: the sign and the high byte come from a table of
    quantiles, the bytes below it are uniform."""
    limit = 0x7C if dtype == "f16" else 0x7F
    table, high = bytearray(256), 0
    for i in range(128):
        quantile = (i + 0.5) / 128
        while high + 1 < limit and math.erf(magnitude(high + 1, dtype) / DEVIATION / 2**0.5) <= quantile:
            high += 1
        table[i], table[i + 128] = high, high | 0x80
    width = DTYPES[dtype][1]
    block = bytearray(BLOCK_ELEMENTS * width)
    for byte in range(width):
        column = source.randbytes(BLOCK_ELEMENTS)
        block[byte::width] = column.translate(bytes(table)) if byte == width - 1 else column
    return memoryview(bytes(block))


def write_matrix(file, n_bytes, block, source, width):
    while n_bytes:
        start = source.randrange(BLOCK_ELEMENTS // 2) * width
        part = block[start:start + n_bytes]
        file.write(part)
        n_bytes -= len(part)


def write_shard(path, items, dtype, block, source, gemma):
    code, width, _ = DTYPES[dtype]
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in items:
        n_bytes = math.prod(shape) * width
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + n_bytes]}
        offset += n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind in items:
            n = math.prod(shape)
            if kind == "matrix":
                write_matrix(file, n * width, block, source, width)
            else:
                centre = 1.0 if kind == "norm" and not gemma else 0.0
                spread = 0.05 if kind == "norm" else 0.1
                file.write(encode([source.gauss(centre, spread) for _ in range(n)], dtype))


def shards(items, width, limit):
    """Splits the list where a shard would grow past `limit`; every shard has at least one tensor."""
    out, used = [[]], 0
    for item in items:
        n_bytes = math.prod(item[1]) * width
        if limit and out[-1] and used + n_bytes > limit:
            out.append([])
            used = 0
        out[-1].append(item)
        used += n_bytes
    return out


def load_config(path, layers, dtype):
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    if "text_config" in config:  # a multimodal wrapper: only its decoder is made
        config = config["text_config"] | {"model_type": "gemma3_text"}
    if config.get("model_type") not in FAMILIES:
        fail(f"{path}: model_type: found {config.get('model_type')!r}, expected one of "
             + ", ".join(FAMILIES))
    if layers:
        config["num_hidden_layers"] = layers
        if config.get("layer_types"):
            config["layer_types"] = (config["layer_types"] * layers)[:layers]
    config.pop("dtype", None)
    config["torch_dtype"] = DTYPES[dtype][2]
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", help="a config.json, or a folder that has one")
    parser.add_argument("out", help="the folder to make")
    parser.add_argument("--layers", type=int, help="this many layers instead of the config's")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--shard-bytes", type=size, metavar="SIZE", help="several files of at most SIZE")
    parser.add_argument("--tokenizer", metavar="FILE", help="copied in as tokenizer.json")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    path = os.path.join(args.config, "config.json") if os.path.isdir(args.config) else args.config
    if args.layers is not None and args.layers < 1:
        fail(f"--layers: found {args.layers}, expected 1 or more")
    config = load_config(path, args.layers, args.dtype)
    os.makedirs(args.out, exist_ok=True)
    if any(name.endswith(".safetensors") for name in os.listdir(args.out)):
        fail(f"{args.out}: found weights, expected a new or empty folder")
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    generation = os.path.join(os.path.dirname(path), "generation_config.json")
    if os.path.exists(generation):
        shutil.copyfile(generation, os.path.join(args.out, "generation_config.json"))
    if args.tokenizer:
        shutil.copyfile(args.tokenizer, os.path.join(args.out, "tokenizer.json"))

    source = random.Random(args.seed)
    block = random_block(source, args.dtype)
    width = DTYPES[args.dtype][1]
    parts = shards(tensors(config), width, args.shard_bytes)
    weight_map, total = {}, 0
    for i, items in enumerate(parts):
        name = "model.safetensors" if len(parts) == 1 else \
            f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        write_shard(os.path.join(args.out, name), items, args.dtype, block, source,
                    config["model_type"] == "gemma3_text")
        weight_map |= {item[0]: name for item in items}
        total += sum(math.prod(item[1]) for item in items) * width
    if len(parts) > 1:
        with open(os.path.join(args.out, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=2)
    print(f"{args.out}: {len(weight_map)} tensors, {total} bytes in {len(parts)} file(s)", file=sys.stderr)


if __name__ == "__main__":
    main()
