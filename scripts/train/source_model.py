"""A model whose queries and keys train_saap.py and train_bits.py read: a Llama folder of safetensors, or a Llama GGUF file.

A GGUF file needs the package gguf and the program: `sleigh inspect` gives the hash that the trained file names, and `sleigh tokenize` the ids."""
import json
import os
import subprocess
import sys

import numpy as np
import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../measure"))
from bpe import Tok
from small_llama import Model, load_weights

MODEL_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
NAMES = dict(attn_norm="input_layernorm", attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj", attn_output="self_attn.o_proj",
             ffn_norm="post_attention_layernorm", ffn_gate="mlp.gate_proj", ffn_up="mlp.up_proj", ffn_down="mlp.down_proj")


def is_gguf(path):
    return path.endswith(".gguf")


def folder_of(path):
    return os.path.dirname(path) if is_gguf(path) else path


def program(sleigh, words, text=None):
    run = subprocess.run([sleigh, *words], input=text.encode() if text else None, capture_output=True)
    return run.stdout.decode() if run.returncode == 0 else sys.exit(f"{sleigh} {words[0]}: {run.stderr.decode().strip()}")


# ---- GGUF ----

def hf_name(name):
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}" if part in NAMES and kind == "weight" else sys.exit(f"{name}: expected a tensor of a plain Llama")


def read_gguf(path):
    """Returns the config and {name: fp32 tensor} in Hugging Face's names and order of rows."""
    import gguf
    reader = gguf.GGUFReader(path)

    def field(name, default=None):
        value = reader.get_field(name)
        return default if value is None else value.contents()

    if field("general.architecture") != "llama" or field("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in {t.name for t in reader.tensors}:
        sys.exit(f"{path}: expected a Llama without RoPE scaling")
    heads, hidden = field("llama.attention.head_count"), field("llama.embedding_length")
    config = dict(model_type="llama", hidden_size=hidden, intermediate_size=field("llama.feed_forward_length"), num_hidden_layers=field("llama.block_count"),
                  num_attention_heads=heads, num_key_value_heads=field("llama.attention.head_count_kv"), head_dim=field("llama.rope.dimension_count", hidden // heads),
                  rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"), rope_theta=field("llama.rope.freq_base", 10000.0), rope_scaling=None)
    weights = {}
    for t in reader.tensors:
        x = torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32))
        if ".attn_q." in t.name or ".attn_k." in t.name:  # llama.cpp keeps the two channels that RoPE rotates side by side
            x = x.view(-1, config["head_dim"] // 2, 2, hidden).transpose(1, 2).reshape(-1, hidden)
        weights[hf_name(t.name)] = x
    config |= dict(vocab_size=len(weights["model.embed_tokens.weight"]), tie_word_embeddings="lm_head.weight" not in weights)
    return config, weights


# ---- both ----

def weight_files(folder):
    """The files of the weights: one, or the shards."""
    path = os.path.join(folder, "model.safetensors")
    return [path] if os.path.exists(path) else sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("model-") and f.endswith(".safetensors"))


def open_source(path, device):
    """Returns the config, with defaults filled in, and the model."""
    if is_gguf(path):
        config, weights = read_gguf(path)
    else:
        with open(os.path.join(path, "config.json")) as file:
            config = json.load(file)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        config |= dict(head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
                       num_key_value_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
                       rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10000,
                       rope_scaling=rope if "factor" in rope else None)  # as Model reads it
    model = Model(config, torch.bfloat16 if device.startswith("cuda") else torch.float32)
    if is_gguf(path):
        for name, p in model.named():
            p.data.copy_(weights[name])
    else:
        load_weights(weight_files(path), model)
    return config, model.to(device)


def hash_of_gguf(path, sleigh):
    return json.loads(program(sleigh, ["inspect", "-q", "-m", path, "-o", "json"]))["hash"]


def token_ids(path, sleigh, text):
    """The ids of a text, without BOS."""
    if not is_gguf(path):
        return Tok.load(os.path.join(path, "tokenizer.json")).encode(text)
    return [int(x) for x in program(sleigh, ["tokenize", "-m", path, "-f", "-"], text).replace(",", " ").split()]


def prompts_of_texts(path, sleigh, texts, n_tokens, most):
    """At most `most` prompts of n_tokens ids: the first part of each text file, then the second part of each, and so on. A model with a BOS in its
    folder gets it before each."""
    bos = [] if is_gguf(path) else [Tok.load(os.path.join(path, "tokenizer.json")).bos]
    parts, n = [], n_tokens - len(bos)
    for order, name in enumerate(texts):
        with open(name, encoding="utf-8") as file:
            ids = token_ids(path, sleigh, file.read())
        parts += [(i, order, torch.tensor(bos + ids[i:i + n])) for i in range(0, len(ids) - n + 1, n)]
    return [ids for _, _, ids in sorted(parts, key=lambda part: part[:2])[:most]]
