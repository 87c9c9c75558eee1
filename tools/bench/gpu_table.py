#!/usr/bin/env python3
"""Makes the page of results of tools/gpu_check.sh: OUTDIR/*.json to OUTDIR/table.txt and summary.json.

    tools/bench/gpu_table.py OUTDIR

Every number comes from a file that a program wrote in this run. The page names numbers that were not
measured. Exit 0 also if a target was missed (the table shows it), 1 if a test failed.
"""

import glob
import json
import os
import sys


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def percent(value):
    return "not measured" if value is None else f"{100 * value:.1f} %"


def gib(n):
    return f"{n / 2**30:.2f} GiB"


class Table:
    def __init__(self):
        self.lines, self.targets = [], []

    def say(self, text=""):
        self.lines.append(text)

    def target(self, what, value, wanted, at_least=True, show=percent):
        """A ratio against what it must reach."""
        reached = None if value is None else value >= wanted if at_least else value <= wanted
        self.targets.append({"what": what, "measured": value, "target": wanted,
                             "at_least": at_least, "reached": reached})
        verdict = {None: "-", True: "reached", False: "MISSED"}[reached]
        self.say(f"  {what:<66} {show(value):>12}  {'>=' if at_least else '<='} {show(wanted):<8} {verdict}")


def tests(table, out):
    data = load(os.path.join(out, "tests.json"))
    if not data:
        table.say("tests: none were run")
        table.say()
        return []
    failed = [t["name"] for t in data if t["result"] == "failed"]
    table.say("tests: " + ", ".join(f"{sum(t['result'] == result for t in data)} {result}"
                                    for result in ("passed", "failed", "unfinished", "skipped")))
    for t in data:
        if t["result"] != "passed":
            table.say(f"  {t['result']}: {t['name']} ({t['seconds']} s; {t['log']})")
    table.say()
    return failed


def bench(table, name, data):
    machine = data["machine"]
    table.say(f"{name}: {data['backend']}, {data['compute']}, medians of {data['repeat']}")
    table.say(f"  measured in this run: device reads {machine['read_bytes_per_second'] / 1e9:.0f} GB/s, pinned copies "
              f"{machine['copy_bytes_per_second'] / 1e9:.1f} GB/s, bf16 products "
              f"{machine['many_row_flops']['bf16'] / 1e12:.0f} TFLOP/s")
    bases = {}
    for given in data["cases"]:
        case = {k: v["median"] if isinstance(v, dict) else v for k, v in given.items()}
        base = bases.setdefault(case["context"], case)
        where = f"{case['context']} tokens, {gib(case['device_budget_bytes'])}"
        moved, decode = case["decode_moved_bytes"], case["decode_seconds_per_token"]
        # the copies take longer than the computation: a token's time where nothing moves, if there is such a case
        alone = base["decode_moved_bytes"] < 1e6
        spilled = case["link_fraction"] * (case["decode_slowdown"] if alone else 2) > 1
        table.say(f"  -- {where}: {case['decode_tokens_per_second']:.2f} tokens/s, prompt "
                  f"{case['prefill_seconds']:.2f} s, {moved / 1e6:.0f} MB a token over the link, "
                  f"{1e3 * case['unhidden_wait_seconds_per_token']:.2f} of {1e3 * decode:.2f} ms waited")
        if case["decode_disk_bytes"]:
            table.target(f"{where}: decode of the reads of the drive", case["disk_fraction"], 0.85)
        elif spilled:
            table.target(f"{where}: link", case["link_fraction"], 0.95)
        elif moved < 1e6:
            table.target(f"{where}: resident decode of device reads", case["decode_fraction_of_read"], 0.80)
        table.target(f"{where}: prompt of products alone", case["prefill_fraction_of_products"], 0.60)
        if case["prefill_slowdown"] != 1:
            table.target(f"{where}: prompt time over the first budget's", case["prefill_slowdown"], 1.05, False)
        table.say(f"     peak {gib(case['device_peak_bytes'])}; the driver says {gib(case['card_bytes'])} are gone from "
                  f"the card ({gib(max(case['card_bytes'] - case['device_peak_bytes'], 0))} of kernels and streams "
                  "beside the budget)")
    table.say()


def comparison(table, out):
    for path in sorted(glob.glob(os.path.join(out, "hf_*.json"))):
        hf, ours = load(path), load(path.replace("hf_", "spillway_"))
        if not hf or not ours or not ours.get("decode_seconds"):
            continue
        rate = (ours["n_generated"] - 1) / ours["decode_seconds"]
        ratio = rate / hf["decode_tokens_per_second"]
        table.say(f"transformers {hf['transformers']}, offloaded cache, {hf['context']} tokens: "
                  f"{hf['decode_tokens_per_second']:.2f} tokens/s, {gib(hf['peak_device_bytes'])}; spillway "
                  f"{rate:.2f} tokens/s, {gib(ours['peak_bytes']['device'])}: {ratio:.1f} x (aim 10 x); "
                  + ("the same tokens" if hf["tokens"] == ours["tokens"] else "other tokens (bf16 roundings differ)"))
    table.say()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1].strip())
    out, table = sys.argv[1], Table()
    facts = load(os.path.join(out, "machine.json")) or {}
    table.say(f"spillway on a GPU, {facts.get('date', '')}: {facts.get('gpu', 'unknown GPU')}")
    table.say(f"  {facts.get('cpu', '')}, {facts.get('memory', '')}, {facts.get('version', '')}, {facts.get('seconds', '?')} s in all")
    for note in facts.get("notes", []):
        table.say(f"  note: {note}")
    table.say()
    failed = tests(table, out)
    summary = {"machine": facts, "tests": load(os.path.join(out, "tests.json")), "benches": {}}
    for path in sorted(glob.glob(os.path.join(out, "bench_*.json"))):
        data = load(path)
        if data:
            name = os.path.basename(path)[6:-5]
            summary["benches"][name] = data
            bench(table, name, data)
    comparison(table, out)
    summary["targets"] = table.targets
    missed = sum(t["reached"] is False for t in table.targets)
    table.say(f"targets: {sum(t['reached'] is True for t in table.targets)} reached, {missed} missed, "
              f"{sum(t['reached'] is None for t in table.targets)} not measured")
    with open(os.path.join(out, "table.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(table.lines) + "\n")
    with open(os.path.join(out, "summary.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file, indent=2)
        file.write("\n")
    print("\n".join(table.lines))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
