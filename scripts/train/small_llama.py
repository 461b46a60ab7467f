"""A Llama in PyTorch for the small models that this project trains (train_tiny.py, train_prose.py), and its Hugging Face folder.

Weights and the residual stream are fp32, products are bf16 on a GPU. The model equals Hugging Face's LlamaForCausalLM of the same config."""

import json
import math
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel


def llama_config(**changes):
    """Returns a config.json with what both models share: head dimension and group of Llama-3.1-8B, RoPE with llama3 scaling."""
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, attention_dropout=0.0, head_dim=128, hidden_act="silu",
        initializer_range=0.02, mlp_bias=False, num_attention_heads=8, num_key_value_heads=2, pretraining_tp=1, rms_norm_eps=1e-5,
        rope_theta=500000.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                               original_max_position_embeddings=8192),
        torch_dtype="bfloat16", use_cache=True) | changes


def rope_frequencies(c):
    """Returns float64 [head_dim / 2], with llama3 scaling where the config has one."""
    s, dim = c.get("rope_scaling"), c["head_dim"]
    freq = c["rope_theta"] ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
    if not s:
        return freq
    turns = s["original_max_position_embeddings"] * freq / (2 * math.pi)
    smooth = np.clip((turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"]), 0, 1)
    return freq * (smooth + (1 - smooth) / s["factor"])


def rms_norm(x, weight, eps, dtype):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight).to(dtype)


def before_attention(x, norm, w_q, w_k, w_v, cos, sin, head_dim, eps, dtype):
    """x [N, hidden] fp32; cos, sin [N, head_dim / 2]. Returns q, k, v [N, heads, head_dim]; q and k are rotated."""
    h = rms_norm(x, norm, eps, dtype)

    def rotated(weight):
        a, b = F.linear(h, weight.to(dtype)).unflatten(-1, (-1, head_dim)).float().chunk(2, -1)
        return torch.cat((a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]), -1).to(dtype)

    return rotated(w_q), rotated(w_k), F.linear(h, w_v.to(dtype)).unflatten(-1, (-1, head_dim))


def attention(q, k, v):
    """q, k, v [B, heads, T, head_dim]; causal. On an H100, forward and backward at 2048 tokens take 11.2 ms with cuDNN's kernels and 8.1 ms
    with FlashAttention-2's; at 32768 tokens 52 ms and 94 ms (131072 tokens, one layer, 8 heads of 128)."""
    fastest = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with sdpa_kernel((fastest if q.shape[2] > 4096 else fastest[::-1]) + [SDPBackend.MATH], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def after_attention(x, att, w_o, norm, w_gate, w_up, w_down, eps, dtype):
    """x [N, hidden] fp32; att [N, heads x head_dim]. Returns the layer's output [N, hidden] fp32."""
    x = x + F.linear(att, w_o.to(dtype)).float()
    h = rms_norm(x, norm, eps, dtype)
    inner = F.silu(F.linear(h, w_gate.to(dtype))) * F.linear(h, w_up.to(dtype))
    return x + F.linear(inner, w_down.to(dtype)).float()


def cross_entropy(x, target, norm, head, eps, dtype):
    """x [N, hidden] fp32, target [N] int64. Returns the cross-entropy of each token [N] and whether the guess is right [N]."""
    logits = F.linear(rms_norm(x, norm, eps, dtype), head.to(dtype)).float()
    return F.cross_entropy(logits, target, reduction="none"), logits.detach().argmax(-1) == target


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, q_dim, kv_dim = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        self.attn_norm, self.mlp_norm = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.ones(hidden))
        self.q, self.k, self.v = (nn.Parameter(torch.empty(n, hidden)) for n in (q_dim, kv_dim, kv_dim))
        self.o = nn.Parameter(torch.empty(hidden, q_dim))
        self.gate, self.up = (nn.Parameter(torch.empty(c["intermediate_size"], hidden)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(hidden, c["intermediate_size"]))


class Model(nn.Module):
    def __init__(self, c, dtype):
        super().__init__()
        self.c, self.dtype, self.eps = c, dtype, c["rms_norm_eps"]
        self.embed = nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"]))
        self.head = self.embed if c["tie_word_embeddings"] else nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.tables = {}
        self.before_attention, self.after_attention, self.cross_entropy = before_attention, after_attention, cross_entropy

    def compile(self):
        """Compiles what lies between the attention calls. These functions see tokens only, so batches of one number of tokens compile once."""
        self.before_attention, self.after_attention, self.cross_entropy = (
            torch.compile(f, dynamic=False) for f in (before_attention, after_attention, cross_entropy))

    def rope(self, length, device):
        if length not in self.tables:
            angle = np.arange(length, dtype=np.float32)[:, None] * rope_frequencies(self.c).astype(np.float32)[None]
            self.tables[length] = [torch.from_numpy(f(angle.astype(np.float64)).astype(np.float32)).to(device) for f in (np.cos, np.sin)]
        return self.tables[length]

    def states(self, ids):  # [B, T] -> [B x T, hidden]
        (batch, length), c = ids.shape, self.c
        cos, sin = (t.repeat(batch, 1) for t in self.rope(length, ids.device))
        x = F.embedding(ids.flatten(), self.embed).float()
        for w in self.layers:
            parts = self.before_attention(x, w.attn_norm, w.q, w.k, w.v, cos, sin, c["head_dim"], self.eps, self.dtype)
            att = attention(*(t.unflatten(0, (batch, length)).transpose(1, 2) for t in parts))
            x = self.after_attention(x, att.transpose(1, 2).reshape(batch * length, -1), w.o, w.mlp_norm, w.gate, w.up, w.down, self.eps,
                                     self.dtype)
        return x

    def logits(self, x):
        return F.linear(rms_norm(x, self.norm, self.eps, self.dtype), self.head.to(self.dtype)).float()

    def token_losses(self, ids):
        """ids [B, T]. Returns the cross-entropy [B, T] of the token after each, and whether the guess of it is right. The last column is of
        no use: no token follows it."""
        ce, right = self.cross_entropy(self.states(ids), ids.roll(-1, 1).flatten(), self.norm, self.head, self.eps, self.dtype)
        return ce.view_as(ids), right.view_as(ids)

    def losses(self, ids, answer):  # sums of the cross-entropy over answer tokens and over the others, and right guesses of the former
        ce, right = (t[:, :-1] for t in self.token_losses(ids))
        mask = answer[:, 1:].float()
        return (ce * mask).sum(), (ce * (1 - mask)).sum(), (right.float() * mask).sum()

    def named(self):  # in Hugging Face's names
        yield "model.embed_tokens.weight", self.embed
        for i, layer in enumerate(self.layers):
            for name, p in (("input_layernorm", layer.attn_norm), ("self_attn.q_proj", layer.q), ("self_attn.k_proj", layer.k),
                            ("self_attn.v_proj", layer.v), ("self_attn.o_proj", layer.o), ("post_attention_layernorm", layer.mlp_norm),
                            ("mlp.gate_proj", layer.gate), ("mlp.up_proj", layer.up), ("mlp.down_proj", layer.down)):
                yield f"model.layers.{i}.{name}.weight", p
        yield "model.norm.weight", self.norm
        if self.head is not self.embed:
            yield "lm_head.weight", self.head


def init_model(model, seed):
    """Sets initial weights that are close to a retrieval circuit. All weights stay trainable.

        Weights are random with standard deviation 1/sqrt(fan-in). In addition, the heads of layer 0's first group attend to the previous
    tokens (through a constant channel in the embeddings and phases of RoPE). From layer 1 on, W_q starts close to W_k in the dimensions
    that RoPE rotates slowly, so that heads attend to tokens of equal content. W_o W_v starts close to a multiple of the identity, so that
    heads copy the content of these tokens. An untied lm_head starts as the scaled embedding, so that it can decode the copied content. Tied
    embeddings are small, and so is then all that is added to the residual stream."""
    c, g = model.c, torch.Generator().manual_seed(seed)
    hidden, dim, n_heads, n_kv = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    group, half, freq = n_heads // n_kv, dim // 2, rope_frequencies(c)
    std = 0.02 if c["tie_word_embeddings"] else 0.5  # of the embedding
    scale = std / 0.5

    def normal(p, std):
        p.data.copy_(torch.randn(p.shape, generator=g) * std)

    normal(model.embed, std)
    for layer in model.layers:
        for p in (layer.q, layer.k, layer.v, layer.gate, layer.up):
            normal(p, hidden ** -0.5)
        normal(layer.o, scale * 0.3 / math.sqrt(n_heads * dim * 2 * len(model.layers)))
        normal(layer.down, scale * 0.5 / math.sqrt(c["intermediate_size"] * 2 * len(model.layers)))
    if model.head is not model.embed:
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
            o[:, h, :width] += scale * 0.5 / group * part.t()

    constant = 4 * std  # channel 0 of every embedding; after the norm its value is `seen`
    model.embed.data[:, 0] = constant
    if model.head is not model.embed:
        model.head.data[:, 0] = 0
    seen = constant / math.sqrt(std * std + constant * constant / hidden)
    sharp = np.sqrt(16.0 * math.sqrt(dim) * freq / freq.sum()) / seen  # the largest score is 16
    q, k = model.layers[0].q.data.view(n_heads, dim, hidden), model.layers[0].k.data.view(n_kv, dim, hidden)
    k[0] *= 0.3
    k[0, :, 0] = 0
    k[0, :half, 0] = torch.tensor(sharp, dtype=torch.float32)
    for h in range(group):  # head h looks h + 1 tokens back
        q[h] *= 0.3
        q[h, :half, 0] = torch.tensor(sharp * np.cos(freq * (h + 1)), dtype=torch.float32)
        q[h, half:, 0] = torch.tensor(-sharp * np.sin(freq * (h + 1)), dtype=torch.float32)


def round_to_bf16(model):  # so that an evaluation uses the weights that are saved
    for _, p in model.named():
        p.data.copy_(p.data.bfloat16().float())


def write_json(path, data):
    with open(path, "w") as f:
        json.dump(data, f, indent=1, ensure_ascii=False)
        f.write("\n")


def save_model(out, model, tok, result):
    """Writes a Hugging Face folder: weights in bf16, config, tokenizer (tok: bpe.Tok), and result as eval.json."""
    os.makedirs(out, exist_ok=True)
    config = dict(model.c, bos_token_id=tok.bos, eos_token_id=[tok.eos, tok.eot])
    save_file({n: p.detach().bfloat16().cpu().contiguous() for n, p in model.named()}, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    write_json(os.path.join(out, "config.json"), config)
    write_json(os.path.join(out, "generation_config.json"), dict(bos_token_id=tok.bos, eos_token_id=[tok.eos, tok.eot], do_sample=False))
    for name, data in tok.hf_files(config["max_position_embeddings"]).items():
        write_json(os.path.join(out, name), data)
    write_json(os.path.join(out, "eval.json"), result)


def load_weights(path, model):
    """Reads weights in Hugging Face's names from a safetensors file of any float type, or from a list of files (shards)."""
    weights = {}
    for file in [path] if isinstance(path, str) else path:
        weights |= load_file(file)
    for name, p in model.named():
        p.data.copy_(weights[name])
