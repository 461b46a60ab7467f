#!/usr/bin/env python3
"""Runs the measurements of results/sparse-prefill.md and keeps their figures. scripts/measure/sparse_prefill_report.py writes the page.

    python3 scripts/measure/sparse_prefill.py --lengths 4k,8k -t 1                                # hours on two cores
    python3 scripts/measure/sparse_prefill.py --lengths 32k,128k --device cuda --groups masks chunks
    python3 scripts/measure/sparse_prefill.py --lengths 4k --part tokens-prose score-tiny --groups oracle --books 4 --samples 8
    python3 scripts/measure/sparse_prefill.py --lengths 32k --device cuda --part tune tuned-facts          # 800 paired questions
    python3 scripts/measure/sparse_prefill_report.py

Every method prefills the whole prompt, the question included (set-up A), and dense attention decodes the answer. So a figure shows
what the prefill alone changes.

Parts (LEN is a length of --lengths, GROUP a group of methods):
    tokens-prose:LEN:GROUP   next tokens of books after a sparse prefill: KL from dense prefill; density, CRA, errors of checked rows
    tokens-tiny:LEN:GROUP    the same for the embedded model, on questions of its own kind
    score-tiny:LEN:GROUP     answers of the embedded model: needles, two-hop questions, frequent words
    needle:LEN:GROUP, two-hop:LEN:GROUP   answers of the prose model to questions about facts that stand in books
    score-tiny-facts, needle-facts, two-hop-facts   answers with one fact; the prompt has the answer up to the fact: the next token is its first one
    tune:LEN                 what `sleigh tune` chooses for the embedded model, on --tune questions of each task, also up to the fact
    tuned-facts:LEN:tuned    that setting and fixed ones on --pairs other questions of each task; without a choice of tune:LEN, the fixed ones only
    ttft:LEN:NAME            only on a GPU: time of a prefill in the shape of Llama-3.1-8B, random weights: dense, and with windows of the densities that
                             the methods of the group `timed` have on books of this length (tokens-prose:LEN:timed; left out without it)
    dense-prose              only on a GPU: times of dense prefills of the prose model at --lengths. Those of compare contain what a first run loads
    kernels, dense-kernel    only on a GPU: times of attention with masks, of the masks, and of dense attention (sleigh bench attn)

Groups: masks, xattention, chunks (sample by alpha and chunk_n), threshold, oracle, baselines (the other methods of SampleAttention's paper),
hyperattention (with its default), repair (sample that checks other rows and makes chunks dense), timed (dense prefill, sample with alpha 0.8
and with its defaults, vertical-slash: their time to the first token beside what they lose).
Groups without a GPU version run on the CPU on every machine: leave them out with --groups where the lengths are too long for a CPU.

The inputs of the prose model are those of `scripts/measure/prose_results.py --part inputs`, up to 32k tokens. Inputs of the embedded model
are made if they are missing. Each part writes one JSON to --results (measured_parts.py)."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import prose_results
from measured_parts import (Part, add_options, chosen, count, expect, of_document, parsed, place_flags, print_commands, run_all, run_part, shown,
                            write_lines)

# Methods whose time to the first token is measured. Alpha 0.8: of the measured settings, the least density that lost no answer in books at 32k tokens.
TIMED = {"alpha-0.8": "sample:alpha_c=0.8:alpha_s=0.8", "sample": "sample", "vertical-slash": "vertical-slash:columns=64:slashes=256"}
# The methods of next tokens and CRA, and those of scores.
METHODS = {
    "masks": ["sample:alpha_c=0.5:alpha_s=0.5", "sample:alpha_c=0.7:alpha_s=0.7", "sample:alpha_c=0.8:alpha_s={0.8,0.95}",
              "sample:alpha_c=0.9:alpha_s=0.9", "sample:alpha_c=0.95:alpha_s={0.8,0.95}", "sample:alpha_c=0.98:alpha_s=0.98",
              "vertical-slash:columns=16:slashes=64", "vertical-slash:columns=64:slashes=256", "vertical-slash:columns=256:slashes=1024",
              "streaming:window={252,508,1020,2044}"],
    "xattention": ["xattention:threshold={0.7,0.8,0.9,0.95}"],
    "chunks": ["sample:alpha_c=0.8:alpha_s=0.8:chunk_n={2,4,6}", "sample:alpha_c=0.9:alpha_s=0.9:chunk_n={2,4,6}",
               "sample:alpha_c=0.95:alpha_s=0.95:chunk_n={2,4,6}"],
    "threshold": ["threshold:lambda={1e-6,1e-3,1e-2,0.1,0.5}"],
    "oracle": ["oracle:density={0.05,0.1,0.2,0.4}"],
    "baselines": ["bigbird", "hash-sparse:buckets={4,16}", "hyperattention:dense={512,2048}"],
    "hyperattention": ["hyperattention"],
    "repair": ["sample:alpha_c=0.8:alpha_s=0.8:repair={0,0.5,0.8}", "sample:alpha_c=0.95:alpha_s=0.95:repair={0,0.5,0.8,0.95}"],
    "timed": ["dense", *TIMED.values()],
}
SCORE_METHODS = {
    "masks": ["sample:alpha_c=0.5:alpha_s=0.5", "sample:alpha_c=0.8:alpha_s=0.8", "sample:alpha_c=0.9:alpha_s=0.9",
              "sample:alpha_c=0.95:alpha_s=0.95", "vertical-slash:columns=64:slashes=256", "vertical-slash:columns=256:slashes=1024",
              "streaming:window={252,1020}"],
    "xattention": ["xattention:threshold={0.8,0.9}"],
    "chunks": ["sample:alpha_c=0.8:alpha_s=0.8:chunk_n={2,4,6}", "sample:alpha_c=0.95:alpha_s=0.95:chunk_n={2,4,6}"],
    "threshold": ["threshold:lambda={1e-2,0.1,0.5}"],
    "oracle": ["oracle:density={0.05,0.1,0.2}"],
    "baselines": ["bigbird", "hash-sparse", "hyperattention:dense={512,2048}"],
    "hyperattention": ["hyperattention"],
    "repair": ["sample:alpha_c=0.8:alpha_s=0.8:repair={0,0.5,0.8}"],
    "timed": list(TIMED.values()),
}
# Candidates of tune, the cheap ones first, and settings that answer the questions beside the choice of tune.
CANDIDATES = "sample:alpha_c={0.3,0.4,0.5,0.7}:alpha_s={0.3,0.4,0.5,0.7}"
FIXED = ["sample:alpha_c=0.4:alpha_s=0.4", "sample:alpha_c=0.5:alpha_s=0.5", "sample:alpha_c=0.8:alpha_s=0.8"]
LOSS = 0.01                    # of tune: one point
TUNE_SEED = 7                  # --task-seed of the questions of tune; those of tuned-facts have eval's default
SCORED = 256                   # tokens of a book after its prompt
SHAPE_8B = "models/llama-3.1-8b"
BLOCK = 128                    # positions of a block of a mask
ON_CPU = ("oracle", "xattention", "threshold", "baselines", "hyperattention", "repair")  # groups without a GPU version
PROSE_MOST = "64k"             # the longest input of the prose model
TINY_TASKS = "niah-multikey,qa-2hop,fwe"
FACT_TASKS = "niah-multikey,qa-2hop"  # their answers hold one fact
OF_METHOD = ("positions", "top1", "kl", "ln_ppl_ratio", "ppl_answer")
OF_PREFILL = ("ttft_ms", "prefill_density", "prefill_kept", "prefill_cra", "prefill_error", "prefill_error_max")
OF_SCORE = ("task", "length", "samples", "texts", "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "better",
            "worse", "p_value")


# ---- figures that are kept ----

def keep_tokens(doc):
    """Of each method: the figures of next tokens with their intervals, those of the prefill, and those of its heads. Per-prompt KL."""
    methods = []
    for i, row in enumerate(doc["methods"]):
        kept = {k + end: row[k + end] for k in OF_METHOD for end in ("", "_low", "_high", "_dense") if k + end in row}
        heads = row.get("prefill_heads")
        methods.append({"method": row["attn_prefill"], **kept, **{k: row[k] for k in OF_PREFILL},
                        "heads": heads and {k: [[v if v is None else float(f"{v:.4g}") for v in layer] for layer in heads[k]]
                                            for k in ("density", "kept", "cra", "error")},
                        "by_prompt": [p["methods"][i]["kl"] for p in doc["prompts"]]})
    return of_document(doc, prompts=[p["id"] for p in doc["prompts"]], n_prompt=[p["n_prompt"] for p in doc["prompts"]], methods=methods)


def keep_score(doc):
    rows = [{"method": r["attn_prefill"], **{k: r[k] for k in OF_SCORE + OF_PREFILL}} for r in doc["rows"]]
    return of_document(doc, device=doc["settings"].get("arithmetic"), rows=rows)


def keep_tune(doc, log):
    """The rows of a length. log: the log of the profile, which has the commit and the device."""
    with open(log) as f:
        head = json.loads(f.readline())
    rows = [{k: row[k] for k in ("setting", "n", "x", "low", "high", "loss", "density", "work", "prefill_ms", "result")} for row in doc]
    return of_document({"version": head["settings"]["version"].split()[0], "commit": head["commit"], "device": head["settings"]["arithmetic"]}, rows=rows)


def timed_rows(args, size):
    """{name: the row of tokens-prose:LEN:timed} of the methods of TIMED, LEN at most PROSE_MOST. {}: the part has not run."""
    path = os.path.join(args.results, f"tokens-prose-{min(size, PROSE_MOST, key=count)}-timed.json")
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        return dict(zip(TIMED, json.load(f)["result"]["methods"][1:]))


def tuned_row(args, size):
    """The row of what tune chose at this length. None: the part tune:LEN has not run, or dense prefill is the choice."""
    path = os.path.join(args.results, f"tune-{size}.json")
    if not os.path.exists(path):
        return None
    with open(path) as f:
        rows = json.load(f)["result"]["rows"]
    found = next(row for row in rows if row["result"] == "chosen")
    return None if found["setting"] == "dense" else found


def window_of(density, n_tokens):
    """The window of `streaming` with this density. A query block visits w / 128 + 1 blocks of a window of w keys, and the sink."""
    n_blocks = -(-n_tokens // BLOCK)
    visited = n_blocks * (1 - (1 - density) ** 0.5)
    return max(1, round((visited - 2) * BLOCK))


def program(args):
    """What a document of generate does not have: the version and the commit of the program, and the GPU."""
    said = subprocess.run([args.sleigh, "version"], capture_output=True, text=True, check=True).stdout
    version, commit = re.match(r"sleigh (\S+) \(commit ([\w-]+)\)", said).groups()
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"], capture_output=True, text=True, check=True).stdout.strip()
    return {"version": version, "commit": commit, "device": gpu}


def keep_ttft(about, doc):
    """doc: an answer of generate."""
    return {**about, "method": doc["attn_prefill"], "tokens": doc["n_prompt"], "ms": doc["prefill_ms"],
            "density": doc.get("prefill_density") or 1.0}


def keep_dense(doc):
    """Rows of bench: {tokens: ms}."""
    return of_document(doc[0], ms={str(row["n_prompt"]): row["ms_median"] for row in doc})


def keep_kernels(doc):
    return of_document({"version": "-", "commit": "-", **doc}, rows=doc["rows"])


# ---- inputs ----

def first_lines(args, name):
    """The name of the input with the first --books lines of `name`. Makes it."""
    if not args.books:
        return name
    out = f"{name}-first{args.books}"
    if not args.list and os.path.exists(args.input(name)):
        with open(args.input(name)) as f:
            text = "".join(line for line, _ in zip(f, range(args.books)))
        with open(args.input(out), "w") as f:
            f.write(text)
    return out


def up_to_fact(text, fact):
    """The beginning of an answer before `fact`. A digit is a token of its own; a word is a token with the blank before it."""
    before = text[:text.index(fact)]
    return before if fact[0].isdigit() else before.rstrip(" ")


def facts_of_tiny(args, path, size, samples, *flags):
    """Questions with one fact as the answer, in RULER's form. The tasks take turns, so that the first lines have both."""
    command = [args.sleigh, "eval", "-m", args.tiny, "--task", FACT_TASKS, "--length", size, "--samples", str(samples), *flags, "--dump", path]
    if subprocess.run([*command, "-q"]).returncode:
        sys.exit(f"{path} was not made")
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    for line in lines:
        line["answer_prefix"] += up_to_fact(" " + line["answer"], line["outputs"][0])
    tasks = len(FACT_TASKS.split(","))
    return [lines[task * samples + i] for i in range(samples) for task in range(tasks)] if flags else lines


def facts_of_prose(args, kind, size):
    with open(args.input(f"{kind}-{size}")) as f:
        lines = [json.loads(line) for line in f]
    for line in lines:
        line["question"] += up_to_fact(line["reference"], line["answer"])
    return lines


def make_facts(args, part):
    """Makes the input of a part whose prompts have the answer up to the fact."""
    name, size = (part.name.split(":") + [""])[:2]
    kind = name.removesuffix("-facts")
    makers = {"score-tiny-facts": lambda: facts_of_tiny(args, part.input, size, args.samples),
              "tuned-facts": lambda: facts_of_tiny(args, part.input, size, args.pairs),
              "tune": lambda: facts_of_tiny(args, part.input, size, args.tune, "--task-seed", str(TUNE_SEED))}
    if (kind != name or name in makers) and not os.path.exists(part.input):
        write_lines(part.input, makers.get(name, lambda: facts_of_prose(args, kind, size))())


def make_tiny_inputs(args, sizes):
    missing = [size for size in sizes if not os.path.exists(args.input(f"tiny-{size}"))]
    if missing:
        os.makedirs(args.work, exist_ok=True)
        prose_results.tiny_inputs(argparse.Namespace(lengths=",".join(missing), input=args.input))


# ---- parts ----

def all_parts(args):
    """{name: Part}, in the order in which parts run."""
    parts = {}
    has_gpu = args.device not in ("auto", "cpu")

    def on_gpu(group):
        return has_gpu and group not in ON_CPU

    def device_flags(group):
        device = args.device if on_gpu(group) or not has_gpu else "cpu"
        return place_flags(args, device) + (["--prefill-segment", args.segment] if args.segment else [])

    def add(name, keep, command, model, path, group, *flags):
        source = ["--jsonl", path] if path else []
        parts[name] = Part(name, [args.sleigh, command, "-m", model, *source, *flags, "--attn", "dense", *device_flags(group), "-o", "json"], path, model,
                           keep)

    def tokens(name, model, source, *flags):
        for group in args.groups:
            add(f"{name}:{group}", keep_tokens, "compare", model, args.input(first_lines(args, source)), group, "--no-texts", "--no-heads", *flags,
                "--prefill-check", "0" if on_gpu(group) else str(args.check), "--attn-prefill", ",".join(METHODS[group]))

    def score(name, model, path, *flags):
        for group in args.groups:
            add(f"{name}:{group}", keep_score, "eval", model, path, group, *flags, "--samples", str(args.samples), "--question-dense",
                "--attn-prefill", ",".join(["dense", *SCORE_METHODS[group]]))

    def tuned(size):
        profile, source = os.path.join(args.work, f"tuned-{size}.json"), args.input(f"tune-{size}-{args.tune}")
        where = [*device_flags("tuned"), "-o", "json"]
        parts[f"tune:{size}"] = Part(f"tune:{size}", [args.sleigh, "tune", "-m", args.tiny, "--parts", "prefill", "--length", size, "--jsonl", source,
                                                      "--samples", str(2 * args.tune), "--check", "0", "--question-dense", "-n", "32", "-e", "--stop", "\\n",
                                                      "--loss", str(LOSS), "--attn-prefill", CANDIDATES, "--out", profile, *where],
                                     source, args.tiny, lambda doc: keep_tune(doc, profile + ".log"))
        row = tuned_row(args, size)
        choice = row and row["setting"]
        methods = ["dense", *([choice] if choice else []), *(method for method in FIXED if method != choice)]
        add(f"tuned-facts:{size}:tuned", keep_score, "eval", args.tiny, args.input(f"tuned-facts-{size}-{args.pairs}"), "tuned", "-n", "32", "-e",
            "--stop", "\\n", "--samples", str(args.pairs), "--question-dense", "--attn-prefill", ",".join(methods))

    for size in sorted(args.lengths.split(","), key=count):
        prose = count(size) <= count(PROSE_MOST)
        if prose:
            tokens(f"tokens-prose:{size}", args.model, f"books-{size}")
        tokens(f"tokens-tiny:{size}", args.tiny, f"tiny-{size}", "--question-dense")
        score(f"score-tiny:{size}", args.tiny, None, "--task", TINY_TASKS, "--length", size)
        score(f"score-tiny-facts:{size}", args.tiny, args.input(f"score-tiny-facts-{size}-{args.samples}"), "-n", "32", "-e", "--stop", "\\n")
        tuned(size)
        for kind in ("needle", "two-hop") if prose else ():
            for end in ("", "-facts"):
                score(f"{kind}{end}:{size}", args.model, args.input(f"{kind}{end}-{size}"), "-n", "32", "-e", "--stop", "\\n")
    if has_gpu:
        for size in args.lengths.split(","):
            n_tokens = count(size) - 1024  # of a prompt that leaves room to decode
            windows = {name: f"streaming:window={window_of(row['prefill_density'], n_tokens)}" for name, row in timed_rows(args, size).items()}
            for name, method in {"dense": "dense", **windows}.items():
                parts[f"ttft:{size}:{name}"] = Part(f"ttft:{size}:{name}", [args.sleigh, "generate", "-m", SHAPE_8B, "--load-format", "dummy", "--random-prompt",
                                                                            str(n_tokens), "-c", size, "--prefill-segment", "131072", "-n", "2", "--ignore-eos",
                                                                            "--attn-prefill", method, "--device", args.device, "-o", "json"], None, None,
                                                    lambda doc: keep_ttft(program(args), doc))
        sizes = ",".join(str(count(size) - SCORED) for size in args.lengths.split(",") if count(size) <= count(PROSE_MOST))
        parts["dense-prose"] = Part("dense-prose", [args.sleigh, "bench", "-m", args.model, "-p", sizes, "-n", "0", "-r", "5", "--device", args.device, "-o", "json"],
                                    None, args.model, keep_dense)
        for name, phase in (("kernels", "masks"), ("dense-kernel", "prefill")):
            parts[name] = Part(name, [args.sleigh, "bench", "attn", "--phase", phase, "--device", args.device, "-o", "json"], None, None, keep_kernels)
    return parts


# ---- self-test ----

COMPARE = {"version": "0", "commit": "c", "device": "d", "n_params": 1, "dtype": "bf16", "seed": 0,
           "prompts": [{"id": "a", "n_prompt": 9, "methods": [{"kl": 0.123456789}]}],
           "methods": [{"attn_prefill": "sample", "positions": 3, "top1": 1, "kl": 0.123456789, "kl_low": 0.1, "kl_high": 0.2, "texts": 7,
                        **dict.fromkeys(OF_PREFILL), "prefill_density": 0.5,
                        "prefill_heads": {k: [[None, 0.123456789]] for k in ("density", "kept", "cra", "error", "error_max")}}]}


def self_test():
    """Runs a part of a program that prints one document, and finds it again. Checks the commands of the devices."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--model", "models/tiny", "--work", folder, "--results", folder, "--lengths", "128k,2k", "--books", "1"]
        a = arguments(words)
        for name in ("books-2k", "tiny-2k"):
            with open(a.input(name), "w") as f:
                f.write("{}\n{}\n")
        a.sleigh = os.path.join(folder, "sleigh")
        with open(a.sleigh, "w") as f:
            f.write(f"#!/bin/sh\necho run >>\"$0.runs\"\necho '{json.dumps(COMPARE)}'\n")
        os.chmod(a.sleigh, 0o755)
        parts = all_parts(a)
        expect("tokens-prose:128k:masks" not in parts and "tokens-tiny:128k:masks" in parts, "lengths of the two models")
        expect(list(parts)[0] == "tokens-prose:2k:masks", "the shortest length comes first")
        part, runs = parts["tokens-prose:2k:oracle"], []
        for _ in range(2):
            expect(run_part(a, part) is None, "a part runs")
            with open(a.sleigh + ".runs") as f:
                runs.append(len(f.readlines()))
        expect(runs == [1, 1], f"runs of a part: {runs}")
        with open(part.input) as f:
            expect(len(f.readlines()) == 1, "lines of --books")
        with open(os.path.join(folder, "tokens-prose-2k-oracle.json")) as f:
            kept = json.load(f)
        method = kept["result"]["methods"][0]
        expect(method["kl"] == 0.123457 and method["by_prompt"] == [0.123457] and "texts" not in method, "kept figures")
        expect(method["heads"]["cra"] == [[None, 0.1235]] and "error_max" not in method["heads"], "kept figures of heads")
        expect(kept["command"].startswith("build/sleigh compare -m models/tiny --jsonl build/prose-work/books-2k-first1.jsonl"), "kept command")
        with open(a.input("two-hop-2k"), "w") as f:
            f.write('{"question": "Where? Answer:", "reference": " with Ann in Rome.\\n", "answer": "Rome"}\n')
        make_facts(a, parts["two-hop-facts:2k:masks"])
        with open(a.input("two-hop-facts-2k")) as f:
            expect(json.load(f)["question"] == "Where? Answer: with Ann in", "a prompt up to the fact")
        expect(up_to_fact(" 17.", "17") == " ", "a prompt up to a number")
        expect("sample:alpha_c=0.3" not in " ".join(parts["tuned-facts:2k:tuned"].command), "without a choice of tune")
        with open(os.path.join(folder, "tune-2k.json"), "w") as f:
            json.dump({"result": {"rows": [{"setting": "dense", "result": ""}, {"setting": "sample:alpha_c=0.3", "result": "chosen"}]}}, f)
        expect("dense,sample:alpha_c=0.3,sample:alpha_c=0.4:alpha_s=0.4," in " ".join(all_parts(a)["tuned-facts:2k:tuned"].command), "the choice of tune")
        log = os.path.join(folder, "log")
        with open(log, "w") as f:
            f.write('{"sleigh_tune": 1, "commit": "c", "settings": {"version": "0", "arithmetic": "d"}}\n')
        row = {**dict.fromkeys(("setting", "n", "x", "low", "high", "loss", "density", "work", "prefill_ms", "result"), 1), "part": "prefill"}
        expect(keep_tune([row], log)["rows"] == [{k: 1 for k in row if k != "part"}], "kept rows of tune")
        gpu = all_parts(arguments([*words, "--device", "cuda"]))
        devices = [gpu[f"score-tiny:2k:{group}"].command for group in ("masks", "oracle")]
        expect([c[c.index("--device") + 1] for c in devices] == ["cuda", "cpu"], "devices of groups")
        expect("ttft:2k:dense" in gpu and "ttft:2k:dense" not in parts and "ttft:2k:alpha-0.8" not in gpu, "times to the first token")
        with open(os.path.join(folder, "tokens-prose-2k-timed.json"), "w") as f:
            json.dump({"result": {"methods": [{"prefill_density": x} for x in (1, 0.5, 0.6, 0.7)]}}, f)
        timed = all_parts(arguments([*words, "--device", "cuda"]))["ttft:2k:alpha-0.8"].command
        expect(timed[timed.index("--attn-prefill") + 1] == f"streaming:window={window_of(0.5, 1024)}", "a window of the density of a method")
        expect(window_of(0.2, 130000) == 13474, f"the window of a density: {window_of(0.2, 130000)}")
        expect(keep_ttft({}, {"attn_prefill": "dense", "n_prompt": 9, "prefill_ms": 2.5})["density"] == 1, "kept time to the first token")
        expect(keep_dense([{"commit": "c", "n_prompt": 7, "ms_median": 2.5}])["ms"] == {"7": 2.5}, "kept times of dense prefills")
        expect("dense-prose" in gpu and "dense-prose" not in parts, "times of dense prefills of the prose model")
        expect("kernels" in gpu and "kernels" not in parts, "times of kernels")
        expect("--jsonl" not in devices[0] and "models/tiny" in shown(a, gpu["score-tiny:2k:masks"]), "a part without an input")


def arguments(words=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/prose-work", "results/sparse-prefill")
    p.add_argument("-m", "--model", default="models/prose")
    p.add_argument("--tiny", default="models/tiny", help="the embedded model")
    p.add_argument("--groups", nargs="+", choices=METHODS, default=list(METHODS), help="groups of methods")
    p.add_argument("--lengths", default="4k,8k,16k")
    p.add_argument("--books", type=int, default=0, help="first lines of the inputs of tokens-prose and tokens-tiny; 0: all")
    p.add_argument("--samples", type=int, default=48, help="questions of each task and length")
    p.add_argument("--tune", type=int, default=100, help="questions of each task that tune:LEN tunes on")
    p.add_argument("--pairs", type=int, default=400, help="questions of each task of tuned-facts")
    p.add_argument("--check", type=int, default=32, help="rows of a segment that tokens-prose and tokens-tiny compare with dense attention; not on a GPU")
    p.add_argument("--segment", default="", metavar="N", help="--prefill-segment of the commands")
    p.add_argument("--inputs", action="store_true", help="make the inputs of the parts, and run nothing")
    p.add_argument("--self-test", action="store_true", help="check parts, commands and kept figures, without a model")
    return parsed(p, words)


def main():
    a = arguments()
    if a.self_test:
        return self_test()
    if not a.list:
        make_tiny_inputs(a, a.lengths.split(","))
        os.makedirs(a.results, exist_ok=True)
    parts = chosen(all_parts(a), a.part)
    if a.list:
        return print_commands(a, parts)
    for part in parts:
        make_facts(a, part)
    if a.inputs:
        return
    first = [part for part in parts if part.name.startswith("tune:") or part.name.endswith(":timed")]  # the commands of other parts depend on their figures
    run_all(a, first)
    run_all(a, [part for part in chosen(all_parts(a), a.part) if part.name not in {part.name for part in first}])


if __name__ == "__main__":
    main()
