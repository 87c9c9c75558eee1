#!/usr/bin/env python3
"""Compares two versions of the program: tokens, logits and bytes of a few hundred runs.

    tests/oracle/same_bits.py record PROGRAM TABLE.json    draws the runs, runs them, keeps their results
    tests/oracle/same_bits.py check PROGRAM TABLE.json     runs the same command lines, and compares

The runs are golden models and the models of models/, times budgets, types of the KV cache, a disk, a prefix cache,
several prompts together, quantized files, experts. `record` asks PROGRAM for the smallest budgets, so that many runs
stream. A run that PROGRAM refuses is left out of the table. Where TABLE.json is there, `record` keeps it and adds
the sets of runs that it does not have: PROGRAM must be the one it was recorded with. `check --quick` takes every
eighth run.

Compared are tokens, the hash of all logits, the file of --dump-logits, and the bytes that were counted. The bytes
counted and predicted must also be equal to each other, and `plan` must predict them before the run, wherever the
old program did so. `--bits-only` leaves out all bytes.

The plan of a run with a disk depends on the measured drive, so both programs get the same --drive-profile if they
can read it; `--other-plans` allows other bytes in these runs. Exit status: 0 all equal, 1 not.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "golden")
MODELS = os.path.join(HERE, "..", "..", "models")
LINKS = ("host_to_device", "device_to_host", "host_to_disk", "disk_to_host")


def run(command, timeout=600):
    return subprocess.run(command, capture_output=True, timeout=timeout, check=False)


# ---- the table ----

def model_facts(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    text = config.get("text_config", config)
    return {"vocab": text.get("vocab_size") or config.get("vocab_size") or 96,
            "reach": text.get("max_position_embeddings") or config.get("max_position_embeddings") or 256,
            "experts": bool(text.get("num_local_experts") or text.get("num_experts") or text.get("n_routed_experts"))}


def planned(program, model, context, options):
    """The plan for this context; None: the program refuses the model."""
    r = run([program, "plan", model, "--context", str(context), "--no-probe", "--json", "--device", "cpu",
             "--threads", "2", "--on-oom", "spill", *options])
    try:
        return json.loads(r.stdout)
    except ValueError:
        return None


def draw_runs(program, quantized):
    draw = random.Random(20261128)
    runs = []

    def add(model, facts, n_prompt, n_new, options, **more):
        prompt = [draw.randrange(1, facts["vocab"] - 1) for _ in range(n_prompt)]
        runs.append({"model": model, "prompt": prompt, "new": n_new, "options": options, **more})

    def plan(model, context, options):
        path = quantized[model[1:]] if model.startswith("@") else os.path.join(HERE, "..", "..", model)
        return planned(program, path, context, options)

    def budgeted(model, facts, n_prompt, n_new, options, share, **more):
        p = plan(model, n_prompt + n_new, options)
        if p and p["smallest_bytes"]:
            add(model, facts, n_prompt, n_new, [
                *options, "--device-memory", str(int(p["smallest_bytes"]["device"] * share) // 4096 * 4096 + 4096),
                "--host-memory", str(p["smallest_bytes"]["host"] * 2 + (1 << 22))], **more)

    def disk_run(model, facts, n_prompt, n_new, options, **more):
        """Host memory for a part of what does not fit on the device: the rest goes to the disk."""
        disk = ["--disk", tempfile.gettempdir(), "--disk-memory", "64MiB"]
        p = plan(model, n_prompt + n_new, [*options, *disk])
        if not p or not p["smallest_bytes"]:
            return
        device = ["--device-memory", str(int(p["smallest_bytes"]["device"] * draw.choice((1.02, 1.1, 1.3))) // 4096 * 4096 + 4096)]
        p = plan(model, n_prompt + n_new, [*options, *disk, *device])
        if not p:
            return
        host = max(p["smallest_bytes"]["host"], int(p["host"]["total"] * draw.choice((0.15, 0.3, 0.5, 0.7))))
        add(model, facts, n_prompt, n_new, [*options, *device, "--host-memory", str(host // 4096 * 4096 + 4096),
            "--disk", "@DISK", "--disk-memory", "64MiB"], disk=True, **more)

    for name in sorted(os.listdir(GOLDEN)):
        folder = os.path.join(GOLDEN, name)
        if not os.path.exists(os.path.join(folder, "config.json")):
            continue
        model, facts = os.path.join("tests/golden", name), model_facts(folder)
        reach = min(facts["reach"], 700)
        n = min(reach - 20, draw.choice((150, 300, 420, 600)))
        if n < 20:
            continue
        add(model, facts, n, 6, ["--compute", draw.choice(("f32", "bf16"))])
        budgeted(model, facts, n, 8, ["--compute", draw.choice(("f32", "bf16")), "--prefill-chunk", str(draw.choice((32, 64, 128)))],
                 draw.choice((1.0, 1.1, 1.3)))
        if draw.random() < 0.4:
            disk_run(model, facts, n, 6, ["--compute", "bf16"])
        if draw.random() < 0.3:
            add(model, facts, n // 2, 5, ["--compute", "f32", "--sessions", "2"], lines=3)
        if draw.random() < 0.3:
            budgeted(model, facts, n, 5, ["--kv-dtype", draw.choice(("int8", "int4", "int8:int4")), "--residual-window", "128"], 1.1)

    named = [("models/records", 16384), ("models/records256", 16384), ("models/records-experts", 16384)]
    for model, reach in named:
        facts = model_facts(os.path.join(MODELS, os.path.basename(model)))
        for n in (130, 700, 1500, 3000):
            for kv in ("auto", "f32", "int8", "int4"):
                add(model, facts, n, 9, ["--kv-dtype", kv])
                budgeted(model, facts, n, 9, ["--kv-dtype", kv], draw.choice((1.0, 1.05, 1.25, 1.6)))
        for kv in ("auto", "int8"):
            disk_run(model, facts, 700, 40, ["--kv-dtype", kv, "--prefill-chunk", "128"])
            disk_run(model, facts, 2000, 150, ["--kv-dtype", kv])
            for _ in range(5): # KV on the disk: weights stay on the device, host memory has room for a part
                add(model, facts, draw.choice((2000, 4000, 6000)), 150, [
                    "--kv-dtype", kv, "--device-memory", str(draw.randrange(3500, 9000) << 10),
                    "--host-memory", str(draw.randrange(560, 2600) << 10), "--disk", "@DISK", "--disk-memory", "64MiB"], disk=True)
        for sessions in (1, 2, 4):
            for common in (0, 300, 640):
                add(model, facts, 700, 12, ["--sessions", str(sessions)], lines=5, common=common)
                budgeted(model, facts, 700, 12, ["--sessions", str(sessions)], 1.2, lines=5, common=common)
        add(model, facts, 400, 10, ["--sessions", "3"], lines=3, n=3)
        for kv in ("auto", "int8"):
            add(model, facts, 900, 6, ["--prefix-cache", "@CACHE", "--kv-dtype", kv], cache=True)
            budgeted(model, facts, 900, 6, ["--prefix-cache", "@CACHE", "--kv-dtype", kv], 1.3, cache=True)
    for name in sorted(quantized):
        facts = {"vocab": quantized_vocab(name)}
        for compute in ("auto", "f32"):
            add("@" + name, facts, 500, 8, ["--compute", compute])
            budgeted("@" + name, facts, 500, 8, ["--compute", compute], 1.1)
        add("@" + name, facts, 300, 8, ["--sessions", "4"], lines=6, common=128)
        disk_run("@" + name, facts, 700, 8, [])

    # Answers of one prompt under tight budgets: a set of its own, for tables that were recorded without it.
    draw = random.Random(2)
    for model, _ in named:
        facts = model_facts(os.path.join(MODELS, os.path.basename(model)))
        for n, sessions, kv in ((3, 3, "auto"), (4, 2, "int8")):
            options = ["--sessions", str(sessions), "--kv-dtype", kv]
            budgeted(model, facts, 500, 10, options, 1.1, lines=3, n=n, common=200, set=2)
            disk_run(model, facts, 500, 10, options, lines=3, n=n, set=2)
    return runs


def quantized_vocab(name):
    return model_facts(os.path.join(MODELS, name.split(".")[0]))["vocab"]


def make_quantized(program, folder):
    """GGUF files of models/, made once by the program that records."""
    made = {}
    for model in ("records", "records256", "records-experts"):
        for kind in ("q8_0", "q4_0"):
            path = os.path.join(folder, f"{model}.{kind}.gguf")
            if not os.path.exists(path):
                run([program, "quantize", os.path.join(MODELS, model), path, "--type", kind])
            if os.path.exists(path):
                made[f"{model}.{kind}"] = os.path.abspath(path)
    return made


# ---- one run ----

def tokens_of(report_file, stdout):
    """Tokens and hashes, of one prompt or of all lines."""
    with open(report_file, encoding="utf-8") as f:
        report = json.load(f)
    if "tokens" in report:
        return report, [[report["logits_hash"], report["tokens"]]]
    found = []
    for line in stdout.decode().splitlines():
        item = json.loads(line)
        for choice in item.get("choices", [item]):
            found.append([item.get("line"), choice.get("index", 0), choice["logits_hash"], choice["tokens"]])
    return report, sorted(found)


def one(program, row, table, profile):
    with tempfile.TemporaryDirectory() as scratch:
        path = table["quantized"][row["model"][1:]] if row["model"].startswith("@") else os.path.join(HERE, "..", "..", row["model"])
        places = {"@DISK": scratch, "@CACHE": os.path.join(scratch, "cache")}
        options = [places.get(o, o) for o in row["options"]]
        prompt = row["prompt"]
        if "lines" in row:
            draw, lines = random.Random(len(prompt) * 7 + row["lines"]), os.path.join(scratch, "lines.jsonl")
            with open(lines, "w", encoding="utf-8") as f:
                for i in range(row["lines"]):
                    common = row.get("common", 0)
                    own = prompt[common:]
                    draw.shuffle(own)
                    item = {"tokens": prompt[:common] + own[:max(1, len(own) - 40 * i)]}
                    if "n" in row:
                        item |= {"n": row["n"], "temperature": 1.2, "seed": i}
                    f.write(json.dumps(item) + "\n")
            text = ["--prompts", lines]
        else:
            ids = os.path.join(scratch, "ids")
            with open(ids, "w", encoding="utf-8") as f:
                f.write(" ".join(map(str, prompt)))
            text = ["--token-ids", ids]
        common_options = ["--device", "cpu", "--threads", "2", "--ignore-eos", "--max-new-tokens", str(row["new"]), "--on-oom", "spill",
                          "--allow-long-context", *text, *options, "--expert-profile", os.path.join(scratch, "experts.json")]
        result = {}
        for attempt in range(2 if row.get("cache") else 1):
            report, dump = os.path.join(scratch, "report.json"), os.path.join(scratch, "logits.npy")
            dumped = [] if "lines" in row else ["--ids", "--dump-logits", dump]
            plan_options = [o for o in common_options if o != "--ignore-eos"]
            plan = run([program, "plan", path, *plan_options, "--json", "--no-probe", "--drive-profile", profile]) if not attempt else None
            drafts = ["--drafts", "off"] if b"`--drafts " in run([program, "--options"]).stdout else [] # as `plan`
            r = run([program, "generate", path, *common_options, *dumped, "--report", report, "--progress", "never",
                     "--drive-profile", profile, *drafts])
            if r.returncode:
                return {"refused": r.stderr.decode()[-300:]}
            report, tokens = tokens_of(report, r.stdout)
            result[f"tokens{attempt}"] = tokens
            result[f"reused{attempt}"] = report["prefix"]["n_tokens_reused"]
            if dumped:
                with open(dump, "rb") as f:
                    result[f"dump{attempt}"] = hashlib.sha256(f.read()).hexdigest()
            moved = report["moved_bytes"]
            result[f"counted{attempt}"] = [moved[k]["counted"] for k in LINKS]
            result[f"predicted{attempt}"] = [moved[k].get("predicted") for k in LINKS]
            if plan is not None and not plan.returncode:
                of_run = json.loads(plan.stdout)["moved_bytes"].get("run")
                result["planned"] = of_run and [of_run.get(k) for k in LINKS]
        return result


def all_of(program, table, rows, profile, jobs):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda row: one(program, row, table, profile), rows))


# ---- commands ----

def record(a):
    table = {"quantized": make_quantized(a.program, os.path.dirname(os.path.abspath(a.table))), "runs": []}
    if os.path.exists(a.table):
        with open(a.table, encoding="utf-8") as f:
            table = json.load(f)
    there = {row.get("set", 1) for row in table["runs"]}
    runs = [row for row in draw_runs(a.program, table["quantized"]) if row.get("set", 1) not in there]
    profile = os.path.join(os.path.dirname(os.path.abspath(a.table)), "drives.json")
    results = all_of(a.program, table, runs, profile, a.jobs)
    refused, added = {}, []
    for row, result in zip(runs, results):
        if "refused" in result:
            refused.setdefault(result["refused"][-120:], []).append(row["model"])
        else:
            added.append({**row, "result": result})
    table["runs"] += added
    with open(a.table, "w", encoding="utf-8") as f:
        json.dump(table, f)
    for why, models in refused.items():
        print(f"left out {len(models)} ({models[0]}): {why}")
    unequal = sum(r["result"]["counted0"] != r["result"]["predicted0"] for r in added)
    unplanned = sum(r["result"].get("planned") != r["result"]["counted0"] for r in added)
    print(f"{len(added)} runs recorded; counted unlike predicted in {unequal}, unlike `plan` in {unplanned}")
    return not table["runs"]


def differences(old, new, row, a):
    if "refused" in new:
        return ["refused: " + new["refused"].strip()]
    wrong = [f"{k}: {str(old[k])[:150]} now {str(new.get(k))[:150]}" for k in old
             if k.startswith(("tokens", "dump", "reused")) and old[k] != new.get(k)]
    if a.bits_only:
        return wrong
    for k in old:
        at = k[-1]
        if k.startswith("counted") and old[k] != new[k] and not (a.other_plans and row.get("disk")):
            wrong.append(f"{k}: {old[k]} now {new[k]}")
        if k.startswith("predicted") and old[k] == old["counted" + at] and new[k] != new["counted" + at]:
            wrong.append(f"{k}: {new[k]}, counted {new['counted' + at]}")
    if old.get("planned") == old["counted0"] and new.get("planned") != new["counted0"]:
        wrong.append(f"planned: {new.get('planned')}, counted {new['counted0']}")
    return wrong


def check(a):
    with open(a.table, encoding="utf-8") as f:
        table = json.load(f)
    rows = table["runs"][a.seed % 8::8] if a.quick else table["runs"]
    profile = os.path.join(tempfile.mkdtemp(), "drives.json")
    kept = os.path.join(os.path.dirname(os.path.abspath(a.table)), "drives.json")
    if os.path.exists(kept):
        shutil.copy(kept, profile)
    failed = 0
    for row, new in zip(rows, all_of(a.program, table, rows, profile, a.jobs)):
        wrong = differences(row["result"], new, row, a)
        failed += bool(wrong)
        for text in wrong:
            print(f"{row['model']} {' '.join(row['options'])} lines {row.get('lines', 0)} prompt {len(row['prompt'])}: {text}")
    shutil.rmtree(os.path.dirname(profile))
    print(f"{len(rows)} runs compared, {failed} differ")
    return failed > 0 or not rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("record", "check"))
    p.add_argument("program")
    p.add_argument("table")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--seed", type=int, default=0, help="which eighth --quick takes")
    p.add_argument("--bits-only", action="store_true")
    p.add_argument("--other-plans", action="store_true")
    p.add_argument("--jobs", type=int, default=2)
    a = p.parse_args()
    sys.exit({"record": record, "check": check}[a.what](a))


if __name__ == "__main__":
    main()
