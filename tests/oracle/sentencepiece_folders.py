#!/usr/bin/env python3
"""Compares `spillway tokenize` on folders without tokenizer.json with the tokenizers of transformers that use the package
sentencepiece: Marian, M2M-100, and, up to transformers 4, mBART, mBART 50, Pegasus and T5 (version 5 makes other tokenizers of
their files).

usage: sentencepiece_folders.py SPILLWAY [TEXT FILE...]

Every round trains small models (Unigram or BPE, several normalizers, with bytes or without), makes a folder of a family and
wants the same ids, and the same text from random ids, for random texts and lines of the files: words, spaces of all kinds,
control characters, emoji, special tokens, languages. SPW_SEED repeats a run, SPW_ROUNDS sets its length. Exit 77 where a
package is missing.
"""
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import sentencepiece
    import transformers
except ImportError:
    print("skipped: sentencepiece or transformers is not installed")
    sys.exit(77)

N_TEXTS = 60
WORDS = ("the of Straße naïve Île 東京 привет don't 12 345 ﬁne ① ½ e\u0301 A\u030a ＡＢＣ x² … — “quoted” the theory ▁ ▁a "
         "<n> a<n>b ; , .").split()
RARE = ["🙂", "👩‍👩‍👧", "\u0001", "\u0000", "\u007f", "\u200d", "\u00ad", "\ufeff", "ß", "ßß", "ﷺ", "\u0308", "¨", "ø", "𝒳", "க"]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2003", "\u200b", "   ", "\r\n"]
SPECIAL = ["</s>", "<unk>", "<pad>", "<s>", "<mask>", "<mask_1>", "<unk_7>", "<extra_id_3>", ">>de<<", ">>fr<<", ">>xyz<<", "__de__", "de_DE"]
ENCODER = {"vocab_size": 10, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
           "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 64, "activation_function": "relu", "decoder_start_token_id": 2,
           "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "scale_embedding": True}
T5 = {"vocab_size": 10, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "relative_attention_num_buckets": 32,
      "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
FAMILIES = ["marian", "m2m_100"] + (["mbart", "mbart50", "pegasus", "t5"] if transformers.__version__ < "5" else [])


def random_text(rng, lines):
    if lines and rng.random() < 0.3:
        return " ".join(rng.choices(lines, k=rng.choice([1, 1, 1, 100])))
    parts = [rng.choice(SPECIAL)] if rng.random() < 0.1 else []
    for _ in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.6:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            parts.append(chr(rng.choice([rng.randrange(1, 0x20), rng.randrange(0x21, 0x7F), rng.randrange(0x80, 0x2FF), rng.randrange(0x2000, 0x33FF)])))
        elif kind < 0.85:
            parts.append(rng.choice(RARE))
        elif kind < 0.9:
            parts.append(rng.choice(SPECIAL))
        parts.append(rng.choice(SPACES) if rng.random() < 0.8 else "")
    return "".join(parts)


def train(rng, kind, lines, byte_fallback, **ids):
    words = [" ".join(rng.choices(WORDS, k=rng.randrange(3, 9))) for _ in range(300)]
    options = {"normalization_rule_name": rng.choice(["nmt_nfkc", "nmt_nfkc", "nmt_nfkc_cf", "identity"]), "byte_fallback": byte_fallback,
               "add_dummy_prefix": rng.random() < 0.85, "remove_extra_whitespaces": rng.random() < 0.85, "model_type": kind}
    if kind == "unigram" and rng.random() < 0.3:
        options["user_defined_symbols"] = ["<n>", "the"]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words + rng.sample(lines, min(len(lines), 300))), model_writer=model,
        vocab_size=rng.choice([120, 200, 400]) + 256 * options["byte_fallback"], hard_vocab_limit=False,
        character_coverage=rng.choice([1.0, 0.98]), num_threads=1, minloglevel=2, **ids, **options)
    return model.getvalue(), options


def pieces_of(model):
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [oracle.id_to_piece(i) for i in range(oracle.get_piece_size())]


def make_vocab(rng, first, pieces, last):
    """Not all of the pieces, in any order, between the tokens of a family."""
    kept = [p for p in dict.fromkeys(pieces) if p not in first + last and rng.random() < 0.95]
    rng.shuffle(kept)
    return {p: i for i, p in enumerate(first + kept + last)}


def make_folder(rng, family, folder, lines):
    """Writes the folder; the tokenizer of transformers, and what the models are."""
    write = lambda name, value: pathlib.Path(folder, name).write_text(json.dumps(value))
    write("config.json", {"model_type": {"mbart50": "mbart"}.get(family, family), **(T5 if family == "t5" else ENCODER)})
    config = {}
    kind = "bpe" if family == "m2m_100" or rng.random() < 0.15 else "unigram"
    order = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if family in ("pegasus", "t5") else {}
    byte_fallback = rng.random() < 0.3 and not family.startswith("mbart")  # transformers 4 does not decode the bytes of mBART
    model, options = train(rng, kind, lines, byte_fallback, **order)
    name = {"marian": "source.spm", "pegasus": "spiece.model", "t5": "spiece.model"}.get(family, "sentencepiece.bpe.model")
    pathlib.Path(folder, name).write_bytes(model)
    if family == "marian":
        target, _ = train(rng, "unigram", lines, byte_fallback)
        pathlib.Path(folder, "target.spm").write_bytes(target)
        write("vocab.json", make_vocab(rng, ["</s>", "<unk>"], pieces_of(model)[3:] + pieces_of(target)[3:] + ["ß", "🙂"], [">>de<<", "<pad>"]))
    elif family == "m2m_100":
        from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
        write("vocab.json", make_vocab(rng, ["<s>", "<pad>", "</s>", "<unk>"], pieces_of(model)[3:] + ["ß", "🙂"], []))
        config["language_codes"] = rng.choice(["m2m100", "wmt21"])
        config["src_lang"] = rng.choice(["de", "en"])
        write("special_tokens_map.json", {"additional_special_tokens": [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES[config["language_codes"]]]})
    elif family.startswith("mbart"):
        config["src_lang"] = rng.choice(["de_DE", "en_XX"])
        if family == "mbart50":
            config["tokenizer_class"] = "MBart50Tokenizer"
    elif family == "t5" and rng.random() < 0.3:
        config["extra_ids"] = rng.choice([0, 10])
    write("tokenizer_config.json", config)
    name = {"marian": "Marian", "m2m_100": "M2M100", "mbart": "MBart", "mbart50": "MBart50", "pegasus": "Pegasus", "t5": "T5"}[family]
    oracle = getattr(transformers, name + "Tokenizer").from_pretrained(folder)
    if family == "t5":  # only the class in Python takes spaces beside <extra_id_3>: no tokenizer.json of T5 does
        oracle._added_tokens_decoder = {
            i: transformers.AddedToken(t.content, special=True, normalized=False) for i, t in oracle._added_tokens_decoder.items()}
    return oracle, options


def run(program, folder, *args, text):
    path = os.path.join(folder, "input.txt")
    with open(path, "w", newline="") as f:
        f.write(text)
    done = subprocess.run([program, "tokenize", folder, *args, path], capture_output=True)
    return done.stdout.decode() if not done.returncode else "error: " + done.stderr.decode()


def compare(program, rng, family, lines):
    """What differs, as texts."""
    with tempfile.TemporaryDirectory() as folder:
        oracle, options = make_folder(rng, family, folder, lines)
        for text in (random_text(rng, lines) for _ in range(N_TEXTS)):
            text = text.removeprefix("\ufeff")  # the command takes it as the mark of a file
            if family == "t5":  # the class in Python puts no </s> behind another one
                text = text.replace("</s>", "")
            want = oracle(text)["input_ids"] if text else None
            got = run(program, folder, "--text-file", text=text) if text else ""
            got = got if got.startswith("error") else [int(i) for i in got.split()]
            if text and got != want:
                yield f"{options} {text!r}\n  want {want}\n       {oracle.convert_ids_to_tokens(want)}\n  got  {got}"
            ids = (want or [])[:20] if rng.random() < 0.5 else [rng.randrange(len(oracle)) for _ in range(rng.randrange(1, 20))]
            want = oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            got = run(program, folder, "--decode", "--no-special", "--token-ids", text=" ".join(map(str, ids))) if ids else want + "\n"
            if got != want and got != want + "\n":
                yield f"{options} ids {ids} {oracle.convert_ids_to_tokens(ids)}\n  want {want!r}\n  got  {got!r}"


def main():
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(2**32))
    rounds, n_failed = int(os.environ.get("SPW_ROUNDS") or 12), 0
    print(f"SPW_SEED={seed} sentencepiece {sentencepiece.__version__} transformers {transformers.__version__}", flush=True)
    transformers.logging.set_verbosity_error()
    lines = [line for name in sys.argv[2:] for line in pathlib.Path(name).read_text().splitlines() if line]
    for number in range(rounds):
        family = FAMILIES[number % len(FAMILIES)]
        for difference in compare(sys.argv[1], random.Random(f"{seed} {number}"), family, lines):
            n_failed += 1
            if n_failed <= 10:
                print(f"round {number}: {family} {difference}", flush=True)
    print(f"{rounds * N_TEXTS} texts, {n_failed} differ")
    return n_failed > 0


sys.exit(main())
