#!/usr/bin/env python3
"""Runs the measurements of results/prose.md and keeps their figures. scripts/measure/prose_report.py writes the page from them.

    python3 scripts/measure/prose_results.py --part inputs                           # needs the corpus and the tokenizer, and no GPU
    python3 scripts/measure/prose_results.py --jobs 4 --device cuda                  # every other part: needs the inputs and the model
    python3 scripts/measure/prose_results.py --part methods:32k history              # these parts only
    python3 scripts/measure/prose_report.py

Parts (LEN is a length of --lengths; `methods` means all its lengths):
    inputs             the files of --work: books-LEN.jsonl, texts.jsonl, needle-LEN.jsonl, two-hop-LEN.jsonl, tiny-LEN.jsonl
    history:LEN        perplexity of the same tokens after 1k, 4k, 16k and all tokens before them
    attention-prose:LEN, attention-tiny:LEN   statistics of dense attention, of the model and of the embedded model
    methods:LEN:GROUP  the methods of a group on the last tokens of books: next tokens, heads
    needle:LEN, two-hop:LEN   questions about facts that stand in books
    continuations:LEN:SEED   texts at temperature 0.8, at the longest length

Each part writes one JSON to --results (measured_parts.py).

A line of books-LEN.jsonl is a book of the test split: {"id", "prompt", "reference"}. The reference has --score tokens. It ends at the same
token for every length: the largest length that the book has. The prompt is the tokens before it, LEN - score of them. Texts begin and end
at a blank before a word, so the tokens of the text are the tokens of the book."""
import argparse
import array
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
import tiny_text
from bpe import Tok
from measured_parts import Part, add_options, count, expect, of_document, only_inputs, parsed, place_flags, run_chosen, run_part, write_lines
from prose_needles import read_books

# Groups run as parts of their own, so that they can run side by side.
METHODS = {
    "prop": ["santa-prop:S={32,64,128,256,512}", "santa-sys:S={32,64,128,256,512}"],
    "pps": ["santa-pps:budget=even:S={32,64,128,256,512}", "santa-is:budget=even:S={32,64,128,256,512}", "dense-q:bits=4"],
    "carried": ["santa-pps:budget=carried:S={32,64,128,256,512}", "santa-pps:epsilon={0.05,0.1,0.2,0.4}:certify=layer"],
    "carried-is": ["santa-is:budget=carried:S={32,64,128,256,512}"],
    "flash": ["santa-flash:S={32,64,128,256,512}", "bernoulli:B={4,8,16}", "bernoulli-group:B=8+santa-prop:S=128", "topk:k={64,256,1024}"],
    "others": ["santa-flash:S=2048", "quest:tokens={128,512,1024,2048}", "streaming:window={252,1020,4092,8188}",
               "vattention:epsilon={0.05,0.2}", "vattention:predictor=quest:top=0.02:base=0.02:epsilon={0.05,0.2,0.4}"],
    "magicpig": ["magicpig:hits=1:K=8:L={20,40}", "magicpig:L={75,150}"],
}
ON_CPU = ["magicpig", "carried-is"]  # groups without a GPU version run on the CPU on every machine
# One or two budgets of each method, for questions and for continuations.
FEW_METHODS = [
    "santa-prop:S={32,128}", "santa-sys:S=128", "santa-pps:S={32,128}", "santa-is:S={32,128,256}", "santa-flash:S={128,512}",
    "bernoulli:B=8", "topk:k=256", "quest:tokens={512,1024}", "streaming:window={1020,4092}",
    "vattention:predictor=quest:top=0.02:base=0.02:epsilon=0.2",
]
HISTORIES = ["1k", "4k", "16k", "32k"]
CONTINUATION_SEEDS = (1, 2, 3)
TEMPERATURE = 0.8

# ---- inputs ----

class Book:
    """The tokens of a book of the test split, and the text of a range of them. tokens: {id: bytes}."""

    def __init__(self, name, ids, tokens):
        self.name, self.ids, self.tokens = name, ids, tokens

    def is_cut(self, i):
        """1: a pre-token ends before token i in every text that holds both tokens: a blank and a word follow a word or a full stop."""
        before, after = (self.tokens.get(token, b"") for token in self.ids[i - 1:i + 1])  # special tokens have no bytes
        return re.fullmatch(rb".*[A-Za-z0-9.,;:]", before, re.DOTALL) and re.match(rb" [A-Za-z]", after)

    def cut(self, i, step):
        """The nearest place from token i on (step 1) or before it (step -1) where a text can be cut."""
        while not self.is_cut(i):
            i += step
        return i

    def text(self, first, end):
        return b"".join(self.tokens[i] for i in self.ids[first:end]).decode()


def check_tokens(args, book, first, end):
    """The program must read the tokens of the book from its text."""
    run = subprocess.run([args.sleigh, "tokenize", "-m", args.model, "-f", "-"], input=book.text(first, end), capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    if [int(i) for i in run.stdout.split(",")] != list(book.ids[first:end]):
        sys.exit(f"{book.name}: the text of tokens {first} to {end} gives other tokens; expected the tokens of {args.corpus}/test.u16")


def book_inputs(args, lengths, check=check_tokens):
    lines, texts = {n: [] for n in lengths}, []
    tokenizer = os.path.join(args.model, "tokenizer.json")
    tokens = Tok.load(tokenizer).inv
    books = [Book(name, ids, tokens) for name, ids in read_books(args.corpus, tokenizer, "test") if len(ids) > lengths[0]]
    for book in books[:args.books]:
        ends = [n for n in lengths if n < len(book.ids)]
        end = book.cut(ends[-1], -1)
        middle = book.cut(end - args.score, 1)
        for n in ends:
            first = book.cut(max(1, end - n + 1), 1)  # BOS is one of the n tokens
            lines[n].append({"id": book.name, "prompt": book.text(first, middle), "reference": book.text(middle, end)})
        check(args, book, first, end)
        # Whole windows for `perplexity`; a few tokens more, because the text begins at a cut.
        limit = min(len(book.ids) - 1, 2 * lengths[-1] + 256)
        texts.append({"id": book.name, "text": book.text(book.cut(1, 1), book.cut(limit, -1))})
    if not texts:
        sys.exit(f"{args.corpus}: no book of the test split has {args.lengths.split(',')[0]} tokens")
    for size, n in zip(args.lengths.split(","), lengths):
        write_lines(args.input(f"books-{size}"), lines[n])
    write_lines(args.input("texts"), texts)


def needle_inputs(args):
    for kind in ("needle", "two-hop"):
        for size in args.lengths.split(","):
            run = subprocess.run([sys.executable, os.path.join(os.path.dirname(__file__), "../train/prose_needles.py"), "--corpus", args.corpus,
                                  "--model", args.model, "--kind", kind, "--length", size, "--samples", str(args.samples)],
                                 capture_output=True, text=True)
            if run.returncode:
                sys.exit(run.stderr)
            write_lines(args.input(f"{kind}-{size}"), [json.loads(line) for line in run.stdout.splitlines()])


def tiny_inputs(args):
    """Texts of the embedded model's own kind."""
    for size in args.lengths.split(","):
        lines = []
        for i, kind in enumerate(["needle", "two-hop"] * 4):
            context, questions = tiny_text.task_context(kind, random.Random(f"prose/{i}"), count(size), 1)
            lines.append({"id": f"{kind}-{i}", "context": context, "question": questions[0][0], "reference": questions[0][1]})
        write_lines(args.input(f"tiny-{size}"), lines)


def make_inputs(args):
    os.makedirs(args.work, exist_ok=True)
    book_inputs(args, sorted(map(count, args.lengths.split(","))))
    tiny_inputs(args)
    needle_inputs(args)


# ---- figures that are kept ----

OF_METHOD = ("attn", "positions", "agreement", "kv_bytes_share", "top1", "kl", "ppl_answer", "ln_ppl_ratio", "step_bytes_share", "l2",
             "bytes_share")
OF_PROMPT = ("top1", "kl", "ln_ppl_ratio", "ppl_answer", "l2", "text_nll", "agreement")


def keep_compare(doc):
    """The figures of each method with their intervals, those of its layers, and a list over prompts for each figure of a prompt."""
    def over_prompts(rows):
        return {k: [row[k] for row in rows] for k in OF_PROMPT if rows and rows[0].get(k) is not None}

    methods = []
    for i, row in enumerate(doc["methods"]):
        kept = {k: v for k, v in row.items() if re.sub("_(dense|median|se|low|high)", "", k) in OF_METHOD}
        kept["by_prompt"] = over_prompts([p["methods"][i] for p in doc["prompts"]])
        kept["layer_l2"] = [layer["l2"] for layer in row["layers"]]
        methods.append(kept)
    return of_document(doc, temp=doc["temp"], prompts=[p["id"] for p in doc["prompts"]], n_prompt=[p["n_prompt"] for p in doc["prompts"]],
                       dense_by_prompt=over_prompts([p["dense"] for p in doc["prompts"]]), methods=methods)


def keep_attention(doc):
    return of_document(doc, prompts=[p["id"] for p in doc["prompts"]], n_prompt=[p["n_prompt"] for p in doc["prompts"]],
                       attention=doc["attention"])


def keep_perplexity(doc):
    """Of each history the mean negative log-likelihood of every text."""
    nll = {h["history"]: [text["histories"][i]["nll"] for text in doc["texts"]] for i, h in enumerate(doc["histories"])}
    return of_document(doc, texts=[text["id"] for text in doc["texts"]], n_score=doc["n_score"], scored=doc["scored"], nll=nll)


def keep_eval(doc):
    return of_document(doc, device=doc["settings"].get("arithmetic"), samples=doc["rows"][0]["samples"], rows=doc["rows"])


# ---- parts ----

def all_parts(args):
    """{name: Part}, in the order in which parts run. The longest come first, so that processes side by side end together."""
    parts = {}
    sizes = sorted(args.lengths.split(","), key=count, reverse=True)
    few = ",".join(FEW_METHODS)

    def add(name, keep, command, input_name, *flags, model=args.model, device=args.device):
        path = args.input(input_name)
        words = [args.sleigh, command, "-m", model, "--jsonl", path, *flags, *place_flags(args, device), "-o", "json"]
        parts[name] = Part(name, words, path, model, keep)

    for size in sizes:
        for group, methods in METHODS.items():
            add(f"methods:{size}:{group}", keep_compare, "compare", f"books-{size}", "--no-texts", "--parallel", str(args.parallel),
                "--attn", ",".join(methods), device="cpu" if group in ON_CPU else args.device)
    for seed in CONTINUATION_SEEDS:
        add(f"continuations:{sizes[0]}:{seed}", keep_compare, "compare", f"books-{sizes[0]}", "--no-heads", "-n", str(args.score // 2),
            "--ignore-eos", "--temp", str(TEMPERATURE), "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", str(seed), "--attn", few)
    for size in sizes:
        for kind in ("needle", "two-hop"):
            add(f"{kind}:{size}", keep_eval, "eval", f"{kind}-{size}", "-n", "32", "-e", "--stop", "\\n", "--attn", "dense," + few)
    for size in sizes:
        if size in (sizes[0], "32k"):
            score = count(size) // 8
            histories = [h for h in HISTORIES if count(h) < count(size) - score]
            add(f"history:{size}", keep_perplexity, "perplexity", "texts", "-c", size, "--history", ",".join([*histories, "all"]), "--score",
                str(score))
    for name, model, text in (("prose", args.model, "books"), ("tiny", args.tiny, "tiny")):
        add(f"attention-{name}:{sizes[0]}", keep_attention, "compare", f"{text}-{sizes[0]}", "--no-texts", "--no-heads", "--attention",
            "--attn", "dense", model=model)
    return parts


# ---- self-test ----

def self_test():
    """Makes the inputs of two books of the embedded model's language, keeps figures of a part, and finds it again."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = "models/tiny/tokenizer.json"
        tok, ids, index = Tok.load(tokenizer), array.array("H"), []
        for i, n_tokens in enumerate((2300, 1200)):
            context, questions = tiny_text.task_context("one-hop", random.Random(i), n_tokens, 1)
            book = tok.encode(context + questions[0][0])
            index.append({"name": f"book-{i}", "first": len(ids), "n_tokens": len(book)})
            ids.extend([*book, tok.eos])
        with open(tokenizer, "rb") as f:
            index = {"test": index, "tokenizer": hashlib.sha256(f.read()).hexdigest()}
        with open(os.path.join(folder, "tokens.json"), "w") as f:
            json.dump(index, f)
        with open(os.path.join(folder, "test.u16"), "wb") as f:
            f.write(ids.tobytes())
        a = arguments(["--model", "models/tiny", "--corpus", folder, "--work", folder, "--results", folder, "--lengths", "1k,2k", "--score", "32"])
        book_inputs(a, [1024, 2048], lambda *_: None)
        short, long = (list(map(json.loads, open(a.input(f"books-{size}")))) for size in ("1k", "2k"))
        expect([line["id"] for line in short] == ["book-0", "book-1"] and [line["id"] for line in long] == ["book-0"], "books of each length")
        expect(short[0]["reference"] == long[0]["reference"], "a book has one reference for all lengths")
        for line, limit, end in ((short[0], 1024, 2048), (long[0], 2048, 2048), (short[1], 1024, 1024)):
            first = index["test"][line["id"] == "book-1"]["first"]
            found = tok.encode(line["prompt"] + line["reference"])
            expect(limit - 32 < len(found) < limit, f"{line['id']} has {len(found)} tokens; expected at most {limit} with BOS")
            at = next(i for i in range(first, first + end) if ids[i:i + len(found)] == array.array("H", found))
            expect(first + end - 32 < at + len(found) <= first + end, "the reference ends at the length's last token")
            expect(20 < len(tok.encode(line["reference"])) <= 32, "tokens of a reference")
        # A part runs once, and again after its input has changed.
        a.sleigh = os.path.join(folder, "sleigh")
        with open(a.sleigh, "w") as f:
            f.write("#!/bin/sh\necho run >>\"$0.runs\"\necho '{\"version\": \"0\", \"commit\": \"c\", \"device\": \"d\", \"histories\": [], \"texts\": [], "
                    "\"n_score\": 1, \"scored\": 0.123456789}'\n")
        os.chmod(a.sleigh, 0o755)
        part = all_parts(a)["history:2k"]
        runs = []
        for change in ("", "", "\n"):
            with open(part.input, "a") as f:
                f.write(change)
            expect(run_part(a, part) is None, "a part runs")
            with open(a.sleigh + ".runs") as f:
                runs.append(len(f.readlines()))
        expect(runs == [1, 1, 2], f"runs of a part: {runs}")
        with open(os.path.join(folder, "history-2k.json")) as f:
            kept = json.load(f)
        expect(kept["result"]["scored"] == 0.123457 and kept["command"].startswith("build/sleigh perplexity -m models/tiny"), "kept figures")


def arguments(words=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(p, "build/prose-work", "results/prose", without=" except inputs")
    p.add_argument("-m", "--model", default="models/prose")
    p.add_argument("--tiny", default="models/tiny", help="the embedded model")
    p.add_argument("--corpus", default="build/prose")
    p.add_argument("--lengths", default="4k,8k,16k,32k")
    p.add_argument("--score", type=int, default=256, help="tokens of a reference; a continuation has half as many")
    p.add_argument("--books", type=int, default=None, help="inputs: at most so many books")
    p.add_argument("--samples", type=int, default=48, help="inputs: questions of each kind and length")
    p.add_argument("--parallel", type=int, default=16, help="books whose next tokens `methods` computes in one batch")
    p.add_argument("--self-test", action="store_true", help="check the inputs of two small books, without the model")
    return parsed(p, words)


def main():
    a = arguments()
    if a.self_test:
        return self_test()
    if "inputs" in a.part:
        make_inputs(a)
    if not only_inputs(a):
        run_chosen(a, all_parts(a))


if __name__ == "__main__":
    main()
