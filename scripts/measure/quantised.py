#!/usr/bin/env python3
"""Measures what rounded weights (--weights), activations (--activations) and a rounded KV cache (--kv-cache-dtype) change, and the speed of
such weights on a CPU. Writes results/quantised/*.jsonl. Needs numpy.

    python3 scripts/measure/quantised.py texts, fp8-texts  [--model prose] [--file tests/prose/excerpt.txt] [--tokens 1024]
    python3 scripts/measure/quantised.py needles [--length 4k] [--samples 8]
    python3 scripts/measure/quantised.py kv-texts, kv-needles  [the flags of texts and needles]
    python3 scripts/measure/quantised.py speed  [--model models/llama-3.2-1b] [--steps 16]

texts: the logits of every token of a text, compared with those of the weights in the file: the mean KL divergence in nats, the share of
equal most likely tokens, and the perplexity. needles: questions about texts of the embedded model. kv-texts and kv-needles: the same for the
KV cache, and kv-needles also with two sampled methods. fp8-texts: the same for prefills with inputs of fp8, on a GPU. speed: decode steps of a
model with random weights, in turns."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

# A setting is a dictionary from flags to values.
PLAIN = {"activations": "float"}
WEIGHTS = [PLAIN, {"weights": "fp8"}] + [{"weights": w, "activations": a} for w in ["int8", "int4:group=32", "int4"]
                                         for a in ["float", "int16", "int8"]]
INPUTS = [PLAIN] + [{"weights": "fp8", "activations": a, "device": "cuda"} for a in ["float", "fp8"]]
CACHES = [{}, {"kv-cache-dtype": "fp8"}, {"kv-cache-dtype": "int8"}]
KV_METHODS = "dense,santa-prop:S=128,santa-is:S=128"


def run(args, command):
    p = subprocess.run([args.sleigh] + command, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(command)}\n{p.stderr}")
    return p.stdout


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def flags(setting):
    return [word for name, value in setting.items() for word in ("--" + name, value)]


def logits(args, folder, setting, ids):
    path = os.path.join(folder, "logits.npy")
    run(args, ["logits", "-m", args.model, "--ids", ids, "-o", path, "-t", str(args.threads)] + flags(setting))
    return log_softmax(np.load(path).astype(np.float64))


def texts(args, settings):
    with tempfile.TemporaryDirectory() as folder:
        ids = os.path.join(folder, "ids")
        tokens = run(args, ["tokenize", "-m", args.model, "-f", args.file, "--bos"]).strip().split(",")[:args.tokens]
        with open(ids, "w") as f:
            f.write(" ".join(tokens))
        targets = np.array([int(x) for x in tokens[1:]])
        plain = logits(args, folder, settings[0], ids)
        for setting in settings:
            q = logits(args, folder, setting, ids)
            kl = (np.exp(plain) * (plain - q)).sum(axis=1)
            nll = -q[np.arange(len(targets)), targets]
            yield dict(model=os.path.basename(args.model), file=args.file, tokens=len(tokens), kl=float(kl.mean()), **setting,
                       same_top=float((plain.argmax(axis=1) == q.argmax(axis=1)).mean()), perplexity=float(np.exp(nll.mean())))


def needles(args, settings, attn):
    for setting in settings:
        out = run(args, ["eval", "-m", args.model, "--length", args.length, "--samples", str(args.samples), "--attn", attn,
                         "-t", str(args.threads), "-o", "json"] + flags(setting))
        yield {**setting, "length": args.length, "samples": args.samples, "report": json.loads(out)}


def speed(args):
    for repeat in range(args.repeats):
        for setting in WEIGHTS:
            out = run(args, ["bench", "decode", "-m", args.model, "--load-format", "dummy", "-d", "128", "-b", "1", "-n", str(args.steps),
                             "-r", "1", "-t", str(args.threads), "-o", "json"] + flags(setting))
            yield dict(repeat=repeat, **setting, report=json.loads(out))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=["texts", "fp8-texts", "needles", "kv-texts", "kv-needles", "speed"])
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--model")
    p.add_argument("--file", default="tests/prose/excerpt.txt")
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--length", default="4k")
    p.add_argument("--samples", type=int, default=8)
    p.add_argument("--steps", type=int, default=16)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    args.model = args.model or ("models/llama-3.2-1b" if args.part == "speed" else "tiny" if "needles" in args.part else "prose")
    parts = {"texts": lambda: texts(args, WEIGHTS), "fp8-texts": lambda: texts(args, INPUTS), "needles": lambda: needles(args, WEIGHTS, "dense"),
             "kv-texts": lambda: texts(args, CACHES), "kv-needles": lambda: needles(args, CACHES, KV_METHODS),
             "speed": lambda: speed(args)}
    os.makedirs("results/quantised", exist_ok=True)
    with open(f"results/quantised/{args.part}.jsonl", "a") as f:
        for row in parts[args.part]():
            f.write(json.dumps(row) + "\n")
            f.flush()
            print(json.dumps({k: v for k, v in row.items() if k != "report"}), flush=True)


if __name__ == "__main__":
    main()
