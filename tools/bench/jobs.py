#!/usr/bin/env python3
"""Measures jobs: short items, mixed lengths, what the files of a job cost, a resumed job.

    tools/bench/jobs.py short MODEL      64 short items: batch beside generate with N sessions
    tools/bench/jobs.py mixed MODEL      prompts of 16 to 2,048 tokens beside prompts and answers alone
    tools/bench/jobs.py files MODEL      batch beside the same job without files, in pairs
    tools/bench/jobs.py resume MODEL     100,000 lines, half of them done: the first new line

Prints medians of whole processes; runs are interleaved. Items are random token ids, so MODEL needs no
tokenizer.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time


def vocabulary(model):
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    return config.get("text_config", config)["vocab_size"]


def write_items(path, lengths, vocab, max_new=None):
    rng = random.Random(1)
    with open(path, "w") as f:
        for i, n in enumerate(lengths):
            item = {"id": f"i{i}", "tokens": [rng.randrange(vocab) for _ in range(n)]}
            if max_new:
                item["max_new_tokens"] = max_new[i]
            f.write(json.dumps(item) + "\n")


class Bench:
    def __init__(self, args):
        self.o = args
        self.common = ["--device", "cpu", "--quiet", "--ignore-eos"]
        if args.new_tokens:
            self.common += ["--max-new-tokens", str(args.new_tokens)]
        self.vocab = vocabulary(args.model)

    def run(self, *words):
        """Seconds of the whole process."""
        start = time.monotonic()
        subprocess.run([self.o.command, words[0], self.o.model, *words[1:], *self.common],
                       stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - start

    def report(self, *words):
        self.run(*words, "--report", "report.json")
        return json.loads(pathlib.Path("report.json").read_text())

    def batch(self, items):
        for f in pathlib.Path(".").glob("out.jsonl*"):
            f.unlink()
        return self.run("batch", "--input", items, "--output", "out.jsonl")

    def medians(self, runs):
        """runs: {name: call that returns seconds}"""
        seconds = {name: [] for name in runs}
        for _ in range(self.o.rounds):
            for name, call in runs.items():
                seconds[name].append(call())
        for name, s in seconds.items():
            print(f"{name:16} {statistics.median(s):8.3f} s   ({min(s):.3f} to {max(s):.3f})")
        return {name: statistics.median(s) for name, s in seconds.items()}, seconds

    def short(self):
        write_items("items.jsonl", [40 + i % 9 for i in range(64)], self.vocab)
        runs = {"batch": lambda: self.batch("items.jsonl")}
        for n in (4, 8, 16, 32, 64):
            runs[f"generate {n}"] = lambda n=n: self.run("generate", "--prompts", "items.jsonl",
                                                         "--sessions", str(n))
        median, _ = self.medians(runs)
        best = min(s for name, s in median.items() if name != "batch")
        print(f"speed of batch / best: {best / median['batch']:.3f}")

    def mixed(self):
        """Prompts alone: the same prompts, one new token each. Answers alone: prompts of 16 tokens, the
        same answers; the steps of decoding only."""
        rng = random.Random(2)
        prompts = [int(16 * 128 ** rng.random()) for _ in range(self.o.items)]
        answers = [rng.randrange(4, 65) for _ in prompts]
        write_items("items.jsonl", prompts, self.vocab, answers)
        write_items("prompts.jsonl", prompts, self.vocab, [1] * len(prompts))
        write_items("answers.jsonl", [16] * len(prompts), self.vocab, answers)
        seconds = []
        for _ in range(self.o.rounds):
            job, p, a = (self.report("generate", "--prompts", f, "--sessions", "64")
                         for f in ("items.jsonl", "prompts.jsonl", "answers.jsonl"))
            prompt_speed = p["n_prompt"] / p["prefill_seconds"]
            # the first token of each answer comes from the step of its prompt
            answer_speed = (a["n_generated"] - len(prompts)) / (a["decode_seconds"] or 1)
            seconds.append((self.batch("items.jsonl"), prompt_speed, answer_speed))
        job, prompt_speed, answer_speed = (statistics.median(x) for x in zip(*seconds))
        tokens = sum(prompts) + sum(answers)
        print(f"{len(prompts)} items, {sum(prompts)} tokens of prompts, {sum(answers)} of answers: {job:.2f} s")
        print(f"alone: prompts {prompt_speed:.1f} tokens/s, answers {answer_speed:.1f} tokens/s")
        slower = tokens / min(prompt_speed, answer_speed)
        both = sum(prompts) / prompt_speed + sum(answers) / answer_speed
        print(f"speed beside (work / slower of the two): {slower / job:.3f}")
        print(f"speed beside (prompts alone + answers alone): {both / job:.3f}")

    def files(self):
        write_items("items.jsonl", [40 + i % 9 for i in range(self.o.items)], self.vocab)
        _, seconds = self.medians({
            "batch": lambda: self.batch("items.jsonl"),
            "without files": lambda: self.run("generate", "--prompts", "items.jsonl", "--sessions", "64"),
        })
        ratios = sorted(a / b for a, b in zip(seconds["batch"], seconds["without files"]))
        print(f"batch / without files: median of pairs {statistics.median(ratios):.4f} "
              f"({ratios[0]:.4f} to {ratios[-1]:.4f})")

    def resume(self):
        n = 100000
        write_items("items.jsonl", [8] * n, self.vocab, [1] * n)
        with open("items.jsonl") as f, open("half.jsonl", "w") as half:
            half.writelines(line for i, line in enumerate(f) if i < n // 2)
        self.batch("half.jsonl")
        seconds = []
        for name in ["items.jsonl"] * self.o.rounds:
            seconds.append(self.first_line(name))
        os.rename("out.jsonl", "old.jsonl")
        for f in pathlib.Path(".").glob("out.jsonl*"):
            f.unlink()
        write_items("few.jsonl", [8] * 200, self.vocab, [1] * 200)
        fresh = self.first_line("few.jsonl")
        print(f"first new line: {statistics.median(seconds):.2f} s after {n // 2} lines that are done, "
              f"{fresh:.2f} s in a new job")

    def first_line(self, items):
        """Seconds until the output grows. The process is then ended as by a scheduler."""
        out = pathlib.Path("out.jsonl")
        before = out.stat().st_size if out.exists() else 0
        start = time.monotonic()
        with subprocess.Popen([self.o.command, "batch", self.o.model, "--input", items, "--output", str(out),
                               *self.common], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
            while not out.exists() or out.stat().st_size <= before:
                if p.poll() is not None:
                    sys.exit(f"{items}: the job ended with {p.returncode} before its first new line")
                time.sleep(0.001)
            seconds = time.monotonic() - start
            p.terminate()
        return seconds


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["short", "mixed", "files", "resume"])
    p.add_argument("model")
    p.add_argument("--command", default="build/release/spillway")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--items", type=int, default=64)
    p.add_argument("--new-tokens", type=int, default=0)
    args = p.parse_args()
    args.command, args.model = os.path.abspath(args.command), os.path.abspath(args.model)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        getattr(Bench(args), args.what)()
        os.chdir("/")


if __name__ == "__main__":
    main()
