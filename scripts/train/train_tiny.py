#!/usr/bin/env python3
"""Trains the embedded model: a small Llama that retrieves facts from long texts.

    python3 scripts/train/train_tiny.py --out DIR                          one GPU, under 9 minutes: stages of 512, 2048 and 8192 tokens
    python3 scripts/train/train_tiny.py --out DIR --resume DIR0 --stages 32768:400 --lr 3e-4      longer contexts, from an earlier result
    python3 scripts/train/train_tiny.py --selftest                         a few steps on a CPU

Progress goes to stderr, the evaluation (teacher-forced exact match of whole answers) to stdout, a Hugging Face folder to --out.

Retrieval appears within minutes because documents have up to 128 questions (tiny_documents.py), answers are two thirds of the loss, and
the initial weights are close to a retrieval circuit (init_model of small_llama.py). A stage is a number of wall-clock seconds. One cosine spans all stages."""
import argparse
import math
import os
import sys
import time

import numpy as np
import torch
from safetensors.torch import save_file

import tiny_documents as docs
from bpe import Tok
from small_llama import Model, init_model, llama_config, load_weights, round_to_bf16, save_model
from tiny_tokenizer import train_tokenizer

START = time.time()


def log(*text):
    print(f"{time.time() - START:6.1f}", *text, file=sys.stderr, flush=True)


CONFIG = llama_config(hidden_size=256, intermediate_size=768, num_hidden_layers=4, vocab_size=1024, max_position_embeddings=131072,
                      tie_word_embeddings=False)
N_SPECIAL = 16


# ---- data: worker processes fill batches of one length ----


class Batches(torch.utils.data.IterableDataset):
    def __init__(self, tok, length, micro_tokens, seed):
        self.tok, self.length, self.rows, self.seed = tok, length, max(1, micro_tokens // length), seed

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        gen = docs.Gen(self.tok, self.seed * 1000 + (info.id if info else 0), n_sent=8000, n_story=500)
        while True:
            rows = [gen.sequence(self.length) for _ in range(self.rows)]
            ids = torch.from_numpy(np.stack([r[0] for r in rows]).astype(np.int16))
            yield ids, torch.from_numpy(np.stack([r[1] for r in rows]))


def loader_of(tok, length, a, stage):
    data = Batches(tok, length, a.micro_tokens, a.seed * 100 + stage)
    return iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=a.workers, prefetch_factor=4 if a.workers else None,
                                            pin_memory=torch.cuda.is_available()))


# ---- evaluation ----


@torch.no_grad()
def evaluate(model, tok, lengths, n_docs, device, kinds=docs.EVAL_KINDS):
    """Returns {kind: {length: exact match}}. A question counts if every token of its answer is the model's most likely token."""
    gen, result = docs.Gen(tok, 987654321, n_sent=8000, n_story=400, chat_frac=0.0), {}
    for kind in kinds:
        for length in lengths:
            right = total = 0
            gen.r.seed(f"{kind} {length}")
            for _ in range(n_docs):
                pieces, spans = gen.doc(kind, length, max_q=8, ev=True)
                ids = torch.from_numpy(np.frombuffer(b"".join(pieces), np.uint16).astype(np.int64)).to(device)
                at = torch.cat([torch.arange(s - 1, e - 1) for s, e, _ in spans]).to(device)
                good = (model.logits(model.states(ids[None])[at]).argmax(-1) == ids[at + 1]).cpu().tolist()
                for s, e, _ in spans:
                    right += all(good[:e - s])
                    total += 1
                    good = good[e - s:]
            result.setdefault(kind, {})[length] = right / total
    return result


def print_table(result, lengths):
    print("| task | " + " | ".join(map(str, lengths)) + " |\n|---|" + "---|" * len(lengths))
    for kind, row in result.items():
        print(f"| {kind} | " + " | ".join(f"{100 * row[n]:.1f}%" for n in lengths) + " |")
    sys.stdout.flush()


# ---- training ----

RESUME = "fp32.safetensors.resume"  # the weights in fp32, in the folder of the result


def save(out, model, tok, result):
    save_model(out, model, tok, result)
    save_file({n: p.detach().cpu().contiguous() for n, p in model.named()}, os.path.join(out, RESUME))


def optimizer_of(model, a):
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "embed"]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or n == "embed"]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=rest, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-9, fused=torch.cuda.is_available())


def step_once(model, optimizer, batches, n_micro, lr, a, device):
    """Runs one update over n_micro batches. The loss is a.answers times the mean loss of answers plus 1 - a.answers times that of the rest."""
    parts = [next(batches) for _ in range(n_micro)]
    n_answer = max(1, sum(int(m[:, 1:].sum()) for _, m in parts))
    n_rest = max(1, sum(m[:, 1:].numel() for _, m in parts) - n_answer)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    sums = torch.zeros(3, device=device)
    for ids, answer in parts:
        on_answers, on_rest, right = model.losses(ids.to(device, non_blocking=True).long(), answer.to(device, non_blocking=True))
        (a.answers * on_answers / n_answer + (1 - a.answers) * on_rest / n_rest).backward()
        sums += torch.stack([on_answers.detach() / n_answer, on_rest.detach() / n_rest, right / n_answer])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return sums, sum(ids.numel() for ids, _ in parts)


def train(model, tok, a, device):
    stages = [(int(s.split(":")[0]), float(s.split(":")[1])) for s in a.stages.split(",")]
    optimizer, total, trained, step, tokens = optimizer_of(model, a), sum(s for _, s in stages), 0.0, 0, 0
    if a.compile:
        model.compile()
    batches = loader_of(tok, stages[0][0], a, 0)
    for i, (length, seconds) in enumerate(stages):
        n_micro = max(1, round(a.tokens_per_step / max(length, a.micro_tokens // length * length)))
        step_once(model, optimizer, batches, n_micro, 0.0, a, device)  # compiles, outside the clock
        begin = last = time.time()
        upcoming = loader_of(tok, stages[i + 1][0], a, i + 1) if i + 1 < len(stages) else None  # its workers start now
        while (now := time.time()) < begin + seconds:
            at = (trained + now - begin) / total
            lr = a.lr * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1, at)))) * min(1, (step + 1) / a.warmup)
            sums, n = step_once(model, optimizer, batches, n_micro, lr, a, device)
            step, tokens = step + 1, tokens + n
            if now - last > a.log_every or step <= 2:
                answer, rest, right = sums.tolist()
                log(f"length {length}, step {step}, {tokens / 1e6:.0f} M tokens, answers {answer:.3f} ({100 * right:.1f}% of tokens), rest {rest:.3f}")
                last = now
                if not math.isfinite(answer + rest):
                    raise SystemExit("train_tiny: the loss is not finite")
        trained += seconds
        batches = upcoming
    return dict(steps=step, tokens=tokens, train_seconds=trained, stages=a.stages)


def selftest(a):
    """Runs a few steps on short documents. The loss of the answers must fall."""
    tok = Tok.load(a.tokenizer)
    model = Model(CONFIG, torch.float32)
    init_model(model, a.seed)
    a.micro_tokens, a.tokens_per_step, a.workers, a.warmup = 2048, 2048, 0, 2
    optimizer, batches = optimizer_of(model, a), loader_of(tok, 256, a, 0)
    seen = [step_once(model, optimizer, batches, 1, 1e-3, a, torch.device("cpu"))[0][0].item() for _ in range(12)]
    log("answers' loss:", " ".join(f"{x:.2f}" for x in seen))
    print_table(evaluate(model, tok, [512], 2, torch.device("cpu"), ["niah_single", "niah_multikey"]), [512])
    if not sum(seen[-3:]) < sum(seen[:3]):
        raise SystemExit("train_tiny: the loss does not fall")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", help="folder for the result, in Hugging Face's format")
    p.add_argument("--resume", help="folder of an earlier --out to start from")
    p.add_argument("--stages", default="512:50,2048:110,8192:270", help="LENGTH:SECONDS,...")
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--warmup", type=int, default=100, help="warm-up steps")
    p.add_argument("--answers", type=float, default=0.65, help="the answers' share of the loss")
    p.add_argument("--tokens-per-step", type=int, default=131072)
    p.add_argument("--micro-tokens", type=int, default=65536, help="tokens of one forward and backward pass")
    p.add_argument("--tokenizer", default=os.path.join(here, "../..", "models", "tiny", "tokenizer.json"), help="'new' trains one")
    p.add_argument("--workers", type=int, default=max(1, min(15, (os.cpu_count() or 2) - 1)))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-compile", dest="compile", action="store_false")
    p.add_argument("--eval-lengths", default="4096,8192")
    p.add_argument("--eval-docs", type=int, default=32)
    p.add_argument("--log-every", type=float, default=10)
    p.add_argument("--selftest", action="store_true")
    a = p.parse_args()
    if a.selftest:
        return selftest(a)
    if not a.out:
        p.error("--out is missing")
    if not torch.cuda.is_available():
        p.error("no GPU (--selftest runs on a CPU)")
    torch.set_float32_matmul_precision("high")
    tok = train_tokenizer(CONFIG["vocab_size"], N_SPECIAL) if a.tokenizer == "new" else Tok.load(a.tokenizer)
    device, model = torch.device("cuda"), Model(CONFIG, torch.bfloat16)
    load_weights(os.path.join(a.resume, RESUME), model) if a.resume else init_model(model, a.seed)
    model.to(device)
    log(f"{sum(p.numel() for p in model.parameters())} parameters on {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    record = train(model, tok, a, device)
    round_to_bf16(model)
    lengths = [int(x) for x in a.eval_lengths.split(",")]
    result = evaluate(model, tok, lengths, a.eval_docs, device)
    save(a.out, model, tok, dict(record, device=torch.cuda.get_device_name(0), seconds=round(time.time() - START), exact_match=result))
    print_table(result, lengths)
    log("done")


if __name__ == "__main__":
    main()
