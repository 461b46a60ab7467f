#!/usr/bin/env python3
"""make demo-prose: continues a passage of a book that the model was not trained on, with dense and with sampled attention side by side.

The book's last tokens are cut off, and the first column shows them. Every method continues from the same dense prefill and with the same
random numbers, so texts are equal up to the first token for which a method's sampling of rows changes the choice. The perplexity of every
text is measured with dense attention."""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

from demo import Clock
from sleigh_runs import model_line

METHODS = ["dense", "santa-prop:S=128", "santa-is:S=256"]


def run(command):
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(command)}: exit {p.returncode}\n{p.stderr}")
    return p.stdout


def side_by_side(columns, width):
    """Lines with the columns next to each other. columns: (title, text)."""
    wrapped = [[title, "-" * len(title), *textwrap.wrap(text, width)] for title, text in columns]
    for i in range(max(map(len, wrapped))):
        yield "  ".join((c[i] if i < len(c) else "").ljust(width) for c in wrapped).rstrip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/prose")
    p.add_argument("-f", "--file", default="tests/prose/excerpt.txt")
    p.add_argument("-n", "--tokens", type=int, default=128, help="tokens of a continuation")
    p.add_argument("--temp", type=float, default=0.8)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("--width", type=int, default=0, help="characters of a column; by default those of the terminal, at most 120 for all")
    a = p.parse_args()

    if not os.path.exists(os.path.join(a.model, "model.safetensors")):
        sys.exit(f"{a.model}/model.safetensors is missing; scripts/train/train_prose.py trains this model")
    with open(a.file, encoding="utf-8") as f:
        text = f.read().strip()
    cut = text.rindex(" ", 0, len(text) - 4 * a.tokens)  # about four bytes are a token
    prompt, rest = text[:cut], text[cut:].strip()
    flags = ["-m", a.model, "-n", str(a.tokens), "--ignore-eos", "--temp", str(a.temp), "--seed", str(a.seed), "-t", str(a.threads)]
    with tempfile.TemporaryDirectory() as tmp:
        lines, passage = os.path.join(tmp, "lines.jsonl"), os.path.join(tmp, "passage.txt")
        with open(lines, "w") as f:
            f.writelines(json.dumps({"prompt": prompt, "attn": m, "seq": 0}) + "\n" for m in METHODS)
        with open(passage, "w") as f:
            f.write(prompt)
        clock = Clock(len(run([a.sleigh, "tokenize", "-m", a.model, "-f", passage]).split(",")), 0)
        timed = [json.loads(line) for line in run([a.sleigh, "generate", "--jsonl", lines, "--exact-below", "off", "--no-perf", *flags]).splitlines()]
        compared = json.loads(run([a.sleigh, "compare", "-f", passage, "--attn", ",".join(METHODS[1:]), "--no-heads", "-o", "json", *flags]))
        clock.stop()
    of = {"dense": compared["prompts"][0]["dense"], **{m["attn"]: m for m in compared["prompts"][0]["methods"]}}

    print(f"The passage has {timed[0]['n_prompt']} tokens. It ends: ... {' '.join(prompt[-200:].split())}\n")
    width = a.width or (min(shutil.get_terminal_size((120, 0)).columns, 120) - 2 * len(METHODS)) // (len(METHODS) + 1)
    columns = [("the book", rest)] + [(m, of[m]["text"]) for m in METHODS]
    print("\n".join(side_by_side(columns, width)) + "\n")
    print(f"{model_line(a.sleigh, a.model)}; {a.tokens} tokens at temperature {a.temp:g}, seed {a.seed}\n")
    print("| method | decode tok/s | KV bytes read | perplexity under dense | equal tokens |\n|---|---|---|---|---|")
    for m, t in zip(METHODS, timed):
        equal = f"{100 * of[m]['agreement']:.0f}%" if "agreement" in of[m] else "-"
        print(f"| {m} | {t['decode_tok_s']:.0f} | {100 * t['group']['kv_bytes_share']:.1f}% | {math.exp(of[m]['text_nll']):.2f} | {equal} |")


if __name__ == "__main__":
    main()
