#!/usr/bin/env python3
"""Measures generations with drafts (--draft) against plain decoding, and writes results/speculation.md.

    python3 scripts/measure/drafts.py measure [-m prose] [--device cpu] [--contexts 1k,8k,32k] [--kinds quote,fresh,noise] [--tokens 128] [--rounds 3]
    python3 scripts/measure/drafts.py bits [-m prose] [--device cpu] [--prompts 300] [--temps 0,1] [--drafts auto,model:least=4]
    python3 scripts/measure/drafts.py acceptance [-m prose] [--contexts 1k,8k,32k] [--kinds prose,code,needles,copies] [--flags ..]
    python3 scripts/measure/drafts.py report

measure appends rows to results/speculation/rows.jsonl. A prompt is the beginning of the pages of docs/. It is prefilled once, into a
session file. Then plain decoding and each draft take turns, on a CPU with one thread. A row has medians: on a CPU the processor time of a
token, which other programs on the machine disturb less than its duration, and the duration. Processor time is that of the whole command less
that of a command that generates one token. On a GPU (--device cuda) both are the duration. The text, the ids and the hash of the logits must be
those of plain decoding.

bits appends rows to results/speculation/bits.jsonl: lines of docs/ are continued with each draft, greedily and at the temperature 1, alone and
six at a time, and each answer is compared with plain decoding: text, ids, log-probabilities, hash of the logits, reason to stop. The model
also drafts for itself (model), in an engine of its own.

acceptance appends rows to results/speculation/acceptance.jsonl: which share of drafts is accepted, by length (draft_acceptance.py).

quote: the prompt ends with a passage that occurred before, and greedy decoding goes on with it. fresh: the prompt ends within a new passage,
and tokens are sampled at the temperature 0.8. noise: random tokens of docs/, and tokens
of the whole vocabulary at the temperature 3: hardly anything can be guessed."""
import argparse
import datetime
import glob
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import draft_acceptance  # noqa: E402
import sleigh_runs  # noqa: E402

ROWS = os.path.join(ROOT, "results", "speculation", "rows.jsonl")
DRAFTS = ["ngram", "self:attn=santa-is:S=32", "self:attn=santa-is:S=64", "self:attn=santa-is:S=128", "ngram+self", "auto"]
BITS = os.path.join(ROOT, "results", "speculation", "bits.jsonl")
BIT_DRAFTS = ["ngram:least=4", "self:least=4", "ngram+self:least=2", "auto", "model:least=4"]
KINDS = {"quote": ["--temp", "0"], "fresh": ["--temp", "0.8"], "noise": ["--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0"]}
PASSAGE = 96  # tokens of a passage that the end of a prompt repeats
QUESTION = "How much faster are generations with drafts, and do they keep every bit?"


def run(args, command):
    p = subprocess.run([args.sleigh, *command], capture_output=True, text=True, check=False)
    if p.returncode:
        sys.exit(f"{' '.join(command)}\n{p.stderr}")
    return p.stdout


def text_ids(args):
    """The ids of the pages of docs/, in the order of their names."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        for page in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
            with open(page, encoding="utf-8") as g:
                f.write(g.read())
        f.flush()
        return run(args, ["tokenize", "-m", args.model, "--bos", "-f", f.name]).strip().split(",")


def prompt_of(ids, kind, n):
    """n ids. quote: the last ones are a passage from the middle. noise: ids of the text in a random order, each as often as the others."""
    if kind == "noise":
        return random.Random(n).choices(sorted(set(ids)), k=n)
    if len(ids) < n:
        sys.exit(f"a prompt of {n} tokens: docs/ has only {len(ids)}")
    if kind == "fresh":
        return ids[:n]
    middle = (n - PASSAGE) // 2
    return ids[:n - PASSAGE] + ids[middle:middle + PASSAGE]


def processor_ms():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (used.ru_utime + used.ru_stime)


def device_flags(args):
    return ["--device", args.on] + (["-t", "1"] if args.on == "cpu" else [])


def generate(args, kind, prompt, cache, draft, n):
    """The answer of n tokens, with the processor time of the command."""
    more = ["--draft", draft] if draft else []
    before = processor_ms()
    out = json.loads(run(args, ["generate", "-m", args.model, *device_flags(args), "--ids", prompt, "-n", str(n), "--ignore-eos",
                                "-o", "json", "--seed", "1", "-c", str(args.context), "--prompt-cache", cache, *KINDS[kind], *args.flags.split(), *more]))
    out["processor_ms"] = processor_ms() - before
    return out


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def listed(words, default):
    return words.split(",") if words else default


def same(own, plain):
    return all(own[key] == plain[key] for key in ("text", "ids", "logits", "stopped"))


def measure_one(args, ids, kind, n, out):
    """Rows of a kind of prompt with n tokens."""
    args.context = n + args.tokens + 8
    with tempfile.TemporaryDirectory() as folder:
        prompt, cache = os.path.join(folder, "ids"), os.path.join(folder, "session")
        with open(prompt, "w", encoding="utf-8") as f:
            f.write(",".join(prompt_of(ids, kind, n)))
        runs, starts = {draft: [] for draft in [None, *listed(args.drafts, DRAFTS)]}, []
        generate(args, kind, prompt, cache, None, 1)  # makes the session file
        for _ in range(args.rounds):
            starts.append(generate(args, kind, prompt, cache, None, 1))
            for draft, list_of in runs.items():
                list_of.append(generate(args, kind, prompt, cache, draft, args.tokens))
    plain, key = runs[None], "processor_ms" if args.on == "cpu" else "decode_ms"
    start = median(starts, key) if args.on == "cpu" else 0
    plain_ms = median(plain, key) - start
    for draft, list_of in runs.items():
        ms = median(list_of, key) - start
        counts = [r.get("drafts") or {"steps": r["n_decode"], "drafted": 0, "accepted": 0} for r in list_of]
        steps, drafted, accepted = (sum(c[key] for c in counts) for key in ("steps", "drafted", "accepted"))
        row = {"date": datetime.date.today().isoformat(), "commit": args.commit, "device": args.device, "model": plain[0]["model"],
               "kind": kind, "context": n, "tokens": args.tokens, "rounds": args.rounds, "draft": draft or "none",
               "token_ms": ms / args.tokens, "wall_ms": median(list_of, "decode_ms") / args.tokens, "speedup": plain_ms / ms,
               "step_tokens": 1 + accepted / steps, "acceptance": accepted / drafted if drafted else None, "same": all(same(r, plain[0]) for r in list_of)}
        out.write(json.dumps(row) + "\n")
        out.flush()
        print(json.dumps(row), file=sys.stderr)


def program_of(args):
    program = json.loads(run(args, ["bench", "draft", "-m", "tiny", "-r", "1", *device_flags(args), "-o", "json"]))[0]
    return program["commit"], program["device"]


def lines_of_docs(n):
    lines = []
    for page in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))):
        with open(page, encoding="utf-8") as f:
            lines += [line.rstrip("\n") for line in f if len(line) > 60]
    if len(lines) < n:
        sys.exit(f"{n} prompts: docs/ has only {len(lines)} lines")
    return lines[::len(lines) // n][:n]


def answers(args, prompts, temp, draft, parallel):
    more = ["--draft", draft] if draft else []
    if draft and draft.startswith("model"):
        more += ["--draft-model", args.model]
    out = run(args, ["generate", "-m", args.model, "--device", args.on, "-t", str(args.threads), "--prompts", prompts, "--parallel", str(parallel),
                     "-n", str(args.tokens), "-c", "1024", "--temp", temp, "--seed", "1", "--logprobs", "2", *args.flags.split(), *more])
    return [json.loads(line) for line in out.splitlines()]


def acceptance(args):
    args.commit, args.device = program_of(args)
    draft_acceptance.measure(args)


def bits(args):
    commit, device = program_of(args)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write("\n".join(lines_of_docs(args.prompts)) + "\n")
        f.flush()
        for temp in args.temps.split(","):
            plain = answers(args, f.name, temp, None, 1)
            for draft in listed(args.drafts, BIT_DRAFTS):
                for parallel in [1, 6]:
                    own = answers(args, f.name, temp, draft, parallel)
                    n_same = sum(all(a[k] == b[k] for k in ("text", "ids", "logprobs", "logits", "stopped")) for a, b in zip(own, plain, strict=True))
                    row = {"date": datetime.date.today().isoformat(), "commit": commit, "device": device, "model": args.name, "temp": float(temp),
                           "draft": draft, "parallel": parallel, "prompts": len(plain), "tokens": args.tokens, "same": n_same,
                           "accepted": sum(a["drafts"]["accepted"] for a in own)}
                    with open(BITS, "a", encoding="utf-8") as out:
                        out.write(json.dumps(row) + "\n")
                    print(json.dumps(row), file=sys.stderr)


def measure(args):
    ids = text_ids(args)
    args.commit, args.device = program_of(args)
    os.makedirs(os.path.dirname(ROWS), exist_ok=True)
    with open(ROWS, "a", encoding="utf-8") as out:
        for n in [int(c[:-1]) * 1024 if c.endswith("k") else int(c) for c in args.contexts.split(",")]:
            for kind in listed(args.kinds, list(KINDS)):
                measure_one(args, ids, kind, n - args.tokens - 8 if args.within else n, out)


# ---- the page ----


def cell(x, form):
    return "-" if x is None else form.format(x)


def kind_of(row):
    return "GPU" if row["device"].startswith("cuda") else "CPU"


def answer_of(rows):
    worst = [min(r["speedup"] for r in rows if r["draft"] == draft) for draft in ("ngram", "auto")]
    return (f"quotations are up to {best(rows, 'quote')}, fresh text up to {best(rows, 'fresh')}; the least speedup of `ngram` is "
            f"{worst[0]:.2f}, of `auto` {worst[1]:.2f}")


def best(rows, kind):
    """The greatest speedup in a kind of prompt, in words."""
    r = max((r for r in rows if r["kind"] == kind and r["draft"] != "none"), key=lambda r: r["speedup"])
    return f"{r['speedup']:.2f} times as fast (`{r['draft']}`, {r['model']}, {r['context']} tokens)"


def load_bits():
    with open(BITS, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def bits_page():
    text = ["## Equal bits", "",
            "Lines of docs/ were continued with drafts (`scripts/measure/drafts.py bits`) and compared with plain decoding of each alone: text, ids,",
            "log-probabilities, hash of the logits and reason to stop. at a time: answers of a batch, whose neighbours come and go. tokens: at most",
            "of an answer. accepted: drafts that became tokens. `model`: the model drafts for itself, with a cache of its own.",
            "`tests/engine/test_draft_faults.c` has flipped bits in the rows of drafts, cancellations, callers that stop, and ends within a run.", "",
            "| device | model | temperature | drafts | at a time | prompts | tokens | equal | accepted |", "|---|---|---|---|---|---|---|---|---|"]
    return text + [f"| {kind_of(r)} | {r['model']} | {r['temp']:g} | `{r['draft']}` | {r['parallel']} | {r['prompts']} | {r.get('tokens', 128)} | "
                   f"{r['same']} | {r['accepted']} |" for r in load_bits()]


def report(args):
    with open(ROWS, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    n_same, n = sum(r["same"] for r in rows if r["draft"] != "none"), sum(r["draft"] != "none" for r in rows)
    bit_rows = load_bits()
    answer = (f"{n_same} of {n} settings and {sum(r['same'] for r in bit_rows)} of {sum(r['prompts'] for r in bit_rows)} answers have the text, the ids and "
              "the logits of plain decoding.")
    for kind in dict.fromkeys(kind_of(r) for r in rows):
        answer += f" On a {kind}, {answer_of([r for r in rows if kind_of(r) == kind])}."
    accepted = draft_acceptance.load()
    answer, measured = f"{answer} {draft_acceptance.answer(accepted)}", rows + accepted + bit_rows
    devices = ", ".join(dict.fromkeys(r["device"] for r in rows))
    text = ["# Drafts: speed with the bits of plain decoding", "",
            sleigh_runs.head_lines(QUESTION, answer, [r["date"] for r in measured], [r["commit"] for r in measured],
                                   "`python3 scripts/measure/drafts.py measure`, `bits` and `acceptance`, for each model"), "",
            "`scripts/measure/drafts.py report` wrote this page from `results/speculation/rows.jsonl`. A quotation repeats a passage of the",
            "prompt, with greedy decoding. Fresh text goes on behind the end of the prompt, at the temperature 0.8. noise: random tokens, and tokens of the",
            "whole vocabulary at the temperature 3. answer: its tokens. ms: median time of a token of the answer; on a CPU the processor time, on one thread.",
            "speedup: against plain decoding, which took turns with the drafts. accepted: of the drafts. Other programs ran on the machine at the",
            "same time, so a speedup has an error of some percent. `self` alone drafts from the first step on, so a short answer pays for page extras",
            "of the whole context; `auto` and `ngram+self` wait until they cost little. Devices:",
            f"{devices}. A commit with -dirty: with the change of the commit after it.", ""]
    for kind, model in dict.fromkeys((kind_of(r), r["model"]) for r in rows):
        own = [r for r in rows if (kind_of(r), r["model"]) == (kind, model)]
        text += [f"## {model} on a {kind}", "", "| prompt | context | answer | drafts | ms / token | speedup | tokens / step | accepted |",
                 "|---|---|---|---|---|---|---|---|"]
        text += [f"| {r['kind']} | {r['context']} | {r['tokens']} | `{r['draft']}` | {r['token_ms']:.2f} | {r['speedup']:.2f} | {r['step_tokens']:.2f} | "
                 f"{cell(r['acceptance'], '{:.1%}')} |" for r in own] + [""]
    text += draft_acceptance.page() + [""] + bits_page()
    if not args.no_picture:
        draft_acceptance.draw(args, os.path.dirname(os.path.abspath(args.out)))
    with open(args.out, "w", encoding="utf-8") as f:
        f.write("\n".join(text).rstrip("\n") + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("action", choices=["measure", "bits", "acceptance", "report"])
    p.add_argument("--sleigh", default=os.path.join(ROOT, "build", "sleigh"))
    p.add_argument("-m", "--model", default="prose")
    p.add_argument("--device", dest="on", default="cpu", help="cpu, cuda or cuda:N")
    p.add_argument("--contexts", default="1k,8k,32k", help="tokens of the prompt")
    p.add_argument("--within", action="store_true", help="the answer ends at these contexts, for a model whose limit is one of them")
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("-o", "--out", default=os.path.join(ROOT, "results", "speculation.md"))
    p.add_argument("--prompts", type=int, default=300, help="bits: prompts of a row")
    p.add_argument("--temps", default="0,1", help="bits: temperatures, with commas")
    p.add_argument("--kinds", default="", help="kinds of text (default: all of the action)")
    p.add_argument("--drafts", default="", help="measure, bits: these drafts, with commas (default: all of the action)")
    p.add_argument("--end", type=int, default=32768, help="acceptance: the place in a text that goes on after contexts of every length, in tokens")
    p.add_argument("--flags", default="", help="more flags of each run, such as '--weights int8'")
    p.add_argument("--threads", type=int, default=1, help="acceptance, bits: threads of each run")
    p.add_argument("--no-picture", action="store_true", help="writes the page without its pictures")
    args = p.parse_args()
    args.name = os.path.basename(args.model).split(".")[0]
    {"measure": measure, "bits": bits, "acceptance": acceptance, "report": report}[args.action](args)


if __name__ == "__main__":
    main()
