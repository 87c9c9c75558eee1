#!/usr/bin/env python3
"""A soak of `spillway serve` on loopback: clients that ask, leave in the middle, read slowly, send nonsense, all at
once for a bounded time. Every answer must be, with the hash of its logits, that of `spillway generate` for the same
request alone. At the end nothing runs or waits, budgets held, memory and files did not grow, and SIGTERM ends the
server with 0. Needs only Python.

    serve_soak.py SPILLWAY [SECONDS]      6 seconds, with SPW_FULL in the environment 600
"""
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_world import MODEL, Server, record

SPILLWAY = os.path.abspath(sys.argv[1])
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 600 if os.environ.get("SPW_FULL") else 6
SEED = int(os.environ.get("SPW_SEED", "0"), 0) or random.randrange(1 << 32)
N_CLIENTS = 12

failures = []
counts = {}


def check(condition, text):
    if not condition:
        failures.append(text)
        print("failed:", text[:1000], file=sys.stderr)


def requests_of(folder, template):
    """Bodies of completions and chats, and the answers that `generate` gives to each of them alone."""
    bodies = []
    for i in range(16):
        body = {"max_tokens": 4 + 3 * i % 20, "seed": i, "temperature": 0 if i % 3 else 0.9}
        text = record(30 * (1 << i % 6), i % 10)
        if i % 4 == 3:
            bodies.append(("/v1/chat/completions", dict(body, messages=[{"role": "user", "content": text[:-3]}])))
        else:
            bodies.append(("/v1/completions", dict(body, prompt=text, stop=["\n"] if i % 2 else None, n=2 if i == 6 else 1)))
    lines = os.path.join(folder, "lines.jsonl")
    with open(lines, "w") as f:
        for i, (url, body) in enumerate(bodies):
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body}) + "\n")
    # Jobs have a session for each answer; one at a time is "alone".
    subprocess.run([SPILLWAY, "batch", MODEL, "--input", lines, "--output", os.path.join(folder, "answers.jsonl"), "--sessions", "1",
                    "--chat-template", template, "--quiet", "--device", "cpu", "--threads", "2"], check=True)
    answers = {}
    with open(os.path.join(folder, "answers.jsonl")) as f:
        for line in f:
            item = json.loads(line)
            answers[int(item["custom_id"])] = item["response"]["body"]
    return [(url, body, answers[i]) for i, (url, body) in enumerate(bodies)]


def check_scores(server):
    """Log-likelihoods as lm-eval asks for them are, to the last bit, those of `spillway score`."""
    text = record(300, 5)
    post_json = lambda url, body: json.loads(post(server.port, url, body)[1].read())
    tokens = post_json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    score = json.loads(subprocess.run([SPILLWAY, "score", MODEL, "--text", text, "--json", "--quiet", "--device", "cpu", "--threads", "2"],
                                      check=True, capture_output=True).stdout)
    answer = post_json("/v1/completions", {"model": "records", "prompt": [tokens, tokens[:9]], "temperature": 0, "max_tokens": 1,
                                           "logprobs": 1, "seed": 1234, "echo": True})
    for choice, n in zip(answer["choices"], (len(tokens), 9)):
        p = choice["logprobs"]
        check(len(p["token_logprobs"]) == n + 1 and p["token_logprobs"][0] is None, "lengths of log-probabilities")
        check(all(own in top.values() for own, top in zip(p["token_logprobs"][1:], p["top_logprobs"][1:])), "a token without its own")
    got = sum(answer["choices"][0]["logprobs"]["token_logprobs"][1:-1])
    check(got == score["log_likelihood"] and score["n_scored"] == len(tokens) - 1, f"{got}, `score` says {score}")
    check(post_json("/detokenize", {"tokens": tokens})["prompt"] == text, "detokenize")


def events(text):
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: ") and line != "data: [DONE]"]


def whole_of(stream):
    """The texts, reasons and hashes of a streamed answer."""
    texts, reasons, hashes = {}, {}, None
    for e in events(stream):
        hashes = (e.get("usage") or {}).get("logits_hash", hashes)
        for c in e.get("choices", []):
            piece = c.get("text", c.get("delta", {}).get("content")) or ""
            texts[c["index"]] = texts.get(c["index"], "") + piece
            reasons[c["index"]] = c.get("finish_reason") or reasons.get(c["index"])
    return [(texts[i], reasons[i]) for i in sorted(texts)], hashes


def texts_of(answer):
    return [(c.get("text", (c.get("message") or {}).get("content")) or "", c["finish_reason"]) for c in answer["choices"]]


def post(port, url, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    c.request("POST", url, json.dumps(body), {"Content-Type": "application/json"})
    return c, c.getresponse()


def ask(server, r, url, body, want):
    """One client: the whole answer, or the stream, perhaps slowly."""
    stream = r.random() < 0.5
    body = dict(body, logits_hash=True, stream=stream)
    if stream:
        body["stream_options"] = {"include_usage": True}
    c, answer = post(server.port, url, body)
    if answer.status == 429:
        check(answer.getheader("Retry-After"), "429 without Retry-After")
        c.close()
        return "full"
    if stream and r.random() < 0.3:
        text = b""
        while piece := answer.read1(7):
            text += piece
            time.sleep(0.0005)
    else:
        text = answer.read()
    c.close()
    check(answer.status == 200, f"{url}: {answer.status}: {text!r}")
    if answer.status != 200:
        return "error"
    if stream:
        check(text.endswith(b"data: [DONE]\n\n"), f"the stream ends in {text[-100:]!r}")
        got, hashes = whole_of(text.decode())
    else:
        got, hashes = texts_of(json.loads(text)), json.loads(text)["usage"].get("logits_hash")
        check(answer.getheader("x-logits-hash") == hashes[0], "the header has another hash than usage")
    check(got == texts_of(want), f"{url} {str(body)[-200:]}: {got}, alone {texts_of(want)}")
    check(hashes == want["spillway"]["logits_hash"], f"{url} {str(body)[-200:]}: hash {hashes}, alone {want['spillway']['logits_hash']}")
    return "stream" if stream else "whole"


def leave(server, r, url, body, _):
    """A client that goes away at any point."""
    body = json.dumps(dict(body, max_tokens=3000, stream=r.random() < 0.5, prompt=record(3000, r.randrange(4)))
                      if "prompt" in body else dict(body, stream=True))
    s = socket.create_connection(("127.0.0.1", server.port))
    s.sendall(f"POST {url} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    s.sendall(body[:r.choice([len(body), len(body), len(body) // 2])].encode())
    time.sleep(r.random() * 0.5)
    s.close()
    return "left"


def nonsense(server, r, url, body, _):
    """Requests that are wrong: a status below 500, or a closed connection."""
    good = json.dumps(body)
    wrong = r.choice([good[:len(good) // 2], "[" * 5000, "{}", '{"prompt": 5}', good[:-1] + ',"max_tokens":"many"}', "\0" * 10,
                      json.dumps(dict(body, model="another")), json.dumps(dict(body, n=100000)), "x" * (2 << 20),
                      json.dumps(dict(body, prompt=record(20000, 1), messages=[{"role": "user", "content": "a" * 50000}]))])
    try:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        c.request(r.choice(["POST", "POST", "POST", "PUT", "GET"]), r.choice([url, url, "/nothing"]), wrong,
                  {"Content-Type": r.choice(["application/json"] * 4 + ["text/plain"])})
        answer = c.getresponse()
        text = answer.read()
        check(400 <= answer.status < 500, f"{wrong[:200]}: {answer.status}: {text[:300]!r}")
        c.close()
    except (ConnectionError, http.client.HTTPException):
        check(len(wrong) > 1 << 20, f"no answer to {wrong[:200]!r}")
    return "nonsense"


def run_client(server, requests, number, until):
    r = random.Random(SEED * 1000 + number)
    while time.time() < until and len(failures) < 20:
        url, body, want = r.choice(requests)
        what = r.choices([ask, leave, nonsense], [6, 2, 2])[0]
        try:
            kind = what(server, r, url, body, want)
        except Exception as e:  # a client that fails is a failure of the server
            check(False, f"{what.__name__} {url}: {e!r}")
            kind = "error"
        counts[kind] = counts.get(kind, 0) + 1


def soak(server, requests, seconds):
    until = time.time() + seconds
    threads = [threading.Thread(target=run_client, args=(server, requests, i, until)) for i in range(N_CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    m = server.settle()
    check(m, "after all clients have left, requests still run")
    return m or server.metrics()


def main():
    print(f"SPW_SEED={SEED}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(SPILLWAY, folder, "--model-name", "records", "--context", "4096", "--sessions", "6", "--device-memory",
                        "12MiB", "--host-memory", "16MiB", "--max-queue", "64", "--max-body", "1MiB", "--prefix-cache",
                        os.path.join(folder, "prefixes"))
        requests = requests_of(folder, server.template)
        check_scores(server)
        soak(server, requests, SECONDS / 3)
        threads, files, resident = server.status("Threads"), server.files(), server.status("VmRSS")
        m = soak(server, requests, SECONDS * 2 / 3)
        for tier in ("device", "host", "disk"):
            peak, budget = (m[f'spillway:tier_{k}_bytes{{tier="{tier}"}}'] for k in ("peak", "budget"))
            check(peak <= budget, f"{tier}: {peak} bytes of {budget}")
        time.sleep(0.5)
        check(server.status("Threads") <= threads + 2, f"{server.status('Threads')} threads, before {threads}")
        check(server.files() <= files + 4, f"{server.files()} files, before {files}")
        check(server.status("VmRSS") < resident * 1.3 + 30000, f"{server.status('VmRSS')} KiB, before {resident}")
        print(f"resident: {resident} KiB after a third of the time, {server.status('VmRSS')} at the end", file=sys.stderr)
        # A stream that runs when the server ends has an end, too.
        c, answer = post(server.port, "/v1/completions", {"prompt": record(500, 1), "max_tokens": 3000, "stream": True,
                                                          "ignore_eos": True})
        text = answer.read1(100)
        rest = []
        reader = threading.Thread(target=lambda: rest.append(answer.read()))
        reader.start()
        code = server.end()
        reader.join()
        check(code == 0, f"exit status {code}:\n{server.text()[-3000:]}")
        text += rest[0] if rest else b""
        check(text.endswith(b"[DONE]\n\n") or b'"error"' in text, f"the last stream ends in {text[-200:]!r}")
    print(f"{counts}, {len(failures)} failed", file=sys.stderr)
    check(counts.get("whole") and counts.get("stream"), "no answers")
    sys.exit(bool(failures))


main()
