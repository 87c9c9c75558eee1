"""The tokenizer and the training documents of tools/train_records.py."""
import math
import random

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import make_records as mr
from records_model import CONFIG, MAX_POSITIONS

SEED = 20261120

# ----------------------------------------------------------------------------------- tokenizer
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")  # as Qwen2: every digit is a token of its own


def build_tokenizer(folder):
    """A byte-level BPE of 768 tokens learned from generated documents; the end token is id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    texts = []
    for i in range(400):
        rng = random.Random("%d/tokenizer/%d" % (SEED, i))
        document = mr.Document(rng)
        while len(document.pieces) < 200:
            document.add(*document.next_piece())
        text = document.text() + "".join("\n\nQ: %s\nA:%s" % (r.question(), r.answer())
                                         for r in document.records[:20])
        # Names are cut into their syllables, so that no token spans two of them.
        for record in document.records:
            text = text.replace(record.name, record.name[:3])
        texts.append(text + "".join("\n" + rng.choice(mr.MIDDLES + mr.TAILS * 3) for _ in range(600))
                     + "".join(" " + rng.choice(mr.HEADS) for _ in range(400)))
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(mr.END, special=True, normalized=False)], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.token_to_id(mr.END) == 0 and tokenizer.get_vocab_size() == CONFIG["vocab_size"]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


# ---------------------------------------------------------------------------------------- data
class Source:
    """Training documents: [T] tokens, positions with gaps, loss weights, and answer marks."""

    def __init__(self, tokenizer_path, accept):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self.counter = mr.TokenCounter(tokenizer_path)
        self.accept = accept
        vocab = self.tokenizer.get_vocab()
        self.ends_sentence = np.zeros(len(vocab), bool)
        self.is_digit = np.zeros(len(vocab), bool)
        for token, i in vocab.items():
            self.ends_sentence[i] = token.startswith(".")
            self.is_digit[i] = token.isdigit()

    def text(self, rng, n_tokens, question_share):
        """A document with many questions -> text, and the character ranges of the answers."""
        # Where kinds tell few records apart, the model would learn to match the kind and never the name.
        kind = rng.choice(mr.KINDS) if rng.random() < 0.8 else None
        document = mr.Document(rng, rng.choice((0.0, 0.2, 0.35, 0.35, 0.6)), self.accept, kind)
        total, limit = 0, n_tokens * (1 - question_share * rng.uniform(0.6, 1.0))
        while True:
            piece, record = document.next_piece()
            total += self.counter.count(piece)
            if total > limit and document.records:
                break
            document.add(piece, record)
        parts, spans, length = [document.text()], [], len(document.text())
        for record in rng.sample(document.records, len(document.records)):
            question = "\n\nQ: " + record.question() + "\nA:"
            total += self.counter.count(question + record.answer()) + 1
            if total > n_tokens:
                break
            # Mostly an answer is closed by the end token; now and then a plain blank line follows.
            answer = record.answer() + (mr.END if rng.random() < 0.8 else "")
            begin = length + len(question)
            spans.append((begin, begin + len(answer)))
            parts += [question, answer]
            length = begin + len(answer)
        return "".join(parts), spans

    def batch(self, rng, n_docs, n_tokens, question_share):
        texts, spans = zip(*[self.text(rng, n_tokens, question_share) for _ in range(n_docs)])
        ids = np.zeros((n_docs, n_tokens + 1), np.int64)
        weight = np.zeros((n_docs, n_tokens + 1), np.float32)
        answer = np.full((n_docs, n_tokens + 1), -1, np.int64)  # number of the question it answers
        positions = np.zeros((n_docs, n_tokens + 1), np.int64)
        n_questions = 0
        for row, encoding in enumerate(self.tokenizer.encode_batch(list(texts))):
            n = min(len(encoding.ids), n_tokens + 1)
            tokens = np.array(encoding.ids[:n])
            ids[row, :n] = tokens
            start = np.array([o[0] for o in encoding.offsets[:n]])
            end = np.array([o[1] for o in encoding.offsets[:n]])
            # A quarter of the plain language has a small weight; the numbers inside records, which are
            # pure chance, have none.
            weight[row, row % 4:n:4] = 0.4
            weight[row, :n][self.is_digit[tokens]] = 0.0
            for begin, stop in spans[row]:
                inside = (start >= begin) & (end <= stop)
                if inside.any():
                    weight[row, :n][inside] = np.where(self.is_digit[tokens[inside]], 1.0, 0.3)
                    answer[row, :n][inside] = n_questions
                    n_questions += 1
            positions[row, :n] = self.positions(rng, tokens)
            positions[row, n:] = positions[row, n - 1]
        return ids, positions, weight, answer, n_questions

    def positions(self, rng, tokens):
        """Consecutive within a sentence; between sentences gaps that spread over a random range."""
        n = len(tokens)
        plain = np.arange(n)
        if rng.random() < 0.25:
            return plain
        span = math.exp(rng.uniform(math.log(n), math.log(MAX_POSITIONS - 1)))
        noise = np.random.default_rng(rng.getrandbits(32))
        gaps = np.zeros(n)
        spots = np.flatnonzero(self.ends_sentence[tokens[:-1]]) + 1
        gaps[spots] = noise.exponential(size=len(spots)) ** rng.choice((1, 2))
        gaps[0] = noise.exponential()
        gaps *= max(0.0, span - n) / max(gaps.sum(), 1e-9)
        return plain + np.cumsum(gaps).astype(np.int64)
