#!/usr/bin/env python3
"""Tokens that the other files of a folder add to tokenizer.json or change, compared with transformers.

usage: special_tokens.py SPILLWAY [COUNT]        (the built program; 60 folders)

Each folder has a small tokenizer and random files beside it: tokenizer_config.json with or without
added_tokens_decoder, special_tokens_map.json, added_tokens.json. The ids of a random text, and the text of random
ids with and without special tokens, are those of a PreTrainedTokenizerFast. There is no normalizer: where the files
disagree on `normalized`, the tokenizers package may show an old form of a token.
Exit 77 where transformers is missing. SPW_SEED repeats a run; folders that failed are kept.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import transformers
except ImportError:
    print("skipped: transformers is not installed")
    sys.exit(77)
transformers.logging.set_verbosity_error()

FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
CONTENTS = ["<n>", "<m>", "[PAD]", "<a b>", "word", "hi", "<s>", "</s>", "<|x|>", "zz"]
PIECES = CONTENTS + [" ", "  ", "\n", "a", "xx", " word", ".", "A1"]


def draw_token(rng, **more):
    return {"content": rng.choice(CONTENTS), **{flag: rng.random() < 0.3 for flag in FLAGS}, **more}


def tokenizer_json(rng):
    texts = [chr(c) for c in range(32, 127)] + ["\n", "wo", "rd", "word", "hi", "<s>", "</s>"]
    vocab = {text: i for i, text in enumerate(texts)}
    added, n = {}, len(vocab)
    for _ in range(rng.randrange(6)):
        token = draw_token(rng)
        if token["content"] not in added:
            added[token["content"]] = {"id": vocab.get(token["content"], n), **token}
            n += token["content"] not in vocab
    pad = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
           "pad_token": rng.choice(CONTENTS)}
    return {"version": "1.0", "truncation": None, "padding": pad if rng.random() < 0.1 else None,
            "added_tokens": sorted(added.values(), key=lambda token: token["id"]), "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": None, "unk_token": " ", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                      "merges": [["w", "o"], ["r", "d"], ["wo", "rd"], ["h", "i"]]}}


def draw_value(rng, marked):
    """As transformers writes a token with flags: with a mark, but not in special_tokens_map.json."""
    if rng.random() < 0.6:
        return rng.choice(CONTENTS)
    token = draw_token(rng)
    for flag in FLAGS[3:]:
        if rng.random() < 0.5:
            token.pop(flag)
    if marked:
        return {**token, "__type": "AddedToken"}
    token.pop("special", None)
    return token


def special_tokens(rng, is_map):
    out = {name: draw_value(rng, not is_map) if rng.random() < 0.9 else None for name in NAMES if rng.random() < 0.25}
    out |= {name: draw_value(rng, not is_map) for name in ("image_token", "x_token") if rng.random() < 0.12}
    some = [rng.choice(CONTENTS) if is_map else draw_value(rng, True) for _ in range(rng.randrange(4))]
    names = {rng.choice(["x_token", "y", "z_token"]): rng.choice(CONTENTS) for _ in range(rng.randrange(3))}
    if rng.random() < 0.25:
        out["additional_special_tokens"] = rng.choice([some, None])
    if rng.random() < 0.25:
        out["extra_special_tokens"] = rng.choice([some, names, None])
    if not is_map and rng.random() < 0.06:
        out["model_specific_special_tokens"] = names
    return dict(rng.sample(sorted(out.items()), len(out)))


def added_tokens_decoder(rng, tokenizer):
    out = {}
    for token in tokenizer["added_tokens"]:
        if rng.random() < 0.8:
            out[str(token["id"])] = {**token, rng.choice(FLAGS): rng.random() < 0.5}
            del out[str(token["id"])]["id"]
    for _ in range(rng.randrange(3)):
        token = draw_token(rng)
        if token["content"] not in [other["content"] for other in out.values()]:
            out.setdefault(str(tokenizer["model"]["vocab"].get(token["content"], rng.randrange(110, 130))), token)
    return out


def forms(value):
    """All tokens of a file: texts, and objects with flags."""
    if isinstance(value, str):
        return [value] if value in CONTENTS else []
    if isinstance(value, dict) and "content" in value:
        return [value]
    inner = value.values() if isinstance(value, dict) else value or []
    return [token for part in inner for token in forms(part)]


def text_of(form):
    return form if isinstance(form, str) else form["content"]


def contradicts(files):
    """Whether the form of a token hangs on the order in which transformers 5.24 builds its list. The last form of a
    text counts, but one that equals an earlier form is not added again; when it compares, a token that does not say
    whether it is normalized counts as normalized. And a list of special tokens makes a text of added_tokens.json
    special if it has the text, but not if it has an object; additional_special_tokens of special_tokens_map.json
    never does."""
    named = [{key: value for key, value in files.get(name, {}).items() if key != "added_tokens_decoder"}
             for name in ("tokenizer_config.json", "special_tokens_map.json")]
    lists = [file.get(key) for file in named for key in ("additional_special_tokens", "extra_special_tokens")]
    silent = [form for form in forms(lists) if isinstance(form, dict)] + forms(lists[2])
    if any(text_of(form) in files.get("added_tokens.json", {}) for form in silent):
        return True
    by_text = {}
    for form in forms([list(file.values()) for file in named]):
        flags = {"normalized": False} if isinstance(form, str) else form
        found = (*(flags.get(flag, False) for flag in FLAGS[:4]), "normalized" in flags)
        by_text.setdefault(text_of(form), []).append(found)
    return any(len(set(some)) > 1 and (len(set(some)) < len(some) or not all(says for *_, says in some))
               for some in by_text.values())


def draw_files(rng):
    tokenizer = tokenizer_json(rng)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens(rng, False)}
    if rng.random() < 0.5:
        config["added_tokens_decoder"] = added_tokens_decoder(rng, tokenizer)
    known = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ids = {text: known.get(text, 110 + i) for i, text in enumerate(rng.sample(CONTENTS, 2))}
    files = {"config.json": {"model_type": "llama"}, "tokenizer.json": tokenizer, "tokenizer_config.json": config}
    if rng.random() < 0.4:
        files["special_tokens_map.json"] = special_tokens(rng, True)
    if rng.random() < 0.3:
        files["added_tokens.json"] = ids
    if rng.random() < 0.07:
        del files["tokenizer_config.json"]
    return files


def write_folder(rng, folder):
    files = draw_files(rng)
    while contradicts(files):
        files = draw_files(rng)
    folder.mkdir()
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))


def ask(spillway, folder, *options, stdin=""):
    run = subprocess.run([spillway, "tokenize", folder, *options], input=stdin, capture_output=True, text=True)
    return run.stdout if run.returncode == 0 else "refused: " + run.stderr


def compare(rng, spillway, folder, oracle):
    size = max(oracle.get_vocab().values()) + 1
    added = sorted(oracle.added_tokens_decoder)
    for _ in range(3):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 30)))
        expected = " ".join(map(str, oracle(text, add_special_tokens=False)["input_ids"]))
        found = ask(spillway, folder, "--no-special", "--text", text).strip()
        if found != expected:
            return f"{text!r}: {found}, expected {expected}"
    ids = [rng.choice(added) if added and rng.random() < 0.5 else rng.randrange(size) for _ in range(20)]
    for skip in (False, True):
        expected = oracle.decode(ids, skip_special_tokens=skip)
        options = ["--decode", "--token-ids", "-"] + ["--no-special"] * skip
        found = ask(spillway, folder, *options, stdin=" ".join(map(str, ids)))
        if found != expected:
            return f"{ids} {skip}: {found!r}, expected {expected!r}"
    return None


def main():
    spillway, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(os.environ.get("SPW_SEED", random.randrange(1 << 32)))
    print(f"SPW_SEED={seed} transformers {transformers.__version__}", flush=True)
    rng = random.Random(seed)
    top = Path(tempfile.mkdtemp(prefix="spw_special_tokens_"))
    failed = refused = 0
    for i in range(count):
        folder = top / str(i)
        write_folder(rng, folder)
        try:
            oracle = transformers.AutoTokenizer.from_pretrained(folder)
        except TypeError:  # two files that transformers cannot read together
            refused += 1
            continue
        problem = compare(rng, spillway, folder, oracle)
        if problem:
            failed += 1
            print(f"{folder}: {problem}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"{count} folders, {refused} passed over, {failed} failed")
    if not failed:
        shutil.rmtree(top)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
