#!/usr/bin/env python3
"""Quantized files of `spillway quantize` against the gguf package, which reads them.

    tests/oracle/quantized_files.py SPILLWAY FOLDER...       needs gguf and numpy

Each folder becomes a file of each type. The package must read its keys and tensors, and must pack
the numbers of the folder into the same bytes: by its own names of tensors, and by the permutation
of q and k and the norms of Gemma that its users apply. Exit status: 0 all are equal.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}


def read_safetensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + n + x for x in t["data_offsets"])
            kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[t["dtype"]]
            x = np.frombuffer(data[begin:end], kind)
            if t["dtype"] == "BF16":
                x = (x.astype(np.uint32) << 16).view(np.float32)
            tensors[name] = x.astype(np.float32).reshape(t["shape"]), t["dtype"]
    return tensors


def permute(x, heads):
    shape = x.shape
    return x.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def check(folder, type_name, path):
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    kind = config["model_type"]
    reader = gguf.GGUFReader(path)
    name_of = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}
    architecture = reader.fields["general.architecture"].contents()
    if architecture != ARCHITECTURES.get(kind, kind):
        sys.exit(f"{path}: architecture {architecture} of {kind}")
    names = gguf.get_tensor_name_map(name_of[architecture], config["num_hidden_layers"])
    found = {t.name: t for t in reader.tensors}
    n = 0
    for name, (x, dtype) in read_safetensors(folder).items():
        name = name.replace("language_model.model.", "model.").replace(
            "model.language_model.", "model.").replace("language_model.lm_head", "lm_head")
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None or target not in found:
            sys.exit(f"{folder}: no tensor {target} of {name}")
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads"]
            x = permute(x, heads if ".q_proj." in name else config.get("num_key_value_heads", heads))
        if architecture == "gemma3" and name.endswith("norm.weight"):
            x = x + np.float32(1)
        t = found[target]
        fits = x.ndim == 2 and x.shape[1] % 32 == 0
        wanted = type_name if fits else "F32" if x.ndim == 1 else dtype
        if t.tensor_type.name != wanted or list(t.shape) != list(reversed(x.shape)):
            sys.exit(f"{folder}: {target}: {t.tensor_type.name} {t.shape}, expected {wanted}")
        packed = gguf.quantize(np.ascontiguousarray(x), t.tensor_type)
        if packed.tobytes() != t.data.tobytes():
            sys.exit(f"{folder}: {target}: other bytes")
        n += 1
    more = set(found) - {"rope_freqs.weight"}
    if len(more) != n:
        sys.exit(f"{folder}: {len(more)} tensors in the file, {n} in the folder")
    print(f"{folder}: {type_name}: {n} tensors are equal")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    command, folders = sys.argv[1], [Path(x) for x in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders:
            for type_name in ("Q8_0", "Q4_0"):
                path = f"{temporary}/model.gguf"
                subprocess.run([command, "quantize", folder, path, "--type", type_name.lower()],
                               check=True, stdout=subprocess.DEVNULL)
                check(folder, type_name, path)
                os.remove(path)


main()
