"""`sleigh serve --tensor-parallel-size` beside a server of one process (tests/server/test_serve_ranks.c).

    serve_ranks.py SLEIGH MODEL CASE      CASE: a function case_NAME of this file; exits with 1 when it fails
"""
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time

sys.path.insert(0, "scripts")
import sleigh_server  # noqa: E402

SLEIGH, MODEL, CASE = sys.argv[1:4]
FLAGS = ["-c", "4k", "-np", "4", "-t", "1", "--keep-conversations", "2"]
BOOK = "".join(f"The hidden number of house {i} is {i * 7919 % 1000}. " for i in range(40))
SCHEMA = {"type": "object", "required": ["town", "days"], "properties": {
    "town": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}
QUESTION = "The hidden number of the bay is 48213. What is the hidden number of the bay? Answer:"
USER = [{"role": "user", "content": "What is the weather?"}]


def requests(attn, drafts):
    """(path, body): all that determines an answer: seeds, penalties, stop strings, formats, log-probabilities, methods, and
    perhaps drafts, which change nothing."""
    base = {"max_tokens": 12, "seed": 7, "temperature": 1.3, "attn": attn}
    text, chat = "/v1/completions", "/v1/chat/completions"
    return [
        (text, {**base, "prompt": BOOK + "What is", "logprobs": 2}),
        (text, {**base, "prompt": BOOK + "Where is", "logprobs": 0, "seed": 8}),  # the same beginning
        (text, {**base, "prompt": ["One", "Two"], "n": 2, "stop": ["e", " t"], "max_tokens": 40}),
        (text, {**base, "prompt": "One two three", "echo": True, "logprobs": 1, "repetition_penalty": 1.3}),
        (text, {**base, "prompt": BOOK[:300], "max_tokens": 0, "echo": True}),
        (text, {**base, "prompt": "The", "logit_bias": {"65": 5, "66": -100}, "presence_penalty": 0.5, "min_p": 0.05}),
        (text, {**base, "prompt": "One", "n": 2, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
        (text, {**base, "prompt": "A", "structured_outputs": {"regex": " [0-9]{1,3}(, [0-9]{1,3})*"}}),
        (chat, {**base, "messages": USER, "max_tokens": 60,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
        (chat, {**base, "messages": USER, "max_tokens": 30, "logprobs": True,
                "structured_outputs": {"grammar": 'root ::= "It is " ("dry" | "wet") (" and " [a-z]{3,9}){2}'}}),
        (chat, {**base, "messages": USER, "conversation_id": "a"}),
        (chat, {**base, "messages": USER + [{"role": "assistant", "content": "Fine."}, *USER], "conversation_id": "a"}),
        ("/v1/messages", {"messages": USER, "max_tokens": 9, "temperature": 0.9, "seed": 3}),
    ] + [(text, {"prompt": BOOK[:400], "max_tokens": 40, "seed": 4, "logprobs": 1, "draft": d, "attn": "dense"}) for d in drafts]


def pieces(text):
    """An answer or its events, without what is another one for each request."""
    events = [line[6:] for line in text.splitlines() if line.startswith("data: {")] or [text]
    values = [json.loads(e) for e in events]
    for v in values:
        v.pop("id", None), v.pop("created", None)
        usage = v.get("usage") or {}
        if "drafts" in usage.get("attention", {}):  # measured times choose them, so what they read differs
            usage["attention"] = usage["attention"]["answers"]
        for c in v.get("choices", []):
            for call in c.get("message", {}).get("tool_calls") or []:
                call.pop("id")
    return values


def without_cached(values):
    """What does not depend on the other requests."""
    for v in values:
        (v.get("usage") or {}).pop("prompt_tokens_details", None)
    return values


def joined(values):
    """The text and the end of each answer of a stream, and its usage: the events depend on the other requests."""
    answers = {}
    for c in (c for v in values for c in v["choices"]):
        text, end = answers.get(c["index"], ("", None))
        answers[c["index"]] = text + c["text"], c["finish_reason"] or end
    return answers, values[-1]["usage"]


def ask(server, path, body):
    status, text = server.get(path, body)
    assert status == 200, (status, text)
    return pieces(text)


def leave(server, body):
    """A client that goes away in the middle of its answer."""
    text = json.dumps({**body, "stream": True, "max_tokens": 2000, "ignore_eos": True})
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        c.recv(4096)


def metric(server, name):
    text = server.get("/metrics")[1]
    return float(next(line for line in text.splitlines() if line.startswith(name + "{")).rsplit(" ", 1)[1])


def client(server, number, all_requests, wanted, failures):
    """Asks all requests, beginning with another one than the other clients, and leaves some."""
    try:
        for i in range(len(all_requests)):
            k = (i + 2 * number) % len(all_requests)
            path, body = all_requests[k]
            if "conversation_id" in body:
                continue  # two answers of one conversation cannot run at once
            if (i + number) % 4 == 0:
                leave(server, {"prompt": BOOK[number:], "seed": i})
            got, want = without_cached(ask(server, path, body)), wanted[k]
            if body.get("stream"):
                got, want = joined(got), joined(want)
            assert got == want, (body, got, want)
    except Exception as e:  # pylint: disable=broad-except
        failures.append(repr(e))


def compare_alone(one, ranks, all_requests, is_gpu):
    """One request after another. Returns the answers of the ranks."""
    answers = []
    for path, body in all_requests:
        want, got = ask(one, path, body), ask(ranks, path, body)
        assert is_gpu or got == want, (body, got, want)
        answers.append(without_cached(got))
    return answers


def compare(model, n, attn, *flags, is_gpu=False):
    """All requests one after another, and then six clients at once. On a CPU, the answers of ranks are those of one process. On
    GPUs, a prefill of ranks has other last bits; there, the answers to six clients are those of ranks to one client, and the
    text of an easy question is that of one process."""
    with sleigh_server.Server(SLEIGH, model, *FLAGS, *flags) as one, \
            sleigh_server.Server(SLEIGH, model, *FLAGS, "-tp", str(n), *flags) as ranks:
        others = children(ranks)
        assert len(others) == n - 1
        easy = {"prompt": QUESTION, "temperature": 0, "max_tokens": 8, "attn": "dense"}
        texts = [ask(s, "/v1/completions", easy)[0]["choices"][0]["text"] for s in (one, ranks)]
        assert texts[0] and texts[0] == texts[1], texts
        all_requests = requests(attn, [] if is_gpu else ["auto", "self:least=2:most=3:attn=topk:k=40"])
        wanted = compare_alone(one, ranks, all_requests, is_gpu)
        assert wanted[0][0]["choices"][0]["text"] and (is_gpu or wanted[0][0]["usage"]["attention"]["rows_read"] > 0)
        assert metric(ranks, "vllm:prefix_cache_hits_total") > 0
        for field, value in [("attn", "magicpig"), ("attn", "auto"), ("attn_prefill", "sample"), ("draft", "model")]:
            status, text = ranks.get("/v1/completions", {"prompt": "a", field: value})
            assert status == 400 and field.split("_", maxsplit=1)[-1] in text, text
        failures = []
        clients = [threading.Thread(target=client, args=(ranks, i, all_requests, wanted, failures)) for i in range(6)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()
        assert not failures, failures[0]
        counters = ["vllm:generation_tokens_total", "sleigh_cancelled_total"] + ([] if is_gpu else ["sleigh_rows_read_total"])
        for name in counters:
            assert metric(ranks, name) > metric(one, name), name
    wait_for_ends(others)


def children(server):
    with open(f"/proc/{server.process.pid}/task/{server.process.pid}/children", encoding="utf-8") as f:
        return [int(x) for x in f.read().split()]


def wait_for_ends(processes):
    """A process that has ended may stay as a zombie, which this process cannot reap."""
    until = time.monotonic() + 10
    for p in processes:
        while time.monotonic() < until:
            try:
                with open(f"/proc/{p}/stat", encoding="utf-8") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                        break
            except FileNotFoundError:
                break
            time.sleep(0.01)
        else:
            raise AssertionError(f"process {p} lives")


def case_two():
    compare(MODEL, 2, "santa-prop:S=8", "--exact-below", "off")


def case_gpu():
    compare(MODEL, 2, "santa-prop:S=8", "--exact-below", "off", "--device", "cuda", is_gpu=True)


def case_four():
    """A config with 8 KV heads, whose weights are random, with the tokenizer of the model."""
    with tempfile.TemporaryDirectory() as folder:
        for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
            shutil.copy(os.path.join(MODEL, name), folder)
        with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config |= {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
                   "intermediate_size": 1024}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        compare(folder, 4, "dense", "--load-format", "dummy")


def start_stream(server):
    c = socket.create_connection(("127.0.0.1", server.port))
    text = json.dumps({"prompt": "a", "max_tokens": 600, "ignore_eos": True, "stream": True})
    c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    assert c.recv(4096)
    return c


def case_ends():
    """A rank that is killed ends the others, whether answers run or not; signals to the first rank or to all."""
    flags = [*FLAGS, "-tp", "2"]
    easy = {"prompt": QUESTION, "temperature": 0, "max_tokens": 8}
    with sleigh_server.Server(SLEIGH, MODEL, *flags) as idle, sleigh_server.Server(SLEIGH, MODEL, *flags) as busy:
        answer = ask(idle, "/v1/completions", easy)[0]["choices"]
        assert ask(idle, "/v1/completions", easy)[0]["choices"] == answer
        stream = start_stream(busy)
        begin = time.monotonic()
        for s in idle, busy:
            os.kill(children(s)[0], signal.SIGKILL)
            s.code = 1
        for s in idle, busy:
            text = s.process.stderr.read()
            assert text.count("\n") == 1 and text.startswith("sleigh: error: rank 1 of 2 (") and "killed" in text, text
            assert s.process.wait(10) == 1 and time.monotonic() - begin < 10
        stream.close()
    with sleigh_server.Server(SLEIGH, MODEL, *flags, "--drain-timeout", "30") as s:
        others = children(s)
        stream = start_stream(s)
        os.kill(others[0], signal.SIGTERM)  # as an init system that ends all processes of a service
        s.process.send_signal(signal.SIGTERM)
        assert "shuts down" in s.process.stderr.readline()
        assert s.get("/health")[0] == 503
        text = b""
        while b"[DONE]" not in text:  # the running answer is whole
            part = stream.recv(65536)
            assert part, text[-200:]
            text += part
        stream.close()
        assert s.process.wait(10) == 0
    wait_for_ends(others)
    with sleigh_server.Server(SLEIGH, MODEL, *flags) as s:
        others = children(s)
        stream = start_stream(s)
        s.process.send_signal(signal.SIGINT)
        assert "shuts down" in s.process.stderr.readline()
        s.process.send_signal(signal.SIGINT)  # the second one does not wait
        s.code = 128 + signal.SIGINT
        s.process.wait(10)
        stream.close()
    wait_for_ends(others)


globals()[f"case_{CASE}"]()
