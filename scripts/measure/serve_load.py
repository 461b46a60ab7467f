#!/usr/bin/env python3
"""Loads a server with streams of /v1/completions and prints a row of a table for each method: output tokens/s, the time to the first token
and between tokens. Needs no package.

    build/sleigh serve -m models/llama-3.1-8b --load-format dummy --device cuda --parallel 32 -c 32768 --kv-tokens 300000 &
    scripts/measure/serve_load.py --requests 64 --clients 32 --prompt 8000 --tokens 256 --attn dense,santa-is:S=256

Every client sends a prompt of random token ids, all at the same time, greedy, without end tokens, and the next prompt after the answer,
until --requests are sent; so does `vllm bench serve --num-prompts N --max-concurrency C`. "steps only": tokens/s after the last request
has its first token, when no prefill delays a step, and the mean number of streams that run then: `bench decode -b` with this batch
is what they could reach. --shared: all requests have the same prompt."""
import argparse
import asyncio
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import sleigh_server  # noqa: E402


def body_of(args, attn, number):
    rng = random.Random(f"{args.seed} {attn} {args.prompt} {0 if args.shared else number}")
    return json.dumps({"model": "m", "prompt": [rng.randrange(100, args.vocab) for _ in range(args.prompt)], "max_tokens": args.tokens,
                       "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0,
                       "attn": attn}).encode()


async def request(args, number, body, results):
    reader, writer = await asyncio.open_connection(args.host, args.port, limit=1 << 24)
    start, times, usage = time.perf_counter(), [], None
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: sleigh\r\nContent-Type: application/json\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    status = (await reader.readline()).decode().strip()
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(f"request {number}: {event['error']}")
        usage = event.get("usage") or usage
        if event["choices"]:
            times.append(time.perf_counter())
    writer.close()
    if not times or not usage:
        sys.exit(f"request {number}: no answer: {status}")
    results.append((start, times, usage))


async def client(args, bodies, results):
    for number, body in bodies:  # shared by all clients: each takes the next one
        await request(args, number, body, results)


def at(values, share):
    """A quantile of sorted values, in milliseconds."""
    return 1e3 * values[min(len(values) - 1, int(share * len(values)))]


async def measure(args, attn):
    # Made before the first request: making a long prompt would delay what the other clients read.
    results, bodies = [], iter([(i, body_of(args, attn, i)) for i in range(args.requests or args.clients)])
    start = time.perf_counter()
    await asyncio.gather(*(client(args, bodies, results) for _ in range(args.clients)))
    wall = time.perf_counter() - start
    first = sorted(times[0] - begin for begin, times, _ in results)
    gaps = sorted(b - a for _, times, _ in results for a, b in zip(times, times[1:])) or [0]
    all_began, end = max(times[0] for _, times, _ in results), max(times[-1] for _, times, _ in results)
    later, left = sum(x > all_began for _, times, _ in results for x in times), end - all_began
    streams = sum(max(0, times[-1] - all_began) for _, times, _ in results) / left if left > 0 else 0
    tokens = sum(usage["completion_tokens"] for _, _, usage in results)
    cached = [(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for _, _, usage in results]
    return {"attn": attn, "requests": len(results), "clients": args.clients, "prompt": args.prompt, "tokens": args.tokens, "seconds": round(wall, 2),
            "output tok/s": round(tokens / wall),
            "steps only tok/s": round(later / left) if left > 0 else None, "streams": round(streams, 1),
            "TTFT p50 ms": round(at(first, 0.5)), "TTFT p99 ms": round(at(first, 0.99)), "gap p50 ms": round(at(gaps, 0.5), 2),
            "gap p99 ms": round(at(gaps, 0.99), 1), "gap max ms": round(1e3 * gaps[-1], 1), "cached": f"{min(cached)} to {max(cached)}"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8080)
    p.add_argument("--clients", type=int, default=8, metavar="N", help="requests at a time")
    p.add_argument("--requests", type=int, default=0, metavar="N", help="requests in all (default: one for each client)")
    p.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens of a prompt")
    p.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of an answer")
    p.add_argument("--attn", default="dense", help="methods, separated by commas: one row each")
    p.add_argument("--shared", action="store_true", help="all requests have the same prompt")
    p.add_argument("--vocab", type=int, default=100000, metavar="N", help="token ids are below this")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    args = p.parse_args()
    rows = [asyncio.run(measure(args, attn)) for attn in args.attn.split(",")]
    print(sleigh_server.table(rows, args.output))


if __name__ == "__main__":
    main()
