#!/usr/bin/env python3
"""test_page.py SPILLWAY [OUTDIR [URL]]: the page of `spillway serve` in Chromium without a window: a script types and clicks,
answers appear, a key and an error are handled, and nothing is wider than a narrow window. Writes screenshots to OUTDIR. With
a URL it asks a server that runs already. Only with SPW_FULL, and where Chromium is."""
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ANSWER = "document.querySelectorAll('.assistant').length"


class Browser:
    """Chromium over a pipe of its debugging protocol: file descriptors 3 and 4, messages that end in a NUL."""

    def __init__(self, program, profile):
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()
        os.set_inheritable(to_read, True)
        os.set_inheritable(to_write, True)
        words = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars",
                 "--no-first-run", "--no-proxy-server", f"--user-data-dir={profile}", "about:blank"]
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(["bash", "-c", script, "browser", *words], close_fds=False, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.problems, self.session = 0, b"", [], None
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.into, 1 << 16)
                if not more:
                    raise SystemExit("failed: the browser has ended")
                self.rest += more
            first, _, self.rest = self.rest.partition(b"\0")
            found = json.loads(first)
            if found.get("method") == "Runtime.exceptionThrown":
                self.problems.append(found["params"]["exceptionDetails"])
            if found.get("id") == self.number:
                if "error" in found:
                    raise SystemExit(f"failed: {method}: {found['error']}")
                return found["result"]

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"failed: {script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script, seconds=20):
        end = time.monotonic() + seconds
        while not self.value(script):
            if time.monotonic() > end:
                raise SystemExit(f"failed: not true: {script}; the page has: {self.value('document.body.innerText')}")
            time.sleep(0.05)

    def key(self, name, code, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code,
                      **({"text": text} if text and kind == "keyDown" else {}))

    def type(self, text):
        self.value("document.querySelector('#input').focus()")
        self.call("Input.insertText", text=text)

    def click(self, selector):
        x, y = self.value(f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect();"
                          " return [r.x + r.width / 2, r.y + r.height / 2] })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        time.sleep(0.2)
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as out:
            out.write(base64.b64decode(data))
        wide = self.value("document.documentElement.scrollWidth")
        check(wide <= width, f"the page is {wide} pixels wide in a window of {width}")

    def close(self):
        self.process.terminate()
        self.process.wait()


def check(condition, what):
    if not condition:
        raise SystemExit(f"failed: {what}")


def ask(browser, url, out):
    browser.call("Page.navigate", url=url)
    browser.until("document.querySelectorAll('#tiers .bar').length === 3")
    browser.until("document.querySelectorAll('#links .bar').length === 4")
    browser.type("Hello")
    browser.click("#send")
    browser.until(f"{ANSWER} === 1 && !document.querySelector('#send').disabled")
    first = browser.value("document.querySelector('.assistant .text').textContent")
    check(first and browser.value("document.querySelectorAll('.error').length") == 0, f"the answer: {first}")
    check(re.search(r"\d tokens", browser.value("document.querySelector('.assistant .note').textContent")), "no usage")

    # Another one, by the keyboard, that would be long and is stopped; then once more.
    browser.value("of_page = body; body = () => ({...of_page(), ignore_eos: true}); 0")
    browser.type("Again")
    browser.key("Enter", 13, "\r")
    browser.until(f"{ANSWER} === 2 && !document.querySelector('#stop').disabled")
    browser.until("document.querySelectorAll('.assistant .text')[1].textContent.length > 20")
    browser.until("document.querySelectorAll('#sessions .bar').length > 0")
    browser.key("Escape", 27)
    browser.until("!document.querySelector('#send').disabled")
    check(browser.value("document.querySelectorAll('.note')[1].textContent") == "Stopped", "Escape stops an answer")
    browser.value("body = of_page; 0")
    browser.click("#again")
    browser.until(f"{ANSWER} === 2 && !document.querySelector('#send').disabled", 60)
    check(browser.value("document.querySelectorAll('.user').length") == 2, "regenerate asks once more")

    # What the server refuses is a text that one can read.
    browser.type("bad")
    browser.value("model = 'another'; document.querySelector('#send').click()")
    browser.until("document.querySelectorAll('.error').length === 1")
    refusal = browser.value("document.querySelector('.error').textContent")
    check(len(refusal) > 20 and "{" not in refusal, refusal)

    browser.until("document.querySelector('#queue').textContent.startsWith('0 running')")
    browser.until("document.querySelector('#sessions').textContent.includes('Kept prefix')")
    browser.picture(f"{out}/page_wide_light.png", 1280, 800, "light")
    browser.picture(f"{out}/page_wide_dark.png", 1280, 800, "dark")
    browser.picture(f"{out}/page_narrow_chat.png", 380, 720, "dark")
    browser.click("#show")
    browser.picture(f"{out}/page_narrow_machine.png", 380, 720, "light")
    check(browser.value("getComputedStyle(document.querySelector('main')).display") == "none", "the machine is not shown")
    check(not browser.problems, browser.problems)


def start_server(spillway, place):
    """Of the model of records, with a template. Gives the process and the URL."""
    model = os.path.join(place, "model")
    shutil.copytree("models/records", model)
    with open(os.path.join(model, "chat_template.jinja"), "w") as out:
        out.write("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    server = subprocess.Popen([spillway, "serve", model, "--port", "0"], stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            url = found[0] + "/"
        if "Application startup complete" in line:
            return server, url
    raise SystemExit("failed: the server does not start")


def main():
    spillway, out, url = (sys.argv[1:] + ["", ""])[:3]
    program = shutil.which("chromium")
    if not os.environ.get("SPW_FULL") or not program:
        print("only with --full and Chromium: skipped")
        sys.exit(77)
    server = None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        browser = None
        try:
            if not url:
                server, url = start_server(spillway, place)
            browser = Browser(program, os.path.join(place, "profile"))
            ask(browser, url, out or place)
        finally:
            if browser:
                browser.close()
            if server:
                server.send_signal(signal.SIGTERM)
                check(server.wait(30) == 0, "the server does not end well")


main()
