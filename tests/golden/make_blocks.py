#!/usr/bin/env python3
"""Makes blocks/TYPE.bin for each quantized type: random blocks, then the float32 values that the
gguf package computes for them.

    python3 tests/golden/make_blocks.py       needs gguf (0.19) and numpy

All bits of a block are random. Its scales are random numbers of a usual size, and in some blocks
special ones: zeros, subnormal and large numbers, infinities, NaN. The sign and the payload of a NaN
among the values are those of one processor; the test compares NaN with NaN.
"""

from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent
# Offsets of the f16 scales of a block; of the exponent, for mxfp4.
SCALES = dict(Q8_0=[0], Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q2_K=[80, 82], Q3_K=[108],
              Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208], IQ4_NL=[0], IQ4_XS=[0], MXFP4=[0])
# +-0, the least and the largest subnormal number, the largest number, +-infinity, NaN
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00], np.uint16)


def random_blocks(name, random):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    n = 24 if elements == 32 else 8
    blocks = random.integers(0, 256, (n, size), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = np.concatenate([[0, 1, 2, 127, 128, 253, 254, 255],
                                       random.integers(0, 256, n - 8)])
        return kind, blocks
    for k, at in enumerate(SCALES[name]):
        scales = random.normal(0, 0.05, n).astype(np.float16).view(np.uint16)
        special = random.permutation(SPECIAL) if k else SPECIAL
        # Every second block is special, or in the second scale the others.
        for i, value in enumerate(special[:n // 2]):
            scales[2 * i + k] = value
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(n, 2)
    return kind, blocks


def main():
    (HERE / "blocks").mkdir(exist_ok=True)
    for seed, name in enumerate(SCALES):
        kind, blocks = random_blocks(name, np.random.default_rng(seed))
        with np.errstate(all="ignore"):
            values = gguf.dequantize(blocks, kind)
        data = blocks.tobytes() + values.astype("<f4").tobytes()
        (HERE / "blocks" / f"{name.lower()}.bin").write_bytes(data)


main()
