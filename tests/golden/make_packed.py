#!/usr/bin/env python3
"""Makes blocks/packed_TYPE.bin for Q8_0 and Q4_0: float32 numbers, then the blocks that the gguf
package packs them into.

    python3 tests/golden/make_packed.py       needs gguf (0.19) and numpy

Random numbers of several sizes, and blocks where rounding is decided: zeros, halves, the largest
number twice with both signs, numbers whose scale is subnormal or 0 in f16.
"""

from pathlib import Path

import gguf
import numpy as np

HERE = Path(__file__).resolve().parent


def numbers():
    random = np.random.default_rng(18)
    sizes = 10.0 ** random.uniform(-9, 4, (40, 1))
    blocks = [random.normal(0, 1, (40, 32)) * sizes]
    blocks.append(np.zeros((1, 32)))
    blocks.append(-np.zeros((1, 32)))
    blocks.append((np.arange(32) - 15.5).reshape(1, 32) * 127 / 15.5)  # sign of the first largest
    for largest in (127, -127, 8, -8, 16):  # halves of d
        halves = np.clip((np.arange(32) - 16) / 2, -abs(largest), abs(largest))
        halves[7] = largest
        blocks.append(halves.reshape(1, 32))
    blocks.append(random.normal(0, 1, (4, 32)) * 1e-6)
    blocks.append(random.normal(0, 1, (2, 32)) * 1e-12)
    one = np.zeros((2, 32))
    one[0, 31], one[1, 0] = 3, -3
    blocks.append(one)
    return np.concatenate(blocks).astype(np.float32)


def main():
    x = numbers()
    for name in ("Q8_0", "Q4_0"):
        packed = gguf.quantize(x, gguf.GGMLQuantizationType[name])
        data = x.astype("<f4").tobytes() + packed.tobytes()
        (HERE / "blocks" / f"packed_{name.lower()}.bin").write_bytes(data)


main()
