"""A server for the test of the web page: it speaks /props and the stream of /v1/chat/completions, and needs no model.

The last message of the user tells the answer: "slow" has many words, "refuse" is a 400, "drop" breaks the connection within the answer,
"fault" is an error within the stream, "hostile" has HTML and markdown, and all else is a short text. Sampled attention changes some words.
"""

import base64
import hashlib
import http.server
import json
import os
import re
import threading
import time

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../server/page/index.html")
S = {"name": "S", "type": "int", "default": 128, "min": 1, "max": 65536, "about": "rows of V drawn per query head"}
BUDGET = {"name": "budget", "type": "choice", "default": "even", "choices": ["even", "variance"], "about": "split of the draws"}
EPSILON = {"name": "epsilon", "type": "float", "default": 0.0, "min": 0.0, "max": 1.0, "about": "relative error that the method states"}
DENSE = {"name": "dense", "label": "exact", "summary": "exact attention over every row", "parameters": []}
PROPS = {
    "model": "mock-8b", "n_ctx": 8192, "parallel": 4,
    "sampling": {"temperature": 0.7, "top_p": 0.95, "top_k": 40, "min_p": 0, "repeat_penalty": 1},
    "attention": {"default": "dense", "methods": [
        DENSE,
        {"name": "santa-prop", "label": "biased", "summary": "S split over 256-row tiles by largest remainder", "parameters": [S, BUDGET]},
        {"name": "santa-pps", "label": "unbiased", "summary": "rows with large p |v| once each", "parameters": [S, EPSILON]}]},
    "attention_prefill": {"default": "auto", "methods": [
        DENSE, {"name": "streaming", "label": "biased", "summary": "the first and the last rows", "parameters": []}]},
}
SHORT = "The sleigh stands in the old barn, behind the hay. Its runners are made of ash wood and its bells are of brass."
HOSTILE = """## Plan
First **bold** and `code`, then <img src=x onerror="document.title='broken'"> as text.

- one
- two <script>document.title='broken'</script>

3. three

```html
<b>not bold</b>
```"""


def policy():
    """The header that server/page/page.c has from the Makefile, computed here a second time."""
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()

    def digest(tag):
        text = re.search(f"<{tag}[^>]*>(.*?)</{tag}>", page, re.S).group(1)
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (f"default-src 'none'; script-src 'sha256-{digest('script')}'; style-src 'sha256-{digest('style')}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def reply(self, status, body, kind="application/json", **headers):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message):
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": status}})

    def is_allowed(self):
        key = self.server.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.fail(401, "a wrong key, or none")
        return False

    def do_GET(self):
        if self.path == "/":
            with open(PAGE, encoding="utf-8") as f:
                self.reply(200, f.read(), "text/html; charset=utf-8", Content_Security_Policy=policy())
        elif self.path == "/props":
            if self.server.loading:
                self.fail(503, "the server loads its model")
            elif self.is_allowed():
                self.reply(200, PROPS)
        else:
            self.fail(404, f"no such path: {self.path}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.is_allowed():
            return
        self.server.bodies.append(body)
        word = body["messages"][-1]["content"]
        if word == "refuse":
            self.fail(400, "temperature: found 3, expected 0 to 2")
            return
        with self.server.lock:
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            self.stream(body, word)
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone += 1
        finally:
            with self.server.lock:
                self.server.running -= 1

    def stream(self, body, word):
        sampled = body.get("attn", "dense") != "dense"
        text = HOSTILE if word == "hostile" else " ".join(f"word{i}" for i in range(2000)) if word == "slow" else SHORT
        if sampled:
            text = text.replace("the old barn,", "the barn").replace("brass.", "polished brass, I think.")
        pieces = re.findall(r"\s*\S+|\s+$", text)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.write(": keep-alive\n\n")
        time.sleep(0.2)
        for i, piece in enumerate(pieces):
            if i == 5 and word == "drop":
                return
            if i == 5 and word == "fault":
                self.event({"error": {"message": "the device failed", "type": "server_error"}})
                self.write("data: [DONE]\n\n")
                return
            delta = {"content": piece} if i else {"role": "assistant", "content": piece}
            self.chunk([{"index": 0, "delta": delta, "finish_reason": None}], body, i + 1, sampled)
            time.sleep(0.02 if sampled else 0.03)
        self.chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}], body, len(pieces), sampled)
        self.chunk([], body, len(pieces), sampled)
        self.write("data: [DONE]\n\n")

    def chunk(self, choices, body, n, sampled):
        dense_rows, dense_bytes = n * 32 * 32 * 4000, n * 131072 * 4000
        attention = {"method": body.get("attn", "dense"), "prefill": "dense", "seed": body.get("seed", 4711),
                     "rows_read": n * 32 * 32 * 128 if sampled else dense_rows, "dense_rows": dense_rows,
                     "bytes_read": dense_bytes * 52 // 100 if sampled else dense_bytes, "dense_bytes": dense_bytes,
                     "layer_steps": 32 * n if sampled else 0, "certified": 31 * n if sampled else 0,
                     "stated_error": 0.0123 if sampled else None, "stated_error_max": 0.0456 if sampled else None,
                     "answers": [{"index": 0, "sequence": 0, "logits_hash": "0123456789abcdef"}]}
        usage = {"prompt_tokens": 4000, "completion_tokens": n, "total_tokens": 4000 + n,
                 "prompt_tokens_details": {"cached_tokens": 3840}, "attention": attention}
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock-8b", "choices": choices, "usage": usage})

    def event(self, value):
        self.write(f"data: {json.dumps(value)}\n\n")

    def write(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()


def start():
    """A server on a free port of loopback. Fields for the test: key, loading, bodies, running, most_running, gone."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.key, server.loading, server.bodies = None, False, []
    server.running, server.most_running, server.gone, server.lock = 0, 0, 0, threading.Lock()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
