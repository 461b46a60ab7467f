#!/usr/bin/env python3
"""Writes the queries, keys and values of a model's layers for `sleigh bench attn --states DIR`. Needs torch; a GPU makes it fast.

    python3 scripts/measure/attention_states.py --out DIR                                   # the embedded model, a text of its own kind
    python3 scripts/measure/attention_states.py --model models/prose --text BOOK --tokens 8k --out DIR

The heads of all layers stand side by side, as one layer: the embedded model's 4 layers of 8 query heads and 2 KV heads have the shape of a
layer of Llama-3.1-8B. cli/bench/attn_states.h describes the files."""
import argparse
import json
import os
import random
import sys

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
import tiny_text
from bpe import Tok
from measured_parts import count
from small_llama import Model, load_weights


def tokens_of(args, tok):
    """args.tokens tokens with BOS: the first ones of the file, or the last ones of the default text, which ends with the question."""
    if args.text:
        with open(args.text, encoding="utf-8") as f:
            text = f.read()
    else:
        context, questions = tiny_text.task_context("needle", random.Random(args.seed), args.tokens + 256, 1)
        text = context + questions[0][0]
    ids, n = tok.encode(text), args.tokens - 1
    if len(ids) < n:
        sys.exit(f"{args.text or 'the text'}: found {len(ids)} tokens, expected at least {n}")
    return [tok.bos, *(ids[:n] if args.text else ids[len(ids) - n:])]


def open_model(folder):
    """Returns the model, on the GPU if there is one, and its tokenizer."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with open(os.path.join(folder, "config.json")) as f:
        model = Model(json.load(f), torch.bfloat16 if device.type == "cuda" else torch.float32)
    load_weights(os.path.join(folder, "model.safetensors"), model)
    return model.to(device), Tok.load(os.path.join(folder, "tokenizer.json"))


def states_of(model, ids, steps):
    """Returns q [steps][heads][dim], k and v [KV heads][rows][dim], with the heads of all layers side by side."""
    parts, inner = [], model.before_attention

    def recording(*arguments):
        q, k, v = inner(*arguments)
        parts.append((q[-steps:], k.transpose(0, 1), v.transpose(0, 1)))
        return q, k, v

    model.before_attention = recording
    with torch.no_grad():
        model.states(ids[None])
    q, k, v = zip(*parts)
    return torch.cat(q, 1), torch.cat(k), torch.cat(v)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(here, "../..", "models", "tiny"))
    p.add_argument("--text", help="a text file; by default a text for the embedded model, with a question at its end")
    p.add_argument("--tokens", type=count, default=32768)
    p.add_argument("--steps", type=int, default=40, help="queries: of the last tokens")
    p.add_argument("--seed", type=int, default=1, help="of the default text")
    p.add_argument("--out", required=True)
    a = p.parse_args()
    if not 1 <= a.steps <= a.tokens:
        p.error(f"--steps {a.steps}: expected 1 to --tokens, {a.tokens}")
    model, tokenizer = open_model(a.model)
    ids = torch.tensor(tokens_of(a, tokenizer), device=model.norm.device)
    q, k, v = states_of(model, ids, a.steps)
    os.makedirs(a.out, exist_ok=True)
    for name, x in (("q", q), ("k", k), ("v", v)):
        x.to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy().tofile(os.path.join(a.out, name + ".bf16"))
    with open(os.path.join(a.out, "states.json"), "w") as f:
        source = f"{os.path.basename(os.path.normpath(a.model))}, {os.path.basename(a.text) if a.text else f'text of seed {a.seed}'}"
        json.dump(dict(n_heads=q.shape[1], n_kv_heads=k.shape[0], head_dim=q.shape[2], n_rows=k.shape[1], n_steps=a.steps, source=source), f)
        f.write("\n")


if __name__ == "__main__":
    main()
