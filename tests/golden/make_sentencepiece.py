#!/usr/bin/env python3
"""Makes the golden folders that have SentencePiece models in the place of tokenizer.json.

    python3 tests/golden/make_sentencepiece.py       needs sentencepiece, transformers

vectors.json: texts, their ids, and the text of these ids; then ids that no text gives, and their text. They come from the
tokenizers of transformers that use the package sentencepiece. transformers 5 has those of Marian and M2M-100, version 4 those
of the others: run it with both. With version 5 and torch, marian/answer is what the model marian_search translates marian/source to.
"""
import io
import json
import pathlib
import random
import sys
import tempfile

import sentencepiece
import transformers

HERE = pathlib.Path(__file__).parent
WORDS = "the of and to whale sea ship captain water Straße naïve 東京 привет don't 12 345 old man boat quoted — theory".split()
# In the place of the usual map of characters, which has 240 KB.
RULES = {"\ufb01": "fi", "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\r": " ", "\u200b": " ", "\u2460": "1", "\u0001": "", "\u00a8": " \u0308",
         "e\u0301": "\u00e9", "\u00bd": "1/2", "\ufdfa": "a b c", "\uff21": "A"}
TEXTS = ["the whale", "  the   old man and the sea. ", "", " ", "\u2581", "a \u2581", "Straße naïve 東京 привет", "\ufb01ne \u2460 \u00bd", "cafe\u0301", "x\u00a8y \u00a8",
         "one\ttwo\nthree\r\n", "\u0001", "a\u0001 \u0001b", "\U0001f642", "👩‍👩‍👧 whale", "ß ßß q", "a<n>b <n>", "the</s>whale </s>", "<unk> <pad>", ">>de<< the whale",
         "the >>de<< whale", ">>xx<<the", ">>de whale", "__de__ the", "de_DE the <mask> sea", "<extra_id_3>the", "<mask_1> <unk_7>", "\ufdfa", "\uff21\uff21", "12345 12",
         "the captain of the ship and the water of the sea " * 12, "\u00ad\u200d\ufeff", "\U000e0041\U0010ffff"]


def train(folder, name, seed, model_type="unigram", vocab_size=100, **more):
    rng = random.Random(seed)
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        for key, value in RULES.items():
            rules.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (key, value)))
        rules.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(rng.choices(WORDS, k=6)) for _ in range(300)]), model_writer=model, model_type=model_type,
            vocab_size=vocab_size, hard_vocab_limit=False, num_threads=1, minloglevel=2, normalization_rule_tsv=rules.name, **more)
    (folder / name).write_bytes(model.getvalue())
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [oracle.id_to_piece(i) for i in range(oracle.get_piece_size())]


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n")


def vocabulary(first, pieces, last, more=()):
    """Ids that are not the pieces' numbers, without every seventh piece."""
    kept = [p for i, p in enumerate(dict.fromkeys(pieces)) if i % 7 and p not in first + last]
    return {p: i for i, p in enumerate(first + sorted(kept) + list(more) + last)}


def make_marian(folder):
    pieces = train(folder, "source.spm", 1, vocab_size=70, character_coverage=0.99)
    listed = vocabulary(["</s>", "<unk>"], pieces[3:] + ["ß", "\U0001f642"], [">>de<<", "<pad>"])
    listed = vocabulary(["</s>", "<unk>"], pieces[3:] + ["ß", "\U0001f642"], [">>de<<", "<pad>"], [f"▁Wort{i}" for i in range(96 - len(listed))])
    write_json(folder / "vocab.json", listed)  # of as many tokens as the model marian_search has
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    write_json(folder / "tokenizer_config.json", {"source_lang": "en"})


def make_m2m_100(folder):
    pieces = train(folder, "sentencepiece.bpe.model", 2, "bpe", vocab_size=120)
    write_json(folder / "vocab.json", vocabulary(["<s>", "<pad>", "</s>", "<unk>"], pieces[3:] + ["ß", "\U0001f642"], []))
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as codes
    write_json(folder / "tokenizer_config.json", {"src_lang": "de"})
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": [f"__{code}__" for code in codes["m2m100"]]})


def make_mbart(folder):
    train(folder, "sentencepiece.bpe.model", 3)
    write_json(folder / "tokenizer_config.json", {"src_lang": "de_DE"})


def make_mbart50(folder):
    train(folder, "sentencepiece.bpe.model", 4, remove_extra_whitespaces=False)
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "MBart50Tokenizer", "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True}})


def make_pegasus(folder):
    train(folder, "spiece.model", 5, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<n>"])


def make_t5(folder):
    train(folder, "spiece.model", 6, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True, vocab_size=356)


FAMILIES = {"marian": (make_marian, "MarianTokenizer"), "m2m_100": (make_m2m_100, "M2M100Tokenizer"), "mbart": (make_mbart, "MBartTokenizer"),
            "mbart50": (make_mbart50, "MBart50Tokenizer"), "pegasus": (make_pegasus, "PegasusTokenizer"), "t5": (make_t5, "T5Tokenizer")}


def write_vectors(folder, oracle, family):
    rng, rows = random.Random(7), []
    decode = lambda ids: oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for text in TEXTS:
        if family == "t5" and ("</s>" in text or "<extra_id" in text):  # see sentencepiece_folders.py of tests/oracle
            continue
        ids = oracle(text)["input_ids"]
        rows.append({"text": text, "ids": ids, "back": decode(ids)})
    for _ in range(30):
        ids = [rng.randrange(len(oracle)) for _ in range(rng.randrange(1, 12))]
        rows.append({"ids": ids, "back": decode(ids)})
    (folder / "vectors.json").write_text("[" + ",\n".join(json.dumps(row) for row in rows) + "]\n")


def write_answer(folder, oracle):
    model = transformers.MarianMTModel.from_pretrained(HERE / "marian_search").eval()
    (folder / "source").write_text(">>de<< the captain of the old ship")
    ids = model.generate(**oracle((folder / "source").read_text(), return_tensors="pt"))
    (folder / "answer").write_text(oracle.decode(ids[0], skip_special_tokens=True))


def main():
    new = transformers.__version__ >= "5"
    for family, (make, name) in FAMILIES.items():
        if new != (family in ("marian", "m2m_100")):
            continue
        folder = HERE / "sentencepiece" / family
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", {"model_type": family.removesuffix("50")})
        make(folder)
        oracle = getattr(transformers, name).from_pretrained(folder)
        write_vectors(folder, oracle, family)
        if family == "marian":
            write_answer(folder, oracle)
            (folder / "target.spm").unlink()  # it only encodes answers


sys.exit(main())
