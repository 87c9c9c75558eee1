#!/usr/bin/env python3
"""Compares our tokenizer with the `tokenizers` package from PyPI on random Unicode.

usage: tokenizer_property.py TEST_TOKENIZER   (the built test_tokenizer)

Every round makes a tokenizer.json (the families' own shapes, and random pipelines of every kind of
step we support), encodes random texts and decodes random ids with both, and wants the same ids and
the same text; the C program also checks each decoding against the streamed one. The real tokenizers
under $SPW_DATA are compared too. Exit 77 where the package is missing. SPW_SEED repeats a run,
SPW_ROUNDS sets its length.
"""
import base64
import json
import multiprocessing
import os
import random
import select
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
    from tokenizers import Tokenizer
except ImportError:
    print("skipped: the tokenizers package is not installed")
    sys.exit(77)

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
REGEXES = [GPT2, LLAMA3, O200K, r"\s+", r"\w+|[^\w\s]+", r"\p{Han}+", r"[^\w]", r"\d{1,3}", r"\S+\s?", r"\h+", r"[\s\p{P}]", r"[^\S ]+", "▁", r"\W+", r"\bt", r"(?<=a)b", r"\p{^L}+", r"[一-龥]+", r"\p{N}{1,3}+",
           r"[ab]{1,2}+c", r"\s{,2}a", r"(?m).{3}", r"(?mi:T.)", r"[^[:space:][:word:]]", r"[]a]", r"é{2}+",
           r"[^\r\n\p{L}\p{N}]?+\p{L}++|\s++$"]

EMPTY = [r"a*", r"(?=\s)", r"^.|$", ""]

# Characters whose category has not changed since Unicode 3.2, so that no two libraries disagree. (Alphabetic did grow in
# Unicode 16, by combining letters: no pattern asks for it alone.)
OLD = unicodedata.ucd_3_2_0
CHARS = [c for c in map(chr, range(0x21, 0x2FA20))
         if OLD.category(c) not in ("Cn", "Cs", "Co") and OLD.category(c) == unicodedata.category(c)
         and unicodedata.normalize("NFKC", c) == OLD.normalize("NFKC", c)]
MARKS = [c for c in CHARS if unicodedata.category(c) == "Mn"]
SPACES = list(" \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2003\u2028\u2029\u202f\u3000\u200b\u200d")
WORDS = ["the", "The", "access", "code", "of", "Bergen", "is", "4817.", "it's", "WE'LL", "'d", "naïve", "Straße", "ИЗ", "你好",
         "日本語", "한국어", "각", "İ", "ﬁ", "Ⅷ", "½", "e\u0301", "a\u0323\u0307", "🦙", "👩\u200d👩\u200d👧", "▁", "▁a", "<s>",
         "</s>", "<|im_end|>", "<0x41>", "ab", "abc", "1234567", "!!", "...", "_x_", "ſ", "K"]


def random_text(rng):
    parts = []
    for _ in range(rng.choice([0, 1, 2, 5, 12, 30])):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.6:
            parts.append(rng.choice([" ", " ", " ", "  ", "\n", rng.choice(SPACES)]))
        elif kind < 0.75:
            parts.append("".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randrange(1, 6))))
        elif kind < 0.9:
            parts.append("".join(rng.choice(CHARS) for _ in range(rng.randrange(1, 4))))
        else:
            parts.append(rng.choice("aeoé한") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 4))))
    return "".join(parts)


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(rest))]


def make_bpe(rng, alphabet, n_merges, **more):
    """Random merges over an alphabet; later ones build on earlier ones."""
    tokens = list(dict.fromkeys(alphabet))
    merges = []
    known = set(tokens)
    common = [t for t in tokens if t.isascii() or t in "Ġ▁"] or tokens
    for _ in range(n_merges):
        a, b = rng.choice(common), rng.choice(common)
        merges.append([a, b] if rng.random() < 0.5 else a + " " + b)
        if a + b not in known:
            known.add(a + b)
            tokens.append(a + b)
            common.append(a + b)
    pairs = [isinstance(m, list) or m.count(" ") != 1 for m in merges]
    if any(pairs):
        merges = [m if isinstance(m, list) else m.split(" ", 1) if m.count(" ") == 1 else None for m in merges]
        merges = [m for m in merges if m]
    ids = list(range(len(tokens)))
    rng.shuffle(ids)
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": dict(zip(tokens, ids)),
            "merges": merges, **more}


def make_unigram(rng):
    """Random tokens with scores, some of them equal."""
    tokens = list(dict.fromkeys(["<unk>", "</s>"] + sentencepiece_alphabet(rng) + fallback_tokens(rng)[:rng.choice([0, 256])]))
    common = [t for t in tokens if len(t) == 1]
    for _ in range(300):
        tokens.append("".join(rng.choice(common[:94] + ["▁"] * 20) for _ in range(rng.randrange(2, 5))))
    tokens = [t for t in dict.fromkeys(tokens + [w for w in WORDS if rng.random() < 0.5]) if t in ("<unk>", "</s>") or rng.random() < 0.9]
    vocab = [[t, round(-rng.random() * 12, rng.choice([0, 1, 6]))] for t in tokens]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": rng.random() < 0.5}


def double_array(keys):
    """A trie of keys (bytes) with values, as Darts-clone lays it out: a unit a node, children at `base ^ byte`."""
    units, used, bases = {0: 0}, {0}, {0}
    def place(at, depth, members):
        children = {}
        for key, value in members:
            children.setdefault(key[depth] if depth < len(key) else 0, []).append((key, value))
        base = next(b for b in range(1, 1 << 20) if b not in bases and all(b ^ c not in used for c in children))
        bases.add(base)
        used.update(base ^ c for c in children)
        units[at] |= (at ^ base) << 10 | (0 in children) << 8
        for c, its in children.items():
            units[base ^ c] = its[0][1] | 1 << 31 if not c else c
            if c:
                place(base ^ c, depth + 1, its)
    place(0, 0, sorted(keys.items()))
    n = (max(units) | 255) + 1  # in blocks; the package reads behind the last used one
    return struct.pack(f"<{n}I", *(units.get(i, 0) for i in range(n)))


def charsmap(rng):
    """A map of characters as SentencePiece stores it: what its own rules do, and what no rule would."""
    keys, texts = {}, b""
    for _ in range(rng.choice([1, 20, 200])):
        key = rng.choice([rng.choice(CHARS), rng.choice(SPACES), rng.choice("abeTo"), "\r\n", "e\u0301", rng.choice(WORDS)[:3]]).encode()
        if key not in keys:
            keys[key] = len(texts)
            texts += rng.choice(["", " ", "a", "▁", "é", rng.choice(WORDS)]).encode() + b"\0"
    trie = double_array(keys)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()}


def sentencepiece_alphabet(rng):
    chars = [chr(c) for c in range(0x21, 0x7F)] + list("▁éïß你한") + rng.sample(CHARS, 20)
    return chars


def fallback_tokens(rng):
    return [f"<0x{b:02X}>" for b in range(256) if rng.random() < 0.995]


def template(*before):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}} for t in before] + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {}}


def byte_level(prefix, regex):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": False, "use_regex": regex}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(kind, members):
    return {"type": "Sequence", kind: members}


def family(rng):
    """The shapes that real models have."""
    kind = rng.choice(["llama3", "gemma", "llama2", "metaspace", "gpt2", "wordlevel", "unigram", "unigram"])
    spec = {"normalizer": None, "pre_tokenizer": None, "decoder": None}
    if kind in ("llama3", "gpt2"):
        spec["model"] = make_bpe(rng, byte_alphabet(), 300, ignore_merges=kind == "llama3")
        spec["pre_tokenizer"] = (byte_level(rng.random() < 0.5, True) if kind == "gpt2" else sequence("pretokenizers", [
            split({"Regex": rng.choice([LLAMA3, O200K])}, "Isolated"), byte_level(False, False)]))
        spec["decoder"] = byte_level(True, True)
    elif kind == "wordlevel":
        words = list(dict.fromkeys(WORDS + ["u"]))
        spec["model"] = {"type": "WordLevel", "unk_token": "u", "vocab": {w: i for i, w in enumerate(words)}}
        spec["pre_tokenizer"] = {"type": rng.choice(["Whitespace", "WhitespaceSplit"])}
    elif kind == "unigram":
        metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": rng.random() < 0.8}
        spec["model"] = make_unigram(rng)
        spec["normalizer"] = rng.choice([None, sequence("normalizers", [charsmap(rng), replace({"Regex": " {2,}"}, " ")])])
        spec["pre_tokenizer"] = rng.choice([metaspace, sequence("pretokenizers", [{"type": "WhitespaceSplit"}, metaspace])])
        spec["decoder"] = metaspace
    else:
        unk = {"unk_token": "<unk>", "fuse_unk": rng.random() < 0.7, "byte_fallback": rng.random() < 0.8}
        alphabet = ["<unk>"] + sentencepiece_alphabet(rng) + fallback_tokens(rng)
        spec["model"] = make_bpe(rng, alphabet, 300, **unk)
        spaces = replace({"String": " "}, "▁")
        back = [replace({"String": "▁"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        if kind == "gemma":
            spec["normalizer"] = spaces
            spec["pre_tokenizer"] = split({"String": " "}, "MergedWithPrevious")
            spec["decoder"] = sequence("decoders", back)
        elif kind == "llama2":
            spec["normalizer"] = sequence("normalizers", [{"type": "Prepend", "prepend": "▁"}, spaces])
            spec["decoder"] = sequence("decoders", back + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])
        else:
            scheme = rng.choice(["always", "first", "never"])
            metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme}
            spec["pre_tokenizer"] = {**metaspace, "split": rng.random() < 0.5}
            if rng.random() < 0.5:  # as NLLB
                spec["normalizer"] = sequence("normalizers", [charsmap(rng), replace({"Regex": " {2,}"}, " ")])
            spec["decoder"] = {**metaspace, "split": True} if rng.random() < 0.5 else sequence(
                "decoders", back + [{"type": "Strip", "content": " ", "start": 1, "stop": 0}])
    return kind, spec


def random_pattern(rng, empty=True):
    """The package garbles empty matches in a Replace, so those are drawn for Split only."""
    if empty and rng.random() < 0.15:
        return {"Regex": rng.choice(EMPTY)}
    return {"Regex": rng.choice(REGEXES)} if rng.random() < 0.7 else {"String": rng.choice(["a", " ", "ab", "▁", ".", "é"])}


def random_normalizer(rng):
    return rng.choice([
        charsmap(rng), {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
        {"type": "Prepend", "prepend": rng.choice(["▁", "x y", "é"])},
        {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
        replace(random_pattern(rng, False), rng.choice(["", "▁", " ", "ab"]))])


def random_pre(rng):
    behavior = rng.choice(["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    return rng.choice([
        split(random_pattern(rng), behavior, rng.random() < 0.3),
        split(random_pattern(rng), behavior, rng.random() < 0.3),
        {"type": "Digits", "individual_digits": rng.random() < 0.5}, {"type": "Punctuation", "behavior": behavior},
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "never"]),
         "split": rng.random() < 0.5},
        byte_level(rng.random() < 0.5, rng.random() < 0.5)])


def random_decoder(rng):
    return rng.choice([
        {"type": "ByteFallback"}, {"type": "Fuse"}, byte_level(True, True),
        replace({"String": rng.choice(["▁", "a", "ab"])}, rng.choice(["", " ", "xy"])),
        {"type": "Strip", "content": rng.choice([" ", "a"]), "start": rng.randrange(3), "stop": 0},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "never"]), "split": True}])


def random_pipeline(rng):
    alphabet = ["<unk>"] + sentencepiece_alphabet(rng) + byte_alphabet() + [" ", "\n"]
    byte_fallback = rng.random() < 0.5
    model = make_bpe(rng, alphabet + (fallback_tokens(rng) if byte_fallback else []), 200,
                     unk_token=rng.choice([None, "<unk>"]), fuse_unk=rng.random() < 0.5, byte_fallback=byte_fallback,
                     ignore_merges=rng.random() < 0.3)
    some = lambda make: [make(rng) for _ in range(rng.randrange(4))]
    pick = lambda kind, members: None if not members and rng.random() < 0.7 else sequence(kind, members)
    return "random", {"normalizer": pick("normalizers", some(random_normalizer)),
                      "pre_tokenizer": pick("pretokenizers", some(random_pre)),
                      "decoder": pick("decoders", some(random_decoder)), "model": model}


def add_tokens(rng, spec):
    ids = spec["model"]["vocab"]
    if isinstance(ids, list):
        ids = {token: i for i, (token, _) in enumerate(ids)}
    next_id = max(ids.values()) + 1
    added, normalized = [], rng.random() < 0.4
    for content in rng.sample(["<s>", "</s>", "<|im_end|>", "ab", "the", "The code", " x", "▁a", "é", "\n\n"], rng.randrange(6)):
        # The package knows special tokens by text, and forgets (or confuses) them when a normal form differs; we go
        # by id. So not both kinds in one tokenizer.
        special = not normalized and rng.random() < 0.5
        vocab_id = ids.get(content)
        added.append({"id": next_id if vocab_id is None else vocab_id, "content": content,
                      "single_word": rng.random() < 0.2, "lstrip": rng.random() < 0.2, "rstrip": rng.random() < 0.2,
                      "normalized": normalized and rng.random() < 0.6, "special": special})
        next_id += vocab_id is None
    spec.update(version="1.0", truncation=None, padding=None, added_tokens=added, post_processor=None)
    specials = [t for t in added if t["special"]]
    if specials and rng.random() < 0.7:
        token, last = rng.choice(specials), rng.choice(specials)
        spec["post_processor"] = template(token["content"])
        spec["post_processor"]["special_tokens"] = {
            t["content"]: {"id": t["content"], "ids": [t["id"]], "tokens": [t["content"]]} for t in (token, last)}
        if rng.random() < 0.3:  # as NLLB: a language in front of the text, and an end
            spec["post_processor"]["single"].append({"SpecialToken": {"id": last["content"], "type_id": 0}})
        elif rng.random() < 0.4:  # as BART
            spec["post_processor"] = {"type": "RobertaProcessing", "cls": [token["content"], token["id"]], "trim_offsets": True,
                                      "sep": [last["content"], last["id"]], "add_prefix_space": False}
    return spec


class Ours:
    def __init__(self, program, path):
        self.process = subprocess.Popen([program, "--serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], 30)[0]:
            return "no answer in 30 seconds"
        answer = self.process.stdout.readline()
        return answer[:-1] if answer.endswith("\n") else f"no answer, exit {self.process.wait()}"

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def theirs(call):
    """The package panics on some corner cases (PanicException is no Exception); those are passed over."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def same_forms(oracle, spec):
    """Two added tokens with one normal form (which of them is found is the package's hash order), or an empty one."""
    contents = [t["content"] for t in spec["added_tokens"] if t["normalized"]]
    forms = theirs(lambda: [oracle.normalizer.normalize_str(c) for c in contents]) if oracle.normalizer else contents
    return forms is None or "" in forms or len(set(forms)) < len(forms)


def compare(rng, oracle, ours, n_texts, top):
    for _ in range(n_texts):
        text, special = random_text(rng), rng.random() < 0.5
        want = theirs(lambda: oracle.encode(text, add_special_tokens=special).ids)
        if want is not None:
            got = ours.ask(f"e {int(special)} {text.encode().hex()}")
            if got != " ".join(map(str, want)):
                return f"encode {text!r} special={special}\n  want {' '.join(map(str, want))}\n  got  {got}"
        ids = want if want and rng.random() < 0.5 else [rng.randrange(top) for _ in range(rng.randrange(12))]
        skip = rng.random() < 0.5
        text = theirs(lambda: oracle.decode(ids, skip_special_tokens=skip))
        if text is not None:
            got = ours.ask(f"d {int(skip)} {' '.join(map(str, ids))}")
            if got != text.encode().hex():
                return f"decode {ids} skip={skip}\n  want {text!r}\n  got  {got}"
    return None


def check(seed, program, path, name, n_texts):
    """One tokenizer, in a process of its own: 0 equal, 1 not, 3 passed over."""
    rng = random.Random(seed)
    with open(path) as f:
        spec = json.load(f)
    oracle = theirs(lambda: Tokenizer.from_file(path))
    if oracle is None or same_forms(oracle, spec):
        sys.exit(3)
    ours = Ours(program, path)
    difference = compare(rng, oracle, ours, n_texts, oracle.get_vocab_size() + 3)
    if difference:
        del spec["model"]
        print(f"{name}: {difference}\n  {json.dumps(spec, ensure_ascii=False)[:3000]}", flush=True)
    ours.close()
    sys.exit(difference is not None)


def guarded(*args):
    """The package can panic on decomposed text, and has been seen to hang afterwards: it gets a process of its own for
    every tokenizer and is passed over when it does not come back. (We have to answer within 30 seconds.)"""
    child = multiprocessing.get_context("fork").Process(target=check, args=args)
    child.start()
    child.join(60)
    if child.exitcode is None:
        child.kill()
        child.join()
        return 3
    return child.exitcode


def main():
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(2**32))
    rounds = int(os.environ.get("SPW_ROUNDS") or 120)
    print(f"SPW_SEED={seed} tokenizers {tokenizers.__version__}", flush=True)
    # The package prints a backtrace for each of its panics.
    sys.stderr = sys.stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    program, results = sys.argv[1], []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for number in range(rounds):
            rng = random.Random(f"{seed} {number}")
            name, spec = (family if number % 2 else random_pipeline)(rng)
            with open(path, "w") as f:
                json.dump(add_tokens(rng, spec), f)
            results.append(guarded(f"{seed} {number}", program, path, f"round {number} ({name})", 40))
    data = os.environ.get("SPW_DATA", "")
    for name in ("tokenizers/gpt2", "tokenizers/qwen2.5", "tokenizers/phi-3-mini", "models/stories260K"):
        path = os.path.join(data, name, "tokenizer.json")
        if data and os.path.exists(path):
            results.append(guarded(f"{seed} {name}", program, path, name, 400))
    over, failed = results.count(3), len(results) - results.count(0) - results.count(3)
    print(f"{len(results)} tokenizers, {over} passed over, {failed} failed")
    # A run that compared next to nothing has not passed.
    return failed > 0 or over > len(results) // 4


sys.exit(main())
