#!/usr/bin/env python3
"""Loads folders of `sleigh quantize` in transformers and compares the logits with those of Sleigh.

  quantize_in_transformers.py [--model M] [--sleigh build/sleigh]     needs torch, transformers, compressed-tensors

For each format: transformers decompresses the folder and computes in fp32; `sleigh logits` computes from the same folder and from
the source with --weights. Prints the largest difference of a logit, beside the largest logit and the difference that the
quantisation itself makes. Sleigh keeps K and V in bf16, so the logits of the plain model differ too: the row "plain" shows how
much."""
import argparse
import os
import subprocess
import tempfile

import numpy as np
import torch
import transformers

FORMATS = (["--weights", "int4"], ["--weights", "int4:group=32"], ["--weights", "int8"], ["--weights", "fp8"],
           ["--weights", "int4", "--weights-head", "int8"], ["--weights", "int8", "--weights-head", "fp8"])


def sleigh_logits(binary, folder, ids, flags=()):
    with tempfile.TemporaryDirectory() as tmp:
        with open(f"{tmp}/ids", "w", encoding="utf-8") as f:
            f.write(" ".join(map(str, ids)))
        subprocess.run([binary, "logits", "-q", "-m", folder, "--ids", f"{tmp}/ids", "-o", f"{tmp}/out.npy", *flags], check=True)
        return np.load(f"{tmp}/out.npy")


def their_logits(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="models/tiny")
    parser.add_argument("--sleigh", default="build/sleigh")
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    rng = np.random.default_rng(47)
    config = transformers.AutoConfig.from_pretrained(args.model)
    ids = rng.integers(0, min(config.vocab_size, 1000), args.tokens).tolist()
    plain = their_logits(args.model, ids)
    print("| folder | largest logit | against transformers | against --weights | change by the rounding |")
    print("|---|---|---|---|---|")
    print(f"| plain | {abs(plain).max():.2f} | {abs(sleigh_logits(args.sleigh, args.model, ids) - plain).max():.4f} | - | - |")
    for flags in FORMATS:
        if config.tie_word_embeddings and "--weights-head" in flags:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            out = os.path.join(tmp, "out")
            subprocess.run([args.sleigh, "quantize", "-q", "-m", args.model, "--out", out, *flags], check=True,
                           stdout=subprocess.DEVNULL)
            theirs, ours = their_logits(out, ids), sleigh_logits(args.sleigh, out, ids)
        head = [] if "--weights-head" in flags else ["--weights-head", "bf16"]
        rounded = sleigh_logits(args.sleigh, args.model, ids, [*flags, *head])
        print(f"| {' '.join(flags)} | {abs(theirs).max():.2f} | {abs(ours - theirs).max():.4f} | {abs(ours - rounded).max():.4f} | "
              f"{abs(theirs - plain).max():.4f} |", flush=True)


if __name__ == "__main__":
    main()
