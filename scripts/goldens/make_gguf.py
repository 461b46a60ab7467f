#!/usr/bin/env python3
"""Writes GGUF files with the PyPI package gguf, as other programs write them. Needs gguf and numpy; sentencepiece for a
tokenizer.model.

  make_gguf.py types OUT                  a small random model in every type: OUT/TYPE.gguf, and in OUT/TYPE/ the folder with the
                                          same numbers in fp32, as the package dequantises them
  make_gguf.py tokenizers OUT FOLDER...   OUT/0.gguf, OUT/1.gguf, ...: the tokenizers of folders, with a configuration and no
                                          tensors
  make_gguf.py seeds OUT                  the smallest models with a tokenizer of each kind (tests/fuzz/seeds/gguf)
  make_gguf.py model FOLDER OUT.gguf [TYPE]  config.json, model.safetensors (matrices as TYPE) and the tokenizer of a folder
"""
import json
import os
import sys

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
# The package does not quantise to these types: random blocks, with fp16 factors at these bytes.
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
FACTOR = {"Q4_K": 5e-5, "Q5_K": 3e-5, "Q6_K": 2e-5, "IQ4_NL": 4e-4, "IQ4_XS": 2e-5}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}
PRE = {"llama-bpe": "\\p{N}{1,3}", "qwen2": "|\\p{N}|"}  # the part of the pattern that tells them apart


def read_tensors(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            x = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[t["dtype"]]).astype(np.float32)
        out[name] = x.reshape(t["shape"])
    return out


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x, np.float32).tobytes())


def file_name(name):
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def heads_of(config, name):
    if config["model_type"] not in ("llama", "mistral"):
        return 0
    return config["num_attention_heads"] if ".q_proj." in name else \
        config["num_key_value_heads"] if ".k_proj." in name else 0


def permute(x, heads):
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape) if heads else x


def unpermute(x, heads):
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape) if heads else x


def pack(x, kind, rng):
    """The bytes of a matrix in a type, and the numbers that they stand for."""
    t = gguf.GGMLQuantizationType[kind]
    if kind not in HALVES:
        data = quantize(x, t)
        return data, dequantize(data, t)
    per_block, size = gguf.GGML_QUANT_SIZES[t]
    blocks = rng.integers(0, 256, (x.size // per_block, size), dtype=np.uint8)
    for i, at in enumerate(HALVES[kind]):
        factors = (FACTOR[kind] * rng.uniform(0.5, 1.5, len(blocks)) * (8 if i else 1)).astype(np.float16)
        blocks[:, at:at + 2] = factors.view(np.uint8).reshape(-1, 2)
    data = blocks.reshape(x.shape[0], -1)
    return data, dequantize(data, t)


def add_config(w, config, arch):
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_rope_dimension_count(config["head_dim"])
    w.add_vocab_size(config["vocab_size"])


def rope_factors(config):
    """What the frequencies of Llama 3.1 are divided by."""
    r = config["rope_scaling"]
    dim, base, old = config["head_dim"], config["rope_theta"], r["original_max_position_embeddings"]
    out = []
    for freq in 1.0 / base ** (np.arange(0, dim, 2) / dim):
        length = 2 * np.pi / freq
        smooth = (old / length - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        smooth = min(max(smooth, 0), 1)
        out.append(1 / ((1 - smooth) / r["factor"] + smooth))
    return np.array(out, np.float32)


def add_bpe(w, folder):
    t = json.load(open(os.path.join(folder, "tokenizer.json")))
    added = {a["id"]: a for a in t["added_tokens"]}
    tokens = {i: s for s, i in t["model"]["vocab"].items()}
    n = max(list(tokens) + list(added)) + 1
    texts, kinds = [], []
    for i in range(n):
        special = added.get(i)
        texts.append(special["content"] if special else tokens.get(i, f"[PAD{i}]"))
        kinds.append(gguf.TokenType.NORMAL if not special and i in tokens else gguf.TokenType.UNUSED if not special else
                     gguf.TokenType.CONTROL if special["special"] else gguf.TokenType.USER_DEFINED)
    pattern = json.dumps(t["pre_tokenizer"]).replace("\\\\", "\\")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(next(name for name, part in PRE.items() if part in pattern))
    w.add_token_list(texts)
    w.add_token_types(kinds)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    return {a["content"]: a["id"] for a in t["added_tokens"]}


def add_spm(w, folder):
    import sentencepiece
    spm = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    n = spm.vocab_size()
    kinds = [gguf.TokenType.UNKNOWN if spm.is_unknown(i) else gguf.TokenType.CONTROL if spm.is_control(i) else
             gguf.TokenType.UNUSED if spm.is_unused(i) else gguf.TokenType.BYTE if spm.is_byte(i) else
             gguf.TokenType.NORMAL for i in range(n)]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([spm.id_to_piece(i) for i in range(n)])
    w.add_token_scores([spm.get_score(i) for i in range(n)])
    w.add_token_types(kinds)
    return {spm.id_to_piece(i): i for i in range(n)}


def add_tokenizer(w, folder):
    path = os.path.join(folder, "tokenizer_config.json")
    config = json.load(open(path)) if os.path.exists(path) else {}
    path = os.path.join(folder, "tokenizer.json")
    is_bpe = os.path.exists(path) and json.load(open(path))["decoder"]["type"] == "ByteLevel"
    ids = (add_bpe if is_bpe else add_spm)(w, folder)
    for field, add in (("bos_token", w.add_bos_token_id), ("eos_token", w.add_eos_token_id)):
        text = config.get(field)
        text = text["content"] if isinstance(text, dict) else text
        if text:
            add(ids[text])
    if "bos_token" not in config and "<|begin_of_text|>" in ids:
        w.add_bos_token_id(ids["<|begin_of_text|>"])
    if isinstance(config.get("chat_template"), str):
        w.add_chat_template(config["chat_template"])


def write(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def new_file(path, config):
    arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
    w = gguf.GGUFWriter(path, arch)
    w.add_quantization_version(2)
    add_config(w, config, arch)
    return w


def add_tensors(w, config, tensors, kind, rng):
    """Returns the numbers of the file, under the names of the folder."""
    numbers = {}
    for name, x in tensors.items():
        heads = heads_of(config, name)
        if x.ndim == 1:
            numbers[name] = x
            w.add_tensor(file_name(name), permute(x, heads).astype(np.float32))
            continue
        if x.shape[1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]:
            numbers[name] = x.astype(np.float16)
            w.add_tensor(file_name(name), numbers[name])
            continue
        data, y = pack(np.ascontiguousarray(permute(x, heads)), kind, rng)
        numbers[name] = unpermute(y.reshape(x.shape), heads)
        w.add_tensor(file_name(name), data, raw_dtype=gguf.GGMLQuantizationType[kind])
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", rope_factors(config))
    return numbers


def random_model(rng, hidden=256, vocab=48, heads=4, ffn=256):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden,
              "intermediate_size": ffn, "num_hidden_layers": 1, "num_attention_heads": heads,
              "num_key_value_heads": heads // 2, "head_dim": hidden // heads, "max_position_embeddings": 64,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False}
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden),
              "self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (ffn, hidden),
              "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
    tensors = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden),
               "model.norm.weight": (hidden,)}
    tensors.update({f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()})
    tensors.update({f"model.layers.0.{name}.weight": (hidden,)
                    for name in ("input_layernorm", "post_attention_layernorm")})
    return config, {name: (1 + 0.02 * rng.standard_normal(s) if len(s) == 1 else 0.05 * rng.standard_normal(s))
                    .astype(np.float32) for name, s in tensors.items()}


def make_types(out):
    rng = np.random.default_rng(7)
    config, tensors = random_model(rng)
    for kind in TYPES:
        folder = os.path.join(out, kind)
        os.makedirs(folder)
        w = new_file(folder + ".gguf", config)
        write_tensors(os.path.join(folder, "model.safetensors"), add_tensors(w, config, tensors, kind, rng))
        write(w)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)


def make_seeds(out):
    rng = np.random.default_rng(7)
    config, tensors = random_model(rng, 32, 6, 2, 1)
    del tensors["lm_head.weight"]
    for kind, model in (("Q4_0", "llama"), ("IQ4_NL", "gpt2")):
        w = new_file(os.path.join(out, model + ".gguf"), config)
        w.add_tokenizer_model(model)
        w.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "ab"])
        w.add_token_types([2, 3, 3, 1, 1, 1])
        if model == "gpt2":
            w.add_tokenizer_pre("smollm")
            w.add_token_merges(["a b"])
        else:
            w.add_token_scores([0.0, 0.0, 0.0, -1.0, -2.0, -3.0])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_chat_template("{{ messages }}")
        add_tensors(w, config, tensors, kind, rng)
        write(w)


def make_tokenizers(out, *folders):
    config, _ = random_model(np.random.default_rng(7))
    for i, folder in enumerate(folders):
        w = new_file(os.path.join(out, f"{i}.gguf"), config)
        add_tokenizer(w, folder)
        write(w)


def make_model(folder, path, kind="F16"):
    if kind not in TYPES or kind in HALVES:
        sys.exit(f"{kind}: the package gguf quantises to {', '.join(t for t in TYPES if t not in HALVES)}")
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    w = new_file(path, config)
    add_tokenizer(w, folder)
    add_tensors(w, config, read_tensors(os.path.join(folder, "model.safetensors")), kind, np.random.default_rng(7))
    write(w)


if __name__ == "__main__":
    commands = {"types": make_types, "seeds": make_seeds, "tokenizers": make_tokenizers, "model": make_model}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__.strip())
    commands[sys.argv[1]](*sys.argv[2:])
