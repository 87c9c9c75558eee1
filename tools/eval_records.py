#!/usr/bin/env python3
"""Measures with spillway how often the bundled model is right, by context length.

    tools/eval_records.py [--model models/records] [--lengths 1024,4096,8192] [--documents 100]

Every document is fresh: its names, numbers and question come from a seed that training never used.
Right means that the greedy answer ends in the number of the record asked for. Standard library only.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import make_records

ROOT = pathlib.Path(__file__).resolve().parent.parent


def count_right(spillway, model, n_tokens, n_documents, seed):
    """Asks one question of each of n_documents documents of at most n_tokens tokens."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as prompts:
        numbers = []
        for i in range(n_documents):
            prompt, record = make_records.make_prompt(n_tokens, "eval/%d/%d/%d" % (seed, n_tokens, i))[:2]
            numbers.append(record.number)
            prompts.write(json.dumps({"id": i, "prompt": prompt}) + "\n")
        prompts.flush()
        run = subprocess.run([spillway, "generate", model, "--prompts", prompts.name,
                              "--max-new-tokens", "32", "--progress", "never"],
                             check=True, capture_output=True, text=True)
    answers = {line["id"]: line["text"] for line in map(json.loads, run.stdout.splitlines())}
    assert len(answers) == n_documents
    return sum(" %s." % number in answers[i] for i, number in enumerate(numbers))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spillway", default=str(ROOT / "build/release/spillway"))
    parser.add_argument("--model", default=str(ROOT / "models/records"))
    parser.add_argument("--lengths", default="256,1024,4096,8192,16384")
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print("| context (tokens) | lookups | right |\n|---|---|---|")
    for n_tokens in map(int, options.lengths.split(",")):
        right = count_right(options.spillway, options.model, n_tokens, options.documents, options.seed)
        print("| %d | %d | %.1f %% |" % (n_tokens, options.documents, 100 * right / options.documents))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
