#!/usr/bin/env python3
"""Trains the embedded model: a small Llama that retrieves facts from long texts.

    python3 scripts/train_tiny.py --out DIR                          one GPU, under 9 minutes: stages of 512, 2048 and 8192 tokens
    python3 scripts/train_tiny.py --out DIR --resume DIR0 --stages 32768:400 --lr 3e-4      longer contexts, from an earlier result
    python3 scripts/train_tiny.py --selftest                         a few steps on a CPU

Progress goes to stderr, the evaluation (teacher-forced exact match of whole answers) to stdout, a Hugging Face folder to --out.

Retrieval appears within minutes because documents have up to 128 questions (tiny_documents.py), answers are two thirds of the loss, and
the initial weights are close to a retrieval circuit (init_model). A stage is a number of wall-clock seconds. One cosine spans all stages."""
import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import tiny_documents as docs
from bpe import Tok
from tiny_tokenizer import train_tokenizer

START = time.time()


def log(*text):
    print(f"{time.time() - START:6.1f}", *text, file=sys.stderr, flush=True)


# ---- model: Hugging Face's LlamaForCausalLM, fp32 weights, bf16 products on a GPU ----

CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, attention_dropout=0.0, head_dim=128, hidden_act="silu",
    hidden_size=256, initializer_range=0.02, intermediate_size=768, max_position_embeddings=131072, mlp_bias=False,
    num_attention_heads=8, num_hidden_layers=4, num_key_value_heads=2, pretraining_tp=1, rms_norm_eps=1e-5, rope_theta=500000.0,
    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
    tie_word_embeddings=False, torch_dtype="bfloat16", use_cache=True, vocab_size=1024)
N_SPECIAL = 16


def rope_frequencies(c):
    """Returns float64 [head_dim / 2], with llama3 scaling."""
    s, dim = c["rope_scaling"], c["head_dim"]
    freq = c["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = s["original_max_position_embeddings"] * freq / (2 * math.pi)
    smooth = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
    return freq * (smooth + (1 - smooth) / s["factor"])


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, q_dim, kv_dim = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        self.c = c
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.q, self.k, self.v = (nn.Parameter(torch.empty(n, hidden)) for n in (q_dim, kv_dim, kv_dim))
        self.o = nn.Parameter(torch.empty(hidden, q_dim))
        self.gate, self.up = (nn.Parameter(torch.empty(c["intermediate_size"], hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(hidden, c["intermediate_size"]))

    def forward(self, x, cos, sin, dtype):  # x [B, T, hidden] fp32; cos, sin [T, head_dim / 2]
        c, (batch, length, _) = self.c, x.shape

        def heads(weight, n):
            return F.linear(h, weight.to(dtype)).view(batch, length, n, c["head_dim"]).transpose(1, 2)

        def rotated(t):
            a, b = t.float().chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(dtype)

        h = rms_norm(x, self.attn_norm, c, dtype)
        q, k = rotated(heads(self.q, c["num_attention_heads"])), rotated(heads(self.k, c["num_key_value_heads"]))
        att = F.scaled_dot_product_attention(q, k, heads(self.v, c["num_key_value_heads"]), is_causal=True, enable_gqa=True)
        x = x + F.linear(att.transpose(1, 2).reshape(batch, length, -1), self.o.to(dtype)).float()
        h = rms_norm(x, self.mlp_norm, c, dtype)
        inner = F.silu(F.linear(h, self.gate.to(dtype))) * F.linear(h, self.up.to(dtype))
        return x + F.linear(inner, self.down.to(dtype)).float()


def rms_norm(x, weight, c, dtype):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]) * weight).to(dtype)


class Model(nn.Module):
    def __init__(self, c, dtype):
        super().__init__()
        self.c, self.dtype = c, dtype
        self.embed, self.head = (nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"])) for _ in range(2))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.tables = {}

    def rope(self, length, device):
        if length not in self.tables:
            angle = np.arange(length, dtype=np.float32)[:, None] * rope_frequencies(self.c).astype(np.float32)[None]
            self.tables[length] = [torch.from_numpy(f(angle.astype(np.float64)).astype(np.float32)).to(device) for f in (np.cos, np.sin)]
        return self.tables[length]

    def states(self, ids):  # [B, T] -> [B, T, hidden]
        cos, sin = self.rope(ids.shape[1], ids.device)
        x = F.embedding(ids, self.embed).float()
        for layer in self.layers:
            x = layer(x, cos, sin, self.dtype)
        return x

    def logits(self, x):
        return F.linear(rms_norm(x, self.norm, self.c, self.dtype), self.head.to(self.dtype)).float()

    def losses(self, ids, answer):  # sums of the cross-entropy over answer tokens and over the others, and right guesses of the former
        logits = self.logits(self.states(ids)[:, :-1]).flatten(0, 1)
        target, mask = ids[:, 1:].flatten(), answer[:, 1:].flatten().float()
        ce = F.cross_entropy(logits, target, reduction="none")
        right = ((logits.detach().argmax(-1) == target).float() * mask).sum()
        return (ce * mask).sum(), (ce * (1 - mask)).sum(), right

    def named(self):  # in Hugging Face's names
        yield "model.embed_tokens.weight", self.embed
        for i, layer in enumerate(self.layers):
            for name, p in (("input_layernorm", layer.attn_norm), ("self_attn.q_proj", layer.q), ("self_attn.k_proj", layer.k),
                            ("self_attn.v_proj", layer.v), ("self_attn.o_proj", layer.o), ("post_attention_layernorm", layer.mlp_norm),
                            ("mlp.gate_proj", layer.gate), ("mlp.up_proj", layer.up), ("mlp.down_proj", layer.down)):
                yield f"model.layers.{i}.{name}.weight", p
        yield "model.norm.weight", self.norm
        yield "lm_head.weight", self.head


def init_model(model, seed):
    """Sets initial weights that are close to a retrieval circuit. All weights stay trainable.

        Weights are random with standard deviation 1/sqrt(fan-in). In addition, the heads of layer 0's first group attend to the previous
    tokens (through a constant channel in the embeddings and phases of RoPE). From layer 1 on, W_q starts close to W_k in the dimensions
    that RoPE rotates slowly, so that heads attend to tokens of equal content. W_o W_v starts close to a multiple of the identity, so that
    heads copy the content of these tokens. lm_head starts as the scaled embedding, so that it can decode the copied content."""
    c, g = model.c, torch.Generator().manual_seed(seed)
    hidden, dim, n_heads, n_kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    group, half, freq = n_heads // n_kv, dim // 2, rope_frequencies(c)

    def normal(p, std):
        p.data.copy_(torch.randn(p.shape, generator=g) * std)

    normal(model.embed, 0.5)
    for layer in model.layers:
        for p in (layer.q, layer.k, layer.v, layer.gate, layer.up):
            normal(p, hidden ** -0.5)
        normal(layer.o, 0.3 / math.sqrt(n_heads * dim * 2 * len(model.layers)))
        normal(layer.down, 0.5 / math.sqrt(c["intermediate_size"] * 2 * len(model.layers)))
    model.head.data.copy_(model.embed.data * (2.0 / (0.5 * hidden)))

    slow = np.nonzero(2 * math.pi / freq > 2000)[0]
    if len(slow) < half // 4:
        slow = np.arange(half - half // 4, half)
    rows = torch.tensor(np.concatenate([slow, slow + half]))
    width = min(dim, hidden // n_kv if hidden >= n_kv * 8 else hidden)
    for layer in list(model.layers)[1:]:
        q, k = layer.q.data.view(n_heads, dim, hidden), layer.k.data.view(n_kv, dim, hidden)
        v, o = layer.v.data.view(n_kv, dim, hidden), layer.o.data.view(hidden, n_heads, dim)
        basis, _ = torch.linalg.qr(torch.randn(hidden, hidden, generator=g))
        for h in range(n_heads):
            part = basis[h // group * width:(h // group + 1) * width]
            q[h, rows] = 0.7 * q[h, rows] + 0.7 * k[h // group, rows]
            v[h // group, :width] = part
            o[:, h, :width] += 0.5 / group * part.t()

    constant = 2.0  # channel 0 of every embedding; after the norm its value is `seen`
    model.embed.data[:, 0] = constant
    model.head.data[:, 0] = 0
    seen = constant / math.sqrt(0.25 + constant * constant / hidden)
    sharp = np.sqrt(16.0 * math.sqrt(dim) * freq / freq.sum()) / seen  # the largest score is 16
    q, k = model.layers[0].q.data.view(n_heads, dim, hidden), model.layers[0].k.data.view(n_kv, dim, hidden)
    k[0] *= 0.3
    k[0, :, 0] = 0
    k[0, :half, 0] = torch.tensor(sharp, dtype=torch.float32)
    for h in range(group):  # head h looks h + 1 tokens back
        q[h] *= 0.3
        q[h, :half, 0] = torch.tensor(sharp * np.cos(freq * (h + 1)), dtype=torch.float32)
        q[h, half:, 0] = torch.tensor(-sharp * np.sin(freq * (h + 1)), dtype=torch.float32)


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
                good = (model.logits(model.states(ids[None])[0, at]).argmax(-1) == ids[at + 1]).cpu().tolist()
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


# ---- files ----


def write_json(path, data):
    with open(path, "w") as f:
        json.dump(data, f, indent=1, ensure_ascii=False)
        f.write("\n")


def save(out, model, tok, result):
    os.makedirs(out, exist_ok=True)
    config = dict(model.c, bos_token_id=tok.bos, eos_token_id=[tok.eos, tok.eot])
    save_file({n: p.detach().bfloat16().cpu().contiguous() for n, p in model.named()}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    save_file({n: p.detach().cpu().contiguous() for n, p in model.named()}, os.path.join(out, "fp32.safetensors.resume"))
    write_json(os.path.join(out, "config.json"), config)
    write_json(os.path.join(out, "generation_config.json"), dict(bos_token_id=tok.bos, eos_token_id=[tok.eos, tok.eot], do_sample=False))
    for name, data in tok.hf_files(config["max_position_embeddings"]).items():
        write_json(os.path.join(out, name), data)
    write_json(os.path.join(out, "eval.json"), result)


def load(folder, model):
    weights = load_file(os.path.join(folder, "fp32.safetensors.resume"))
    for name, p in model.named():
        p.data.copy_(weights[name])


# ---- training ----


def optimizer_of(model, a):
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n != "embed"]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or n == "embed"]
    groups = [dict(params=matrices, weight_decay=0.1), dict(params=rest, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-9, fused=torch.cuda.is_available())


def step_once(model, losses, optimizer, batches, n_micro, lr, a, device):
    """Runs one update over n_micro batches. The loss is a.answers times the mean loss of answers plus 1 - a.answers times that of the rest."""
    parts = [next(batches) for _ in range(n_micro)]
    n_answer = max(1, sum(int(m[:, 1:].sum()) for _, m in parts))
    n_rest = max(1, sum(m[:, 1:].numel() for _, m in parts) - n_answer)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad(set_to_none=True)
    sums = torch.zeros(3, device=device)
    for ids, answer in parts:
        on_answers, on_rest, right = losses(ids.to(device, non_blocking=True).long(), answer.to(device, non_blocking=True))
        (a.answers * on_answers / n_answer + (1 - a.answers) * on_rest / n_rest).backward()
        sums += torch.stack([on_answers.detach() / n_answer, on_rest.detach() / n_rest, right / n_answer])
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return sums, sum(ids.numel() for ids, _ in parts)


def train(model, tok, a, device):
    stages = [(int(s.split(":")[0]), float(s.split(":")[1])) for s in a.stages.split(",")]
    optimizer, total, trained, step, tokens = optimizer_of(model, a), sum(s for _, s in stages), 0.0, 0, 0
    losses = torch.compile(model.losses, dynamic=False) if a.compile else model.losses
    batches = loader_of(tok, stages[0][0], a, 0)
    for i, (length, seconds) in enumerate(stages):
        n_micro = max(1, round(a.tokens_per_step / max(length, a.micro_tokens // length * length)))
        step_once(model, losses, optimizer, batches, n_micro, 0.0, a, device)  # compiles, outside the clock
        begin = last = time.time()
        upcoming = loader_of(tok, stages[i + 1][0], a, i + 1) if i + 1 < len(stages) else None  # its workers start now
        while (now := time.time()) < begin + seconds:
            at = (trained + now - begin) / total
            lr = a.lr * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1, at)))) * min(1, (step + 1) / a.warmup)
            sums, n = step_once(model, losses, optimizer, batches, n_micro, lr, a, device)
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
    seen = [step_once(model, model.losses, optimizer, batches, 1, 1e-3, a, torch.device("cpu"))[0][0].item() for _ in range(12)]
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
    p.add_argument("--tokenizer", default=os.path.join(here, "..", "models", "tiny", "tokenizer.json"), help="'new' trains one")
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
    load(a.resume, model) if a.resume else init_model(model, a.seed)
    model.to(device)
    log(f"{sum(p.numel() for p in model.parameters())} parameters on {torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    record = train(model, tok, a, device)
    for _, p in model.named():  # so that the evaluation uses the weights that are saved
        p.data.copy_(p.data.bfloat16().float())
    lengths = [int(x) for x in a.eval_lengths.split(",")]
    result = evaluate(model, tok, lengths, a.eval_docs, device)
    save(a.out, model, tok, dict(record, device=torch.cuda.get_device_name(0), seconds=round(time.time() - START), exact_match=result))
    print_table(result, lengths)
    log("done")


if __name__ == "__main__":
    main()
