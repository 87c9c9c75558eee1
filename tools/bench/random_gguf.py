"""Writes GGUF files with random weights: what random_llama.py and random_experts.py share. Standard library only."""

import math
import struct

ALIGN = 32
F32 = 0  # the number of a type of tensors; those of quantized ones are in the two programs
U32, F32_VALUE, STRING = 4, 6, 8  # types of keys
DRAWN_BLOCKS = 1 << 16


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def key(name, kind, value):
    packed = string(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
    return string(name) + struct.pack("<I", kind) + packed


def write_blocks(out, n_bytes, blocks, block_bytes, rng):
    """From DRAWN_BLOCKS blocks, each part from another offset."""
    while n_bytes:
        at = rng.randrange(DRAWN_BLOCKS) * block_bytes
        part = memoryview(blocks)[at:at + n_bytes]
        out.write(part)
        n_bytes -= len(part)


def write_floats(out, shape, centre, rng):
    n = math.prod(shape)
    out.write(struct.pack(f"<{n}f", *(centre + rng.gauss(0, 0.05) for _ in range(n))))


def write_file(path, keys, tensors, block, write_tensor):
    """tensors: name, shape (the slowest dimension first) and type of each. block: numbers and bytes of a block of
    the types that are not F32. write_tensor(out, name, shape, kind, n_bytes) writes the numbers of one."""
    elements, block_bytes = block

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
