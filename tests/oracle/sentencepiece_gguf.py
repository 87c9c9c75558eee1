#!/usr/bin/env python3
"""Compares `spillway tokenize` on GGUF files with the tokenizer t5 with the package sentencepiece, whose files they copy.

usage: sentencepiece_gguf.py SPILLWAY

Every round trains a small Unigram model on random lines, writes its tokens, scores and map of characters as keys of a GGUF
file, and wants the same ids for random texts: words, spaces of all kinds, characters that a map changes, and any others.
SPW_SEED repeats a run, SPW_ROUNDS sets its length. Exit 77 where a package is missing.
"""
import io
import os
import random
import subprocess
import sys
import tempfile

try:
    import gguf
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as protobuf
except ImportError:
    print("skipped: gguf, sentencepiece or protobuf is not installed")
    sys.exit(77)

N_TEXTS = 100
WORDS = "the of Straße naïve Île 東京 привет don't 12 345 ﬁne ① ½ e\u0301 A\u030a ＡＢＣ x² … — “quoted” the theory".split()
SPACES = [" ", " ", " ", "  ", "\t", "\u00a0", "\u3000", "\u2003", "\u200b", "   "]


def random_text(rng):
    parts = []
    for _ in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.6:
            parts.append(rng.choice(WORDS))
        elif kind < 0.8:
            parts.append(chr(rng.choice([rng.randrange(0x21, 0x7F), rng.randrange(0xA1, 0x2FF), rng.randrange(0x2000, 0x33FF)])))
        parts.append(rng.choice(SPACES) if rng.random() < 0.8 else "")
    return "".join(parts)


def train(rng, seed):
    model = io.BytesIO()
    lines = [" ".join(rng.choices(WORDS, k=rng.randrange(3, 9))) for _ in range(300)]
    options = {"normalization_rule_name": rng.choice(["nmt_nfkc", "nmt_nfkc_cf", "identity"]), "byte_fallback": rng.random() < 0.3,
               "add_dummy_prefix": rng.random() < 0.8, "remove_extra_whitespaces": rng.random() < 0.8}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="unigram", vocab_size=rng.choice([100, 160]) + 256 * options["byte_fallback"],
        hard_vocab_limit=False, character_coverage=rng.choice([1.0, 0.98]), num_threads=1, minloglevel=2, **options)
    return model.getvalue(), options


def write_gguf(path, model):
    proto = protobuf.ModelProto()
    proto.ParseFromString(model)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {"block_count": 1, "context_length": 128, "embedding_length": 32, "feed_forward_length": 32,
                       "attention.head_count": 4}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("llama.vocab_size", len(proto.pieces))
    writer.add_tokenizer_model("t5")
    writer.add_token_list([p.piece.encode() for p in proto.pieces])
    writer.add_token_scores([p.score for p in proto.pieces])
    writer.add_token_types([p.type for p in proto.pieces])
    writer.add_unk_token_id(proto.trainer_spec.unk_id)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(proto.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(proto.normalizer_spec.remove_extra_whitespaces)
    if proto.normalizer_spec.precompiled_charsmap:
        writer.add_precompiled_charsmap(proto.normalizer_spec.precompiled_charsmap)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(program, folder, text):
    path = os.path.join(folder, "text")
    with open(path, "w", newline="") as f:
        f.write(text)
    run = subprocess.run([program, "tokenize", os.path.join(folder, "m.gguf"), "--text-file", path], capture_output=True, text=True)
    if "found a text without tokens" in run.stderr:
        return []
    return [int(i) for i in run.stdout.split()] if not run.returncode else run.stderr


def main():
    seed = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(2**32))
    rounds, failed = int(os.environ.get("SPW_ROUNDS") or 10), 0
    print(f"SPW_SEED={seed} sentencepiece {sentencepiece.__version__}", flush=True)
    for number in range(rounds):
        rng = random.Random(f"{seed} {number}")
        model, options = train(rng, seed)
        oracle = sentencepiece.SentencePieceProcessor(model_proto=model)
        with tempfile.TemporaryDirectory() as folder:
            write_gguf(os.path.join(folder, "m.gguf"), model)
            for text in filter(None, (random_text(rng) for _ in range(N_TEXTS))):  # the command refuses an empty text
                want, got = oracle.encode(text), ours(sys.argv[1], folder, text)
                if got != want and failed < 10:
                    print(f"round {number} {options}: {text!r}\n  want {want}\n  got  {got}", flush=True)
                failed += got != want
    print(f"{rounds * N_TEXTS} texts, {failed} differ")
    return failed > 0


sys.exit(main())
