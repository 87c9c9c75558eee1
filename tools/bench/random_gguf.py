"""Writes GGUF files with random weights: what the programs random_*.py share. Standard library only."""

import math
import struct

ALIGN = 32
F32 = 0  # the number of a type of tensors; those of quantized types are in TYPES
U32, I32, F32_VALUE, STRING, ARRAY = 4, 5, 6, 8, 9  # types of keys; an array has numbers of type I32
DRAWN_BLOCKS = 1 << 16
# type: number in GGUF, numbers and bytes of a block; where its scale (and minimum) is, how it is packed, its value
TYPES = {
    "q8_0": (8, 32, 34, 0, "<e", (3e-4,)),
    "q4_0": (2, 32, 18, 0, "<e", (4e-3,)),
    "q4_k": (12, 256, 144, 0, "<ee", (1e-4, 7.5e-4)),
    "q5_k": (13, 256, 176, 0, "<ee", (1e-4, 15.5e-4)),
    "q6_k": (14, 256, 210, 208, "<e", (1.5e-5,)),
    "mxfp4": (39, 32, 17, 0, "<B", (119,)),
}


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key(name, kind, value):
    if kind == ARRAY:
        packed = struct.pack(f"<IQ{len(value)}i", I32, len(value), *value)
    else:
        packed = string(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
    return string(name) + struct.pack("<I", kind) + packed


def draw_blocks(kind, rng, times=1):
    """DRAWN_BLOCKS blocks of random codes whose numbers have a mean near 0 and a deviation of about 0.02 times this."""
    _, _, block_bytes, scale_at, packing, scales = TYPES[kind]
    scale = struct.pack(packing, *(times * value for value in scales))
    blocks = bytearray(rng.randbytes(DRAWN_BLOCKS * block_bytes))
    for begin in range(scale_at, len(blocks), block_bytes):
        blocks[begin:begin + len(scale)] = scale
    return blocks


def write_blocks(out, n_bytes, blocks, block_bytes, rng):
    """From DRAWN_BLOCKS blocks, each part from another offset."""
    while n_bytes:
        at = rng.randrange(DRAWN_BLOCKS) * block_bytes
        part = memoryview(blocks)[at:at + n_bytes]
        out.write(part)
        n_bytes -= len(part)


def write_floats(out, shape, draw):
    n = math.prod(shape)
    out.write(struct.pack(f"<{n}f", *(draw() for _ in range(n))))


def write_file(path, keys, tensors, quantized, write_tensor):
    """tensors: name, shape (the slowest dimension first) and type of each: F32, or the number of quantized, a name in
    TYPES. write_tensor(out, name, shape, kind, n_bytes) writes the numbers of one."""
    _, elements, block_bytes = TYPES[quantized][:3]

    def size_of(shape, kind):
        return math.prod(shape) * 4 if kind == F32 else math.prod(shape) // elements * block_bytes

    at = 0
    with open(path, "wb") as out:
        out.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys))
        for name, shape, kind in tensors:
            dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
            out.write(string(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, at))
            at += -(-size_of(shape, kind) // ALIGN) * ALIGN
        out.write(bytes(-out.tell() % ALIGN))
        for name, shape, kind in tensors:
            write_tensor(out, name, shape, kind, size_of(shape, kind))
            out.write(bytes(-out.tell() % ALIGN))
        print(f"{path}: {out.tell() / 1e9:.2f} GB, {len(tensors)} tensors")
