#!/usr/bin/env python3
"""Makes the bit file of a model, for `vattention:predictor=hash`: models/bit_file.h has its format.

    python3 scripts/train/train_bits.py --model models/prose --text BOOK... --tokens 4k --prompts 7
    python3 scripts/train/train_bits.py --model FILE.gguf --text BOOK... --tokens 2k --bits 64 --steps 200
    python3 scripts/train/train_bits.py --selftest --out FILE             a few steps, twice

Bit i of a key k is wk_i . k + bk_i > 0, and bit i of a query q is wq_i . q + bq_i > 0, both after RoPE. The rows whose bits agree with the
query's in most places shall be the rows of largest score (A. Desai et al.: HashAttention, arXiv:2412.14468, which has three layers of numbers in
place of one, and 32 bits). For each layer and KV head:

1. Run the model on the prompts, and keep queries and keys (as train_saap.py does).
2. Start with projections in which q . (k - mean of k) is a sum over directions of equal size: the directions of largest variance of the scores,
   rotated at random, so that every bit has about the same share of the score.
3. Train the four arrays. A step takes one prompt and --queries positions of it, with all query heads of the group. The loss is the cross-entropy of
   the --top rows of largest score among the rows that vattention does not always read (the first --sink, the last --window), where the logits of
   the rows are the numbers of common bits times a learned factor. Signs pass gradients of tanh.
4. Round to bf16, and write the file.

The last prompt (--held-out) is left out of the training. The table on stdout shows it: the share of the rows of largest score (1% of the rows) that
lie among the 5%, 10% and 20% of the rows with most common bits, for the start (`start`) and for the file (`bits`). Chance is 0.05, 0.1, 0.2. The
same seed, machine and number of threads give the same file. Models: see source_model.py."""
import argparse
import json
import os
import sys
import tempfile

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../measure"))
from measured_parts import count
from source_model import folder_of, open_source
from train_saap import capture, log, main, name_of, prompts_of, write_tensors

SHARES = (0.05, 0.1, 0.2)


class Sign(torch.autograd.Function):
    """Forward the sign, backward the slope of tanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * (1 - x.tanh() ** 2)


def power(matrix, exponent):
    """A power of a symmetric matrix without negative eigenvalues; small ones count as larger ones."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp_min(values[-1] * 1e-4) ** exponent) @ vectors.T


def start(q, k, n_bits, rng):
    """q [N, d], k [M, d]. Returns wq, bq, wk, bk."""
    mean, d = k.mean(0), k.shape[1]
    of_keys = (k - mean).T @ (k - mean) / len(k)
    up, down = power(of_keys, 0.5), power(of_keys, -0.5)
    energy, directions = torch.linalg.eigh(up @ (q.T @ q / len(q)) @ up)
    n = min(n_bits, d)
    directions = directions[:, -n:] * energy[-n:].clamp_min(0) ** 0.25
    mix = torch.randn(n_bits, n, generator=rng)
    if n_bits <= n:
        mix = torch.linalg.qr(mix)[0]
    w = mix @ directions.T
    wq, wk = w @ up, w @ down
    wq, wk = wq / (q @ wq.T).std(0)[:, None], wk / (k @ wk.T).std(0)[:, None]
    return [wq, torch.zeros(n_bits), wk, -(wk @ mean)]


def bits_of(x, w, b):
    return Sign.apply(x @ w.T + b)


def visible(score, position, a):
    """score [heads, N, T] of queries at these positions [N]: -inf for the rows after the query, and for the rows that are always read."""
    row = torch.arange(score.shape[2])
    hidden = (row[None] > position[:, None] - a.window) | (row < a.sink)
    return score.masked_fill(hidden, -torch.inf)


class Prompt:
    """One KV head of a layer in one prompt: q [group][T][d], k [T][d], both after RoPE."""

    def __init__(self, folder, i, layer, head):
        q, k = torch.load(os.path.join(folder, f"{i}.{layer}"))
        group = len(q) // len(k)
        self.q, self.k = q[head * group:(head + 1) * group].float(), k[head].float()


def positions_of(T, n, a, rng):
    """Positions whose visible rows are at least as many as the rows that are always read, in ascending order."""
    first = min(2 * (a.sink + a.window), T - 1)
    return first + torch.randperm(T - first, generator=rng)[:n].sort().values


def train(prompts, a, seed):
    """Returns the arrays of the start, and the trained ones."""
    rng = torch.Generator().manual_seed(seed)
    keys = torch.cat([p.k[a.sink:] for p in prompts])
    queries = torch.cat([p.q[:, a.sink:].flatten(0, 1) for p in prompts])
    first = start(queries[torch.randperm(len(queries), generator=rng)[:8192]], keys[torch.randperm(len(keys), generator=rng)[:8192]], a.bits, rng)
    numbers = [x.clone().requires_grad_() for x in first]
    factor = torch.tensor(0.0, requires_grad=True)
    optimiser = torch.optim.Adam([dict(params=numbers, lr=a.lr), dict(params=[factor], lr=10 * a.lr)])
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: min(1, 2 * (1 - i / a.steps)))  # constant, then to 0 on a line
    for _ in range(a.steps):
        p = prompts[int(torch.randint(len(prompts), (1,), generator=rng))]
        at = positions_of(len(p.k), a.queries, a, rng)
        exact = visible(p.q[:, at] @ p.k.T, at, a)
        n_top = max(1, min(int(a.top * len(p.k)), int((exact > -torch.inf).sum(2).min())))
        top = exact.topk(n_top, 2).indices
        wq, bq, wk, bk = numbers
        common = bits_of(p.q[:, at], wq, bq) @ bits_of(p.k, wk, bk).T
        logits = visible(common * factor.exp() / a.bits ** 0.5, at, a)
        loss = (logits.logsumexp(2, keepdim=True) - logits.gather(2, top)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        falling.step()
    return first, [x.detach() for x in numbers]


def recall(prompt, numbers, a, seed):
    """For each of SHARES, the share of the rows of largest score that have the most common bits. A tie counts for its expectation."""
    rng = torch.Generator().manual_seed(seed)
    wq, bq, wk, bk = numbers
    T, at, found = len(prompt.k), positions_of(len(prompt.k), 64, a, rng), []
    exact = visible(prompt.q[:, at] @ prompt.k.T, at, a)
    common = visible(bits_of(prompt.q[:, at], wq, bq) @ bits_of(prompt.k, wk, bk).T, at, a)
    common = common + torch.rand(common.shape, generator=rng) * 0.5  # ties in a random order
    top = exact.topk(max(1, T // 100), 2).indices
    for share in SHARES:
        read = torch.zeros_like(exact, dtype=torch.bool).scatter_(2, common.topk(max(1, int(share * T)), 2).indices, True)
        counts = exact.gather(2, top) > -torch.inf
        found.append(round(float((read.gather(2, top) & counts).sum() / counts.sum()), 3))
    return found


# ---- the program ----

def options(arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=os.path.join(here, "../..", "models", "tiny"), help="a folder or a GGUF file")
    p.add_argument("--sleigh", default="build/sleigh", help="the program, for a GGUF file")
    p.add_argument("--out", help="default: bits.safetensors in the folder of the model")
    p.add_argument("--text", nargs="+", help="text files; default: texts of the embedded model's kind")
    p.add_argument("--ids", help="a file with a prompt of token ids on each line, in place of texts")
    p.add_argument("--prompts", type=int, default=7, help="the last one is held out")
    p.add_argument("--tokens", type=count, default=4096, help="of a prompt")
    p.add_argument("--bits", type=int, default=64)
    p.add_argument("--sink", type=int, default=128, help="first rows that are always read")
    p.add_argument("--window", type=int, default=128, help="last rows that are always read")
    p.add_argument("--top", type=float, default=0.01, help="share of the rows that the loss wants to find")
    p.add_argument("--queries", type=int, default=16, help="positions of a step")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--lr", type=float, default=0.01, help="of Adam; constant for half of the steps, then to 0")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--selftest", action="store_true")
    a = p.parse_args(arguments)
    if a.selftest and not a.out:
        p.error("--selftest needs --out FILE, which it overwrites")
    if a.bits % 32 or not 32 <= a.bits <= 128:
        p.error(f"--bits {a.bits}: expected 32, 64, 96 or 128")
    if a.tokens < 4 * (a.sink + a.window):
        p.error(f"--tokens {a.tokens}: expected at least {4 * (a.sink + a.window)}, four times the rows that are always read")
    a.out = a.out or os.path.join(folder_of(a.model), "bits.safetensors")
    a.device, a.dense_layers = "cpu", 0  # of `capture`: bits are for every layer
    return a


def run(a):
    torch.set_num_threads(a.threads)
    config, model = open_source(a.model, a.device)
    name = name_of(a, config)
    n_layers, n_heads, d = config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]
    prompts = prompts_of(a)
    parts = {name: torch.zeros(n_layers, n_heads, a.bits, d, dtype=torch.bfloat16) for name in ("wq", "wk")}
    parts |= {name: torch.zeros(n_layers, n_heads, a.bits) for name in ("bq", "bk")}
    with tempfile.TemporaryDirectory() as folder:
        capture(model, prompts, a, folder)
        for layer in range(n_layers):
            for head in range(n_heads):
                seed = a.seed * 100003 + layer * 1009 + head
                seen = [Prompt(folder, i, layer, head) for i in range(len(prompts))]
                first, numbers = train(seen[:-1] or seen, a, seed)
                for key, x in zip(("wq", "bq", "wk", "bk"), numbers):
                    parts[key][layer, head] = x
                numbers = [x.bfloat16().float() if x.dim() == 2 else x for x in numbers]
                row = dict(layer=layer, head=head, start=recall(seen[-1], first, a, seed), bits=recall(seen[-1], numbers, a, seed))
                print(json.dumps(row), flush=True)
                log(f"layer {layer}, KV head {head}")
    texts = dict(format_version="1", bits=str(a.bits), model=name)
    write_tensors(a.out, texts, [(key, parts[key]) for key in ("wq", "wk", "bq", "bk")])
    log(f"{a.out}: {os.path.getsize(a.out)} bytes")


if __name__ == "__main__":
    main(options, run, "--prompts 2 --tokens 512 --bits 32 --sink 16 --window 32 --steps 5".split())
