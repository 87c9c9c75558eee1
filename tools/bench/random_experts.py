#!/usr/bin/env python3
"""Writes a GGUF file in the shape of a mixture of experts, with random weights in Q4_K.

    tools/bench/random_experts.py OUT.gguf [--layers N] [--experts N] [--kept N] [--seed N]

For runs with more experts than memory: the sizes are those of Qwen3-30B-A3B (48 layers of 128 experts, a
token uses 8; 17 GB), the weights have no meaning. There is no tokenizer: give token ids. Standard library
only. One block of random bytes is drawn once and written repeatedly from different offsets. The same
arguments give the same bytes.
"""

import argparse
import random
import struct

HIDDEN, EXPERT, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 768, 32, 4, 128, 151936
F32, Q4_K = 0, 12
BLOCK, BLOCK_BYTES = 256, 144
DRAWN_BLOCKS = 1 << 16
ALIGN = 32
U32, F32_VALUE, STRING = 4, 6, 8


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key(name, kind, value):
    packed = string(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
    return string(name) + struct.pack("<I", kind) + packed


def keys(a):
    p = "qwen3moe."
    return [key("general.architecture", STRING, "qwen3moe"), key(p + "block_count", U32, a.layers),
            key(p + "context_length", U32, 262144), key(p + "embedding_length", U32, HIDDEN),
            key(p + "feed_forward_length", U32, 6144), key(p + "attention.head_count", U32, HEADS),
            key(p + "attention.head_count_kv", U32, KV_HEADS), key(p + "attention.key_length", U32, HEAD_DIM),
            key(p + "attention.value_length", U32, HEAD_DIM), key(p + "rope.freq_base", F32_VALUE, 1e6),
            key(p + "attention.layer_norm_rms_epsilon", F32_VALUE, 1e-6), key(p + "expert_count", U32, a.experts),
            key(p + "expert_used_count", U32, a.kept), key(p + "expert_feed_forward_length", U32, EXPERT)]


def tensors(a):
    """Name, shape (the slowest dimension first) and type of each."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "token_embd.weight", (VOCAB, HIDDEN), Q4_K
    for layer in range(a.layers):
        p = f"blk.{layer}."
        yield p + "attn_norm.weight", (HIDDEN,), F32
        yield p + "ffn_norm.weight", (HIDDEN,), F32
        yield p + "attn_q_norm.weight", (HEAD_DIM,), F32
        yield p + "attn_k_norm.weight", (HEAD_DIM,), F32
        yield p + "attn_q.weight", (q, HIDDEN), Q4_K
        yield p + "attn_k.weight", (kv, HIDDEN), Q4_K
        yield p + "attn_v.weight", (kv, HIDDEN), Q4_K
        yield p + "attn_output.weight", (HIDDEN, q), Q4_K
        yield p + "ffn_gate_inp.weight", (a.experts, HIDDEN), F32
        yield p + "ffn_gate_exps.weight", (a.experts, EXPERT, HIDDEN), Q4_K
        yield p + "ffn_up_exps.weight", (a.experts, EXPERT, HIDDEN), Q4_K
        yield p + "ffn_down_exps.weight", (a.experts, HIDDEN, EXPERT), Q4_K
    yield "output_norm.weight", (HIDDEN,), F32
    yield "output.weight", (VOCAB, HIDDEN), Q4_K


def count(shape):
    n = 1
    for size in shape:
        n *= size
    return n


def size_of(shape, kind):
    return count(shape) * 4 if kind == F32 else count(shape) // BLOCK * BLOCK_BYTES


def draw_blocks(rng, deviation):
    """Blocks whose numbers have a mean near 0 and about this deviation: scales, minima and codes are random
    bits, and the minimum of a block is 7.5 times its scale."""
    scale = deviation / 150
    head = struct.pack("<ee", scale, 7.5 * scale)
    return b"".join(head + rng.randbytes(BLOCK_BYTES - len(head)) for _ in range(DRAWN_BLOCKS))


def write_floats(out, name, shape, rng):
    """Norms near 1; a router whose logits spread over several units."""
    n = count(shape)
    numbers = (rng.gauss(0, 0.05) if "gate_inp" in name else 1 + rng.gauss(0, 0.05) for _ in range(n))
    out.write(struct.pack(f"<{n}f", *numbers))


def write_blocks(out, n_bytes, blocks, rng):
    while n_bytes:
        at = rng.randrange(DRAWN_BLOCKS) * BLOCK_BYTES
        part = memoryview(blocks)[at:at + n_bytes]
        out.write(part)
        n_bytes -= len(part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--kept", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    its, header, at = list(tensors(a)), keys(a), 0
    with open(a.out, "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(its), len(header)) + b"".join(header))
        for name, shape, kind in its:
            dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
            out.write(string(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, at))
            at += -(-size_of(shape, kind) // ALIGN) * ALIGN
        out.write(bytes(-out.tell() % ALIGN))
        blocks, embeddings = draw_blocks(rng, 0.01), draw_blocks(rng, 1)  # tokens stay different: so do their experts
        for name, shape, kind in its:
            if kind == F32:
                write_floats(out, name, shape, rng)
            else:
                write_blocks(out, size_of(shape, kind), embeddings if "token_embd" in name else blocks, rng)
            out.write(bytes(-out.tell() % ALIGN))
        print(f"{a.out}: {out.tell() / 1e9:.2f} GB, {len(its)} tensors")


if __name__ == "__main__":
    main()
