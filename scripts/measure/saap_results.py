#!/usr/bin/env python3
"""Runs the measurements of results/saap.md and keeps their figures. scripts/measure/saap_report.py writes the page.

    python3 scripts/measure/saap_results.py --part inputs                                  # needs no GPU
    python3 scripts/measure/saap_results.py --device cuda                                  # every other part, at 32k and 128k tokens
    python3 scripts/measure/saap_results.py --lengths 4k --samples 2 -t 1                  # on a CPU
    python3 scripts/measure/saap_report.py

Parts (LEN is a length of --lengths):
    inputs           the files of --work, which other parts make if they are missing
    heads:LEN:TEXT   the next tokens of a text and the outputs of heads with every method: error, KL, bytes and rows read. needle: texts of
                     the training's kind, with other seeds; numbers: multiples of a prime; code: C source of this tree
    score:LEN        answers of the embedded model: needles, two-hop questions, frequent words (sleigh eval)
    kernels, kernels-batch, peers   only on a GPU: times of attention of one layer in the shape of Llama-3.1-8B (sleigh bench attn), and of
                     FlashAttention and cuDNN (scripts/measure/bench_peers.py, needs PyTorch)

Each part writes one JSON to --results (measured_parts.py)."""
import argparse
import glob
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
import tiny_text
from measured_parts import Part, add_options, count, expect, of_document, only_inputs, parsed, place_flags, run_chosen, run_part, write_lines

METHODS = ["saap:l={0,2,4,8,16,32}", "saap-kmeans:l={2,4,8,16,32}", "saap-kmeans:l={2,4,8,16,32}:rope=1", "saap-is:S=256:l={0,2,4,8,16,32}",
           "streaming:sink=1:window=2047", "quest:tokens={512,1024,2048,4096}", "santa-is:S={64,256}"]
TIMED = ["dense", "saap:l={32,40}", "saap-kmeans:l=32", "saap-is:S=256:l={8,32}", "santa-is:S=256", "quest:tokens=8192", "streaming:sink=1:window=2047"]
TASKS = "niah-multikey,qa-2hop,fwe"
TEXTS = ("needle", "numbers", "code")
OF_METHOD = ("attn", "positions", "top1", "kl", "kl_low", "kl_high", "l2", "l2_se", "l2_median", "l2_90", "bytes_share", "step_bytes_share", "k_rows", "v_rows")
OF_SCORE = ("task", "length", "attn", "samples", "texts", "score", "score_low", "score_high", "difference", "difference_low", "difference_high",
            "kv_bytes_share")
OF_TIME = ("attn", "size", "us", "mean_us", "floor_us")


# ---- figures that are kept ----

def keep_heads(doc):
    """Of each method its figures, and the error of each layer."""
    methods = [{**{k: row[k] for k in OF_METHOD}, "layers": [layer["l2"] for layer in row["layers"]]} for row in doc["methods"]]
    return of_document(doc, prompts=[p["id"] for p in doc["prompts"]], n_prompt=[p["n_prompt"] for p in doc["prompts"]], methods=methods)


def keep_score(doc):
    return of_document(doc, device=doc["settings"].get("arithmetic"), rows=[{k: row[k] for k in OF_SCORE} for row in doc["rows"]])


def keep_kernels(doc):
    rows = [{k: row[k] for k in OF_TIME if k in row} for row in doc["rows"]]
    return of_document({"version": "-", "commit": "-", **doc}, rows=rows)


def keep_peers(doc):
    return of_document({"version": "-", "commit": "-", "device": "the GPU of the kernels", **doc}, rows=doc["rows"])


# ---- inputs ----

def tokens_of(args, text):
    run = subprocess.run([args.sleigh, "tokenize", "-m", args.model, "-f", "-"], input=text, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return run.stdout.count(",") + 1


def cut(args, text, n_tokens):
    """The longest beginning of `text` that ends at a blank and has at most n_tokens tokens: {"prompt", "reference"}. A token of these texts has
    one to two letters."""
    low, high = 0, len(text)
    if tokens_of(args, text) < n_tokens:
        sys.exit(f"saap_results: a text of {tokens_of(args, text)} tokens; expected at least {n_tokens}")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens_of(args, text[:middle]) <= n_tokens else (low, middle)
    end = text.rindex(" ", 0, low)
    middle = text.rindex(" ", 0, max(end - 2 * args.score, 1))
    return {"prompt": text[:middle], "reference": text[middle:end]}


def needle_lines(args, n_tokens):
    """Questions of the training's kind. Their context has fewer tokens than n_tokens by those of the question and the answer."""
    lines = []
    for i in range(args.texts):
        kind = ("needle", "two-hop")[i % 2]
        context, questions = tiny_text.task_context(kind, random.Random(f"saap/{i}"), n_tokens - 96, 1)
        lines.append({"id": f"{kind}-{i}", "prompt": context + questions[0][0], "reference": questions[0][1]})
    return lines


def number_lines(args, n_tokens):
    lines = []
    for i in range(args.texts):
        first = 104729 * (i * 100000 + 1)
        text = " ".join(str(first + 104723 * j) for j in range(n_tokens // 5))
        lines.append({"id": f"numbers-{i}", **cut(args, text, n_tokens - 32)})
    return lines


def code_lines(args, n_tokens):
    """C source of the tree, every text from another folder on."""
    lines, files = [], sorted(x for top in ("attention", "engine", "cli", "models") for x in glob.glob(f"{top}/**/*.c", recursive=True))
    for i in range(args.texts):
        text, at = "", i * len(files) // args.texts
        for path in files[at:] + files[:at]:
            with open(path) as f:
                text += f.read()
            if len(text) > 4 * n_tokens:
                break
        lines.append({"id": f"code-{i}", **cut(args, text, n_tokens - 32)})
    return lines


def make_inputs(args):
    make = {"needle": needle_lines, "numbers": number_lines, "code": code_lines}
    os.makedirs(args.work, exist_ok=True)
    for size in args.lengths.split(","):
        for text in TEXTS:
            path = args.input(f"{text}-{size}")
            if not os.path.exists(path):
                write_lines(path, make[text](args, count(size)))


# ---- parts ----

def all_parts(args):
    """{name: Part}, in the order in which parts run."""
    parts, has_gpu = {}, args.device not in ("auto", "cpu")
    methods = ",".join(METHODS)

    def add(name, keep, command, path, *flags):
        source = ["--jsonl", path] if path else []
        parts[name] = Part(name, [args.sleigh, command, "-m", args.model, *source, *flags, *place_flags(args), "-o", "json"], path, args.model, keep)

    def add_kernels(name, *flags):
        parts[name] = Part(name, [args.sleigh, "bench", "attn", "--phase", "decode", *flags, "-r", "20", "--attn", ",".join(TIMED), "-o", "json"],
                           None, None, keep_kernels)

    for size in sorted(args.lengths.split(","), key=count):
        for text in TEXTS:
            add(f"heads:{size}:{text}", keep_heads, "compare", args.input(f"{text}-{size}"), "--no-texts", "--attn", methods)
        add(f"score:{size}", keep_score, "eval", None, "-c", size, "--task", TASKS, "--length", size, "--samples", str(args.samples), "--attn",
            "dense," + methods)
    if has_gpu:
        add_kernels("kernels", "-b", "1", "-d", "128k,171k,512k")
        add_kernels("kernels-batch", "-b", "6", "-d", "128k")
        if importlib.util.find_spec("torch"):
            parts["peers"] = Part("peers", ["python3", "scripts/measure/bench_peers.py", "buckets"], None, None, keep_peers)
    return parts


# ---- self-test ----

COMPARE = {"version": "0", "commit": "c", "device": "d", "n_params": 1, "dtype": "bf16", "seed": 0, "prompts": [{"id": "a", "n_prompt": 9}],
           "methods": [{**dict.fromkeys(OF_METHOD, 0.123456789), "attn": "saap:l=2", "text_nll": 7, "layers": [{"l2": 0.5, "cosine": 1}]}]}


def self_test():
    """Runs a part of a program that prints one document, and finds it again."""
    with tempfile.TemporaryDirectory() as folder:
        a = arguments(["--work", folder, "--results", folder, "--lengths", "64k,2k", "--device", "cuda"])
        for size in ("2k", "64k"):
            for text in TEXTS:
                write_lines(a.input(f"{text}-{size}"), [{"prompt": "a b", "reference": " c"}])
        a.sleigh = os.path.join(folder, "sleigh")
        with open(a.sleigh, "w") as f:
            f.write(f"#!/bin/sh\necho run >>\"$0.runs\"\necho '{json.dumps(COMPARE)}'\n")
        os.chmod(a.sleigh, 0o755)
        parts, runs = all_parts(a), []
        expect(list(parts)[:5] == ["heads:2k:needle", "heads:2k:numbers", "heads:2k:code", "score:2k", "heads:64k:needle"], "the shortest length comes first")
        expect("--device" not in parts["kernels"].command, "bench attn has no --device")
        expect("kernels" in parts and "kernels" not in all_parts(arguments(["--device", "cpu"])), "kernels are timed on a GPU only")
        for _ in range(2):
            expect(run_part(a, parts["heads:2k:code"]) is None, "a part runs")
            with open(a.sleigh + ".runs") as f:
                runs.append(len(f.readlines()))
        expect(runs == [1, 1], f"runs of a part: {runs}")
        with open(os.path.join(folder, "heads-2k-code.json")) as f:
            kept = json.load(f)["result"]
        expect(kept["methods"][0]["l2"] == 0.123457 and "text_nll" not in kept["methods"][0] and kept["methods"][0]["layers"] == [0.5], "kept figures")


def arguments(words=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/saap-work", "results/saap")
    p.add_argument("-m", "--model", default="models/tiny", help="the embedded model")
    p.add_argument("--lengths", default="32k,128k")
    p.add_argument("--texts", type=int, default=2, help="texts of each kind and length")
    p.add_argument("--score", type=int, default=32, help="tokens of a reference of numbers and code, about")
    p.add_argument("--samples", type=int, default=12, help="questions of each task and length")
    p.add_argument("--self-test", action="store_true", help="check parts, commands and kept figures, without a model")
    return parsed(p, words)


def main():
    a = arguments()
    if a.self_test:
        return self_test()
    if not a.list:
        make_inputs(a)
        os.makedirs(a.results, exist_ok=True)
    if not only_inputs(a):
        run_chosen(a, all_parts(a))


if __name__ == "__main__":
    main()
