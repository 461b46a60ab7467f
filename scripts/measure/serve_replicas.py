#!/usr/bin/env python3
"""Kills a replica behind HAProxy under load, and brings it back. Starts two servers and HAProxy with packaging/serve/haproxy.cfg by itself;
only the ports differ. Needs the program haproxy and no package.

    scripts/measure/serve_replicas.py -m tiny -o md

Clients send streamed requests without a pause, each with conversation ids (x-session-id) of its own. The answer's `model` tells which
replica made it. After a while the replica that answers more requests gets SIGKILL, and later it starts again. A row of the table counts the
requests that began in a phase: those that each replica answered, those that the kill cut, and those that failed although the killed replica
did not have them. Exits with 1 if there is a failure of the last kind, if the kill cut none, or if a replica that lives got no request. The
test serve_clients/replicas runs a small form."""
import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import sleigh_server  # noqa: E402

PHASES = ("before the kill", "until the health check", "one replica", "after the return")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """HAProxy with the packaged configuration, at other ports."""

    def __init__(self, ports, folder):
        self.port = free_port()
        with open(os.path.join(ROOT, "packaging", "serve", "haproxy.cfg"), encoding="utf-8") as f:
            text = f.read()
        for old, new in zip(("8080", "8081", "8082"), (self.port, *ports)):
            text, n = re.subn(rf"127\.0\.0\.1:{old}\b", f"127.0.0.1:{new}", text)
            assert n == 1, old
        path = os.path.join(folder, "haproxy.cfg")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        check = subprocess.run(["haproxy", "-c", "-q", "-f", path], capture_output=True, text=True, check=False)
        if check.returncode or check.stderr:
            sys.exit(f"haproxy.cfg: {check.stdout}{check.stderr}")
        self.process = subprocess.Popen(["haproxy", "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def ready(self):
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)
        sys.exit("haproxy does not listen")

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


async def ask(port, session, rng, tokens, live):
    """{begin, end, replica, error}: one streamed answer. replica None: no event came."""
    body = json.dumps({"prompt": f"The hidden number of the bay is {rng.randrange(10**6)}.", "max_tokens": tokens, "stream": True,
                       "ignore_eos": True}).encode()
    row = {"begin": time.monotonic(), "replica": None, "error": None, "session": session}
    done, status = False, ""
    live.append(row)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-session-id: {session}\r\nConnection: close\r\nContent-Length: "
                     f"{len(body)}\r\n\r\n".encode() + body)
        status = (await reader.readline()).decode().strip()
        while line := await reader.readline():
            if line.startswith(b"data: {") and not row["replica"]:
                row["replica"] = json.loads(line[6:]).get("model")
            done |= line.startswith(b"data: [DONE]")
        writer.close()
    except OSError as e:
        status = str(e)
    live.remove(row)
    row["end"] = time.monotonic()
    if not done or " 200 " not in status:
        row["error"] = status if " 200 " not in status else "cut"
    return row


async def run(args, folder):
    def start(name, port=0):
        return sleigh_server.Server(args.sleigh, args.model, "-c", "4k", "-np", str(args.clients), "-t", "1", "--alias", name, port=port)
    servers = {name: await asyncio.to_thread(start, name) for name in ("a", "b")}
    proxy = Proxy([s.port for s in servers.values()], folder)
    rows, live, stop, times = [], [], False, []
    await proxy.ready()
    await asyncio.sleep(1)  # the first health checks

    async def client(number):
        rng, n = random.Random(number), 0
        while not stop:
            n += 1
            rows.append(await ask(proxy.port, f"{number}-{n // 4}", rng, args.tokens, live))  # four turns of a conversation
            await asyncio.sleep(0.01)
    clients = [asyncio.create_task(client(i)) for i in range(args.clients)]

    async def answers(n):
        goal, end = len(rows) + n, time.monotonic() + 120
        while len(rows) < goal and time.monotonic() < end:
            await asyncio.sleep(0.05)
    try:
        await answers(args.requests)
        begun = []
        while len(begun) < max(2, args.clients // 4):
            await asyncio.sleep(0.01)
            begun = [r["replica"] for r in live if r["replica"]]
        killed = max(servers, key=begun.count)
        servers[killed].process.kill()
        times.append(time.monotonic())
        servers[killed].process.wait()
        times.append(times[0] + 2)  # two failed checks, 0.5 s apart, and their times
        await asyncio.sleep(2)
        await answers(args.requests)
        servers[killed] = await asyncio.to_thread(start, killed, servers[killed].port)
        times.append(time.monotonic())
        await asyncio.sleep(2)
        await answers(args.requests)
        stop = True
        await asyncio.gather(*clients)
    finally:
        proxy.stop()
        for s in servers.values():
            s.stop()
    return rows, times, killed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="tiny")
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--tokens", type=int, default=100, help="of an answer")
    p.add_argument("--requests", type=int, default=100, help="answers of each phase")
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, times, killed = asyncio.run(run(args, folder))
    kill, checked, back = times
    table, faults = [], []
    home = {r["session"]: r["replica"] for r in rows if r["replica"] and r["begin"] < kill}  # where HAProxy sends a conversation
    for name, first, last in zip(PHASES, (0, kill, checked, back), (kill, checked, back, 1e18)):
        of = [r for r in rows if first <= r["begin"] < last]
        running = [r for r in of if r["begin"] < kill <= r["end"]]
        cut = [r for r in running if r["error"] and (r["replica"] or home.get(r["session"], killed)) == killed]
        other = [r for r in of if r["error"] and r not in cut]
        faults += [f"{name}: {r}" for r in other]
        by = [sum((r["replica"] == killed) == is_killed and not r["error"] for r in of) for is_killed in (True, False)]
        table.append({"requests that began": name, "requests": len(of), "by the killed one": by[0], "by the other one": by[1],
                      "cut by the kill": len(cut), "other failures": len(other)})
    if table[2]["by the killed one"]:
        faults.append("a dead replica answered")
    if not table[0]["cut by the kill"]:
        faults.append("no answer was cut")
    if not (table[0]["by the killed one"] and table[3]["by the killed one"] and all(row["by the other one"] for row in table)):
        faults.append("a replica got no request")
    for fault in faults[:10]:
        print(f"serve_replicas: {fault}", file=sys.stderr)
    print(sleigh_server.table(table, args.output))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
