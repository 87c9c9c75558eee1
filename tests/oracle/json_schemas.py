#!/usr/bin/env python3
"""Compares grammars of JSON schemas with the `jsonschema` package from PyPI.

usage: json_schemas.py TEST_GRAMMAR   (the built test_grammar)

Every round makes a random schema of the supported subset. Random documents of the schema, with the
members in its order and random white space, must be valid for the package and accepted by the
grammar; a document with a changed part is accepted only if it is valid; and what the grammar writes
at random must be valid. Where the data folder has a tokenizer, documents are then cut into its
tokens at random: see check_masks in tests/unit/model/test_grammar.c. Exit 77 where the package is
missing. SPW_SEED repeats a run, SPW_ROUNDS sets its length.
"""
import json
import os
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: the jsonschema package is not installed")
    sys.exit(77)

PATTERNS = [("^[a-c]{2,}(x|[0-9]+)?$", ["ab", "ccx", "aa12"]), ("q\\\\", ["q\\", "aq\\z"]),
            ("^(?:no|yes)$", ["no", "yes"]), ("^.{1,3}$", ["a", "é\"z"]), ("[^a]$", ["ab", "b"]),
            ("^.{0,2}[a-z]{4}$", ["word", "a-word", "é<then"])]
FORMATS = [("date", ["2026-11-29"]), ("time", ["06:00:00Z"]), ("date-time", ["2026-01-31T23:59:59.5+02:00"]),
           ("uuid", ["123e4567-e89b-12d3-a456-426614174000"]), ("email", ["a.b@example.org"])]
KEYS = ["a", "ab", "abc", "b", "é", "k\"", "x y", "éa"]
CHARS = "abz09 é\"\\/\n\t😀"


def text(rng, least=0, most=6):
    return "".join(rng.choice(CHARS) for _ in range(rng.randint(least, most)))


def scalar(rng):
    return rng.choice([None, True, False, 0, -7, 12, 0.5, "", "a", text(rng)])


def string(rng):
    kind = rng.randrange(4)
    if kind == 0:
        pattern, samples = rng.choice(PATTERNS)
        return {"type": "string", "pattern": pattern}, lambda: rng.choice(samples)
    if kind == 1:
        name, samples = rng.choice(FORMATS)
        return {"type": "string", "format": name}, lambda: rng.choice(samples)
    if kind == 2:
        least = rng.randrange(4)
        most = least + rng.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": most}, lambda: text(rng, least, most)
    return {"type": "string"}, lambda: text(rng)


def number(rng):
    low = rng.choice([None, 0, -1, -120, 7, 10 ** 15, rng.randint(-10 ** 6, 10 ** 6)])
    high = rng.choice([None, (low or 0) + rng.choice([2, 10, 1000, 123456])])
    above, below = rng.random() < 0.5, rng.random() < 0.5
    is_integer = rng.random() < 0.5
    schema = {"type": "integer" if is_integer else "number"}
    if low is not None:
        schema["exclusiveMinimum" if above else "minimum"] = low
    if high is not None:
        schema["exclusiveMaximum" if below else "maximum"] = high

    def value():
        first = low + above if low is not None else (high if high is not None else 0) - 1000
        last = high - below if high is not None else first + 1000
        whole = rng.randint(first, last)
        # Beside a bound that is excluded, the grammar writes 15 digits only.
        has_half = not is_integer and first <= whole < last and abs(whole) < 10 ** 14
        return whole + 0.5 if has_half and rng.random() < 0.5 else whole
    return schema, value


def array(rng, depth, defs):
    prefix = [any_schema(rng, depth - 1, defs) for _ in range(rng.choice([0, 0, 1, 2]))]
    item, make = any_schema(rng, depth - 1, defs)
    least = rng.randrange(3)
    most = max(least, len(prefix)) + rng.randrange(3)
    schema = {"type": "array", "items": item, "minItems": least, "maxItems": most}
    if prefix:
        schema["prefixItems"] = [s for s, _ in prefix]

    def value():
        n = rng.randint(least, most)
        return [prefix[i][1]() if i < len(prefix) else make() for i in range(n)]
    return schema, value


def object_(rng, depth, defs):
    keys = rng.sample(KEYS, rng.randrange(5))
    members = {k: any_schema(rng, depth - 1, defs) for k in keys}
    required = [k for k in keys if rng.random() < 0.6]
    others = rng.choice([None, False, True, any_schema(rng, depth - 1, defs)])
    schema = {"type": "object", "properties": {k: s for k, (s, _) in members.items()}, "required": required}
    if others is not None:
        schema["additionalProperties"] = others if isinstance(others, bool) else others[0]

    def value():
        out = {k: make() for k, (_, make) in members.items() if k in required or rng.random() < 0.5}
        for k in rng.sample(["z", "abcd", "", "éb"], rng.randrange(3)) if others else []:
            out[k] = scalar(rng) if others is True else others[1]()
        return out
    return schema, value


def all_of(rng, depth, defs):
    one, make = any_schema(rng, depth - 1, defs)
    two, other = any_schema(rng, depth - 1, defs)
    parts = [{"type": "object", "properties": {"p": one}, "required": ["p"]},
             {"type": "object", "properties": {"q": two}}]
    return {"allOf": parts}, lambda: {"p": make(), **({"q": other()} if rng.random() < 0.5 else {})}


def any_schema(rng, depth, defs):
    kind = rng.randrange(10 if depth > 0 else 5)
    if kind == 0:
        return string(rng)
    if kind == 1:
        return number(rng)
    if kind == 2:
        return rng.choice([({"type": "boolean"}, lambda: rng.random() < 0.5), ({"type": "null"}, lambda: None),
                           ({"type": ["integer", "null"]}, lambda: rng.choice([None, 3])), ({}, lambda: scalar(rng))])
    if kind == 3:
        values = [scalar(rng) for _ in range(rng.randint(1, 4))]
        return rng.choice([({"enum": values}, lambda: rng.choice(values)), ({"const": values[0]}, lambda: values[0])])
    if kind == 4 and defs is not None:
        return {"$ref": "#/$defs/N"}, lambda: rng.choice([{"v": 1, "n": None}, {"v": 2, "n": {"v": 3, "n": None}}])
    if kind in (4, 5, 6):
        return object_(rng, depth, defs) if depth > 0 else number(rng)
    if kind == 7:
        return array(rng, depth, defs)
    if kind == 8:
        return all_of(rng, depth, defs)
    one, two = object_(rng, depth - 1, defs), string(rng)
    return {rng.choice(["anyOf", "oneOf"]): [one[0], two[0]]}, lambda: rng.choice([one, two])[1]()


def write(rng, value, escape):
    """JSON with the white space of the grammar."""
    def gap():
        return rng.choice(["", "", "", " ", "\n", "\n" + " " * rng.randrange(21), "\n\n\t"])
    if isinstance(value, dict):
        inner = [json.dumps(k, ensure_ascii=False) + gap() + ":" + gap() + write(rng, v, escape) for k, v in value.items()]
    elif isinstance(value, list):
        inner = [write(rng, v, escape) for v in value]
    else:
        return json.dumps(value, ensure_ascii=escape)
    marks = "{}" if isinstance(value, dict) else "[]"
    body = inner[0] if inner else ""
    for one in inner[1:]:
        body += gap() + "," + gap() + one
    return marks[0] + gap() + body + gap() + marks[1]


def changed(rng, value):
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        out = dict(value)
        if rng.random() < 0.3:
            del out[key]
        else:
            out[key] = changed(rng, value[key])
        return out
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return value[:at] + [changed(rng, value[at])] + value[at + 1:]
    return scalar(rng)


def run(program, *args):
    done = subprocess.run([program, *args], capture_output=True)
    if done.returncode:
        raise AssertionError(f"{done.stdout!r} {done.stderr!r}")
    return done.stdout


def random_schema(rng):
    defs = rng.choice([None, {"N": {"type": "object", "required": ["v", "n"], "properties": {
        "v": {"type": "integer"}, "n": {"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}}}}])
    schema, make = any_schema(rng, 3, defs)
    if defs:
        schema = {**schema, "$defs": defs} if "$ref" not in schema else {"$ref": schema["$ref"], "$defs": defs}
    return schema, make


def check(program, rng, schema, make):
    """Documents that the grammar accepts, and the number of those that it wrote."""
    validator = jsonschema.Draft202012Validator(schema)
    good = [make() for _ in range(6)]
    for value in good:
        if not validator.is_valid(value):
            raise AssertionError(f"the generator is wrong: {value!r}")
    bad = [changed(rng, v) for v in good]
    texts = [write(rng, v, False) for v in good] + [write(rng, v, False) for v in bad]
    answers = run(program, json.dumps(schema), *texts).split()
    for i, text_ in enumerate(texts):
        if i < len(good) and answers[i] != b"1":
            raise AssertionError(f"valid, but refused: {text_!r}")
        if i >= len(good) and answers[i] == b"1" and not validator.is_valid(bad[i - len(good)]):
            raise AssertionError(f"not valid, but accepted: {text_!r}")
    written = run(program, "--write", "2", str(rng.randrange(2 ** 32)), json.dumps(schema)).split(b"\0")[:-1]
    for text_ in written:
        if not validator.is_valid(json.loads(text_)):
            raise AssertionError(f"not valid, but written: {text_!r}")
    return texts[:len(good)], len(written)


def check_masks(program, seed, lines):
    """Whether the masks are right. lines: JSON lists of a schema and its documents."""
    tokenizer = os.path.join(os.environ.get("SPW_DATA", "../shared/data"), "tokenizers/qwen2.5/tokenizer.json")
    if not os.path.exists(tokenizer):
        print("masks: skipped, no tokenizer")
        return True
    done = subprocess.run([program, "--masks", tokenizer, str(seed)], input="\n".join(lines) + "\n", text=True)
    return done.returncode == 0


def main():
    program = sys.argv[1]
    seed = int(os.environ.get("SPW_SEED", random.randrange(2 ** 32)))
    rounds = int(os.environ.get("SPW_ROUNDS", 300 if os.environ.get("SPW_FULL") else 40))
    n_written, lines = 0, []
    for i in range(rounds):
        rng = random.Random(seed * 1000003 + i)
        schema = random_schema(rng)
        try:
            texts, n = check(program, rng, *schema)
            n_written += n
            lines.append(json.dumps([json.dumps(schema[0]), *[t for t in texts if len(t) < 200][:2]]))
        except AssertionError as why:
            print(f"seed {seed}, round {i}: {json.dumps(schema[0], ensure_ascii=False)}\n{why}")
            return 1
    print(f"{rounds} schemas, {n_written} documents written by grammars; seed {seed}")
    return 0 if check_masks(program, seed, lines) else 1


sys.exit(main())
