#!/usr/bin/env python3
"""Makes tests/goldens: small random models in Hugging Face's format, and the logits and tokens that transformers computes.

    python3 scripts/goldens/make_goldens.py            needs torch and transformers; a CPU is enough

The files hold weights in the dtype under test. transformers computes in float32, with eager attention. The KV cache is rounded
to bfloat16, as Sleigh's cache is, so that the comparison shows only differences of the arithmetic."""
import argparse
import json
import os
import shutil
import sys

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

GREEDY_STEPS = 32
LEAST_MARGIN = 1e-2  # least difference of the two largest logits at every greedy step, so that rounding cannot change the token
BASE = dict(vocab_size=320, hidden_size=64, intermediate_size=112, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SMALL = dict(vocab_size=128, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
QWEN = dict(rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))
MODELS = {  # name: (config class, changes, dtype, tokens of the prompt, shards)
    "mha": (LlamaConfig, dict(num_key_value_heads=4), torch.bfloat16, 70, 1),
    "gqa": (LlamaConfig, dict(num_attention_heads=8, num_key_value_heads=2, head_dim=16, rope_parameters=LLAMA3), torch.bfloat16, 300, 1),
    "tied": (LlamaConfig, dict(tie_word_embeddings=True), torch.bfloat16, 90, 1),
    "f16": (LlamaConfig, dict(), torch.float16, 80, 1),
    "f32": (LlamaConfig, dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=32), torch.float32, 100, 1),
    "yarn": (Qwen2Config, dict(SMALL, rms_norm_eps=1e-6, max_position_embeddings=512, rope_parameters=dict(rope_type="yarn",
             rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)), torch.bfloat16, 130, 1),
    "headdim80": (LlamaConfig, dict(head_dim=80, hidden_size=96), torch.bfloat16, 270, 1),
    "sharded": (LlamaConfig, dict(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)), torch.bfloat16, 120, 3),
    "mistral": (MistralConfig, dict(sliding_window=None, head_dim=32), torch.bfloat16, 110, 1),
    "eps": (LlamaConfig, dict(SMALL, rms_norm_eps=1e-5), torch.bfloat16, 40, 1),
    "eps-default": (LlamaConfig, dict(SMALL, rms_norm_eps=1e-6), torch.bfloat16, 40, 1),
    "qwen2": (Qwen2Config, dict(QWEN, hidden_size=128, num_attention_heads=2, num_key_value_heads=1), torch.bfloat16, 70, 1),
    "qwen2-tied": (Qwen2Config, dict(QWEN, num_attention_heads=7, num_key_value_heads=1, head_dim=64, tie_word_embeddings=True),
                   torch.bfloat16, 90, 1),
    "qwen3": (Qwen3Config, dict(QWEN, hidden_size=96, head_dim=64), torch.bfloat16, 80, 1),
    "qwen3-tied": (Qwen3Config, dict(QWEN, num_attention_heads=5, num_key_value_heads=1, head_dim=128, tie_word_embeddings=True),
                   torch.bfloat16, 70, 1),
}
# The mean square that every norm reads is of the order of eps, so that each eps changes the logits. The config of eps-default
# does not give rms_norm_eps.
TINY_ACTIVATIONS = {"eps": (0.015, 0.002), "eps-default": (0.005, 0.0006)}  # the scales of the embedding and of o_proj, down_proj
NO_EPS = ("eps-default",)
NEW_ROPE = ("mistral", "sharded", "qwen3-tied")  # config.json keeps rope_parameters
TYPE_SPELLING = ("yarn",)  # rope_scaling names its type as published Qwen2.5 folders do
PUBLISHED_WINDOW = ("qwen2", "qwen3", "yarn")  # config.json has the window fields of the published Qwen2.5 folders


class RoundedCache(DynamicCache):
    """Rounds keys and values to bfloat16."""

    def update(self, key_states, value_states, *args, **kwargs):
        def rounded(x):
            return x.to(torch.bfloat16).to(x.dtype)
        return super().update(rounded(key_states), rounded(value_states), *args, **kwargs)


def old_style_rope(path):
    """Published folders write rope_theta and rope_scaling; transformers 5 saves rope_parameters. The fixtures cover both."""
    with open(path) as f:
        config = json.load(f)
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    with open(path, "w") as f:
        json.dump(config, f, indent=1)


def change_config(path, remove, add):
    with open(path) as f:
        config = json.load(f)
    for field in remove:
        del config[field]
    config.update(add)
    with open(path, "w") as f:
        json.dump(config, f, indent=1)


def random_values(name, p):
    """Norms are near 1. Biases, and norms of query and key heads, are far from the values that change nothing."""
    if p.dim() > 1:
        return torch.randn_like(p) * 1.5 / p.shape[1] ** 0.5
    if name.endswith(".bias"):
        return torch.randn_like(p)
    return 1 + (0.4 if "q_norm" in name or "k_norm" in name else 0.1) * torch.randn_like(p)


def random_model(config, seed, scales=(1.0, 1.0)):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(random_values(name, p))
            if "embed_tokens" in name:
                p.mul_(scales[0])
            if "o_proj" in name or "down_proj" in name:
                p.mul_(scales[1])
    return model


def run(model, ids):
    """Returns the logits of every prompt position, the greedy continuation, and the least margin of the continuation."""
    cache, tokens, margin = RoundedCache(), [], float("inf")
    with torch.no_grad():
        logits = model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0]
        last = logits[-1]
        for _ in range(GREEDY_STEPS):
            top = torch.topk(last, 2)
            margin = min(margin, float(top.values[0] - top.values[1]))
            tokens.append(int(top.indices[0]))
            last = model(torch.tensor([[tokens[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1]
    return logits.numpy().astype(np.float32), tokens, margin


def write_json(path, data):
    with open(path, "w") as f:
        json.dump(data, f)


def make(name, out):
    cls, changes, dtype, n, shards = MODELS[name]
    for seed in range(100):
        config = cls(**{**BASE, **changes}, attn_implementation="eager")
        model = random_model(config, seed, TINY_ACTIVATIONS.get(name, (1.0, 1.0))).to(dtype)
        folder = os.path.join(out, name)
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, **({"max_shard_size": "80KB"} if shards > 1 else {}))
        path = os.path.join(folder, "config.json")
        if name not in NEW_ROPE:
            old_style_rope(path)
        if name in TYPE_SPELLING:
            with open(path) as f:
                rope = json.load(f)["rope_scaling"]
            rope["type"] = rope.pop("rope_type")
            change_config(path, ["rope_scaling"], {"rope_scaling": rope})
        if name in NO_EPS:
            change_config(path, ["rms_norm_eps"], {})
        if name in PUBLISHED_WINDOW:
            change_config(path, ["layer_types"], {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 1})
        again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        ids = np.random.default_rng(seed).integers(3, config.vocab_size, n).tolist()
        logits, greedy, margin = run(again, ids)
        if margin > LEAST_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps the two largest logits {LEAST_MARGIN} apart")
    write_json(os.path.join(folder, "ids.json"), ids)
    write_json(os.path.join(folder, "greedy.json"), greedy)
    np.save(os.path.join(folder, "logits.npy"), logits)
    print(f"{name}: seed {seed}, {n} tokens, least greedy margin {margin:.3f}")


ROPE_CASES = [  # (rope_theta, head_dim, max_position_embeddings, rope_scaling)
    (10000.0, 128, 4096, dict(rope_type="linear", factor=4.0)),
    (500000.0, 128, 131072, dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (500000.0, 64, 131072, dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (1000000.0, 128, 32768, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    (1000000.0, 128, 40960, dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=32768)),
    (10000.0, 128, 65536, dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=4096, beta_fast=16.0, beta_slow=2.0)),
    (10000.0, 64, 163840, dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.5)),
    (150000.0, 64, 131072, dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False)),
    (10000.0, 80, 8192, dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=4096, attention_factor=1.25)),
    (10000.0, 16, 512, dict(rope_type="yarn", factor=1.0, original_max_position_embeddings=512)),
    (10000.0, 32, 64, dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8)),
]


def make_rope(out):
    """Writes the frequencies of RoPE's scalings, and the factor of cosine and sine."""
    cases = []
    for theta, head_dim, n_ctx, scaling in ROPE_CASES:
        config = LlamaConfig(**{**BASE, "head_dim": head_dim, "max_position_embeddings": n_ctx, "rope_parameters": dict(scaling, rope_theta=theta)})
        inv_freq, attention = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
        cases.append(dict(head_dim=head_dim, max_position_embeddings=n_ctx, rope_theta=theta, rope_scaling=scaling,
                          inv_freq=[float(x) for x in inv_freq], attention_factor=float(attention)))
    with open(os.path.join(out, "rope.json"), "w") as f:
        json.dump(dict(transformers=transformers.__version__, torch=torch.__version__, cases=cases), f, indent=1)
    print(f"rope: {len(cases)} scalings")


def make_tiny(out, n=600):
    """Runs the embedded model on a generated text; writes the logits of the last positions and the greedy continuation."""
    import random
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../train"))
    import tiny_text
    from tokenizers import Tokenizer
    here = os.path.join(os.path.dirname(__file__), "../..", "models", "tiny")
    context, questions = tiny_text.needle_context(random.Random(5), n, 4)
    ids = Tokenizer.from_file(os.path.join(here, "tokenizer.json")).encode(context + questions[0][0]).ids
    model = AutoModelForCausalLM.from_pretrained(here, dtype=torch.float32, attn_implementation="eager").eval()
    logits, greedy, margin = run(model, ids)
    folder = os.path.join(out, "tiny")
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "ids.json"), ids)
    write_json(os.path.join(folder, "greedy.json"), greedy[:12])
    np.save(os.path.join(folder, "logits_last.npy"), logits[-4:])
    assert margin > LEAST_MARGIN
    print(f"tiny: {len(ids)} tokens, least greedy margin {margin:.3f}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--out", default=os.path.join(os.path.dirname(__file__), "../..", "tests", "goldens"))
    p.add_argument("--only", nargs="*", choices=[*MODELS, "tiny", "rope"], help="make only these")
    a = p.parse_args()
    torch.set_num_threads(1)
    for name in a.only or [*MODELS, "tiny", "rope"]:
        if name == "tiny":
            make_tiny(a.out)
        elif name == "rope":
            make_rope(a.out)
        else:
            make(name, a.out)
    if a.only:
        return  # README.md names the versions that made the other files
    with open(os.path.join(a.out, "README.md"), "w") as f:
        f.write("# Golden fixtures\n\nMade by `scripts/goldens/make_goldens.py` with "
                f"torch {torch.__version__} and transformers {transformers.__version__}: float32\n"
                "arithmetic, eager attention, keys and values rounded to bfloat16 as they enter the cache. `ids.json` is the prompt,\n"
                "`logits.npy` its logits, `greedy.json` the greedy continuation.\n"
                "`rope.json` holds frequencies of scaled RoPE, and the versions that computed them. `scripts/goldens/make_real_goldens.py` made `smollm2`.\n"
                "`json.jsonl` holds texts and what Python's json reads from them; `scripts/goldens/make_json.py` makes it.\n"
                "`configs.jsonl` holds configs and what transformers' config classes read from them; `scripts/goldens/make_configs.py` makes it.\n"
                "`pipelines.json` holds the ids that tokenizers gives with each step of tokenizer.json; `scripts/goldens/make_pipelines.py` makes it.\n"
                "`blanks.json` holds ids of SentencePiece models by transformers and mistral-common; `scripts/goldens/make_blanks.py` makes it.\n")


if __name__ == "__main__":
    main()
