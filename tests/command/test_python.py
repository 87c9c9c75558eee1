#!/usr/bin/env python3
"""test_python.py BUILD CC: the module in python/spillway, with the shared library in BUILD: its structs are those of the
headers, and its answers are those of the command, alone, interleaved and in a batch."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

BUILD, CC = os.path.abspath(sys.argv[1]), sys.argv[2]
MODEL, PROMPT = "models/records", "The access code of"


def check(condition, *what):
    if not condition:
        raise SystemExit(f"failed: {what}")


def raises(kind, function, *words):
    try:
        function()
    except kind as error:
        check(all(word in str(error) for word in words), words, str(error))
        return error
    raise SystemExit(f"failed: no {kind.__name__} with {words}")


def put_module(place):
    """As tools/package.sh does."""
    folder = os.path.join(place, "spillway")
    os.makedirs(os.path.join(folder, "lib"))
    shutil.copy("python/spillway/__init__.py", folder)
    os.symlink(os.path.join(BUILD, "libspillway.so"), os.path.join(folder, "lib", "libspillway.so"))
    with open(os.path.join(folder, "_abi.py"), "w") as out:
        subprocess.run([sys.executable, "python/make_abi.py", CC], stdout=out, check=True)
    sys.dont_write_bytecode = True
    sys.path.insert(0, place)


def check_structs(place):
    source = os.path.join(place, "check.c")
    with open(source, "w") as out:
        subprocess.run([sys.executable, "python/make_abi.py", "--check", CC], stdout=out, check=True)
    compile_it = [CC, "-std=c17", "-D_GNU_SOURCE", "-fsyntax-only", "-I.", source]
    subprocess.run(compile_it, check=True)
    text = open(source).read()
    for name in ("spw_options", "spw_request", "spw_result", "spw_event", "spw_error", "spw_plan_info", "spw_stats",
                 "spw_chat_request", "spw_source_ops", "spw_splitter"):
        check(f'"{name}"' in text, name)
    with open(source, "w") as out:  # one byte more: this check can fail
        out.write(text.replace("sizeof(struct spw_event) == ", "sizeof(struct spw_event) == 1 + "))
    check(subprocess.run(compile_it, capture_output=True).returncode != 0, "a wrong size compiles")


def command(place, *words):
    report = os.path.join(place, "report.json")
    text = subprocess.run([f"{BUILD}/spillway", "generate", MODEL, "--quiet", "--report", report, *words], check=True,
                          capture_output=True, text=True).stdout
    with open(report) as file:
        return text, json.load(file)


def check_answers(spillway, place):
    text, report = command(place, "--prompt", PROMPT, "--max-new-tokens", "32")
    text = text.rstrip("\n")
    with spillway.Model(MODEL, backend="cpu", context=512, sessions=4) as model:
        check(model.backend.startswith("cpu") and model.plan()["context"] == 512, model.backend)
        answer = model.generate(PROMPT, max_new_tokens=32)
        pieces = list(answer)
        check("".join(pieces) == answer.text and len(pieces) > 4, pieces)
        check(answer.text.strip() == text.strip(), answer.text, text)
        check(answer.tokens == report["tokens"] and answer.logits_hash == report["logits_hash"], answer.logits_hash, report)
        check(answer.finish == "length" and answer.n_prompt == report["n_prompt"], answer.finish)
        check(model.stats()["moved_bytes"][spillway.SPW_MOVED_DEVICE_TO_HOST] > 0, model.stats())

        # Two that run at the same time, one of them left in the middle; then the same in a batch.
        drawn = {"prompt": "Code", "max_new_tokens": 24, "temperature": 1.0, "seed": 7, "ignore_eos": True}
        first, second = model.generate(PROMPT, max_new_tokens=32), iter(model.generate(**drawn))
        next(second)
        check(first.wait().logits_hash == answer.logits_hash, first.logits_hash)
        second.close()
        left = model.generate(PROMPT)
        next(iter(left))
        left.cancel()
        check(left.finish == "canceled" and 0 < len(left.tokens) < 128, left.finish)
        expected = command(place, "--prompt", "Code", "--max-new-tokens", "24", "--temperature", "1", "--seed", "7",
                           "--ignore-eos")[1]
        answers = model.batch([{"prompt": PROMPT, "max_new_tokens": 32}, drawn])
        check([a.logits_hash for a in answers] == [answer.logits_hash, expected["logits_hash"]], answers[1].tokens, expected)

        stopped = model.generate(PROMPT, max_new_tokens=32, stop=text.strip()[4:8]).wait()
        check(stopped.finish == "stop" and text.strip()[4:8] not in stopped.text, stopped.text)
        token = answer.tokens[0]
        biased = model.generate(PROMPT, max_new_tokens=1, logit_bias={token: -100}, logprobs=True, n_top_logprobs=2,
                                prompt_logprobs=True).wait()
        check(biased.tokens != [token] and biased.top_logprobs[0][0][0] == token, biased.tokens, biased.top_logprobs)
        check(biased.logprobs[0] < biased.top_logprobs[0][0][1] < 0 and len(biased.prompt_logprobs) == biased.n_prompt)

        raises(TypeError, lambda: model.generate("x", top_z=1), "top_z", "top_p")
        raises(ValueError, lambda: model.generate("x", max_new_tokens=-1), "max_new_tokens")
        error = raises(spillway.Error, lambda: model.generate("x", max_new_tokens=1000), "1000")
        check(error.errno > 0 and error.smallest is None, error.errno)
        raises(spillway.Error, lambda: model.chat([{"role": "user", "content": "x"}]), "chat template")
    raises(ValueError, lambda: model.generate([1]), "closed")


def check_chat(spillway, place):
    """A model with a template, and one whose answers are reasoning from their first token on."""
    for number, template in enumerate(("{{ messages[0].content }}{{ more }}", "{{ messages[0].content }}{{ more }}<think>")):
        folder = os.path.join(place, f"model{number}")
        shutil.copytree(MODEL, folder)
        with open(os.path.join(folder, "chat_template.jinja"), "w") as out:
            out.write(template + "{# <think></think> #}")
        with spillway.Model(folder, backend="cpu", context=256) as model:
            answer = model.chat([{"role": "user", "content": PROMPT}], variables={"more": " K"}, max_new_tokens=8).wait()
            tokens = model.tokenize(PROMPT + " K" + template[35:], add_special=False)
            plain = model.generate(tokens, max_new_tokens=8).wait()
            check(answer.logits_hash == plain.logits_hash and answer.tokens == plain.tokens, answer.tokens, plain.tokens)
            check((answer.reasoning if number else answer.text) == plain.text, answer.reasoning, answer.text, plain.text)
            check((answer.text if number else answer.reasoning) == "", answer.text)


def check_plan(spillway):
    expected = json.loads(subprocess.run([f"{BUILD}/spillway", "plan", MODEL, "--context", "512", "--json", "--device", "cpu",
                                          "--device-memory", "64MiB"], check=True, capture_output=True, text=True).stdout)
    plan = spillway.plan(MODEL, context=512, backend="cpu", device_bytes=64 << 20)
    check(plan["device"] == expected["device"] and plan["host"] == expected["host"], plan, expected)
    error = raises(spillway.Error, lambda: spillway.Model(MODEL, context=512, device_bytes=1000), "options.device_bytes")
    check(error.smallest["device"] > 1000, error.smallest)
    spillway.plan(MODEL, context=512, device_bytes=error.smallest["device"])
    raises(spillway.Error, lambda: spillway.Model("none"), "none")
    raises(ValueError, lambda: spillway.plan(MODEL, backend="abacus"), "SPW_BACKEND_CPU")


def check_interrupts(spillway):
    """Ctrl-C, and an exception of the caller's, end a step in the middle of a prompt; the next one goes on."""
    prompt, seen = [5] * 3000, []

    def on_progress(done, total):
        seen.append((done, total))
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)
        if len(seen) == 4:
            raise RuntimeError("enough")

    with spillway.Model(MODEL, backend="cpu", context=3100, prefill_chunk=128, on_progress=on_progress) as model:
        answer = model.generate(prompt, max_new_tokens=2)
        raises(KeyboardInterrupt, model._step)
        raises(RuntimeError, model._step, "enough")
        check(0 < seen[1][0] < seen[1][1], seen)
        interrupted = answer.wait().logits_hash
        check(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        other = []
        thread = threading.Thread(target=lambda: other.append(model.generate(prompt, max_new_tokens=2).wait()))
        thread.start()
        thread.join()
        check(other[0].logits_hash == interrupted, other[0].logits_hash, interrupted)


def main():
    with tempfile.TemporaryDirectory() as place:
        put_module(place)
        check_structs(place)
        import spillway
        check_answers(spillway, place)
        check_chat(spillway, place)
        check_plan(spillway)
        check_interrupts(spillway)


main()
