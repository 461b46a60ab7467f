#!/usr/bin/env python3
"""Paired accuracy of two attention methods on needle and two-hop questions, with a bootstrap 95% interval.

    python3 scripts/eval_needles.py --tokens 8192 --questions 512 --attn dense,santa-prop:S=128

Every question is asked with every method on the same text: the context is prefilled densely, question and answer go
through the method (set-up B). The interval is of the mean difference to the first method, in points; questions of one
text are resampled together, since they share it."""
import argparse
import json
import os
import random
import sys
import tempfile

import tiny_text
from sleigh_runs import run_jsonl


def make_questions(path, tokens, n_questions, per_text, seed):
    """Writes the questions, half needles and half two-hop, and returns their answers, kinds and texts."""
    meta = []
    with open(path, "w") as f:
        for text in range((n_questions + per_text - 1) // per_text):
            rng = random.Random(f"{seed}/{text}")
            kind = "needle" if text % 2 == 0 else "two-hop"
            make = tiny_text.needle_context if text % 2 == 0 else tiny_text.two_hop_context
            context, questions = make(rng, tokens, per_text)
            for question, answer in questions[: n_questions - len(meta)]:
                f.write(json.dumps({"context": context, "question": question, "id": len(meta)}) + "\n")
                meta.append((kind, text, answer.strip()))
    return meta


def interval(differences, texts, rounds=10000, seed=0):
    """Mean and 95% percentile interval of the mean, resampling texts (clusters), in points."""
    clusters = {}
    for d, t in zip(differences, texts):
        clusters.setdefault(t, []).append(d)
    clusters = list(clusters.values())
    rng, means = random.Random(seed), []
    for _ in range(rounds):
        picked = rng.choices(clusters, k=len(clusters))
        means.append(sum(map(sum, picked)) / sum(map(len, picked)))
    means.sort()
    return 100 * sum(differences) / len(differences), 100 * means[int(0.025 * rounds)], 100 * means[int(0.975 * rounds) - 1]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--questions", type=int, default=512)
    p.add_argument("--per-text", type=int, default=16)
    p.add_argument("--attn", default="dense,santa-prop:S=128", help="comma list; the first is the one to compare with")
    p.add_argument("--seed", type=int, default=20261121)
    p.add_argument("-t", "--threads", type=int, default=0)
    a = p.parse_args()

    right = {}
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "questions.jsonl")
        meta = make_questions(path, a.tokens, a.questions, a.per_text, a.seed)
        for attn in a.attn.split(","):
            scores = []
            for r in run_jsonl(a.sleigh, a.model, path, attn, threads=a.threads):
                scores.append(int(r["text"].strip() == meta[r["id"]][2]))
                if len(scores) % 50 == 0:
                    print(f"{attn}: {len(scores)}/{len(meta)}, {sum(scores)} right", file=sys.stderr)
            right[attn] = scores
    first, *_ = right
    print(f"{len(meta)} questions at {a.tokens} tokens, seed {a.seed}\n")
    print(f"| method | needle | two-hop | all | difference to {first}, points (95% interval) |\n|---|---|---|---|---|")
    for attn, scores in right.items():
        share = {k: [s for s, m in zip(scores, meta) if m[0] == k] for k in ("needle", "two-hop")}
        cells = [f"{100 * sum(v) / max(1, len(v)):.1f}%" for v in share.values()] + [f"{100 * sum(scores) / len(scores):.1f}%"]
        mean, low, high = interval([s - d for s, d in zip(scores, right[first])], [m[1] for m in meta])
        print(f"| {attn} | {' | '.join(cells)} | {mean:+.2f} ({low:+.2f} to {high:+.2f}) |")


if __name__ == "__main__":
    main()
