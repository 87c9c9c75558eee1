#!/usr/bin/env python3
"""Writes a GGUF file with random weights in the shape of a known model.

    tools/bench/random_gguf.py OUT.gguf --shape 1b|8b|30b-a3b|0.8b|35b-a3b|small --type q8_0|q4_0|q4_k|q5_k|q6_k|mxfp4
                               [--layers N] [--experts N] [--kept N] [--vocab N] [--seed N] [--hole]

1b and 8b are Llama-3.2-1B and Llama-3.1-8B; 30b-a3b is Qwen3-30B-A3B, a mixture of 128 experts a layer (17 GB in
Q4_K); 0.8b and 35b-a3b are Qwen3.5-0.8B and Qwen3.5-35B-A3B, three layers of four gated delta nets; small is of that
form too, for long contexts on small machines. With fewer layers the head of a file takes a larger part of a token's
time than in the whole model: --vocab 24832 goes with 4 of the 40 layers of 35b-a3b. For comparisons of speed: other
programs read the file too. The weights have no meaning, and there is no tokenizer: give token ids. Standard library
only. One block of random bytes is drawn once and written repeatedly from different offsets. The same arguments give
the same bytes. With --hole the weights are a hole in the file, which takes no room: for plans and simulations, which
read no weights; the type may be bf16 then.
"""

import argparse
import math
import random
import struct
from types import SimpleNamespace as Shape

ALIGN = 32
F32 = 0  # the number of a type of tensors; those of quantized types are in TYPES
DRAWN_BLOCKS = 1 << 16
INTERVAL, CONV = 4, 4  # one layer of 4 has attention, where others have a state; taps of a short convolution
# type: number in GGUF, numbers and bytes of a block; where its scale (and minimum) is, how it is packed, its value
TYPES = {
    "q8_0": (8, 32, 34, 0, "<e", (3e-4,)),
    "q4_0": (2, 32, 18, 0, "<e", (4e-3,)),
    "q4_k": (12, 256, 144, 0, "<ee", (1e-4, 7.5e-4)),
    "q5_k": (13, 256, 176, 0, "<ee", (1e-4, 15.5e-4)),
    "q6_k": (14, 256, 210, 208, "<e", (1.5e-5,)),
    "mxfp4": (39, 32, 17, 0, "<B", (119,)),
}
BF16 = (30, 1, 2)


def shape(arch, layers, hidden, mlp, heads, kv_heads, head_dim, vocab, tied, experts=0, **state):
    """state: key_heads and value_heads, each of `state` numbers, of gated delta nets."""
    return Shape(**{name: value for name, value in locals().items() if name != "state"}, **state)


SHAPES = {
    "1b": shape("llama", 16, 2048, 8192, 32, 8, 64, 128256, True),
    "8b": shape("llama", 32, 4096, 14336, 32, 8, 128, 128256, True),
    "30b-a3b": shape("qwen3moe", 48, 2048, 768, 32, 4, 128, 151936, False, 128),
    "0.8b": shape("qwen35", 24, 1024, 3584, 8, 2, 256, 248320, True, key_heads=16, value_heads=16, size=128),
    "35b-a3b": shape("qwen35moe", 40, 2048, 512, 16, 2, 256, 248320, False, 256, key_heads=16, value_heads=32, size=128),
    "small": shape("qwen35", 8, 512, 1536, 4, 1, 128, 32768, True, key_heads=4, value_heads=8, size=128),
}


# ---- keys ----


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key(name, value):
    """A text, a float, a whole number, or a list of these."""
    if isinstance(value, str):
        return string(name) + struct.pack("<I", 8) + string(value)
    if isinstance(value, list):
        return string(name) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return string(name) + (struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value))


def keys(s):
    has_state = hasattr(s, "size")
    own = {
        "block_count": s.layers, "context_length": 131072 if s.arch == "llama" else 262144,
        "embedding_length": s.hidden, "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
        "attention.key_length": s.head_dim, "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5 if s.arch == "llama" else 1e-6,
        "rope.freq_base": 5e5 if s.arch == "llama" else 1e7 if has_state else 1e6,
        "rope.dimension_count": s.head_dim // 4 if has_state else s.head_dim, "vocab_size": s.vocab}
    if has_state:
        own |= {"rope.dimension_sections": [11, 11, 10, 0], "ssm.conv_kernel": CONV, "ssm.state_size": s.size,
                "ssm.group_count": s.key_heads, "ssm.time_step_rank": s.value_heads,
                "ssm.inner_size": s.value_heads * s.size, "full_attention_interval": INTERVAL}
    if s.experts:
        own |= {"expert_count": s.experts, "expert_used_count": s.kept, "expert_feed_forward_length": s.mlp}
        own |= {"expert_shared_feed_forward_length": s.mlp} if has_state else {"feed_forward_length": 6144}
    else:
        own |= {"feed_forward_length": s.mlp}
    return [key("general.architecture", s.arch), *(key(f"{s.arch}.{name}", value) for name, value in own.items()),
            key("tokenizer.ggml.model", "no_vocab")]


# ---- tensors: name, shape (the slowest dimension first) and type of each ----


def attention(s, kind):
    q, kv, gated = s.heads * s.head_dim, s.kv_heads * s.head_dim, hasattr(s, "size")
    norms = [(f"attn_{part}_norm.weight", (s.head_dim,), F32) for part in "qk" if s.arch != "llama"]
    yield from () if gated else norms
    yield "attn_q.weight", ((1 + gated) * q, s.hidden), kind  # of each head the query, then its gate
    yield "attn_k.weight", (kv, s.hidden), kind
    yield "attn_v.weight", (kv, s.hidden), kind
    yield "attn_output.weight", (s.hidden, q), kind
    yield from norms if gated else ()


def gated_delta_net(s, kind):
    value = s.value_heads * s.size
    qkv = 2 * s.key_heads * s.size + value
    yield "attn_qkv.weight", (qkv, s.hidden), kind
    yield "attn_gate.weight", (value, s.hidden), kind
    yield "ssm_alpha.weight", (s.value_heads, s.hidden), kind
    yield "ssm_beta.weight", (s.value_heads, s.hidden), kind
    yield "ssm_conv1d.weight", (qkv, CONV), F32
    yield "ssm_dt.bias", (s.value_heads,), F32
    yield "ssm_a", (s.value_heads,), F32
    yield "ssm_norm.weight", (s.size,), F32
    yield "ssm_out.weight", (s.hidden, value), kind


def mlp(s, kind, experts, suffix):
    yield f"ffn_gate{suffix}.weight", (*experts, s.mlp, s.hidden), kind
    yield f"ffn_up{suffix}.weight", (*experts, s.mlp, s.hidden), kind
    yield f"ffn_down{suffix}.weight", (*experts, s.hidden, s.mlp), kind


def block(s, kind, layer):
    has_state = hasattr(s, "size")
    yield "attn_norm.weight", (s.hidden,), F32
    if not has_state:
        yield "ffn_norm.weight", (s.hidden,), F32
    yield from (gated_delta_net if has_state and (layer + 1) % INTERVAL else attention)(s, kind)
    if has_state:
        yield "post_attention_norm.weight", (s.hidden,), F32
    if not s.experts:
        yield from mlp(s, kind, (), "")
        return
    yield "ffn_gate_inp.weight", (s.experts, s.hidden), F32
    if has_state:
        yield "ffn_gate_inp_shexp.weight", (s.hidden,), F32
    yield from mlp(s, kind, (s.experts,), "_exps")
    if has_state:
        yield from mlp(s, kind, (), "_shexp")


def tensors(s, kind):
    yield "token_embd.weight", (s.vocab, s.hidden), kind
    for layer in range(s.layers):
        for name, dimensions, its_kind in block(s, kind, layer):
            yield f"blk.{layer}.{name}", dimensions, its_kind
    yield "output_norm.weight", (s.hidden,), F32
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), kind


# ---- numbers ----


def draw_blocks(kind, rng, times=1):
    """DRAWN_BLOCKS blocks of random codes whose numbers have a mean near 0 and a deviation of about 0.02 times this."""
    _, _, block_bytes, scale_at, packing, scales = TYPES[kind]
    scale = struct.pack(packing, *(times * value for value in scales))
    blocks = bytearray(rng.randbytes(DRAWN_BLOCKS * block_bytes))
    for begin in range(scale_at, len(blocks), block_bytes):
        blocks[begin:begin + len(scale)] = scale
    return blocks


def write_blocks(out, n_bytes, blocks, rng):
    """From DRAWN_BLOCKS blocks, each part from another offset."""
    block_bytes = len(blocks) // DRAWN_BLOCKS
    while n_bytes:
        at = rng.randrange(DRAWN_BLOCKS) * block_bytes
        part = memoryview(blocks)[at:at + n_bytes]
        out.write(part)
        n_bytes -= len(part)


def drawer(name, rng):
    """What draws one number of a tensor in F32. The heads of a state forget half of it in about one to a thousand
    tokens: log of a decay = ssm_a * softplus(product + bias)."""
    if name.endswith("ssm_a"):
        return lambda: -math.exp(rng.uniform(math.log(0.05), math.log(2)))
    if name.endswith("ssm_dt.bias"):
        return lambda: rng.uniform(-4, -1)
    if "conv1d" in name:
        return lambda: rng.gauss(0, 0.5)
    centre = 0 if "gate_inp" in name else 1  # a router's logits spread over several units
    return lambda: centre + rng.gauss(0, 0.05)


def write_weights(out, all_tensors, sizes, s, quantized, rng):
    blocks = draw_blocks(quantized, rng)
    embeddings = draw_blocks(quantized, rng, 50) if s.experts else blocks  # tokens stay different: so do their experts
    for (name, dimensions, kind), n_bytes in zip(all_tensors, sizes):
        if kind == F32:
            draw, n = drawer(name, rng), math.prod(dimensions)
            out.write(struct.pack(f"<{n}f", *(draw() for _ in range(n))))
        else:
            write_blocks(out, n_bytes, embeddings if "token_embd" in name else blocks, rng)
        out.write(bytes(-out.tell() % ALIGN))


def write_file(path, s, quantized, rng, hole):
    number, elements, block_bytes = TYPES.get(quantized, BF16)[:3]
    all_keys, all_tensors = keys(s), list(tensors(s, number))
    at, sizes = 0, [math.prod(dimensions) * 4 if kind == F32 else math.prod(dimensions) // elements * block_bytes
                    for _, dimensions, kind in all_tensors]
    with open(path, "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(all_tensors), len(all_keys)) + b"".join(all_keys))
        for (name, dimensions, kind), n_bytes in zip(all_tensors, sizes):
            packed = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *reversed(dimensions))
            out.write(string(name) + packed + struct.pack("<IQ", kind, at))
            at += -(-n_bytes // ALIGN) * ALIGN
        out.write(bytes(-out.tell() % ALIGN))
        if hole:
            out.truncate(out.tell() + at)
            out.seek(0, 2)
        else:
            write_weights(out, all_tensors, sizes, s, quantized, rng)
        print(f"{path}: {out.tell() / 1e9:.2f} GB, {len(all_tensors)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--type", choices=[*TYPES, "bf16"], required=True)
    for name in ("layers", "experts", "vocab"):
        parser.add_argument(f"--{name}", type=int, help="default: as in the model")
    parser.add_argument("--kept", type=int, default=8, help="experts that a token uses")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hole", action="store_true", help="no weights: for plans and simulations")
    a = parser.parse_args()
    if a.type == "bf16" and not a.hole:
        parser.error("--type bf16 is for --hole; tools/make_random_model.py makes models in bf16")
    s = SHAPES[a.shape]
    s.layers, s.vocab, s.kept = a.layers or s.layers, a.vocab or s.vocab, a.kept
    s.experts = a.experts or s.experts if s.experts else 0
    write_file(a.out, s, a.type, random.Random(a.seed), a.hole)


if __name__ == "__main__":
    main()
