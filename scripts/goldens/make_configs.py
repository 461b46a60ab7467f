#!/usr/bin/env python3
"""Writes tests/goldens/configs.jsonl: config.json files, and what transformers' config classes make of them.

    python3 scripts/goldens/make_configs.py      needs transformers; torch is not needed

One line for each config: {"config": the fields beside those of SHAPE, "read": the values that decide the arithmetic, or null where
transformers refuses the config}. "window" is the sliding window of the layers that have one, null without such layers.
"""
import json
import logging
import sys
import warnings

import transformers
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

CLASSES = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
SHAPE = dict(vocab_size=1000, hidden_size=4096, intermediate_size=128, num_hidden_layers=4, num_attention_heads=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
FULL, SLIDING = "full_attention", "sliding_attention"
CASES = [
    # defaults of each class, and null
    *[dict(model_type=t) for t in CLASSES],
    *[dict(model_type=t, num_key_value_heads=None) for t in CLASSES if t != "mistral"],
    *[dict(model_type=t, num_key_value_heads=4, head_dim=64, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True)
      for t in CLASSES],
    # RoPE: theta, its places and its default
    dict(model_type="llama", rope_theta=500000.0),
    dict(model_type="llama", rope_theta=500000),
    dict(model_type="llama", rope_theta=20000.0, rope_parameters=dict(rope_type="default", rope_theta=30000.0)),
    dict(model_type="llama", rope_parameters=dict(rope_theta=30000.0)),
    dict(model_type="llama", rope_theta=20000.0, rope_scaling={}),
    dict(model_type="llama", rope_theta=20000.0, rope_scaling={}, rope_parameters=dict(rope_type="linear", factor=2.0)),
    dict(model_type="qwen3", rope_scaling=None, rope_theta=1000000),
    # rope_scaling before rope_parameters
    dict(model_type="llama", rope_theta=500000.0, rope_scaling=YARN, rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
    dict(model_type="llama", rope_theta=500000.0, rope_scaling=dict(rope_type="default"), rope_parameters=dict(YARN, rope_theta=500000.0)),
    dict(model_type="qwen2", rope_theta=5.0e5, rope_scaling=dict(type="linear", factor=2.0), rope_parameters=YARN),
    dict(model_type="llama", rope_scaling=dict(YARN, rope_theta=40000.0), rope_parameters=dict(rope_theta=40000.0)),
    # types and their names
    dict(model_type="llama", rope_scaling=dict(type="linear", factor=2.0)),
    dict(model_type="llama", rope_scaling=dict(rope_type="linear", type="linear", factor=2)),
    dict(model_type="llama", rope_scaling=dict(rope_type="default", type="default")),
    dict(model_type="llama", rope_theta=500000.0, rope_scaling=LLAMA3, max_position_embeddings=131072),
    dict(model_type="llama", rope_parameters=dict(LLAMA3, rope_theta=500000.0), max_position_embeddings=131072),
    # the original context: the file's field, the object's, max_position_embeddings
    dict(model_type="llama", rope_scaling={k: v for k, v in LLAMA3.items() if k[:4] != "orig"}, max_position_embeddings=4096),
    dict(model_type="qwen2", rope_scaling=dict(type="yarn", factor=4.0), max_position_embeddings=16384),
    dict(model_type="qwen2", rope_scaling=YARN, original_max_position_embeddings=4096, max_position_embeddings=16384),
    dict(model_type="qwen3", rope_scaling=dict(YARN, beta_fast=16, beta_slow=2.0, truncate=False)),
    dict(model_type="qwen3", rope_scaling=dict(YARN, attention_factor=1.25)),
    dict(model_type="qwen3", rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=0.5)),
    dict(model_type="llama", rope_scaling=dict(type="yarn", factor=16.0, finetuned=True, original_max_position_embeddings=4096)),
    dict(model_type="llama", rope_scaling=dict(rope_type="linear", factor=2.0, partial_rotary_factor=1.0)),
    dict(model_type="llama", partial_rotary_factor=1.0),
    # refused by both
    dict(model_type="llama", rope_scaling=dict(type="linear")),
    dict(model_type="llama", rope_scaling=dict(rope_type="llama3", factor=8.0)),
    dict(model_type="qwen2", layer_types=[FULL] * 3),
    dict(model_type="qwen2", layer_types=[FULL, FULL, FULL, "window"]),
    # windows
    dict(model_type="mistral", sliding_window=None),
    dict(model_type="mistral", sliding_window=1024),
    dict(model_type="mistral", sliding_window=1024, use_sliding_window=False),
    dict(model_type="mistral", sliding_window=4096, max_position_embeddings=4096),
    dict(model_type="mistral", max_position_embeddings=32768),
    dict(model_type="qwen2", use_sliding_window=False, sliding_window=1024, max_window_layers=0),
    dict(model_type="qwen2", use_sliding_window=True, sliding_window=1024),
    dict(model_type="qwen2", use_sliding_window=True, sliding_window=1024, max_window_layers=4),
    dict(model_type="qwen2", use_sliding_window=True, sliding_window=1024, max_window_layers=3),
    dict(model_type="qwen2", use_sliding_window=True, max_window_layers=0),
    dict(model_type="qwen2", use_sliding_window=True, sliding_window=None, max_window_layers=0),
    dict(model_type="qwen2", use_sliding_window=True, sliding_window=1024, max_window_layers=0, layer_types=[FULL] * 4),
    dict(model_type="qwen3", use_sliding_window=True, sliding_window=1024, layer_types=[FULL, SLIDING, FULL, FULL]),
    dict(model_type="qwen3", layer_types=["attention", FULL, FULL, FULL]),
    # fields that change nothing
    dict(model_type="llama", pretraining_tp=2, attention_dropout=0.5, initializer_range=0.5, use_cache=False, torch_dtype="float16",
         dtype="bfloat16", pad_token_id=-1, id2label={"0": "a", "1": "b"}, _name_or_path="x", transformers_version="4.31.0.dev0"),
    dict(model_type="llama", architectures=["LlamaModel", "LlamaForCausalLM"], tie_last_hidden_states=False, chunk_size_feed_forward=7),
    dict(model_type="llama", architectures=[]),
]
ROPE = ["rope_type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
        "truncate"]


def read(fields):
    fields = json.loads(json.dumps(fields))
    cls = CLASSES[fields.pop("model_type")]
    try:
        c = cls.from_dict(dict(SHAPE, **fields))
        c.validate_layer_type()
        c.standardize_rope_params()
    except Exception as e:
        print(fields, "refused:", str(e)[:100], file=sys.stderr)
        return None
    window = getattr(c, "sliding_window", None)
    if isinstance(c, (Qwen2Config, Qwen3Config)) and SLIDING not in c.layer_types:
        window = None
    return dict(n_kv_heads=c.num_key_value_heads, head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
                n_trained=c.max_position_embeddings, norm_eps=c.rms_norm_eps, tied=c.tie_word_embeddings, window=window,
                rope={k: c.rope_parameters[k] for k in ROPE if k in c.rope_parameters})


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with open("tests/goldens/configs.jsonl", "w") as out:
        out.write(json.dumps({"transformers": transformers.__version__, "shape": SHAPE}) + "\n")
        for case in CASES:
            out.write(json.dumps({"config": case, "read": read(case)}) + "\n")


main()
