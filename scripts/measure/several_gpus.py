#!/usr/bin/env python3
"""Compares 1, 2 and 4 processes that share a model (results/several-gpus.md). Prints tables; commands go to standard error.

  hashes   of the logits after decode steps over the same random rows of K and V (`bench --fill random`)
  prefill  by how much the log-probabilities after a prefill, and a perplexity, differ from those of one process
  times    of decode steps (`bench decode`, with their parts and a hash) and of prefills, for a GPU for each process. The floor
           is the time to read 1/N of the weights and of the rows of K and V at the memory rate of one GPU

The exit status is 1 if hashes of a row differ."""
import argparse
import json
import math
import subprocess
import sys

DECODE = [("models/llama-3.1-8b", "1x4k", "dense"), ("models/llama-3.1-8b", "6x30k", "dense,santa-is:S=256"), ("models/llama-3.1-70b", "1x4k", "dense")]
PREFILL = [("models/llama-3.1-8b", "32k")]
GPU_OF_70B = 2  # its weights need at least so many GPUs of 141 GB


def run(a, n, command):
    """The JSON lines of a command of n processes."""
    command = [a.sleigh, *command, "--device", a.device, "-tp", str(n)]
    print(" ".join(command), file=sys.stderr)
    return [json.loads(line) for line in subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()]


def dummy_of(a, model):
    return ["-m", model] + (["--load-format", "dummy"] if a.dummy or model.startswith("models/llama-3.") else [])


def print_head(*cells):
    print("| " + " | ".join(cells) + " |")
    print("|---" * len(cells) + "|")


def print_row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


def names(sizes):
    return [f"{n} process{'es' * (n > 1)}" for n in sizes]


def hashes(a, sizes):
    differ = 0
    print_head("weights", "method", *names(sizes), "equal")
    for weights in a.weights.split(","):
        command = ["bench", *dummy_of(a, a.model), "-d", a.depth, "--fill", "random", "-p", "0", "-n", "8", "-b", str(a.batch), "-r", "1",
                   "--attn", a.attn, "--exact-below", "off", "-o", "jsonl"] + (["--weights", weights] if weights != "bf16" else [])
        found = [{row["attn"]: row["logits"] for row in run(a, n, command)} for n in sizes]
        for method in found[0]:
            row = [h[method] for h in found]
            differ |= len(set(row)) > 1
            print_row(weights, method, *(f"`{h}`" for h in row), "no" if len(set(row)) > 1 else "yes")
    return differ


def logprobs(a, n, weights):
    """Of the 20 most likely tokens after a prompt of random ids."""
    command = ["generate", *dummy_of(a, a.model), "--random-prompt", a.depth, "-n", "1", "--ignore-eos", "--temp", "0", "--logprobs", "20", "-o", "json"]
    row, = run(a, n, command + (["--weights", weights] if weights != "bf16" else []))
    return {t["id"]: t["logprob"] for t in row["logprobs"][0]["top_logprobs"]}


def nll(a, n, weights):
    """Of the tokens of --text, in nats."""
    command = ["perplexity", *dummy_of(a, a.model), "-f", a.text, "-c", a.window, "-o", "jsonl"]
    return run(a, n, command + (["--weights", weights] if weights != "bf16" else []))[-1]["nll_so_far"]


def prefill(a, sizes):
    print_head("weights", "processes", f"largest difference of a log-probability after {a.depth} tokens", *(["perplexity", "difference"] if a.text else []))
    for weights in a.weights.split(","):
        for n in sizes:
            own = logprobs(a, n, weights)
            first = own if n == sizes[0] else first
            both = own.keys() & first.keys()
            cells = [f"{max(abs(own[i] - first[i]) for i in both):.2g} ({len(both)} tokens)"]
            if a.text:
                own_nll = nll(a, n, weights)
                first_nll = own_nll if n == sizes[0] else first_nll
                cells += [f"{math.exp(own_nll):.4f}", f"{math.expm1(own_nll - first_nll):+.2e} of it"]
            print_row(weights, n, *cells)


def times(a, sizes):
    differ = 0
    print_head("model", "sequences x tokens", "method", "GPUs", "step ms", "linear ms", "attention ms", "rest ms", "floor ms", "logits")
    for model, shape, attn in a.decode or DECODE:
        batch, depth = shape.split("x")
        seen = {}
        for n in sizes:
            if "70b" in model and n < GPU_OF_70B:
                continue
            for r in run(a, n, ["bench", "decode", *dummy_of(a, model), "-b", batch, "-d", depth, "-n", "32", "-r", "3", "--fill", "random", "--attn", attn,
                                "--exact-below", "off", "-o", "jsonl"]):
                parts = ["" if r[k] is None else f"{r[k]:.3f}" for k in ("step_ms", "linear_ms", "attention_ms", "rest_ms")]
                floor = (r["weights_bytes"] + r["kv_bytes"]) / n / r["peak_gb_s"] * 1e-6
                differ |= seen.setdefault(r["attn"], r["logits"]) != r["logits"]
                print_row(r["model"], shape, r["attn"], n, *parts, f"{floor:.3f}", f"`{r['logits']}`")
    print()
    print_head("model", "prefill of tokens", "GPUs", "tokens / s", "times the first")
    for model, tokens in a.prefill or PREFILL:
        first = None
        for n in sizes:
            row, = run(a, n, ["bench", *dummy_of(a, model), "-p", tokens, "-n", "0", "-r", "3", "-o", "jsonl"])
            first = first or row["tok_s_median"]
            print_row(row["model"], tokens, n, f"{row['tok_s_median']:.0f}", f"{row['tok_s_median'] / first:.2f}")
    return differ


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="?", choices=("hashes", "prefill", "times"), default="hashes")
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/llama-3.2-1b", help="of hashes and prefill")
    p.add_argument("--dummy", action="store_true", help="random weights (--load-format dummy); the folders models/llama-3.* have no others")
    p.add_argument("--device", default="cuda")
    p.add_argument("-n", "--processes", default="1,2,4")
    p.add_argument("-d", "--depth", default="4k", help="tokens of hashes and prefill")
    p.add_argument("-b", "--batch", type=int, default=4, help="of hashes")
    p.add_argument("--weights", default="bf16,int4,int8,fp8", help="of hashes and prefill")
    p.add_argument("--attn", default="dense,santa-prop:S=128,santa-is:S=256", help="of hashes")
    p.add_argument("--text", help="prefill: a file, for the perplexity")
    p.add_argument("--window", default="2048", help="of the perplexity")
    p.add_argument("--decode", nargs=3, action="append", metavar=("MODEL", "BxD", "ATTN"), help="of times; default: the 8B and the 70B of the page")
    p.add_argument("--prefill", nargs=2, action="append", metavar=("MODEL", "TOKENS"), help="of times")
    a = p.parse_args()
    sizes = [int(n) for n in a.processes.split(",")]
    sys.exit({"hashes": hashes, "prefill": prefill, "times": times}[a.what](a, sizes) or 0)


if __name__ == "__main__":
    main()
