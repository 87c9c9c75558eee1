#!/usr/bin/env python3
"""What quantized weights cost: the loss of a model in every type, exact and with int8 activations.

    tools/bench/quantized_loss.py MODEL [--tokens N] [--documents N] [--type q4_k ...]

Writes MODEL, a folder whose widths are multiples of 256, as a GGUF file of each type. `spillway score` then
reads documents of tools/make_records.py in f32 (the numbers of the blocks) and in bf16 (int8 activations).
Prints nats a token as means over the documents, and the differences of single documents: one document moves
a difference by 0.05 % in either direction. The blocks come from the gguf package, or from the plain encoders below, which round to the
nearest number that simple scales allow. So the losses of types show the order of size, no more; the difference
between f32 and int8 activations is what this is for. Needs numpy, gguf and tokenizers.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/oracle"), str(ROOT / "tools")]
import gguf_models  # noqa: E402
import make_records  # noqa: E402

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def f16(x):
    return x.astype(np.float16)


def bytes_of(x):
    return np.ascontiguousarray(x).view(np.uint8).reshape(x.shape[0], -1)


def divide(x, by):
    return np.divide(x, by, out=np.zeros_like(x), where=by != 0)


def nearest(x, values):
    return np.abs(x[..., None] - values).argmin(-1).astype(np.uint8)


def largest(x):
    """The number of largest magnitude, with its sign."""
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]


def nibbles(q):
    """[..., 2, n] -> n bytes: the first row in the low halves."""
    return (q[..., 0, :] | q[..., 1, :] << 4).reshape(q.shape[0], -1)


def scales_and_minima(x, levels, most):
    """x [blocks, parts, n] -> d, m (f16), scales and minima in 0 .. most, codes in 0 .. levels."""
    low = np.maximum(-x.min(-1), 0)
    step = (x.max(-1).clip(0) + low) / levels
    d, m = f16(step.max(-1) / most), f16(low.max(-1) / most)
    wide = [v.astype(np.float32)[:, None] for v in (d, m)]
    scales, minima = (np.rint(divide(v, by)).clip(0, most).astype(np.uint8) for v, by in zip((step, low), wide))
    codes = np.rint(divide(x + (wide[1] * minima)[..., None], (wide[0] * scales)[..., None])).clip(0, levels)
    return d, m, scales, minima, codes.astype(np.uint8)


def signed_scales(x, levels, most):
    """x [blocks, parts, n] -> d (f16), scales in -most-1 .. most, codes in -levels .. levels - 1."""
    step = largest(x) / -levels
    d = f16(largest(step) / -(most + 1))
    scales = np.rint(divide(step, d.astype(np.float32)[:, None])).clip(-most - 1, most)
    unit = (d.astype(np.float32)[:, None] * scales)[..., None]
    return d, scales.astype(np.int8), np.rint(divide(x, unit)).clip(-levels, levels - 1).astype(np.int8)


def six_bits(s, m):
    return np.concatenate([s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6,
                           (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4], 1)


def q4_k(x):
    d, m, s, minima, q = scales_and_minima(x.reshape(-1, 8, 32), 15, 63)
    return np.concatenate([bytes_of(d), bytes_of(m), six_bits(s, minima), nibbles(q.reshape(-1, 4, 2, 32))], 1)


def q5_k(x):
    d, m, s, minima, q = scales_and_minima(x.reshape(-1, 8, 32), 31, 63)
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    return np.concatenate([bytes_of(d), bytes_of(m), six_bits(s, minima), high,
                           nibbles((q & 15).reshape(-1, 4, 2, 32))], 1)


def two_bits(q):
    """Four codes of two bits in a byte: [256] in halves of four rows of 32."""
    return np.bitwise_or.reduce(q.reshape(-1, 2, 4, 32) << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2).reshape(-1, 64)


def q2_k(x):
    d, m, s, minima, q = scales_and_minima(x.reshape(-1, 16, 16), 3, 15)
    return np.concatenate([s | minima << 4, two_bits(q), bytes_of(d), bytes_of(m)], 1)


def q3_k(x):
    d, s, q = signed_scales(x.reshape(-1, 16, 16), 4, 31)
    s, q = (s + 32).astype(np.uint8), (q + 4).astype(np.uint8)
    mask = np.bitwise_or.reduce((q.reshape(-1, 8, 32) >> 2) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    high = np.bitwise_or.reduce((s.reshape(-1, 4, 4) >> 4) << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=1)
    return np.concatenate([mask, two_bits(q & 3), (s[:, :8] & 15) | (s[:, 8:] & 15) << 4, high, bytes_of(d)], 1)


def q6_k(x):
    d, s, q = signed_scales(x.reshape(-1, 16, 16), 32, 127)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    high = np.bitwise_or.reduce((q >> 4) << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2)
    low = (q[:, :, :2] & 15) | (q[:, :, 2:] & 15) << 4
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), s.view(np.uint8), bytes_of(d)], 1)


def iq4_nl(x):
    x = x.reshape(-1, 32)
    d = f16(largest(x) / -127)
    q = nearest(divide(x, np.broadcast_to(d.astype(np.float32)[:, None], x.shape)), IQ4)
    return np.concatenate([bytes_of(d), nibbles(q.reshape(-1, 2, 16))], 1)


def iq4_xs(x):
    x = x.reshape(-1, 8, 32)
    step = largest(x) / -127
    d = f16(largest(step) / -32)
    s = np.rint(divide(step, d.astype(np.float32)[:, None])).clip(-32, 31)
    unit = (d.astype(np.float32)[:, None] * s)[..., None]
    q = nearest(divide(x, np.broadcast_to(unit, x.shape)), IQ4)
    s = (s + 32).astype(np.uint16)
    high = np.bitwise_or.reduce((s >> 4) << (2 * np.arange(8, dtype=np.uint16)), axis=1)
    return np.concatenate([bytes_of(d), bytes_of(high), (s[:, ::2] & 15 | (s[:, 1::2] & 15) << 4).astype(np.uint8),
                           nibbles(q.reshape(-1, 8, 2, 16))], 1)


def mxfp4(x):
    x = x.reshape(-1, 32)
    most = np.abs(x).max(-1)
    e = np.ceil(np.log2(np.maximum(most / 6, 2.0 ** -120)))
    q = nearest(x / np.exp2(e)[:, None].astype(np.float32), FP4)
    return np.concatenate([(e + 127).astype(np.uint8)[:, None], nibbles(q.reshape(-1, 2, 16))], 1)


def quantize(x, kind):
    """The blocks of a matrix, checked: numbers that the package reads out of them are near those of x."""
    own = globals().get(kind.name.lower())
    blocks = own(x).reshape(*x.shape[:-1], -1) if own else gguf.quantize(x, kind)
    error = np.linalg.norm(gguf.dequantize(blocks, kind) - x) / np.linalg.norm(x)
    assert error < 0.4, f"{kind.name}: an error of {error:.2f}"
    return blocks


def losses(command, model, documents, compute):
    """Nats a token of each document."""
    out = [subprocess.run([command, "score", model, "--token-ids", ids, "--compute", compute, "--device", "cpu", "--json"],
                          check=True, stdout=subprocess.PIPE).stdout for ids in documents]
    return np.array([json.loads(text)["nats_per_token"] for text in out])


def write_documents(folder, args):
    """Files of token ids."""
    tokenizer = args.model / "tokenizer.json"
    files = [folder / f"ids{i}" for i in range(1, args.documents + 1)]
    total = 0
    for seed, file in enumerate(files, 1):
        prompt, _, _ = make_records.make_prompt(args.tokens, seed, 0, tokenizer)
        ids = Tokenizer.from_file(str(tokenizer)).encode(prompt).ids
        file.write_text(" ".join(map(str, ids)))
        total += len(ids)
    return files, total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--command", default="build/release/spillway")
    parser.add_argument("--tokens", type=int, default=3000, help="of a document")
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--type", nargs="+", default=TYPES, type=str.upper)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        file = folder / "model.gguf"
        documents, total = write_documents(folder, args)
        own = [losses(args.command, args.model, documents, c).mean() for c in ("f32", "bf16")]
        print(f"{total} tokens in {args.documents} documents; {args.model} itself: {own[0]:.4f} in f32, {own[1]:.4f} in bf16\n")
        print("| type | bits a weight | f32 | int8 activations | difference | of one document |\n|---|---|---|---|---|---|")
        for name in args.type:
            kind = gguf.GGMLQuantizationType[name]
            gguf_models.convert(args.model, file, name, quantize=quantize)
            exact, fast = (losses(args.command, file, documents, c) for c in ("f32", "bf16"))
            percent = 100 * (fast / exact - 1)
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            print(f"| {name} | {8 * size / elements:.4g} | {exact.mean():.4f} | {fast.mean():.4f} | {percent.mean():+.2f} % "
                  f"| {percent.min():+.2f} to {percent.max():+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
