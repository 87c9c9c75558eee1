#!/usr/bin/env python3
"""Measures `generate` with and without drafts from the text, on tasks whose answers repeat their prompt, or do not.

    tools/bench/drafts.py MODEL --task copy|summary|questions|bias [--rounds 3] [--new-tokens 400] [--disk DIR]
                                [--device-memory BYTES] [--host-memory BYTES] [--text FILE] [--drafts auto]

The tasks: `copy` and `summary` are for a model with a chat template: repeat a text of some 2,000 tokens, or summarize it.
A bias forces edits on the copy: the token that the model's own copy has most often (" the", for example) may not be
picked, so the model goes around it and then goes on. `questions` is for models/records: 24 questions about a document of
2,000 tokens; an answer repeats a sentence. `bias` needs no trained model and no tokenizer: a bias makes the model repeat one
token, so all drafts stay, which is the most that drafts can do.

--disk: host and device get a quarter of the weights together, and most weights come from their files for each step; KV that
fits nowhere else goes to DIR.

A round runs off and then on, so slow minutes of the machine affect both. The answers and the hashes of their logits must be
the same. The table has the medians, and the quotient as the median of the rounds with the least and the most. SPILLWAY is
the command, default build/release/spillway. Standard library only.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import make_records  # noqa: E402


def prose(path, n_letters=8000):
    """The paragraphs of a page without code, tables, lists and headings."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", pathlib.Path(path).read_text(encoding="utf-8"), flags=re.S)
    parts = [" ".join(p.split()) for p in text.split("\n\n") if p.strip() and p.strip()[0] not in "|#-"]
    return "\n\n".join(parts)[:n_letters].rsplit(". ", 1)[0] + "."


def lines(task, text):
    """The lines of --prompts."""
    if task == "questions":
        prompt, _, records = make_records.make_prompt(2000, "drafts", 0)
        document = prompt[:prompt.rindex("\n\nQ: ")]
        return [{"prompt": make_records.prompt_for(document, r)} for r in random.Random(1).sample(records, 24)]
    if task == "bias":
        random.seed(1)
        return [{"tokens": [random.randrange(100000) for _ in range(500)]}]
    ask = "Summarize this text in about 150 words." if task == "summary" else "Repeat this text word for word."
    return [{"messages": [{"role": "user", "content": ask + "\n\n" + text}]}]


def weight_bytes(model):
    path = pathlib.Path(model)
    return sum(f.stat().st_size for f in path.glob("*.safetensors")) if path.is_dir() else path.stat().st_size


def options_of(a):
    options = ["--max-new-tokens", str(a.new_tokens), "--sessions", "1", "--quiet"]
    if a.task == "bias":
        options += ["--ignore-eos", "--logit-bias", "1000=100"]
    if a.disk:
        device = a.device_memory or weight_bytes(a.model) // 4 - a.host_memory
        options += ["--device-memory", str(device), "--host-memory", str(a.host_memory), "--disk", a.disk,
                    "--on-oom", "spill"]
    return options


def run(a, prompts, drafts, scratch, more=()):
    spillway = os.environ.get("SPILLWAY", str(ROOT / "build/release/spillway"))
    report = os.path.join(scratch, "report.json")
    command = [spillway, "generate", a.model, "--prompts", prompts, "--drafts", drafts, "--report", report]
    done = subprocess.run(command + options_of(a) + list(more), capture_output=True, text=True)
    if done.returncode:
        sys.exit("drafts.py: %s: %s" % (" ".join(command), done.stderr.strip()))
    with open(report, encoding="utf-8") as file:
        r = json.load(file)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    r["answers"] = sorted((x["id"], x["tokens"], x["logits_hash"]) for x in answers)
    r["rate"] = r["n_generated"] / r["decode_seconds"]
    r["disk"] = r["moved_bytes"]["disk_to_host"]["counted"]
    return r


def forced_edits(a, prompts, scratch):
    """The options that forbid the token which the copy has most often."""
    if a.task != "copy":
        return []
    [(_, tokens, _)] = run(a, prompts, "auto", scratch)["answers"]
    token, n = collections.Counter(tokens).most_common(1)[0]
    print("%d of %d tokens of the copy are the token %d: forbidden" % (n, len(tokens), token))
    return ["--logit-bias", "%d=-100" % token]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--task", choices=("copy", "summary", "questions", "bias"), required=True)
    parser.add_argument("--text", default=str(ROOT / "ARCHITECTURE.md"), help="a page with prose")
    parser.add_argument("--new-tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", metavar="DIR")
    parser.add_argument("--device-memory", type=int, help="with --disk: bytes (a quarter of the weights, less the host's)")
    parser.add_argument("--host-memory", type=int, default=24 << 20, help="with --disk: bytes (24 MiB)")
    parser.add_argument("--drafts", default="auto")
    a = parser.parse_args()
    rates, quotients = {"off": [], a.drafts: []}, []
    with tempfile.TemporaryDirectory() as scratch:
        prompts = os.path.join(scratch, "prompts.jsonl")
        with open(prompts, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"id": i, **x}) + "\n" for i, x in enumerate(lines(a.task, prose(a.text))))
        edits = forced_edits(a, prompts, scratch)
        for i in range(a.rounds):
            off, on = (run(a, prompts, drafts, scratch, edits) for drafts in rates)
            assert off["answers"] == on["answers"], "drafts have changed an answer"
            rates["off"].append(off["rate"])
            rates[a.drafts].append(on["rate"])
            quotients.append(on["rate"] / off["rate"])
            print("round %d: %d tokens, %.1f and %.1f tokens/s, %.2f x; %d of %d drafts stayed; from disk %.2f and %.2f GB"
                  % (i + 1, off["n_generated"], off["rate"], on["rate"], quotients[-1], on["n_accepted"], on["n_drafted"],
                     off["disk"] / 1e9, on["disk"] / 1e9), flush=True)
    print("| task | off, tokens/s | %s, tokens/s | quotient | least | most |\n|---|---|---|---|---|---|" % a.drafts)
    print("| %s%s | %.1f | %.1f | %.2f | %.2f | %.2f |"
          % (a.task, ", from disk" if a.disk else "", *map(statistics.median, rates.values()),
             statistics.median(quotients), min(quotients), max(quotients)))


if __name__ == "__main__":
    main()
