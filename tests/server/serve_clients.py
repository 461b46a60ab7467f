"""Runs `sleigh serve` as users do, with real clients (tests/server/test_serve_clients.c).

    serve_clients.py SLEIGH MODEL CASE      CASE: a function case_NAME of this file; exits with 1 when it fails
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "scripts")
import sleigh_server  # noqa: E402

SLEIGH, MODEL, CASE = sys.argv[1:4]
QUESTION = "The hidden number of the bay is 48213. What is the hidden number of the bay? Answer:"
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]


WEATHER = {"type": "object", "required": ["town", "days"], "properties": {
    "town": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "dry": {"type": ["boolean", "null"]}}}


class Server(sleigh_server.Server):
    def __init__(self, *flags, model=MODEL):
        super().__init__(SLEIGH, model, "-c", "4k", "-np", "4", *flags)


def calling_servers():
    """Servers whose templates teach calls in Python and calls of Mistral in both forms."""
    for marks in [], ["[TOOL_CALLS]"], ["[TOOL_CALLS]", "[ARGS]"]:
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                path = os.path.abspath(os.path.join(MODEL, name))
                if not name.startswith("tokenizer"):
                    os.symlink(path, os.path.join(folder, name))
                    continue
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                for i, mark in enumerate(marks):
                    text = text.replace(f"<|reserved_special_token_{i}|>", mark)
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
            template = os.path.join(folder, "t.jinja")
            with open(template, "w", encoding="utf-8") as f:
                f.write("{# " + (" ".join(marks) or "func_name1(") + " #}{{ bos_token }}{{ messages[-1].content }}<|eot_id|>")
            with Server("--chat-template", template, model=folder) as s:
                yield s


def check_weather(name, arguments):
    assert name == "weather" and arguments["town"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9, (name, arguments)
    assert arguments.get("dry") in (True, False, None) and not set(arguments) - set(WEATHER["properties"]), arguments


def alone(prompt, *flags):
    """The answer of `sleigh generate`."""
    out = subprocess.run([SLEIGH, "generate", "-m", MODEL, "-c", "4k", "-o", "json", "-p", prompt, *flags],
                         capture_output=True, check=True, text=True)
    return json.loads(out.stdout)


def case_process():
    """Signals, keys, and the bits of `sleigh generate`."""
    with Server("--attn", "santa-prop:S=8", "--temp", "0.9", "--alias", "mine") as s:
        body = {"prompt": QUESTION, "max_tokens": 12, "seed": 5, "logprobs": 0}
        status, text = s.get("/v1/completions", body)
        answer = json.loads(text)
        attention = answer["usage"]["attention"]
        want = alone(QUESTION, "-n", "12", "--seed", "5", "--attn", "santa-prop:S=8", "--temp", "0.9")
        assert status == 200 and answer["model"] == "mine"
        assert answer["choices"][0]["text"] == want["text"]
        assert attention["answers"][0]["logits_hash"] == want["logits"] and attention["method"] == want["attn"]
        body = {"messages": [{"role": "user", "content": "Where is the bay?"}], "max_tokens": 9, "seed": 6, "attn": "dense"}
        chat = json.loads(s.get("/v1/chat/completions", body)[1])
        want = alone("Where is the bay?", "--chat", "-n", "9", "--seed", "6", "--temp", "0.9")
        assert chat["choices"][0]["message"]["content"] == want["text"]
        assert chat["usage"]["attention"]["answers"][0]["logits_hash"] == want["logits"]
    with Server("--api-key", "secret") as s:
        assert s.get("/health")[0] == 200 and s.get("/v1/models")[0] == 200
        assert s.get("/v1/completions", {"prompt": "a"})[0] == 401
        assert s.get("/v1/completions", {"prompt": "a", "max_tokens": 1}, {"Authorization": "Bearer secret"})[0] == 200
        # The first signal waits for the answer, and the second one does not.
        running = socket.create_connection(("127.0.0.1", s.port))
        text = json.dumps({"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True})
        running.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-api-key: secret\r\n"
                        f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
        assert running.recv(4096)
        s.process.send_signal(signal.SIGTERM)
        assert "shuts down" in s.process.stderr.readline()
        assert s.get("/health")[0] == 503
        s.process.send_signal(signal.SIGINT)
        s.code = 128 + signal.SIGINT


def case_errors():
    """One line, with the flag, what was found and what was expected."""
    busy = socket.socket()
    busy.bind(("127.0.0.1", 0))
    busy.listen()
    with tempfile.TemporaryDirectory() as folder:
        empty = os.path.join(folder, "keys")
        open(empty, "w").close()
        cases = [
            (["--port", str(busy.getsockname()[1])], 1, "--port"),
            (["--host", "0.0.0.0"], 2, "--insecure"),
            (["--host", "no.such.host.invalid"], 2, "--host"),
            (["--api-key-file", empty], 1, "--api-key-file"),
            (["--tls-cert", empty, "--tls-key", empty], 1, "--tls-cert"),
            (["--tls-cert", "none.pem"], None, "--tls-"),
            (["--attn", "santa-prp"], 2, "santa-prop"),
            (["--max-connections", "1000000"], None, "--max-connections"),
            (["--port", "70000"], 2, "--port"),
        ]
        for flags, code, part in cases:
            out = subprocess.run([SLEIGH, "serve", "-q", "-m", MODEL, "--port", "0", *flags], capture_output=True, text=True,
                                 timeout=60, check=False)
            if part == "--max-connections" and out.returncode == -9:
                continue
            assert out.returncode == code or (code is None and out.returncode in (1, 2)), (flags, out)
            assert out.stderr.count("\n") == 1 and part in out.stderr, (flags, out)


def case_openai():
    import openai
    with Server() as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        assert client.models.list().data[0].id == os.path.basename(MODEL)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        whole = client.chat.completions.create(model="x", messages=messages, max_completion_tokens=12, seed=3, temperature=1,
                                               logprobs=True, top_logprobs=2)
        content = whole.choices[0].message.content
        assert bytes(b for t in whole.choices[0].logprobs.content for b in t.bytes).decode() == content
        assert whole.usage.completion_tokens <= 12 and whole.usage.attention["seed"] == 3
        stream = client.chat.completions.create(model="x", messages=messages, max_completion_tokens=12, seed=3, temperature=1,
                                                stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == content
        assert chunks[-1].usage.total_tokens == whole.usage.total_tokens and not chunks[-1].choices
        sampled = client.chat.completions.create(model="x", messages=messages, max_tokens=6, n=2, tools=TOOLS, stop=["zzz"],
                                                 extra_body={"attn": "topk:k=4", "top_k": 5, "min_p": 0.1})
        assert len(sampled.choices) == 2 and sampled.usage.attention["method"] == "topk:k=4"
        text = client.completions.create(model="x", prompt=QUESTION, max_tokens=6, temperature=0, logprobs=1, echo=True)
        assert text.choices[0].text.startswith(QUESTION) and "".join(text.choices[0].logprobs.tokens) == text.choices[0].text
        parts = client.completions.create(model="x", prompt=[QUESTION, "The"], max_tokens=6, temperature=0, stream=True)
        assert "".join(c.choices[0].text for c in parts if c.choices[0].index == 0) == text.choices[0].text[len(QUESTION):]
        schema = {"type": "object", "properties": {"town": {"enum": ["Oslo", "Rome"]}, "heat": {"type": "integer", "maximum": 50}},
                  "required": ["town", "heat"], "additionalProperties": False}
        formed = client.chat.completions.create(model="x", messages=messages, temperature=1.5, seed=5, response_format={
            "type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": schema}})
        weather = json.loads(formed.choices[0].message.content)
        assert weather["town"] in ("Oslo", "Rome") and weather["heat"] <= 50 and formed.choices[0].finish_reason == "stop"
        response = client.responses.create(model="x", input="Hi", max_output_tokens=8, temperature=0)
        with client.responses.stream(model="x", input="Hi", max_output_tokens=8, temperature=0) as events:
            assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == response.output_text
        try:
            client.chat.completions.create(model="x", messages=[{"role": "user", "content": "bay " * 5000}])
            raise AssertionError("no error")
        except openai.BadRequestError as e:
            assert e.code == "context_length_exceeded" and "4096" in e.message
        # The client leaves within a stream: its answer ends.
        stream = client.completions.create(model="x", prompt="a", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        wait_for_end(s)
    for s in calling_servers():
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        ask = {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1.5, "seed": 2,
               "tools": [*TOOLS, {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
               "tool_choice": {"type": "function", "function": {"name": "weather"}}}
        whole = client.chat.completions.create(**ask).choices[0]
        call, = whole.message.tool_calls
        check_weather(call.function.name, json.loads(call.function.arguments))
        assert whole.finish_reason == "tool_calls" and not whole.message.content
        parts = [c for e in client.chat.completions.create(**ask, stream=True) for c in e.choices[0].delta.tool_calls or []]
        assert "".join(c.function.arguments for c in parts) == call.function.arguments and parts[0].function.name == "weather"
        response = client.responses.create(
            model="x", input="Hi", temperature=1.5, tool_choice="required", parallel_tool_calls=False,
            tools=[{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}])
        call, = response.output
        assert call.type == "function_call"
        check_weather(call.name, json.loads(call.arguments))


def case_anthropic():
    import anthropic
    with Server() as s:
        client = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0)
        ask = {"model": "x", "max_tokens": 10, "extra_body": {"temperature": 0}, "system": "Be brief.",
               "messages": [{"role": "user", "content": "Hi"}]}
        count = client.messages.count_tokens(model="x", system="Be brief.", messages=ask["messages"])
        whole = client.messages.create(**ask)
        assert whole.usage.input_tokens + whole.usage.cache_read_input_tokens == count.input_tokens
        with client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        assert text == whole.content[0].text == final.content[0].text
        assert final.usage.output_tokens == whole.usage.output_tokens
        try:
            client.messages.create(model="x", max_tokens=1, messages=[{"role": "user", "content": "bay " * 5000}])
            raise AssertionError("no error")
        except anthropic.BadRequestError as e:
            assert "4096" in str(e)
    for s in calling_servers():
        client = anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0)
        ask = {"model": "x", "max_tokens": 300, "messages": [{"role": "user", "content": "Hi"}], "extra_body": {"seed": 2},
               "tools": [{"name": "weather", "input_schema": WEATHER}],
               "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        for choice in ask["tool_choice"], {"type": "tool", "name": "weather"}:
            use, = client.messages.create(**ask | {"tool_choice": choice}).content
            assert use.type == "tool_use"
            check_weather(use.name, use.input)
            with client.messages.stream(**ask | {"tool_choice": choice}) as stream:
                again, = stream.get_final_message().content
            assert (again.name, again.input) == (use.name, use.input)


def case_curl():
    with Server() as s:
        def curl(*args):
            return subprocess.run(["curl", "-sS", "--max-time", "30", *args], capture_output=True, check=True, text=True).stdout
        body = json.dumps({"model": "x", "prompt": "The bay", "max_tokens": 5, "stream": True})
        lines = curl("-N", s.url + "/v1/completions", "-H", "x-request-id: abc", "-d", body, "-i").splitlines()
        assert any(line.lower() == "x-request-id: abc" for line in lines), lines
        events = [line for line in lines if line.startswith("data: ")]
        assert events[-1] == "data: [DONE]" and '"cmpl-abc"' in events[0]
        assert curl(s.url + "/metrics").count("# TYPE vllm:") > 15
        # A client that leaves: curl ends at its own time limit (llama.cpp#24496).
        body = json.dumps({"prompt": "a", "max_tokens": 4000, "ignore_eos": True})
        subprocess.run(["curl", "-s", "--max-time", "0.3", s.url + "/v1/completions", "-d", body], check=False,
                       stdout=subprocess.DEVNULL)
        wait_for_end(s)


def wait_for_end(s):
    for _ in range(200):
        if "\nvllm:num_requests_running{model_name=\"%s\"} 0\n" % os.path.basename(MODEL) in s.get("/metrics")[1]:
            return
        time.sleep(0.01)
    raise AssertionError("an answer still runs")


globals()["case_" + CASE]()
