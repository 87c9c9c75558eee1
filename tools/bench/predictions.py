#!/usr/bin/env python3
"""Compares the predicted and the measured time of a token, for plans that use different parts of the machine.

    tools/bench/predictions.py LARGE DIR [--rounds N] [--only WORD] [--report FILE.json]

LARGE: a model of some 900 MiB of weights, for instance

    tools/make_random_model.py Llama-3.2-1B/config.json LARGE --layers 4

DIR is a folder on the drive to use. SPILLWAY is the command, default build/release/spillway.

A round runs `spillway bench` once for each row. The command measures the drive at its start and the
machine before and after the run, and predicts with these numbers. A round runs all rows, so a slow minute
affects all of them. The table shows the quotient as the median of the rounds, with the least and the most;
the target is 0.7 to 1.3 for large models. Nothing else should run at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RECORDS = os.path.join(HERE, "..", "..", "models", "records")
DISK = object()  # stands for --disk DIR; the host has room for weights that stream, and for little KV

# name, model (None: LARGE), options of bench
ROWS = [
    ("all on the device", None, ["--contexts", "512"]),
    ("all on the device, 8k", None, ["--contexts", "8192"]),
    ("weights stream", None, ["--contexts", "512", "--device-memory", "700MiB"]),
    ("3/4 of the KV on the host", None, ["--contexts", "8192", "--device-memory", "1027MiB"]),
    ("KV on disk, room for weights", None, ["--contexts", "8192", "--device-memory", "1GiB", "--host-memory", "32MiB", DISK]),
    ("KV on disk, some weights stream", None, ["--contexts", "8192", "--device-memory", "600MiB", "--host-memory", "384MiB", DISK]),
    ("weights from disk", None, ["--contexts", "512", "--device-memory", "400MiB", "--host-memory", "200MiB", DISK]),
    ("small model, on the device", RECORDS, ["--contexts", "8192"]),
    ("small slots, host", RECORDS, ["--contexts", "8192", "--device-memory", "6MiB"]),
    ("small slots, disk, 6 MiB", RECORDS, ["--contexts", "8192", "--device-memory", "6MiB", "--host-memory", "4MiB", DISK]),
    ("small slots, disk, 4 MiB", RECORDS, ["--contexts", "8192", "--device-memory", "4MiB", "--host-memory", "4MiB", DISK]),
    ("small slots, disk, 32k", RECORDS, ["--contexts", "32768", "--device-memory", "7MiB", "--host-memory", "4MiB", DISK]),
    ("int8, disk, 32k", RECORDS, ["--contexts", "32768", "--device-memory", "7MiB", "--host-memory", "4MiB", "--kv-dtype", "int8", DISK]),
    ("int4, disk, 32k", RECORDS, ["--contexts", "32768", "--device-memory", "7MiB", "--host-memory", "4MiB", "--kv-dtype", "int4", DISK]),
    ("int8, host, 32k", RECORDS, ["--contexts", "32768", "--device-memory", "7MiB", "--kv-dtype", "int8"]),
    ("int8, on the device, 32k", RECORDS, ["--contexts", "32768", "--kv-dtype", "int8"]),
]


def run(arguments, model, options, tokens):
    """One row, once: (predicted, measured) seconds a token."""
    spillway = os.environ.get("SPILLWAY", os.path.join(HERE, "..", "..", "build", "release", "spillway"))
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        command = [spillway, "bench", model or arguments.large, "--device", "cpu", "--random-tokens",
                   "--repeat", "1", "--decode-tokens", str(tokens), "--progress", "never",
                   "--report", report, "--drive-profile", os.path.join(scratch, "drives.json")]
        for option in options:
            command += ["--disk", arguments.dir] if option is DISK else [option]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"predictions.py: {' '.join(command)}: {done.stderr.strip()}")
        with open(report, encoding="utf-8") as file:
            case = json.load(file)["cases"][0]
    return case["predicted_seconds_per_token"]["median"], case["decode_seconds_per_token"]["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("large")
    parser.add_argument("dir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode-tokens", type=int, default=48)
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--report")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if arguments.only in row[0]]
    taken = {name: [] for name, _, _ in rows}
    for _ in range(arguments.rounds):
        for name, model, options in rows:
            taken[name].append(run(arguments, model, options, arguments.decode_tokens))
    print(f"{'':<34}{'predicted':>12}{'measured':>12}{'quotient':>10}{'least':>8}{'most':>8}")
    for name, pairs in taken.items():
        predicted, measured = (statistics.median(column) for column in zip(*pairs))
        quotients = sorted(p / m for p, m in pairs)
        middle = statistics.median(quotients)
        verdict = "" if 0.7 <= middle <= 1.3 else "  missed"
        print(f"{name:<34}{1e3 * predicted:>9.2f} ms{1e3 * measured:>9.2f} ms{middle:>10.2f}"
              f"{quotients[0]:>8.2f}{quotients[-1]:>8.2f}{verdict}")
    if arguments.report:
        with open(arguments.report, "w", encoding="utf-8") as file:
            json.dump({name: [{"predicted": p, "measured": m} for p, m in pairs]
                       for name, pairs in taken.items()}, file, indent=2)


if __name__ == "__main__":
    main()
