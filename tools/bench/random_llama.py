#!/usr/bin/env python3
"""Writes a GGUF file in the shape of Llama-3.2-1B or Llama-3.1-8B with random weights of one quantized type.

    tools/bench/random_llama.py OUT.gguf --type q8_0|q4_0|q4_k|q5_k|q6_k|mxfp4 [--shape 1b|8b] [--layers N] [--seed N]

For comparisons of speed: other programs read the file too. The weights have no meaning, and there is no
tokenizer: give token ids. Standard library only. One block of random bytes is drawn once and written
repeatedly from different offsets. The same arguments give the same bytes.
"""

import argparse
import random

from random_gguf import (F32, F32_VALUE, STRING, TYPES, U32, draw_blocks, key, write_blocks, write_file, write_floats)

HEADS, KV_HEADS, VOCAB = 32, 8, 128256
SHAPES = {"1b": (2048, 8192, 64, 16), "8b": (4096, 14336, 128, 32)}  # hidden, mlp, head, layers; the head is tied


def keys(shape, layers):
    p = "llama."
    hidden, mlp, head_dim, _ = shape
    return [key("general.architecture", STRING, "llama"), key(p + "block_count", U32, layers),
            key(p + "context_length", U32, 131072), key(p + "embedding_length", U32, hidden),
            key(p + "feed_forward_length", U32, mlp), key(p + "attention.head_count", U32, HEADS),
            key(p + "attention.head_count_kv", U32, KV_HEADS), key(p + "rope.dimension_count", U32, head_dim),
            key(p + "rope.freq_base", F32_VALUE, 5e5), key(p + "vocab_size", U32, VOCAB),
            key(p + "attention.layer_norm_rms_epsilon", F32_VALUE, 1e-5),
            key("tokenizer.ggml.model", STRING, "no_vocab")]


def tensors(shape, layers, kind):
    """Name, shape (the slowest dimension first) and type of each."""
    hidden, mlp, head_dim, _ = shape
    yield "token_embd.weight", (VOCAB, hidden), kind
    for layer in range(layers):
        p = f"blk.{layer}."
        yield p + "attn_norm.weight", (hidden,), F32
        yield p + "ffn_norm.weight", (hidden,), F32
        yield p + "attn_q.weight", (HEADS * head_dim, hidden), kind
        yield p + "attn_k.weight", (KV_HEADS * head_dim, hidden), kind
        yield p + "attn_v.weight", (KV_HEADS * head_dim, hidden), kind
        yield p + "attn_output.weight", (hidden, HEADS * head_dim), kind
        yield p + "ffn_gate.weight", (mlp, hidden), kind
        yield p + "ffn_up.weight", (mlp, hidden), kind
        yield p + "ffn_down.weight", (hidden, mlp), kind
    yield "output_norm.weight", (hidden,), F32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--layers", type=int, help="default: those of the shape")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    shape = SHAPES[a.shape]
    layers = a.layers or shape[3]
    rng = random.Random(a.seed)
    blocks = draw_blocks(a.type, rng)

    def write_tensor(out, _, shape, kind, n_bytes):
        if kind == F32:
            write_floats(out, shape, lambda: 1 + rng.gauss(0, 0.05))
        else:
            write_blocks(out, n_bytes, blocks, TYPES[a.type][2], rng)

    write_file(a.out, keys(shape, layers), list(tensors(shape, layers, TYPES[a.type][0])), a.type, write_tensor)


if __name__ == "__main__":
    main()
