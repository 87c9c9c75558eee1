#!/usr/bin/env python3
"""The numbers of tools/demo.sh: the budget to demonstrate, and the results. Standard library only.

    demo_report.py budget SPILLWAY MODEL OPTIONS...     the device budget, as a SIZE
    demo_report.py table FOLDER                         the table; fails if a promise was broken
    demo_report.py job FOLDER                           the answers of the job; fails if one is lost or differs

FOLDER holds plan.json, small.json, large.json (of `spillway plan --json` and `generate --report`),
small.txt, large.txt (the answers) and expected.txt. Of the job: job.jsonl, job-N.expected, undisturbed.jsonl,
job-killed.jsonl (the output when the job was killed) and job-answers.jsonl.
"""
import json
import pathlib
import re
import subprocess
import sys

STEP = 1 << 18
TIMES = 10  # the KV cache is this many times as large as the device memory for it


def size(n):
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024:
            break
        n /= 1024
    else:
        unit = "GiB"
    return "%d %s" % (n, unit) if unit == "bytes" else "%.1f %s" % (n, unit)


def kv_bytes(plan):
    """All of the cache, and the part of the device memory that is there for it."""
    return plan["context"] * plan["kv_bytes_per_token"], plan["device"]["kv_resident"] + plan["device"]["kv_slots"]


def budget(spillway, *arguments):
    """The largest that is small enough; the smallest that works, where even that is not."""
    def plan(*more):
        command = [spillway, "plan", *arguments, "--json", "--no-probe", *more]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    steps = -(-plan()["smallest_bytes"]["device"] // STEP)
    while True:
        kv, may_use = kv_bytes(plan("--device-memory", str((steps + 1) * STEP)))
        if kv < TIMES * may_use:
            break
        steps += 1
    print("%gMiB" % (steps * STEP / (1 << 20)))


def moved(run, link):
    counts = run["moved_bytes"][link]
    return size(counts["counted"]) + (" *" if counts["counted"] == counts["predicted"] else " (not as predicted)")


def rows(plan, small, large, texts):
    """(what, with the small budget, with the large one)"""
    per_token = plan["kv_bytes_per_token"]
    yield "device memory given", *(size(r["budget_bytes"]["device"]) for r in (small, large))
    yield "device memory used, at most", *(size(r["peak_bytes"]["device"]) for r in (small, large))
    yield "context, tokens", *("%d" % r["waterlines"]["n_tokens"] for r in (small, large))
    yield "its KV cache", *(size(r["waterlines"]["n_tokens"] * per_token) for r in (small, large))
    yield "  of it on the device", *(
        "%s (newest %d tokens)" % (size(n * per_token), n)
        for n in (r["waterlines"]["n_tokens"] - r["waterlines"]["host_end"] for r in (small, large)))
    yield "  of it in host memory", *(
        "%s (oldest %d tokens)" % (size(n * per_token), n) if n else "nothing"
        for n in (r["waterlines"]["host_end"] for r in (small, large)))
    yield "moved, host to device", *(moved(r, "host_to_device") for r in (small, large))
    yield "moved, device to host", *(moved(r, "device_to_host") for r in (small, large))
    yield "waited for it, in all", *("%.2f s" % r["unhidden_wait_seconds"] for r in (small, large))
    yield "reading, tokens/s", *("%.0f" % (r["n_prompt"] / r["prefill_seconds"]) for r in (small, large))
    # The first new token comes out of the prompt.
    yield "answering, tokens/s", *(
        "%.0f" % ((r["n_generated"] - 1) / r["decode_seconds"]) if r["decode_seconds"] > 0 else "-"
        for r in (small, large))
    yield "hash of the logits", *(r["logits_hash"] for r in (small, large))
    yield "answer", *(text.strip() for text in texts)


def broken_promises(plan, small, large, texts, expected):
    kv, may_use = kv_bytes(plan)
    if kv < TIMES * may_use:
        yield "a KV cache of %s is not %d times the %s it may use" % (size(kv), TIMES, size(may_use))
    for run, name in ((small, "the small"), (large, "the large")):
        for tier in ("device", "host"):
            if run["peak_bytes"][tier] > run["budget_bytes"][tier]:
                yield "%s memory used is more than %s budget" % (tier, name)
        for link, counts in run["moved_bytes"].items():
            if counts["counted"] != counts["predicted"]:
                yield "%s with %s budget: %d bytes counted, %d predicted" % (
                    link, name, counts["counted"], counts["predicted"])
    if small["logits_hash"] != large["logits_hash"] or texts[0] != texts[1]:
        yield "the two runs differ: the budget has changed the answer"
    if re.findall(r"\d+", texts[0]) != [expected]:
        yield "the answer is not %s" % expected


def table(folder):
    folder = pathlib.Path(folder)
    plan, small, large = (json.loads((folder / (name + ".json")).read_text())
                          for name in ("plan", "small", "large"))
    texts = [(folder / (name + ".txt")).read_text() for name in ("small", "large")]
    expected = (folder / "expected.txt").read_text().strip()
    lines = [("", "little memory", "all there is"), *rows(plan, small, large, texts)]
    wide = [max(len(line[i]) for line in lines) for i in range(3)]
    print()
    for line in lines:
        print("    " + "   ".join(cell.ljust(w) for cell, w in zip(line, wide)).rstrip())
    print("    * as predicted, to the byte")
    print()
    broken = list(broken_promises(plan, small, large, texts, expected))
    for line in broken:
        print("FAILED: " + line)
    if not broken:
        kv, may_use = kv_bytes(plan)
        print("The KV cache is %.1f times as large as the %s of device memory that it may use."
              % (kv / may_use, size(may_use)))
        print("expected answer: %s    right: yes    same answer, bit for bit: yes" % expected)
    return 1 if broken else 0


def job(folder):
    folder = pathlib.Path(folder)

    def lines(name):
        return [json.loads(line) for line in (folder / name).read_text().splitlines() if line.endswith("}")]

    inputs, answers, whole, killed = map(lines, ("job.jsonl", "job-answers.jsonl", "undisturbed.jsonl",
                                                 "job-killed.jsonl"))
    whole = {line["id"]: line for line in whole}
    before = [line["id"] for line in killed]
    print()
    right = same = 0
    for i, item in enumerate(inputs, 1):
        expected = (folder / ("job-%d.expected" % i)).read_text().strip()
        found = [line for line in answers if line["id"] == item["id"]]
        text = found[0]["text"].strip() if found else "no answer"
        right += len(found) == 1 and re.findall(r"\d+", text) == [expected]
        same += len(found) == 1 and found[0] == whole.get(item["id"])
        print("    %-12s %-6s %-44s %s" % (item["id"], "before" if item["id"] in before else "after", text, expected))
    print()
    if not 0 < len(before) < len(inputs):
        print("The job was not killed in the middle: %d of %d answers." % (len(before), len(inputs)))
    if right < len(inputs) or same < len(inputs) or len(answers) != len(inputs):
        print("FAILED: %d of %d right, %d as without the kill, %d lines" % (right, len(inputs), same, len(answers)))
        return 1
    print("%d documents, killed after %d answers: each answered once, all right, all as without the kill."
          % (len(inputs), len(before)))
    return 0


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "budget":
        return budget(*sys.argv[2:])
    if len(sys.argv) == 3 and sys.argv[1] == "table":
        return table(sys.argv[2])
    if len(sys.argv) == 3 and sys.argv[1] == "job":
        return job(sys.argv[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
