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

from random_gguf import (F32, F32_VALUE, STRING, TYPES, U32, draw_blocks, key, write_blocks, write_file, write_floats)

HIDDEN, EXPERT, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2048, 768, 32, 4, 128, 151936
Q4_K, _, BLOCK_BYTES = TYPES["q4_k"][:3]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--kept", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    rng = random.Random(a.seed)
    blocks, embeddings = draw_blocks("q4_k", rng), draw_blocks("q4_k", rng, 50)  # tokens stay different: so do experts

    def write_tensor(out, name, shape, kind, n_bytes):
        if kind == F32:  # a router's logits spread over several units
            write_floats(out, shape, lambda: ("gate_inp" not in name) + rng.gauss(0, 0.05))
        else:
            write_blocks(out, n_bytes, embeddings if "token_embd" in name else blocks, BLOCK_BYTES, rng)

    write_file(a.out, keys(a), list(tensors(a)), "q4_k", write_tensor)


if __name__ == "__main__":
    main()
