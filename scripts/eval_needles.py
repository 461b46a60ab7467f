#!/usr/bin/env python3
"""Accuracy of attention methods on needle and two-hop questions, paired with the first method, with bootstrap 95% intervals.

    python3 scripts/eval_needles.py --tokens 8192 --questions 512 --attn 'dense,santa-prop:S={64,128}'

Every question is asked with every method on the same text: the context is prefilled densely, once, question and answer go
through the method (set-up B). --questions counts those of each kind. Braces make one method of each word in them. Intervals are
of the mean difference to the first method, in points; questions of one text are resampled together, since they share it."""
import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading

import tiny_text
from sleigh_runs import run_jsonl

MAKERS = {"needle": tiny_text.needle_context, "two-hop": tiny_text.two_hop_context}


def expand(text):
    """'a,b:S={1,2}' -> ['a', 'b:S=1', 'b:S=2']"""
    out = []
    for part in re.findall(r"(?:[^,{]|\{[^}]*\})+", text):
        m = re.match(r"(.*)\{([^}]*)\}(.*)", part)
        out += [m[1] + word + m[3] for word in m[2].split(",")] if m else [part]
    return out


def make_questions(tokens, n_questions, per_text, seed):
    """[(kind, text number, context, [(question, answer)])]: n_questions of each kind."""
    texts = []
    for kind, make in MAKERS.items():
        for i in range((n_questions + per_text - 1) // per_text):
            n = min(per_text, n_questions - i * per_text)
            context, questions = make(random.Random(f"{seed}/{kind}/{i}"), tokens, n)
            texts.append((kind, len(texts), context, questions[:n]))
    return texts


def ask(args, texts, methods, right, lock):
    """Asks every question of some texts with every method; right[method][(text, question)] = 0 or 1."""
    with tempfile.TemporaryDirectory() as tmp:
        path, n_lines, answers = os.path.join(tmp, "questions.jsonl"), 0, {}
        with open(path, "w") as f:
            for kind, text, context, questions in texts:
                for m, attn in enumerate(methods):
                    for i, (question, answer) in enumerate(questions):
                        key = f"{m}/{text}/{i}"
                        answers[key] = answer.strip()
                        record = {"context": context, "question": question, "id": key, "attn": attn, "seq": text * 1000 + i}
                        f.write(json.dumps(record) + "\n")
        for r in run_jsonl(args.sleigh, args.model, path, "dense", threads=args.threads):
            m, text, i = map(int, r["id"].split("/"))
            with lock:
                right[methods[m]][(text, i)] = int(r["text"].strip() == answers[r["id"]])
            n_lines += 1
            if n_lines % 2000 == 0:
                print(f"{n_lines} of {len(answers)} answers", file=sys.stderr)


def interval(differences, rounds, seed=0):
    """Mean and 95% percentile interval of {(text, question): difference}, resampling texts, in points."""
    clusters = {}
    for (text, _), d in differences.items():
        clusters.setdefault(text, []).append(d)
    sums = [(sum(c), len(c)) for c in clusters.values()]
    rng, means = random.Random(seed), []
    for _ in range(rounds):
        picked = rng.choices(sums, k=len(sums))
        means.append(sum(s for s, _ in picked) / sum(n for _, n in picked))
    means.sort()
    mean = sum(differences.values()) / len(differences)
    return [100 * x for x in (mean, means[int(0.025 * rounds)], means[int(0.975 * rounds) - 1])]


def summarise(args, texts, methods, right):
    kind_of = {text: kind for kind, text, _, _ in texts}
    rows = []
    for attn in methods:
        scores = right[attn]
        row = {"attn": attn}
        for kind in MAKERS:
            own = [s for (text, _), s in scores.items() if kind_of[text] == kind]
            row[kind] = 100 * sum(own) / len(own)
        row["all"] = 100 * sum(scores.values()) / len(scores)
        difference = {key: s - right[methods[0]][key] for key, s in scores.items()}
        row["difference"], row["low"], row["high"] = interval(difference, args.rounds)
        rows.append(row)
    return {"tokens": args.tokens, "questions": len(scores), "seed": args.seed, "rows": rows}


def table(result):
    print(f"{result['questions']} questions at {result['tokens']} tokens, seed {result['seed']}\n")
    print(f"| method | {' | '.join(MAKERS)} | all | difference to {result['rows'][0]['attn']}, points (95% interval) |")
    print("|---|" + "---|" * (len(MAKERS) + 2))
    for r in result["rows"]:
        cells = [f"{r[kind]:.1f}%" for kind in (*MAKERS, "all")]
        print(f"| {r['attn']} | {' | '.join(cells)} | {r['difference']:+.2f} ({r['low']:+.2f} to {r['high']:+.2f}) |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="models/tiny")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--questions", type=int, default=512, help="of each kind")
    p.add_argument("--per-text", type=int, default=16)
    p.add_argument("--attn", default="dense,santa-prop:S=128", help="comma list; the first is the one to compare with")
    p.add_argument("--seed", type=int, default=20261121)
    p.add_argument("--rounds", type=int, default=10000, help="of the bootstrap")
    p.add_argument("-j", "--jobs", type=int, default=1, help="processes side by side; the answers do not depend on it")
    p.add_argument("-t", "--threads", type=int, default=0, help="of each")
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    p.add_argument("--render", metavar="FILE.json", help="only print the table of a result that -o json wrote")
    a = p.parse_args()
    if a.render:
        with open(a.render) as f:
            return table(json.load(f))

    methods, texts = expand(a.attn), make_questions(a.tokens, a.questions, a.per_text, a.seed)
    right, lock = {attn: {} for attn in methods}, threading.Lock()
    workers = [threading.Thread(target=ask, args=(a, texts[i :: a.jobs], methods, right, lock)) for i in range(a.jobs)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    n = sum(len(questions) for _, _, _, questions in texts)
    if any(len(right[attn]) != n for attn in methods):
        sys.exit("an answer is missing: see the error above")
    result = summarise(a, texts, methods, right)
    if a.output == "json":
        print(json.dumps(result, indent=1))
    else:
        table(result)


if __name__ == "__main__":
    main()
