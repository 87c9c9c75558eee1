#!/usr/bin/env python3
"""Writes a long document of records and one question about it, for the bundled model.

    tools/make_records.py --tokens 16384 --seed 7 --out doc.txt --answer-file answer.txt
    spillway generate models/records --prompt-file doc.txt --max-new-tokens 32

The document is prose such as "The access code of Bergen is 4817." between sentences without a
record. Every name and every number is drawn from the seed, so only the document has the answer. The
document ends with "Q: What is the access code of Bergen?\\nA:" and no newline; the model continues
with " 4817." and its end token.

tools/train_records.py draws its training and test documents from this module. Standard library only.
"""
import argparse
import json
import pathlib
import random
import re
import sys
import zlib

END = "<|endoftext|>"
DEFAULT_TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "models/records/tokenizer.json"

HEADS = ("Ber Kal Tor Ost Vin Mar Sel Gron Hal Lun Dra Fal Wes Nor Pel Ros Stav Tam Ulv Vas "
         "Brem Cor Dal Eld Fen Gar Hol Ist Jor Kir Lor Mel Nes Old Par Rav Sor Tyr Ven Wal "
         "Ang Bol Cas Del Est Fos Gal Han Ing Kor Lam Mon Nar Orm Pol Rin Sal Til Var Yst").split()
MIDDLES = "a e i o u an el in or un al er is om ad ek il ov ur as".split()
TAILS = ("gen mora vik dal heim stad borg by sund nes ford ten low mark ville ton berg wick dorf ria "
         "da na ra sta rin lo mar kov tis vel rup sand holm lund rod mo tin gard via").split()

KINDS = ("access code", "gate number", "radio channel", "vault code", "survey number", "badge number",
         "locker number", "phone extension", "room number")

RECORDS = (
    "The {kind} of {name} is {number}.",
    "The {kind} of {name} is {number}.",
    "It is written that the {kind} of {name} is {number}.",
    "According to the list, the {kind} of {name} is {number}.",
    "As of {day}, the {kind} of {name} is {number}.",
)
QUESTION = "What is the {kind} of {name}?"
ANSWER = " The {kind} of {name} is {number}."

# Fillers: slots are filled from the lists below.
FILLERS = (
    "The {adj} {thing} was {done} on {day}.",
    "On {day} the {who} {did} the {adj} {thing}.",
    "Nobody {did} the {thing} before {day}.",
    "It was {weather} on {day}, and the {who} stayed at the {where}.",
    "The {who} asked the {who2} about the {thing} near the {where}.",
    "There were {count} visitors at the {where}, more than on {day}.",
    "A {adj} {thing} stood beside the {where}.",
    "All of this was {done} by the {who} in {month}.",
    "The {where} stays closed until {day}, for it was {weather}.",
    "In {month} the {who} and the {who2} {did} the {where}.",
)
SLOTS = {
    "adj": "old new green heavy quiet broken long narrow painted wooden small bright empty cold".split(),
    "thing": "bridge ledger engine letter boat window archive cabinet lantern wagon map kettle clock "
             "fence ladder report".split(),
    "done": "repaired moved counted painted described inspected forgotten sold delivered opened".split(),
    "did": "repaired moved counted painted described inspected forgot sold opened visited".split(),
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "month": "January February March April May June July August September October November "
             "December".split(),
    "who": "keeper clerk captain teacher doctor gardener miller sailor guard cook".split(),
    "who2": "mayor baker driver student painter visitor porter singer".split(),
    "where": "harbour station market library tower mill school garden chapel warehouse".split(),
    "weather": "raining windy foggy snowing warm quiet dry".split(),
    "count": "two three five seven nine eleven twelve twenty thirty forty".split(),
}


class Record:
    """One fact: the `kind` (access code) of `name` (Bergen) is `number` (four digits)."""

    def __init__(self, kind, name, number):
        self.kind, self.name, self.number = kind, name, number

    def question(self):
        return QUESTION.format(kind=self.kind, name=self.name)

    def answer(self):
        return ANSWER.format(kind=self.kind, name=self.name, number=self.number)


def held_out(name):
    """True for the one name in eight that training never shows; tests may ask for these only."""
    return zlib.crc32(name.encode()) % 8 == 0


def draw_name(rng):
    middle = rng.choice(MIDDLES) if rng.random() < 0.3 else ""
    return rng.choice(HEADS) + middle + rng.choice(TAILS)


def draw_record(rng, taken, accept=None, kind=None):
    """A record whose name is not in the set `taken` (and passes `accept`); the name is added to it."""
    while True:
        name = draw_name(rng)
        if name not in taken and (accept is None or accept(name)):
            taken.add(name)
            kind = kind or rng.choice(KINDS)
            return Record(kind, name, "%04d" % rng.randrange(10000))


def draw_filler(rng):
    values = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    return rng.choice(FILLERS).format(**values)


class Document:
    """Sentences in order, each with the separator before it, and the records among them.

    With `kind` all records are of that kind, so that nothing but the names tells them apart.
    """

    def __init__(self, rng, filler=0.35, accept=None, kind=None):
        self.rng, self.filler, self.accept, self.kind = rng, filler, accept, kind
        self.taken, self.records, self.pieces = set(), [], []

    def next_piece(self):
        """The next sentence with its leading separator, and its record or None. Not yet added."""
        rng = self.rng
        separator = "" if not self.pieces else "\n\n" if rng.random() < 0.15 else " "
        if rng.random() < self.filler:
            return separator + draw_filler(rng), None
        record = draw_record(rng, self.taken, self.accept, self.kind)
        template = rng.choice(RECORDS)
        text = template.format(kind=record.kind, name=record.name, number=record.number,
                               day=rng.choice(SLOTS["day"]))
        return separator + text, record

    def add(self, piece, record):
        self.pieces.append(piece)
        if record is not None:
            self.records.append(record)

    def text(self):
        return "".join(self.pieces)


def prompt_for(text, record):
    """The exact prompt: the document, a blank line, the question line, and the open answer line."""
    return text + "\n\nQ: " + record.question() + "\nA:"


class TokenCounter:
    """Counts the tokens of ASCII text as the model's byte-level BPE would, without its library."""

    # The ASCII case of the model's split pattern (see train_records.py).
    SPLIT = re.compile(r"'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]"
                       r"| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

    def __init__(self, path):
        model = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["model"]
        pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        self.cache = {}

    def word(self, word):
        # Byte-level BPE writes a space as U+0120 and a newline as U+010A.
        parts = list(word.replace(" ", "\u0120").replace("\n", "\u010a"))
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(zip(parts, parts[1:]))]
            rank, i = min(ranked)
            if rank == 1 << 30:
                break
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        return len(parts)

    def count(self, text):
        total = 0
        for word in self.SPLIT.findall(text):
            if word not in self.cache:
                self.cache[word] = self.word(word)
            total += self.cache[word]
        return total


def make_prompt(n_tokens, seed, question=None, tokenizer=DEFAULT_TOKENIZER, filler=0.35, accept=None):
    """A prompt of at most n_tokens tokens (and hardly fewer), the record it asks for, all records.

    `question` is the index of the record asked for (0 = the first, -1 = the last); None draws one.
    """
    counter = TokenCounter(tokenizer)
    rng = random.Random(seed)
    document = Document(rng, filler, accept)
    longest_question = 40
    total = longest_question
    while True:
        piece, record = document.next_piece()
        total += counter.count(piece)
        if total > n_tokens:
            break
        document.add(piece, record)
    if not document.records:
        raise ValueError("%d tokens hold no record; ask for 100 or more" % n_tokens)
    index = rng.randrange(len(document.records)) if question is None else question
    if not -len(document.records) <= index < len(document.records):
        raise ValueError("question %d: the document has %d records" % (index, len(document.records)))
    record = document.records[index]
    return prompt_for(document.text(), record), record, document.records


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=4096, help="length of the prompt (default 4096)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same document (default 1)")
    parser.add_argument("--question", type=int, metavar="K",
                        help="which record to ask for: 0 the first, -1 the last (default: drawn)")
    parser.add_argument("--filler", type=float, default=0.35,
                        help="share of the sentences that carry no record (default 0.35)")
    parser.add_argument("--out", help="where the prompt goes (default: standard output)")
    parser.add_argument("--answer-file", help="where the expected answer goes, such as 4817")
    parser.add_argument("--tokenizer", default=DEFAULT_TOKENIZER,
                        help="tokenizer.json that counts the tokens (default: the bundled model's)")
    args = parser.parse_args()
    try:
        prompt, record, records = make_prompt(args.tokens, args.seed, args.question, args.tokenizer,
                                              args.filler)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if args.out:
        pathlib.Path(args.out).write_text(prompt, encoding="utf-8", newline="")
    else:
        sys.stdout.write(prompt)
    if args.answer_file:
        pathlib.Path(args.answer_file).write_text(record.number + "\n", encoding="utf-8")
    print("%d records; record %d is asked for: %s expected answer: %s"
          % (len(records), records.index(record), record.question(), record.number), file=sys.stderr)


if __name__ == "__main__":
    main()
