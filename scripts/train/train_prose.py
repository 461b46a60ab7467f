#!/usr/bin/env python3
"""Trains the prose model: a small Llama on whole books of English, with needles in some of them.

    python3 scripts/train/train_prose.py --corpus DIR --out models/prose                    one GPU, 20 minutes
    python3 scripts/train/train_prose.py --corpus DIR --out models/prose --piece 300        five minutes of it; the same command goes on
    python3 scripts/train/train_prose.py --selftest                                         a few steps on a CPU

--corpus is the folder of prose_corpus.py and prose_tokenizer.py. Progress goes to stderr, the evaluation to stdout, a Hugging Face folder to
--out. There state.pt holds the state of the training, and a run continues from it.

A stage is a number of wall-clock seconds at one length. The learning rate is constant for the first half of the time and then falls to 0 on a
line. Matrices of the layers are trained with Muon, the embedding and the norms with Adam."""
import argparse
import itertools
import json
import math
import os
import random
import sys
import tempfile
import time

import numpy as np
import torch

import prose_tokenizer
from bpe import Tok
from prose_needles import NeedleDocuments
from small_llama import Model, init_model, llama_config, round_to_bf16, save_model
from tiny_text import filler_sentence

START = time.time()
STATE = "state.pt"


def log(*text):
    print(f"{time.time() - START:6.1f}", *text, file=sys.stderr, flush=True)


def config_of(a):
    return llama_config(hidden_size=a.hidden, intermediate_size=a.ffn, num_hidden_layers=a.layers, vocab_size=Tok.load(a.tokenizer).vocab_size,
                        max_position_embeddings=max(length for length, _ in a.stages), tie_word_embeddings=True)


# ---- data: worker processes fill batches of one length ----


class Books:
    """The books of a split as token ids: self.ids holds all books, book i lies at first[i] and has n_tokens[i] tokens."""

    def __init__(self, folder, split):
        with open(os.path.join(folder, "tokens.json")) as f:
            books = json.load(f)[split]
        self.ids = np.fromfile(os.path.join(folder, split + ".u16"), np.uint16)
        self.names = [b["name"] for b in books]
        self.first, self.n_tokens = (np.array([b[key] for b in books], np.int64) for key in ("first", "n_tokens"))
        if not books or (self.first + self.n_tokens).max() > len(self.ids):
            raise SystemExit(f"train_prose: {split}.u16 of {folder} has {len(self.ids)} tokens, and tokens.json names others")

    def arrays(self):
        return [self.ids[f:f + n] for f, n in zip(self.first, self.n_tokens)]


class Batches(torch.utils.data.IterableDataset):
    """Rows of `length` tokens: BOS and a part of one book, or (a share of `needles`) a part of a book with needles and questions."""

    def __init__(self, books, length, a, seed):
        self.books, self.length, self.rows, self.a, self.seed = books, length, max(1, a.tokens_per_step // length), a, seed

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        seed = [self.seed, info.id if info else 0]
        rng = np.random.default_rng(seed)
        documents = NeedleDocuments(self.a.tokenizer, self.books.arrays(), int(rng.integers(1 << 31)))
        starts = np.maximum(self.books.n_tokens - self.length + 1, 0)  # places in each book where a row can begin
        if not starts.any():
            raise ValueError(f"no book has {self.length} tokens")
        ends, bos = np.cumsum(starts), Tok.load(self.a.tokenizer).bos
        while True:
            rows, answers = [], []
            for _ in range(self.rows):
                if rng.random() < self.a.needles:
                    ids, answer = documents.document(self.length)
                else:
                    at = rng.integers(ends[-1])
                    book = np.searchsorted(ends, at, side="right")
                    begin = self.books.first[book] + at - (ends[book] - starts[book])
                    ids, answer = self.books.ids[begin:begin + self.length].copy(), np.zeros(self.length, np.uint8)
                    ids[0] = bos
                rows.append(ids.astype(np.int16))
                answers.append(answer)
            yield torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(answers))


def loader_of(books, length, a, seed):
    return iter(torch.utils.data.DataLoader(Batches(books, length, a, seed), batch_size=None, num_workers=a.workers,
                                            prefetch_factor=4 if a.workers else None, pin_memory=torch.cuda.is_available()))


# ---- optimisers ----


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal with five Newton-Schulz steps (Jordan et al. 2024), scaled to the size of Adam's updates
    (0.2 sqrt(max(rows, columns)), Liu et al. 2025). Matrices of one shape are one batch, so that a step takes few kernels."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(tuple(p.shape), []).append(p)
            for (rows, columns), params in shapes.items():
                grads = torch.stack([p.grad for p in params])
                state = self.state[params[0]]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(grads)
                state["mean"].lerp_(grads, 1 - group["momentum"])
                update = orthogonal(grads.lerp(state["mean"], group["momentum"])).float()
                for p, u in zip(params, update):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-group["lr"] * 0.2 * math.sqrt(max(rows, columns)))


def orthogonal(x):  # [n, rows, columns]
    tall = x.shape[1] > x.shape[2]
    x = (x.mT if tall else x).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def optimizers_of(model, a):
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    rest = [model.embed, model.norm] + [p for p in model.layers.parameters() if p.dim() != 2]
    return [Muon(matrices, a.lr, weight_decay=a.weight_decay),
            torch.optim.AdamW(rest, lr=a.lr, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0, fused=torch.cuda.is_available())]


# ---- evaluation ----


@torch.no_grad()
def held_out(model, books, length, device, a):
    """Returns the perplexity of the second halves of the first `length` tokens of each book with as many tokens, and the number of books."""
    rows = [books.ids[f:f + length].astype(np.int64) for f, n in zip(books.first, books.n_tokens) if n >= length]
    total = 0.0
    step = max(1, a.tokens_per_step // length)
    for i in range(0, len(rows), step):
        ids = torch.from_numpy(np.stack(rows[i:i + step])).to(device)
        ids[:, 0] = a.bos
        total += model.token_losses(ids)[0][:, length // 2 - 1:-1].sum().item()
    return math.exp(total / max(1, len(rows) * (length // 2))), len(rows)


@torch.no_grad()
def needles(model, books, length, n_docs, device, a):
    """Returns {kind: share of whole answers that are right, teacher-forced}, on books of the test split."""
    result, documents = {}, NeedleDocuments(a.tokenizer, [b for b in books.arrays() if len(b) >= length], 987654321)
    for kind in documents.mix:
        right = total = 0
        for _ in range(n_docs):
            ids, answer = documents.document(length, kind)
            ids = torch.from_numpy(ids.astype(np.int64)).to(device)[None]
            good = model.token_losses(ids)[1][0].cpu().numpy()
            edges = np.flatnonzero(np.diff(np.concatenate(([0], answer, [0])).astype(np.int8)))
            for begin, end in zip(edges[::2], edges[1::2]):
                right += bool(good[begin - 1:end - 1].all())
                total += 1
        result[kind] = right / max(1, total)
    return result


def evaluate(model, books, lengths, device, a):
    result = {}
    for length in lengths:
        ppl, n = held_out(model, books, length, device, a)
        result[length] = dict(perplexity=ppl, books=n)
        if n:
            result[length]["needles"] = needles(model, books, length, a.eval_docs, device, a)
    return result


def print_table(result):
    kinds = list(next(iter(result.values()))["needles"])
    print("| tokens | books | perplexity | " + " | ".join(kinds) + " |\n|" + "---|" * (3 + len(kinds)))
    for length, row in result.items():
        answers = " | ".join(f"{100 * x:.1f}%" for x in row.get("needles", {}).values())
        print(f"| {length} | {row['books']} | {row['perplexity']:.2f} | {answers} |")
    sys.stdout.flush()


# ---- training ----


def backward(model, batch, a, device):
    """Adds the gradient of one batch: of the mean loss of the text's tokens and a.answers times that of the answers' tokens."""
    ids, answer = batch
    n_answer = max(1, int(answer[:, 1:].sum()))
    n_rest = max(1, answer[:, 1:].numel() - n_answer)
    on_answers, on_rest, right = model.losses(ids.to(device, non_blocking=True).long(), answer.to(device, non_blocking=True))
    (a.answers * on_answers / n_answer + on_rest / n_rest).backward()
    return torch.stack([on_answers.detach() / n_answer, on_rest.detach() / n_rest, right / n_answer])


def learning_rate(a, step, trained):  # a factor
    left = 1 - trained / a.total_seconds
    return min(1, (step + 1) / a.warmup) * max(0.0, min(1.0, left / max(1e-9, 1 - a.constant)))


def save_state(a, model, optimizers, progress):
    path = os.path.join(a.out, STATE)
    torch.save(dict(config=model.c, model=model.state_dict(), optimizers=[o.state_dict() for o in optimizers], progress=progress), path + ".new")
    os.replace(path + ".new", path)


def load_state(a, model, optimizers, device):
    """Returns the progress of an earlier run of --out, or of none."""
    path = os.path.join(a.out, STATE)
    if not os.path.exists(path):
        init_model(model, a.seed)
        model.to(device)
        return dict(trained=0.0, step=0, tokens=0, pieces=0, curve=[])
    state = torch.load(path, map_location=device, weights_only=True)
    if state["config"] != model.c:
        raise SystemExit(f"train_prose: {path} holds the state of another shape: {state['config']}, expected {model.c}")
    model.to(device)
    model.load_state_dict(state["model"])
    for optimizer, s in zip(optimizers, state["optimizers"]):
        optimizer.load_state_dict(s)
    log(f"continuing after {state['progress']['trained']:.0f} seconds, {state['progress']['step']} steps")
    return state["progress"]


def stage_at(a, trained):  # the stage's number, and the seconds at which it ends
    end = 0.0
    for i, (_, seconds) in enumerate(a.stages):
        end += seconds
        if trained < end:
            return i, end
    return len(a.stages), end


def train(model, optimizers, train_books, test_books, progress, a, device):
    """Trains until the stages or the --piece end. Data of a piece are new draws; equal commands on equal machines need not give equal bits,
    because stages end by the clock."""
    piece_end = min(a.total_seconds, progress["trained"] + a.piece)
    stage, stage_end = stage_at(a, progress["trained"])
    batches = loader_of(train_books, a.stages[stage][0], a, a.seed * 1000 + progress["pieces"] * 100 + stage)
    progress["pieces"] += 1
    while progress["trained"] < piece_end:
        length = a.stages[stage][0]
        more = stage_end < piece_end
        upcoming = loader_of(train_books, a.stages[stage + 1][0], a, a.seed * 1000 + progress["pieces"] * 100 + stage + 1) if more else None
        backward(model, next(batches), a, device)  # compiles, outside the clock
        base, begin, last = progress["trained"], a.clock(), time.time()
        while (trained := base + a.clock() - begin) < min(stage_end, piece_end):
            factor = learning_rate(a, progress["step"], trained)
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
                for group in optimizer.param_groups:
                    group["lr"] = a.lr * factor
            batch = next(batches)
            sums = backward(model, batch, a, device)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
            progress["step"] += 1
            progress["tokens"] += batch[0].numel()
            if time.time() - last > a.log_every or progress["step"] <= 2:
                report(model, test_books, length, sums.tolist(), trained, progress, a, device)
                last = time.time()
        progress["trained"] = trained
        if more:
            stage, stage_end, batches = stage + 1, stage_end + a.stages[stage + 1][1], upcoming
    save_state(a, model, optimizers, progress)


def report(model, test_books, length, sums, trained, progress, a, device):
    answer, rest, right = sums
    short = min(2048, length)
    point = dict(seconds=round(trained), step=progress["step"], tokens=progress["tokens"], length=length, loss=rest, answers=answer,
                 held_out={n: held_out(model, test_books, n, device, a)[0] for n in sorted({short, min(length, 16384)})})
    progress["curve"].append(point)
    log(f"{trained:.0f} s, length {length}, step {point['step']}, {point['tokens'] / 1e6:.0f} M tokens, loss {rest:.3f}, answers {answer:.3f} "
        f"({100 * right:.1f}% of tokens), held-out perplexity " + ", ".join(f"{p:.2f} at {n}" for n, p in point["held_out"].items()))
    if not math.isfinite(answer + rest):
        raise SystemExit("train_prose: the loss is not finite")


def finish(model, test_books, progress, a, device):
    """Rounds the weights, evaluates them and writes the folder of the model."""
    round_to_bf16(model)
    lengths = [n for n in a.eval_lengths if (test_books.n_tokens >= n).any()]
    result = evaluate(model, test_books, lengths, device, a)
    name = torch.cuda.get_device_name(0) if device.type == "cuda" else "CPU"
    record = dict(progress, device=name, stages=a.stages, lr=a.lr, weight_decay=a.weight_decay, tokens_per_step=a.tokens_per_step,
                  needles=a.needles, answers=a.answers, seed=a.seed, held_out=result)
    save_model(a.out, model, Tok.load(a.tokenizer), record)
    print_table(result)


def run(a, device):
    a.total_seconds = sum(seconds for _, seconds in a.stages)
    a.bos = Tok.load(a.tokenizer).bos
    os.makedirs(a.out, exist_ok=True)
    train_books, test_books = Books(a.corpus, "train"), Books(a.corpus, "test")
    model = Model(config_of(a), torch.bfloat16 if device.type == "cuda" else torch.float32)
    optimizers = optimizers_of(model, a)
    progress = load_state(a, model, optimizers, device)
    log(f"{sum(p.numel() for p in model.parameters())} parameters, {len(train_books.ids)} tokens of text, torch {torch.__version__}")
    if a.compile:
        model.compile()
    if progress["trained"] < a.total_seconds:
        train(model, optimizers, train_books, test_books, progress, a, device)
    if progress["trained"] < a.total_seconds:
        log(f"{progress['trained']:.0f} of {a.total_seconds:.0f} seconds; the same command goes on")
    else:
        finish(model, test_books, progress, a, device)
    return progress


def selftest(p):
    """Trains a few steps on stories of tiny_text.py, in two pieces. The loss must fall, and the second piece must continue the first."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "model")
        for split in ("train", "test"):
            os.makedirs(os.path.join(folder, split))
            for i in range(3):
                with open(os.path.join(folder, split, f"book{i}.txt"), "w") as f:
                    f.write("\n\n".join(" ".join(filler_sentence(rng) for _ in range(3)) for _ in range(150)))
        prose_tokenizer.train(folder, out, vocabulary=600)
        prose_tokenizer.encode(folder, out)
        a = p.parse_args(f"--corpus {folder} --out {out} --tokenizer {out}/tokenizer.json --stages 256:6,512:6 --hidden 64 --ffn 64 --layers 2 "
                         "--workers 0 --tokens-per-step 2048 --no-compile --log-every 0 --warmup 2 --eval-lengths 512 --eval-docs 1 --piece 9".split())
        a.clock = itertools.count().__next__  # a step takes a second
        first = run(a, torch.device("cpu"))
        second = run(a, torch.device("cpu"))
        losses = [point["loss"] for point in second["curve"]]
        if not (second["step"] > first["step"] and second["curve"][:len(first["curve"])] == first["curve"] and second["trained"] >= 12):
            raise SystemExit("train_prose: the second piece does not continue the first")
        if not sum(losses[-3:]) < sum(losses[:3]) or not os.path.exists(os.path.join(out, "model.safetensors")):
            raise SystemExit("train_prose: the loss does not fall, or no model was written")


def parser():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", default="build/prose", help="folder of prose_corpus.py")
    p.add_argument("--out", default=os.path.join(here, "../..", "models", "prose"), help="folder for the state and the result")
    p.add_argument("--tokenizer", default=os.path.join(here, "../..", "models", "prose", "tokenizer.json"))
    p.add_argument("--stages", default="2048:600,8192:200,32768:340,65536:60", type=lambda s: [[int(x.split(":")[0]), float(x.split(":")[1])]
                                                                                            for x in s.split(",")], help="LENGTH:SECONDS,...")
    p.add_argument("--piece", type=float, default=math.inf, help="stop after so many seconds of training")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--ffn", type=int, default=384)
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--constant", type=float, default=0.5, help="share of the time with the full learning rate")
    p.add_argument("--warmup", type=int, default=100, help="warm-up steps")
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--tokens-per-step", type=int, default=131072)
    p.add_argument("--needles", type=float, default=0.08, help="share of the rows with needles and questions")
    p.add_argument("--answers", type=float, default=0.25, help="weight of the answers' mean loss")
    p.add_argument("--workers", type=int, default=max(1, min(15, (os.cpu_count() or 2) - 1)))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-compile", dest="compile", action="store_false")
    p.add_argument("--eval-lengths", default="4096,16384,32768,65536", type=lambda s: [int(x) for x in s.split(",")])
    p.add_argument("--eval-docs", type=int, default=8)
    p.add_argument("--log-every", type=float, default=20)
    p.add_argument("--selftest", action="store_true")
    return p


def main():
    p = parser()
    a = p.parse_args()
    if a.selftest:
        return selftest(p)
    a.clock = time.time
    if not torch.cuda.is_available():
        p.error("no GPU (--selftest runs on a CPU)")
    torch.set_float32_matmul_precision("high")
    run(a, torch.device("cuda"))
    log("done")


if __name__ == "__main__":
    main()
