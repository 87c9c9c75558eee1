#!/usr/bin/env python3
"""Writes a GGUF file in the shape of Llama-3.2-1B with random weights of one quantized type.

    tools/bench/random_llama.py OUT.gguf --type q8_0|q4_0|q4_k|q5_k|q6_k|mxfp4 [--layers N] [--seed N]

For comparisons of speed: other programs read the file too. The weights have no meaning, and there is no
tokenizer: give token ids. Standard library only. One block of random bytes is drawn once and written
repeatedly from different offsets. The same arguments give the same bytes.
"""

import argparse
import random
import struct

from random_gguf import DRAWN_BLOCKS, F32, F32_VALUE, STRING, U32, key, write_blocks, write_file, write_floats

HIDDEN, MLP, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 8192, 32, 8, 64, 128256
# type: number in GGUF, numbers and bytes of a block; where its scale is, and the scale
SCALE = struct.pack("<e", 1e-4)
TYPES = {
    "q8_0": (8, 32, 34, 0, struct.pack("<e", 3e-4)),
    "q4_0": (2, 32, 18, 0, struct.pack("<e", 4e-3)),
    "q4_k": (12, 256, 144, 0, SCALE + struct.pack("<e", 7.5e-4)),
    "q5_k": (13, 256, 176, 0, SCALE + struct.pack("<e", 15.5e-4)),
    "q6_k": (14, 256, 210, 208, struct.pack("<e", 1.5e-5)),
    "mxfp4": (39, 32, 17, 0, bytes([119])),
}


def keys(layers):
    p = "llama."
    return [key("general.architecture", STRING, "llama"), key(p + "block_count", U32, layers),
            key(p + "context_length", U32, 131072), key(p + "embedding_length", U32, HIDDEN),
            key(p + "feed_forward_length", U32, MLP), key(p + "attention.head_count", U32, HEADS),
            key(p + "attention.head_count_kv", U32, KV_HEADS), key(p + "rope.dimension_count", U32, HEAD_DIM),
            key(p + "rope.freq_base", F32_VALUE, 5e5), key(p + "vocab_size", U32, VOCAB),
            key(p + "attention.layer_norm_rms_epsilon", F32_VALUE, 1e-5),
            key("tokenizer.ggml.model", STRING, "no_vocab")]


def tensors(layers, kind):
    """Name, shape (the slowest dimension first) and type of each."""
    yield "token_embd.weight", (VOCAB, HIDDEN), kind
    for layer in range(layers):
        p = f"blk.{layer}."
        yield p + "attn_norm.weight", (HIDDEN,), F32
        yield p + "ffn_norm.weight", (HIDDEN,), F32
        yield p + "attn_q.weight", (HEADS * HEAD_DIM, HIDDEN), kind
        yield p + "attn_k.weight", (KV_HEADS * HEAD_DIM, HIDDEN), kind
        yield p + "attn_v.weight", (KV_HEADS * HEAD_DIM, HIDDEN), kind
        yield p + "attn_output.weight", (HIDDEN, HEADS * HEAD_DIM), kind
        yield p + "ffn_gate.weight", (MLP, HIDDEN), kind
        yield p + "ffn_up.weight", (MLP, HIDDEN), kind
        yield p + "ffn_down.weight", (HIDDEN, MLP), kind
    yield "output_norm.weight", (HIDDEN,), F32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    number, elements, block_bytes, scale_at, scale = TYPES[a.type]
    blocks = bytearray(rng.randbytes(DRAWN_BLOCKS * block_bytes))
    for begin in range(scale_at, len(blocks), block_bytes):
        blocks[begin:begin + len(scale)] = scale

    def write_tensor(out, _, shape, kind, n_bytes):
        if kind == F32:
            write_floats(out, shape, 1, rng)
        else:
            write_blocks(out, n_bytes, blocks, block_bytes, rng)

    write_file(a.out, keys(a.layers), list(tensors(a.layers, number)), (elements, block_bytes), write_tensor)


if __name__ == "__main__":
    main()
