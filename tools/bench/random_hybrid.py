#!/usr/bin/env python3
"""Writes a GGUF file in the shape of Qwen3.5 with random weights: three layers of four are gated delta nets.

    tools/bench/random_hybrid.py OUT.gguf --shape 0.8b|35b-a3b|small --type q8_0|q4_0|q4_k|q5_k|q6_k|mxfp4
                                 [--layers N] [--vocab N] [--seed N]

0.8b and 35b-a3b are Qwen3.5-0.8B and Qwen3.5-35B-A3B; small is for long contexts on small machines. With fewer layers
the head of a file takes a larger part of a token's time than in the whole model: --vocab 24832 goes with 4 of the 40
layers of 35b-a3b. For comparisons of speed: other programs read the file too. The weights have no meaning, and there
is no tokenizer: give token ids. Standard library only. The same arguments give the same bytes.
"""

import argparse
import math
import random
from types import SimpleNamespace as Shape

from random_gguf import (ARRAY, F32, F32_VALUE, STRING, TYPES, U32, draw_blocks, key, write_blocks, write_file,
                         write_floats)

INTERVAL, CONV = 4, 4  # one layer of 4 has attention; taps of a short convolution
SHAPES = {  # key_heads and value_heads, each of state numbers, are those of gated delta nets
    "0.8b": Shape(arch="qwen35", layers=24, hidden=1024, heads=8, kv_heads=2, head_dim=256, mlp=3584, experts=0,
                  key_heads=16, value_heads=16, state=128, vocab=248320, tied=True),
    "35b-a3b": Shape(arch="qwen35moe", layers=40, hidden=2048, heads=16, kv_heads=2, head_dim=256, mlp=512, experts=256,
                     key_heads=16, value_heads=32, state=128, vocab=248320, tied=False),
    "small": Shape(arch="qwen35", layers=8, hidden=512, heads=4, kv_heads=1, head_dim=128, mlp=1536, experts=0,
                   key_heads=4, value_heads=8, state=128, vocab=32768, tied=True),
}
KEPT = 8  # experts that a token uses


def keys(s):
    p = s.arch + "."
    mlp = [key(p + "feed_forward_length", U32, s.mlp)] if not s.experts else [
        key(p + "expert_count", U32, s.experts), key(p + "expert_used_count", U32, KEPT),
        key(p + "expert_feed_forward_length", U32, s.mlp), key(p + "expert_shared_feed_forward_length", U32, s.mlp)]
    return [key("general.architecture", STRING, s.arch), key(p + "block_count", U32, s.layers),
            key(p + "context_length", U32, 262144), key(p + "embedding_length", U32, s.hidden),
            key(p + "attention.head_count", U32, s.heads), key(p + "attention.head_count_kv", U32, s.kv_heads),
            key(p + "attention.key_length", U32, s.head_dim), key(p + "attention.value_length", U32, s.head_dim),
            key(p + "attention.layer_norm_rms_epsilon", F32_VALUE, 1e-6), key(p + "rope.freq_base", F32_VALUE, 1e7),
            key(p + "rope.dimension_count", U32, s.head_dim // 4),
            key(p + "rope.dimension_sections", ARRAY, [11, 11, 10, 0]),
            key(p + "ssm.conv_kernel", U32, CONV), key(p + "ssm.state_size", U32, s.state),
            key(p + "ssm.group_count", U32, s.key_heads), key(p + "ssm.time_step_rank", U32, s.value_heads),
            key(p + "ssm.inner_size", U32, s.value_heads * s.state), key(p + "full_attention_interval", U32, INTERVAL),
            *mlp, key(p + "vocab_size", U32, s.vocab), key("tokenizer.ggml.model", STRING, "no_vocab")]


def attention(s, kind):
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield "attn_q.weight", (2 * q, s.hidden), kind  # of each head the query, then its gate
    yield "attn_k.weight", (kv, s.hidden), kind
    yield "attn_v.weight", (kv, s.hidden), kind
    yield "attn_output.weight", (s.hidden, q), kind
    yield "attn_q_norm.weight", (s.head_dim,), F32
    yield "attn_k_norm.weight", (s.head_dim,), F32


def gated_delta_net(s, kind):
    value = s.value_heads * s.state
    qkv = 2 * s.key_heads * s.state + value
    yield "attn_qkv.weight", (qkv, s.hidden), kind
    yield "attn_gate.weight", (value, s.hidden), kind
    yield "ssm_alpha.weight", (s.value_heads, s.hidden), kind
    yield "ssm_beta.weight", (s.value_heads, s.hidden), kind
    yield "ssm_conv1d.weight", (qkv, CONV), F32
    yield "ssm_dt.bias", (s.value_heads,), F32
    yield "ssm_a", (s.value_heads,), F32
    yield "ssm_norm.weight", (s.state,), F32
    yield "ssm_out.weight", (s.hidden, value), kind


def mlp(s, kind, experts, suffix):
    yield f"ffn_gate{suffix}.weight", (*experts, s.mlp, s.hidden), kind
    yield f"ffn_up{suffix}.weight", (*experts, s.mlp, s.hidden), kind
    yield f"ffn_down{suffix}.weight", (*experts, s.hidden, s.mlp), kind


def block(s, kind, layer):
    yield "attn_norm.weight", (s.hidden,), F32
    yield from (gated_delta_net if (layer + 1) % INTERVAL else attention)(s, kind)
    yield "post_attention_norm.weight", (s.hidden,), F32
    if not s.experts:
        yield from mlp(s, kind, (), "")
        return
    yield "ffn_gate_inp.weight", (s.experts, s.hidden), F32
    yield "ffn_gate_inp_shexp.weight", (s.hidden,), F32
    yield from mlp(s, kind, (s.experts,), "_exps")
    yield from mlp(s, kind, (), "_shexp")


def tensors(s, kind):
    """Name, shape (the slowest dimension first) and type of each."""
    yield "token_embd.weight", (s.vocab, s.hidden), kind
    for layer in range(s.layers):
        for name, shape, its_kind in block(s, kind, layer):
            yield f"blk.{layer}.{name}", shape, its_kind
    yield "output_norm.weight", (s.hidden,), F32
    if not s.tied:
        yield "output.weight", (s.vocab, s.hidden), kind


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    s = SHAPES[a.shape]
    s.layers, s.vocab = a.layers or s.layers, a.vocab or s.vocab
    rng = random.Random(a.seed)
    number, _, block_bytes = TYPES[a.type][:3]
    blocks = draw_blocks(a.type, rng)
    embeddings = draw_blocks(a.type, rng, 50) if s.experts else blocks  # tokens stay different: so do their experts

    def write_tensor(out, name, shape, kind, n_bytes):
        if kind == F32:
            write_floats(out, shape, drawer(name, rng))
        else:
            write_blocks(out, n_bytes, embeddings if "token_embd" in name else blocks, block_bytes, rng)

    write_file(a.out, keys(s), list(tensors(s, number)), a.type, write_tensor)


if __name__ == "__main__":
    main()
