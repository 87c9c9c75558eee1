"""A server for tests: `spillway serve` with the model of records, on a free port."""
import http.client
import os
import random
import re
import signal
import subprocess
import sys
import time

MODEL = "models/records"
# The form in which the model knows questions. (A template's line break after a block would not count.)
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"


# The same with tools. SIGN is what tells the style of calls.
TOOL_TEMPLATE = TEMPLATE.replace("m.content", "m.content or m.tool_calls") + "{# SIGN, tools #}"


def record(n_tokens, seed):
    """A document of the model's own language, and its question."""
    r = random.Random(seed)
    names = ["".join(r.choice("bdklmnrst") + r.choice("aeiou") for _ in range(3)).capitalize() for _ in range(n_tokens // 20 + 1)]
    text = " ".join(f"The access code of {n} is {r.randrange(10000):04}." for n in names)
    return f"{text}\n\nQ: What is the access code of {r.choice(names)}?\nA:"


class Server:
    """In a folder of the test, which gets its log, the chat template and a prefix cache."""

    def __init__(self, spillway, folder, *options, template=TEMPLATE):
        self.template = os.path.join(folder, "template.jinja")
        with open(self.template, "w") as f:
            f.write(template)
        self.log = open(os.path.join(folder, "log"), "w+")
        self.process = subprocess.Popen([spillway, "serve", MODEL, "--port", "0", "--device", "cpu", "--threads", "2",
                                         "--chat-template", self.template, *options], stderr=self.log,
                                        # AddressSanitizer keeps freed blocks: few of them, so that resident memory says something.
                                        env={"ASAN_OPTIONS": "quarantine_size_mb=4:thread_local_quarantine_size_kb=64", **os.environ})
        until = time.time() + 120
        while "Application startup complete" not in self.text():
            if self.process.poll() is not None or time.time() > until:
                sys.exit("the server did not start:\n" + self.text())
            time.sleep(0.05)
        self.port = int(re.search(r"http://127.0.0.1:(\d+)", self.text()).group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def text(self):
        with open(self.log.name) as f:
            return f.read()

    def status(self, name):
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(rf"{name}:\s+(\d+)", f.read()).group(1))

    def files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metrics(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        values = {}
        for line in text.splitlines():
            if line and line[0] != "#":
                series, value = line.rsplit(" ", 1)
                values[re.sub(r'model_name="[^"]*",?', "", series).replace("{}", "")] = float(value)
        return values

    def settle(self):
        """Waits until nothing runs or waits: the metrics then; None: something still does after a minute."""
        until = time.time() + 60
        while time.time() < until:
            m = self.metrics()
            if m["spillway:num_requests_running"] == 0 and m["spillway:num_requests_waiting"] == 0:
                return m
            time.sleep(0.1)
        return None

    def end(self):
        """The exit status after SIGTERM; None: not within 30 seconds."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None
