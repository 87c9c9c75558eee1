#!/usr/bin/env python3
"""Measures `spillway serve`: short requests at once, the worst gap beside a long prompt, a prefix that is held.

    tools/bench/serve.py short MODEL     64 short requests at once, in turns with `batch` on the same work
    tools/bench/serve.py gap MODEL       an answer runs while a prompt of --tokens is read; the prompt beside it and alone
    tools/bench/serve.py prefix MODEL    the first token of a prompt of --tokens that is held

Requests are token ids, drawn anew in each round, so that no round finds the prefixes of another one. Seconds are those
of a client on this machine. CPU seconds are those of the process (of a job: without its start), and say more where other
programs take the processor.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, args):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([args.command, "serve", args.model, "--port", "0", *args.options], stderr=self.log)
        text = ""
        while "Application startup complete" not in text:
            if self.process.poll() is not None:
                sys.exit("the server did not start:\n" + text)
            time.sleep(0.1)
            text = os.pread(self.log.fileno(), 1 << 16, 0).decode()
        self.port = int(re.search(r"http://127.0.0.1:(\d+)", text).group(1))

    def close(self):
        self.process.terminate()
        self.process.wait()

    def cpu(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def metric(self, name):
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        return float(re.search(rf"^spillway:{name}{{[^}}]*}} (\S+)$", text, re.M).group(1))

    def stream(self, body, until=lambda: False):
        """When the request was sent, and when each token came."""
        c = http.client.HTTPConnection("127.0.0.1", self.port)
        times = [time.monotonic()]
        c.request("POST", "/v1/completions", json.dumps(dict(body, stream=True, logprobs=0)),
                  {"Content-Type": "application/json"})
        for line in c.getresponse():
            if b'"token_logprobs"' not in line:  # progress, and the end
                continue
            times.append(time.monotonic())
            if until():
                break
        c.close()
        return times


def body(n, new_tokens):
    return {"prompt": [random.randrange(1000, 30000) for _ in range(n)], "max_tokens": new_tokens, "ignore_eos": True, "temperature": 0}


def ask(server, request):
    c = http.client.HTTPConnection("127.0.0.1", server.port)
    c.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
    answer = json.loads(c.getresponse().read())
    c.close()
    return answer["usage"]["completion_tokens"]


def job(args, requests):
    """Seconds of the engine, and CPU seconds of the process."""
    lines = pathlib.Path("items.jsonl")
    lines.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b}) + "\n"
                             for i, b in enumerate(requests)))
    for f in pathlib.Path(".").glob("out.jsonl*"):
        f.unlink()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([args.command, "batch", args.model, "--input", "items.jsonl", "--output", "out.jsonl", "--report", "report.json",
                    "--quiet", *args.options], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(pathlib.Path("report.json").read_text())
    return (report["prefill_seconds"] + report["decode_seconds"],
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def at_once(server, requests):
    counts, start, cpu = [], time.monotonic(), server.cpu()
    threads = [threading.Thread(target=lambda r=r: counts.append(ask(server, r))) for r in requests]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if sum(counts) != sum(r["max_tokens"] for r in requests):
        sys.exit("not all tokens came")
    return time.monotonic() - start, server.cpu() - cpu


def short(args, server):
    ratios, cpu_ratios = [], []
    for _ in range(args.rounds):
        requests = [body(40 + i % 9, 64) for i in range(64)]
        seconds, cpu = at_once(server, requests)
        job_seconds, job_cpu = job(args, requests)
        _, start_cpu = job(args, [body(2, 1)])
        ratios.append(job_seconds / seconds)
        cpu_ratios.append((job_cpu - start_cpu) / cpu)
        print(f"server {seconds:.2f} s ({cpu:.2f} of CPU), batch {job_seconds:.2f} s ({job_cpu - start_cpu:.2f})", flush=True)
    print(f"tokens/s of the server / those of batch: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
          f"by CPU seconds {statistics.median(cpu_ratios):.3f} ({min(cpu_ratios):.3f} to {max(cpu_ratios):.3f})")


def gap(args, server):
    def read(beside):
        cpu, start = server.cpu(), time.monotonic()
        server.stream(body(args.tokens, 1))
        seconds, cpu = time.monotonic() - start, server.cpu() - cpu
        print(f"a prompt of {args.tokens} tokens {beside}: {seconds:.1f} s, {cpu:.1f} of CPU", flush=True)
        return seconds, cpu

    for _ in range(args.rounds):
        alone, alone_cpu = read("alone")
        is_read = threading.Event()
        times = []
        answer = threading.Thread(target=lambda: times.extend(server.stream(body(40, 100000), is_read.is_set)))
        answer.start()
        time.sleep(5)
        start = time.monotonic()
        decode = server.metric("decode_seconds_total"), server.metric("decode_steps_total")
        seconds, cpu = read("beside an answer")
        decode = server.metric("decode_seconds_total") - decode[0], server.metric("decode_steps_total") - decode[1]
        end = time.monotonic()
        is_read.set()
        answer.join()
        gaps = sorted(b - a for a, b in zip(times[1:], times[2:]) if start < b < end)
        print(f"tokens of the answer meanwhile {len(gaps)}; gap: median {1000 * statistics.median(gaps):.0f} ms, worst "
              f"{1000 * gaps[-1]:.0f} ms; a decode step {1000 * decode[0] / decode[1]:.0f} ms; the prompt took "
              f"{seconds / alone:.2f} of its time alone, {cpu / alone_cpu:.2f} of its CPU seconds, both with the decode steps", flush=True)


def prefix(args, server):
    over = []
    request = body(args.tokens, 2)
    server.stream(request)
    for _ in range(args.rounds):
        request["prompt"] += body(16, 2)["prompt"]
        before = server.metric("prefill_seconds_total"), server.metric("prefix_cache_hits_total")
        times = server.stream(request)
        time.sleep(0.3)  # until /metrics has it
        step = server.metric("prefill_seconds_total") - before[0]
        if server.metric("prefix_cache_hits_total") - before[1] < len(request["prompt"]) - 32:
            sys.exit("the prefix was not held")
        over.append(times[1] - times[0] - step)
        print(f"first token after {1000 * (times[1] - times[0]):.1f} ms, its step {1000 * step:.1f} ms", flush=True)
    print(f"over the step: median {1000 * statistics.median(over):.1f} ms, worst {1000 * max(over):.1f} ms")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["short", "gap", "prefix"])
    p.add_argument("model")
    p.add_argument("--command", default="build/release/spillway")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--tokens", type=int, default=20000)
    args, args.options = p.parse_known_args()
    args.options += ["--device", "cpu"]
    args.command, args.model = os.path.abspath(args.command), os.path.abspath(args.model)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        server = Server(args)
        try:
            globals()[args.what](args, server)
        finally:
            server.close()
        os.chdir("/")


if __name__ == "__main__":
    main()
