#!/usr/bin/env python3
"""make demo: hides 16 needles in a text of 8k tokens and asks the embedded model for some of them, with dense and with sampled attention.
It prints each answer when it is complete, and a table at the end.

Each context is prefilled densely. The method decodes the question and the answer token by token (set-up B)."""
import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "train"))
import tiny_text
from sleigh_runs import model_line, run_jsonl

METHODS = ["dense", "santa-prop:S=128", "santa-sys:S=128", "santa-prop:S=4"]


def decode_rate(answer):
    """Tokens per second of the question, which the method feeds, and of the answer."""
    return 1e3 * (answer["n_feed"] + answer["n_decode"]) / (answer["feed_ms"] + answer["decode_ms"])


class Clock:
    """Shows the seconds of a prefill on a terminal, and how long the last one took."""

    def __init__(self, n_tokens, last_s):
        of = f" of about {last_s:.0f} s" if last_s else ""
        self.text = f"\r  dense prefill of {n_tokens} tokens: %.0f s{of} "
        self.start, self.stopped = time.monotonic(), threading.Event()
        self.thread = threading.Thread(target=self.show, daemon=True)
        if sys.stderr.isatty():
            self.thread.start()

    def show(self):
        while not self.stopped.wait(0.5):
            print(self.text % (time.monotonic() - self.start), end="", file=sys.stderr, flush=True)

    def stop(self):
        if not self.stopped.is_set() and self.thread.is_alive():
            self.stopped.set()
            self.thread.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--needles", type=int, default=16)
    p.add_argument("--questions", type=int, default=6)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-t", "--threads", type=int, default=0)
    a = p.parse_args()

    context, questions = tiny_text.needle_context(random.Random(a.seed), a.tokens, a.needles)
    asked = random.Random(a.seed + 1).sample(questions, min(a.questions, len(questions)))
    print(f"Model: {a.model}. Run `{a.sleigh} inspect -m {a.model}` to see its shape.")
    print(f"The text has about {a.tokens} tokens and hides {len(questions)} numbers. Each method answers {len(asked)} questions about them.")
    print(f"  The text begins: {context[:100]!r} ...\n")
    rows, prefill_s = [], 0
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "questions.jsonl")
        with open(path, "w") as f:
            for q, answer in asked:
                f.write(json.dumps({"context": context, "question": q, "id": answer}) + "\n")
        for method in METHODS:
            print(f"--attn={method}", flush=True)
            results, clock = [], Clock(a.tokens, prefill_s)
            for r in run_jsonl(a.sleigh, a.model, path, method, threads=a.threads):
                clock.stop()
                r["right"] = r["text"].strip() == r["id"].strip()
                results.append(r)
                question = asked[len(results) - 1][0].strip().splitlines()[0]
                print(f"  {question} {r['text'].strip():<12} {'right' if r['right'] else 'WRONG, expected ' + r['id'].strip()}", flush=True)
            n, prefill_s = len(results), results[0]["prefill_ms"] / 1e3
            rows.append((method, f"{sum(r['right'] for r in results)}/{n}", sum(decode_rate(r) for r in results) / n,
                         100 * sum(r["group"]["v_rows_share"] for r in results) / n,
                         100 * sum(r["group"]["kv_bytes_share"] for r in results) / n))
            print()
    print(f"{model_line(a.sleigh, a.model)}; {results[0]['n_prompt']} tokens\n")
    print("| method | right | decode tok/s | V rows read | KV bytes read |\n|---|---|---|---|---|")
    for method, right, speed, v_rows, kv_bytes in rows:
        print(f"| {method} | {right} | {speed:.0f} | {v_rows:.2f}% | {kv_bytes:.1f}% |")
    n = len(asked)
    if any(right != f"{n}/{n}" for _, right, *_ in rows[:3]):
        sys.exit("demo: found a wrong answer of dense or of a method with S=128, expected only right answers")


if __name__ == "__main__":
    main()
