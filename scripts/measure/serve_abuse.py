#!/usr/bin/env python3
"""Measures what slow and hostile clients do to real ones, and whether many requests leave memory or descriptors behind. Starts
`sleigh serve` by itself on a free port of 127.0.0.1. Needs no package.

    scripts/measure/serve_abuse.py -m tiny -o md

The first table: 8 clients that stream answers, alone, then beside slow and hostile clients, which run in another process. The slow clients
send a byte of a header or of a body now and then, keep idle connections, or read their answer a byte at a time. The hostile clients send
malformed and oversized requests, bodies that a reader must refuse or that cost it much, reset connections, and leave within a stream.
--pause bounds the rate of the hostile ones, because all programs share the cores of this machine. The second table: the memory
(RSS) and the open descriptors of the server during short requests of all kinds, each of which must get the expected status. Exits with 1 if a
real client failed, its p99 gap grew by more than --most-ratio, the memory grew by more than --most-growth in the second half, or a descriptor
stayed open. The test serve_clients/abuse runs a small form."""
import argparse
import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import sleigh_server  # noqa: E402

HOST = "127.0.0.1"
HEAD = b"POST %s HTTP/1.1\r\nHost: sleigh\r\nContent-Type: application/json\r\n"


def request(path, body, *headers):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return HEAD % path.encode() + b"".join(h + b"\r\n" for h in headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def say(text):
    print(f"serve_abuse: {text}", file=sys.stderr, flush=True)


def sentence(rng):
    return f"The hidden number of the {rng.choice(('bay', 'farm', 'house', 'road'))} is {rng.randrange(10**6)}. "


# ---- real clients ----

async def stream(port, rng, tokens, gaps, firsts):
    """One streamed answer. The reason why it failed; None: it is whole."""
    body = {"prompt": "".join(sentence(rng) for _ in range(6)), "max_tokens": tokens, "stream": True, "ignore_eos": True, "seed": 1}
    begin, last, n, done = time.perf_counter(), None, 0, False
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request("/v1/completions", body, b"Connection: close"))
        status = await reader.readline()
        if b" 200 " not in status:
            return status.decode().strip() or "no answer"
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                now, n = time.perf_counter(), n + 1
                if last:
                    gaps.append(now - last)
                else:
                    firsts.append(now - begin)
                last = now
            done |= line.startswith(b"data: [DONE]")
        writer.close()
    except OSError as e:
        return str(e)
    return None if done and n == tokens else f"{n} events of {tokens}, {'' if done else 'no '}end"


async def real_clients(args, port):
    gaps, firsts, failures, n = [], [], [], 0
    end = time.monotonic() + args.seconds

    async def client(number):
        nonlocal n
        rng = random.Random(number)
        while time.monotonic() < end:
            failure = await stream(port, rng, args.tokens, gaps, firsts)
            n += 1
            failures.extend([failure] if failure else [])
    await asyncio.gather(*(client(i) for i in range(args.clients)))
    return gaps, firsts, failures, n


# ---- slow clients ----

async def slow_client(args, rng, counts):
    way = rng.choice(("header", "body", "idle", "reader"))
    begins = {"header": b"GET /health HTTP/1.1\r\nHost: sleigh\r\nx-a: ", "body": HEAD % b"/v1/completions" + b"Content-Length: 100000\r\n\r\n",
              "idle": b"GET /health HTTP/1.1\r\nHost: sleigh\r\n\r\n", "reader": b"GET /props HTTP/1.1\r\nHost: sleigh\r\n\r\n" * 20}
    while True:
        try:
            reader, writer = await asyncio.open_connection(HOST, args.port, limit=64)
            counts["slow"] += 1
            writer.write(begins[way])
            while not reader.at_eof():
                await asyncio.sleep(rng.uniform(0.5, 1.5) * args.slow_pause)
                if way in ("header", "body"):
                    writer.write(b"a")
                    await writer.drain()
                else:
                    await asyncio.wait_for(reader.read(1), 600)
            writer.close()
        except (OSError, asyncio.TimeoutError):
            await asyncio.sleep(args.slow_pause)


# ---- hostile clients ----

def deep(n):
    return b'{"prompt": ' + b"[" * n + b"]" * n + b"}"


def hostile_bytes(rng):
    """Requests that no client of good will sends."""
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": "(a|b){1,200}(c|d){1,200}"} for i in range(20)}}
    grammar = "root ::= a\na ::= a a | \"x\"\n"
    ask = {"prompt": "a", "max_tokens": 2}
    return rng.choice((
        lambda: rng.randbytes(rng.randrange(1, 3000)),
        lambda: b"GET /" + b"a" * rng.randrange(20000, 200000) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        lambda: b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 10000 + b"\r\n",
        lambda: HEAD % b"/v1/completions" + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n",
        lambda: HEAD % b"/v1/completions" + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 100000,
        lambda: HEAD % b"/v1/completions" + b"Transfer-Encoding: chunked\r\n\r\n" + b"ffffffff\r\n" + b"x" * 50000,
        lambda: request("/v1/completions", deep(rng.randrange(1000, 100000))),
        lambda: request("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}'),
        lambda: request("/v1/completions", ask | {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}),
        lambda: request("/v1/completions", ask | {"structured_outputs": {"regex": "((a|b)*c){1,500}" * 20}}),
        lambda: request("/v1/completions", ask | {"grammar": grammar}),
        lambda: request("/v1/completions", ask | {"prompt": "x " * 200000}),
        lambda: request("/v1/completions", ask | {"prompt": "a", "stream": True, "max_tokens": 3000, "ignore_eos": True}),
        lambda: request("/v1/messages", {"model": "m", "max_tokens": 10**9, "messages": []}),
        lambda: request("/tokenize", {"prompt": "\u0000" * 100000}),
    ))()


async def hostile_client(args, rng, counts):
    while True:
        writer = None
        try:
            reader, writer = await asyncio.open_connection(HOST, args.port)
            counts["hostile"] += 1
            writer.write(hostile_bytes(rng))
            await asyncio.wait_for(reader.read(100), rng.uniform(0.01, 0.3))
            if rng.random() < 0.5:
                writer.transport.abort()  # a reset where bytes are unread
            writer.close()
        except (OSError, asyncio.TimeoutError):
            if writer:
                writer.transport.abort()
        await asyncio.sleep(rng.uniform(0.5, 1.5) * args.pause)


async def abuse(args):
    """The other process. Prints the counts of connections when it ends."""
    counts, stop = {"slow": 0, "hostile": 0}, asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = []
    for i in range(args.slow + args.hostile):
        act = slow_client if i < args.slow else hostile_client
        tasks.append(asyncio.create_task(act(args, random.Random(i), counts)))
        if i % 20 == 0:
            await asyncio.sleep(0.01)
    print("ready", flush=True)
    await stop.wait()
    for t in tasks:
        t.cancel()
    print(json.dumps(counts), flush=True)


class Abusers:
    def __init__(self, args, port):
        words = [sys.executable, __file__, "--abuse", "--port", str(port)]
        for name in ("slow", "hostile", "pause", "slow-pause"):
            words += ["--" + name, str(getattr(args, name.replace("-", "_")))]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.nice(10))
        assert self.process.stdout.readline() == "ready\n"

    def stop(self):
        self.process.terminate()
        return json.loads(self.process.communicate(timeout=60)[0])


# ---- memory ----

KINDS = (  # (status, path, body of a random generator)
    (200, "/v1/completions", lambda r: {"prompt": sentence(r), "max_tokens": 2}),
    (200, "/v1/completions", lambda r: {"prompt": sentence(r), "max_tokens": 2, "stream": True, "n": 2}),
    (200, "/v1/completions", lambda r: {"prompt": sentence(r), "max_tokens": 1, "echo": True, "logprobs": 2}),
    (200, "/v1/completions", lambda r: {"prompt": sentence(r), "max_tokens": 2, "attn": f"santa-prop:S={r.randrange(1, 60000)}"}),
    (200, "/v1/completions", lambda r: {"prompt": sentence(r), "max_tokens": 3, "structured_outputs": {"regex": f"[0-9]{{1,{r.randrange(1, 200)}}}"}}),
    (200, "/v1/chat/completions", lambda r: {"messages": [{"role": "user", "content": sentence(r)}], "max_tokens": 2}),
    (200, "/v1/messages", lambda r: {"model": "m", "messages": [{"role": "user", "content": sentence(r)}], "max_tokens": 2}),
    (200, "/tokenize", lambda r: {"prompt": sentence(r)}),
    (400, "/v1/completions", lambda r: {"prompt": sentence(r), "nothing": r.randrange(10)}),
    (400, "/v1/completions", lambda r: {"prompt": sentence(r), "attn": f"santa-prop:S=-{r.randrange(1, 1000)}"}),
)


async def one_request(reader, writer, rng):
    status, path, make = rng.choice(KINDS)
    writer.write(request(path, make(rng)))
    head = await reader.readuntil(b"\r\n\r\n")
    found = int(head.split()[1])
    if b"chunked" in head:
        while (size := int(await reader.readline(), 16)) or await reader.readline() != b"\r\n":
            await reader.readexactly(size + 2)
    else:
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
    return None if found == status else f"{path}: status {found}, expected {status}"


async def many_requests(args, port, n, seed):
    left, failures = n, []

    async def client(number):
        nonlocal left
        rng = random.Random(f"{seed} {number}")
        reader = writer = None
        while left > 0:
            left -= 1
            if not writer or rng.random() < 0.05:
                if writer:
                    writer.close()
                reader, writer = await asyncio.open_connection(HOST, port)
            failure = await one_request(reader, writer, rng)
            failures.extend([failure] if failure else [])
        writer.close()
    await asyncio.gather(*(client(i) for i in range(args.clients)))
    return failures


def memory_of(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        pages = int(f.read().split()[1])
    return pages * resource.getpagesize() / 2**20, len(os.listdir(f"/proc/{pid}/fd"))


def settled_memory(server):
    """MiB and descriptors, once the closed connections are gone."""
    for _ in range(100):
        if '\nsleigh_connections{' in (text := server.get("/metrics")[1]) and text.split("\nsleigh_connections{")[1].split()[1] == "1":
            break
        time.sleep(0.1)
    time.sleep(0.2)
    return memory_of(server.process.pid)


# ---- tables ----

def quantile(values, share):
    values = sorted(values)
    return 1e3 * values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def measure_gaps(args):
    rows, ok = [], True
    with sleigh_server.Server(args.sleigh, args.model, "-c", "4k", "-np", str(2 * args.clients), "-t", str(args.threads),
                              "--max-connections", "2048") as server:
        asyncio.run(real_clients(argparse.Namespace(**vars(args) | {"seconds": 1}), server.port))  # warm
        before = settled_memory(server)
        for name in ("alone", "with slow and hostile clients"):
            say(f"{args.clients} clients {name}, {args.seconds} s")
            abusers = Abusers(args, server.port) if rows else None
            gaps, firsts, failures, n = asyncio.run(real_clients(args, server.port))
            counts = abusers.stop() if abusers else {"slow": 0, "hostile": 0}
            for failure in failures[:5]:
                say(f"failure: {failure}")
            rows.append({"clients": name, "slow connections": counts["slow"], "hostile connections": counts["hostile"], "answers": n,
                         "failures": len(failures), "gap p50 ms": round(quantile(gaps, 0.5), 2), "gap p99 ms": round(quantile(gaps, 0.99), 2),
                         "gap max ms": round(quantile(gaps, 1), 1), "first token p99 ms": round(quantile(firsts, 0.99), 1)})
            rows[-1]["p99 / p99 alone"] = round(rows[-1]["gap p99 ms"] / rows[0]["gap p99 ms"], 2)
        memory, files = settled_memory(server)
        say(f"memory {before[0]:.1f} to {memory:.1f} MiB, descriptors {before[1]} to {files}")
        ok = files == before[1] and rows[-1]["p99 / p99 alone"] <= args.most_ratio and not any(row["failures"] for row in rows)
    return rows, ok


def measure_memory(args):
    rows, failures, part = [], [], max(1, args.requests // 10)
    with sleigh_server.Server(args.sleigh, args.model, "-c", "4k", "-np", str(args.clients), "-t", str(args.threads)) as server:
        begin, size = time.monotonic(), memory_of(server.process.pid)
        rows.append({"requests": 0, "failures": 0, "RSS MiB": round(size[0], 1), "descriptors": size[1], "seconds": 0})
        for i in range(part, args.requests + 1, part):
            failures += asyncio.run(many_requests(args, server.port, part, i))
            size = settled_memory(server)
            rows.append({"requests": i, "failures": len(failures), "RSS MiB": round(size[0], 1), "descriptors": size[1],
                         "seconds": round(time.monotonic() - begin)})
            say(f"{i} requests, {size[0]:.1f} MiB, {size[1]} descriptors")
        for failure in failures[:5]:
            say(f"failure: {failure}")
    later = rows[max(1, len(rows) // 2):]
    ok = not failures and later[-1]["RSS MiB"] <= args.most_growth * later[0]["RSS MiB"] and later[-1]["descriptors"] <= later[0]["descriptors"]
    return rows, ok


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="tiny")
    p.add_argument("-t", "--threads", type=int, default=1, help="of the server's arithmetic")
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--slow", type=int, default=1000)
    p.add_argument("--hostile", type=int, default=100)
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--tokens", type=int, default=200, help="of an answer")
    p.add_argument("--pause", type=float, default=2, help="seconds between two acts of a hostile client")
    p.add_argument("--slow-pause", type=float, default=1, help="seconds between two bytes of a slow client")
    p.add_argument("--requests", type=int, default=20000, help="of the second table")
    p.add_argument("--most-ratio", type=float, default=3)
    p.add_argument("--most-growth", type=float, default=1.05, help="factor: an allocator keeps some memory")
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    p.add_argument("--abuse", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    if args.abuse:
        asyncio.run(abuse(args))
        return
    ok = True
    for measure, wanted in ((measure_gaps, args.seconds), (measure_memory, args.requests)):
        if wanted:
            rows, is_ok = measure(args)
            ok &= is_ok
            print(sleigh_server.table(rows, args.output) + "\n", flush=True)
    sys.exit(not ok)


if __name__ == "__main__":
    main()
