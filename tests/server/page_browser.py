#!/usr/bin/env python3
"""Uses the web page as a person does, in headless Chromium, and checks what it shows.

    tests/server/page_browser.py [--pictures FOLDER]        with the mock server (page_mock.py): all checks
    tests/server/page_browser.py URL [--key KEY]            with a running `sleigh serve`: the checks that any model passes

Prints a line for each check, and exits with 1 at the first that fails. It talks to Chromium through a pair of pipes
(--remote-debugging-pipe): JSON messages of the DevTools protocol, each ended by a NUL.
"""

import argparse
import base64
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time

import page_mock

TIMEOUT = 60  # seconds that a condition may take; a loaded machine is slow
KEYS = {"Enter": ("\r", 13), "Tab": ("", 9), "Escape": ("", 27)}


class Browser:
    def __init__(self, program, folder):
        down, up = os.pipe(), os.pipe()
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--no-first-run", "--disable-background-networking", f"--user-data-dir={folder}",
                   "--remote-debugging-pipe", "about:blank"]
        # Chromium reads descriptor 3 and writes descriptor 4. High numbers first, so that neither overwrites the other.
        reads, writes = fcntl.fcntl(down[0], fcntl.F_DUPFD, 10), fcntl.fcntl(up[1], fcntl.F_DUPFD, 10)
        self.process = subprocess.Popen(["bash", "-c", f'exec 3<&{reads} 4>&{writes} "$@"', "bash", *command],
                                        pass_fds=(reads, writes), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (down[0], up[1], reads, writes):
            os.close(fd)
        self.to, self.back, self.rest, self.next_id, self.session = down[1], up[0], b"", 0, None
        self.faults = []  # uncaught exceptions and errors of the console
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def message(self):
        while b"\0" not in self.rest:
            part = os.read(self.back, 1 << 16)
            if not part:
                sys.exit("FAIL  Chromium has ended")
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.message()
            if reply.get("method") == "Runtime.exceptionThrown":
                self.faults.append(json.dumps(reply["params"]["exceptionDetails"])[:500])
            if reply.get("method") == "Log.entryAdded" and reply["params"]["entry"]["source"] != "network":
                self.faults.append(reply["params"]["entry"]["text"])
            if reply.get("id") == self.next_id:
                if "error" in reply:
                    sys.exit(f"FAIL  {method}: {reply['error']}")
                return reply["result"]

    def value(self, expression):
        reply = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            sys.exit(f"FAIL  {expression}: {reply['exceptionDetails']['exception'].get('description')}")
        return reply["result"].get("value")

    def wait(self, expression):
        """The value of the expression, as soon as it is true."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            value = self.value(expression)
            if value:
                return value
            time.sleep(0.03)
        sys.exit(f"FAIL  not true within {TIMEOUT} s: {expression}\n{self.value('document.body.innerText')}")

    def press(self, key, modifiers=0):
        text, code = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode=code, modifiers=modifiers)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def click(self, css):
        x, y = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('{css}').getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def picture(self, folder, name):
        if folder:
            with open(os.path.join(folder, name + ".png"), "wb") as f:
                f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def check(condition, what, found=None):
    if not condition:
        sys.exit(f"FAIL  {what}; found {found!r}")
    print(f"ok    {what}", flush=True)


ENDED = "[...document.querySelectorAll('.turn:last-of-type .answer')].every(a => a.ariaBusy === 'false')"
STATES = "[...document.querySelectorAll('.turn:last-of-type .state')].map(s => s.textContent)"
TEXTS = "[...document.querySelectorAll('.turn:last-of-type .text')].map(s => s.innerText)"
FIGURES = "[...document.querySelectorAll('.turn:last-of-type .figures')].map(f => [...f.querySelectorAll('dd')].map(d => d.textContent))"


class Person:
    """Writes messages and reads answers."""

    def __init__(self, browser):
        self.browser = browser

    def send(self, text):
        n = self.browser.value("document.querySelectorAll('.turn').length")
        self.browser.value("document.getElementById('message').focus()")
        self.browser.type(text)
        self.browser.press("Enter")
        self.browser.wait(f"document.querySelectorAll('.turn').length === {n + 1}")

    def ask(self, text):
        self.send(text)
        self.browser.wait(ENDED)
        return self.browser.value(TEXTS)

    def choose(self, method):
        self.browser.value(f"""(s => {{ s.value = '{method}'; s.dispatchEvent(new Event('change', {{bubbles: true}}));
            s.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.querySelector('#attention > select'))""")


def check_any(b, person, pictures):
    """What any server and model must do: send, stream, switch the method, compare, stop, regenerate."""
    check(b.value("document.querySelectorAll('#attention option').length") > 1, "the picker has the methods of /props")
    person.send("Where is the sleigh?")
    check(b.wait(f"{TEXTS}[0]"), "an answer begins")
    b.wait(ENDED)
    figures = b.value(FIGURES)[0]
    check(b.value(STATES)[0] in ("complete", "ended at the limit of tokens"), "the answer is complete", b.value(STATES))
    check("tok/s" in figures[0] and figures[2] != "–" and figures[8] != "–", "it has speed, time to the first token and bytes", figures)
    b.picture(pictures, "desktop")
    person.choose("santa-prop")
    check("(biased)" in b.value("document.querySelector('#attention > select').selectedOptions[0].textContent"), "a method has its label")
    check(b.value("document.querySelectorAll('#attention input').length") >= 1, "a method has its parameters")
    b.value("document.querySelector('#attention input').focus()")
    b.value("document.querySelector('#attention input').select()")
    b.type("64")
    check(b.value("document.getElementById('chosen').textContent").startswith("santa-prop:S=64"), "the choice is shown as a specification")
    person.ask("And its bells?")
    check("santa-prop" in b.value("document.querySelector('.turn:last-of-type .answer h3').textContent"), "the answer names its method")
    b.click("#compare")
    person.send("Tell me both.")
    b.wait(f"{TEXTS}.every(t => t)")
    check(len(b.value(TEXTS)) == 2, "two answers grow side by side")
    b.wait(ENDED)
    verdict = b.wait("document.querySelector('.turn:last-of-type .verdict:not([hidden])')?.textContent")
    n_marks = b.value("document.querySelectorAll('.turn:last-of-type mark').length")
    check(verdict.startswith("The two answers have the same") or n_marks, "the differences are marked", verdict)
    check(len(b.value(FIGURES)) == 2, "both answers have figures")
    b.picture(pictures, "side-by-side")
    b.click("#compare")
    person.send("slow")
    b.wait(f"{TEXTS}[0]")
    b.press("Escape")
    b.wait(ENDED)
    state = b.value(STATES)[0]
    check(state in ("stopped", "complete", "ended at the limit of tokens"), f"Escape stops the answer (here: {state})", state)
    b.click(".turn:last-of-type .actions button")
    b.wait(f"{TEXTS}[0]")
    b.click("#send")
    b.wait(ENDED)
    check(b.value("document.querySelectorAll('.turn').length") == 4, "an answer is made again in its place")


def check_bodies(server):
    first, second, dense, sampled = server.bodies[:4]
    if dense["attn"] != "dense":
        dense, sampled = sampled, dense
    check(first["model"] == "mock-8b" and first["stream"] and first["stream_options"]["include_usage"], "the body asks for a stream", first)
    check("temperature" not in first and "seed" not in first, "an empty field is not sent", first)
    check("attn_prefill" not in first and dense["attn_prefill"] == "dense", "a default that is no method is left to the server", first)
    check(second["attn"] == "santa-prop:S=64", "the body has the method", second)
    check([m["role"] for m in second["messages"]] == ["user", "assistant", "user"], "the body has the conversation", second)
    check(second["messages"][1]["content"] == page_mock.SHORT, "the history has the answer", second)
    check(dense["attn"] == "dense" and sampled["attn"] == "santa-prop:S=64", "one answer is dense", (dense, sampled))
    check(dense["seed"] == sampled["seed"] and dense["messages"] == sampled["messages"], "both have one seed and one prompt")
    check(server.most_running == 2, "both run at the same time", server.most_running)


def check_texts(b, person):
    marks = b.value("""[...document.querySelectorAll('.turn:nth-of-type(3) .answer')].map(a =>
        [...a.querySelectorAll('mark')].map(m => m.innerText))""")
    check(marks == [["old barn,", "brass."], ["barn", "polished brass, I think."]], "exactly the different words are marked", marks)
    person.ask("hostile")
    check(b.value("document.querySelectorAll('.text img, .text script, .text b').length") == 0, "text of the model never becomes HTML")
    check(b.value("document.title") == "Sleigh", "no script of the model runs")
    check("<img src=x" in b.value(TEXTS)[0] and "<b>not bold</b>" == b.value("document.querySelector('.turn:last-of-type pre').innerText"),
          "HTML is shown as text", b.value(TEXTS))
    kinds = b.value("[...document.querySelectorAll('.turn:last-of-type .text > *')].map(n => n.tagName + (n.start ?? '')).join(' ')")
    check(kinds == "P P UL OL3 PRE", "markdown makes paragraphs, lists and code", kinds)


def check_errors(b, person, server, pictures):
    fault = "document.querySelector('.turn:last-of-type .fault:not([hidden])')?.textContent"
    for word, message in (("refuse", "temperature: found 3"), ("drop", "The connection broke"), ("fault", "the device failed")):
        person.ask(word)
        check(message in b.value(fault), f"{word}: the message is clear", b.value(fault))
    check(b.value(TEXTS)[0] == "The sleigh stands in the", "the text before the fault stays", b.value(TEXTS))
    b.value("document.querySelector('.turn:last-of-type .answer > details:last-of-type').open = true")
    b.picture(pictures, "fault")
    server.key = "secret-1"
    person.send("with a key")
    b.wait("document.getElementById('key-dialog').open")
    b.type("wrong")
    b.press("Enter")
    b.wait("document.getElementById('key-reason').textContent.includes('does not accept') && document.getElementById('key-dialog').open")
    b.picture(pictures, "key")
    b.value("document.getElementById('key-value').select()")
    b.type("secret-1")
    b.press("Enter")
    b.wait(ENDED)
    check(b.value(TEXTS)[0].startswith("The sleigh"), "401 asks for the key, and the request goes on", b.value(TEXTS))
    check(b.value("!(location.href + JSON.stringify(localStorage)).includes('secret-1')"), "the key is not in the URL or localStorage")
    server.key = None


def check_keyboard(b):
    b.value("document.getElementById('message').value = ''; document.getElementById('message').focus()")
    b.type("one")
    b.press("Enter", modifiers=8)
    b.type("two")
    check(b.value("document.getElementById('message').value") == "one\ntwo", "Shift+Enter makes a new line")
    b.value("document.getElementById('message').value = ''; document.getElementById('toggle').focus()")
    reached, visible = set(), "(r => r.width > 0)(document.activeElement.getBoundingClientRect())"
    for _ in range(80):
        b.press("Tab")
        reached.add(b.value("document.activeElement.id || document.activeElement.className || document.activeElement.type"))
        if b.value("document.activeElement !== document.body") and not b.value(visible):
            check(False, "the focus is visible", b.value("document.activeElement.outerHTML"))
    wanted = {"toggle", "theme", "fresh", "system", "keep", "key", "log", "message", "compare", "send", "select-one", "number"}
    check(wanted <= reached, "Tab reaches every control", wanted - reached)
    unnamed = """[...document.querySelectorAll('button, input, select, textarea, [role=log]')].filter(n =>
        !(n.ariaLabel || n.labels?.length || n.textContent.trim() || n.getAttribute('aria-labelledby'))).map(n => n.outerHTML)"""
    check(b.value(unnamed) == [], "every control has a name for screen readers", b.value(unnamed))


def check_stability(b, person):
    """While an answer grows, nothing that is on the screen moves."""
    b.value("""window.shifts = [];
        new PerformanceObserver(l => shifts.push(...l.getEntries().map(e => e.value))).observe({type: 'layout-shift'});
        document.getElementById('fresh').click()""")
    time.sleep(0.3)
    person.send("Where is the sleigh?")
    b.wait(f"{TEXTS}[0]")
    b.value("shifts.length = 0")
    height = "document.querySelector('.turn:last-of-type .text').getBoundingClientRect().y"
    before = b.value(height)
    b.wait(ENDED)
    check(b.value(height) == before and b.value("shifts.reduce((a, x) => a + x, 0)") < 0.001, "the layout stands still while text comes",
          b.value("shifts"))


def check_looks(b, person, pictures):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = b.value(colour)
    b.dark(True)
    check(b.value(colour) != light, "the page follows prefers-color-scheme")
    b.picture(pictures, "dark")
    b.click("#theme")
    check(b.value(colour) == light, "the switch chooses the light theme", b.value(colour))
    b.dark(False)
    b.click("#theme")
    b.picture(pictures, "dark-by-switch")
    check(b.value(colour) != light, "the switch chooses the dark theme")
    b.click("#theme")
    b.size(360, 740)
    b.wait("document.getElementById('settings').hidden")
    b.click("#toggle")
    check(b.value("document.querySelector('main').inert"), "on a phone the settings cover the conversation")
    b.picture(pictures, "phone-settings")
    b.click("#toggle")
    b.value("document.getElementById('compare').checked || document.getElementById('compare').click()")
    person.ask("hostile")
    wide = """[...document.querySelectorAll('body *')].filter(n => n.getBoundingClientRect().right > 361 && !n.closest('pre'))
        .map(n => n.outerHTML.slice(0, 80))"""
    check(b.value("document.documentElement.scrollWidth") <= 360 and b.value(wide) == [], "360 pixels are enough", b.value(wide))
    b.picture(pictures, "phone")
    b.value("document.getElementById('log').scrollTop = 0")
    b.picture(pictures, "phone-top")
    b.size(1280, 800)


def check_start(b, server, url):
    server.loading = True
    b.call("Page.navigate", url=url)
    b.wait("document.querySelector('#banner:not([hidden])')?.innerText.includes('loads')")
    server.loading = False
    b.wait("document.getElementById('send').disabled === false")
    check(True, "the page waits for a server that loads")


def check_memory(b, url):
    b.value("document.getElementById('keep').checked || document.getElementById('keep').click()")
    n = b.value("document.querySelectorAll('.turn').length")
    b.call("Page.navigate", url=url)
    b.wait("document.getElementById('send')?.disabled === false")
    check(n > 0 and b.value("document.querySelectorAll('.turn').length") == n, "a kept conversation comes back")
    b.click("#fresh")
    check(b.value("document.querySelectorAll('.turn').length") == 0, "a new chat is empty")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?", help="of a running server; without: the mock server")
    parser.add_argument("--key", help="API key of the running server")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--pictures", help="folder for screenshots")
    a = parser.parse_args()
    server = None if a.url else page_mock.start()
    url = a.url or f"http://127.0.0.1:{server.server_address[1]}/"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        b = Browser(a.chromium, folder)
        try:
            person = Person(b)
            b.size(1280, 800)
            b.dark(False)
            b.call("Page.navigate", url=url)
            if a.key:
                b.wait("document.getElementById('key-dialog')?.open")
                b.type(a.key)
                b.press("Enter")
            b.wait("document.getElementById('send')?.disabled === false")
            check(b.value("document.getElementById('model').textContent.includes('tokens')"), "the page shows the model and its context")
            check_any(b, person, a.pictures)
            if server:
                check_bodies(server)
                end = time.monotonic() + TIMEOUT
                while server.gone < 2 and time.monotonic() < end:
                    time.sleep(0.05)
                check(server.gone == 2, "stopping closes the connection", server.gone)
                check_texts(b, person)
                check_errors(b, person, server, a.pictures)
                check_keyboard(b)
                check_stability(b, person)
                check_looks(b, person, a.pictures)
                check_memory(b, url)
                check_start(b, server, url)
            check(b.faults == [], "no exception and no violation of the policy", b.faults)
        finally:
            b.process.terminate()
            b.process.wait()


if __name__ == "__main__":
    main()
