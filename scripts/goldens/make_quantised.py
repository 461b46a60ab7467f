#!/usr/bin/env python3
"""Writes small random checkpoints in the layouts of quantised models, from the definitions of the formats. Needs numpy.

  make_quantised.py OUT [HEAD_DIM]    OUT/NAME: a checkpoint; OUT/NAME.wide: the same model with the numbers that it stands for in fp32

A number of a checkpoint is (q - zero) * scale in fp32, where the scale is what the file holds (NVFP4: its quotient or product
with the scale of the tensor, rounded to fp32). So a program that follows the
definition computes with equal numbers from both folders."""
import json
import os
import sys

import numpy as np

HIDDEN, FFN, HEADS, KV, VOCAB, LAYERS = 128, 224, 4, 2, 96, 2
DIM = int(sys.argv[2]) if len(sys.argv) > 2 else 32  # of a head
CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_act="silu", hidden_size=HIDDEN, intermediate_size=FFN,
              num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, vocab_size=VOCAB,
              max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10000.0, bos_token_id=1,
              eos_token_id=2)
DTYPES = {np.dtype(np.int8): "I8", np.dtype(np.int32): "I32", np.dtype(np.int64): "I64", np.dtype(np.float32): "F32",
          np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16", np.dtype(np.uint8): "F8_E4M3", np.dtype("V1"): "U8"}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
rng = np.random.default_rng(47)


def bf16(x):  # its bits
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(x):  # the numbers of a tensor of scales
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)


def fp8_numbers(q):  # e4m3, from its fields
    e, m = (q >> 3 & 15).astype(np.int32), (q & 7).astype(np.float32)
    size = np.where(e > 0, np.ldexp(8 + m, e - 10), np.ldexp(m, -9)).astype(np.float32)
    return np.where(q & 128, -size, size)


def random_fp8(n, k):
    q = rng.integers(0, 256, (n, k)).astype(np.uint8)
    q[(q & 127) == 127] = 5  # no NaN
    return q


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())


def plain_shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{i}.{name}.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)


def linear_shapes():
    for i in range(LAYERS):
        for name, shape in (("self_attn.q_proj", (HEADS * DIM, HIDDEN)), ("self_attn.k_proj", (KV * DIM, HIDDEN)),
                            ("self_attn.v_proj", (KV * DIM, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HEADS * DIM)),
                            ("mlp.gate_proj", (FFN, HIDDEN)), ("mlp.up_proj", (FFN, HIDDEN)), ("mlp.down_proj", (HIDDEN, FFN))):
            yield f"model.layers.{i}.{name}", shape
    yield "lm_head", (VOCAB, HIDDEN)


def random_plain(shape):
    return bf16(1 + 0.1 * rng.standard_normal(shape) if len(shape) == 1 else rng.standard_normal(shape) * 0.1)


def u8(x):  # bytes that are no e4m3 numbers
    return np.ascontiguousarray(x, np.uint8).view("V1")


# ---- packing ----


def pack_stream(u, bits):
    """Element i of a row begins at bit i * bits of the row's little-endian stream of 32-bit words."""
    stream = (u[:, :, None] >> np.arange(bits) & 1).reshape(u.shape[0], -1).astype(np.uint8)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    return np.packbits(stream, axis=1, bitorder="little").view("<i4")


def pack_words(u, order=range(8)):
    """[rows][n] nibbles to [rows][n / 8] words: nibble i of word c holds column 8 c + order[i]."""
    words = np.zeros((u.shape[0], u.shape[1] // 8), np.uint32)
    for i, j in enumerate(order):
        words |= u[:, j::8].astype(np.uint32) << np.uint32(4 * i)
    return words


def spread(x, n, k, rows, cols):  # a scale for `rows` rows and `cols` columns to every number
    return np.repeat(np.repeat(x, rows, axis=0), cols, axis=1)[:n, :k]


def integers(n, k, bits, groups, zeros, scale_type):
    """q, zero points, scales and numbers of a matrix with `groups` scales in a row."""
    half, size = 1 << (bits - 1), 0.3 / (1 << (bits - 1)) / k ** 0.5 * 8
    q = rng.integers(-half, half, (n, k))
    scale = scale_type(size * (0.5 + rng.random((n, groups))))
    zero = rng.integers(-half, half, (n, groups)) if zeros else np.zeros((n, groups), np.int64)
    cols = k // groups
    numbers = (q - spread(zero, n, k, 1, cols)).astype(np.float32) * spread(wide(scale), n, k, 1, cols)
    return q, zero, scale, numbers


# ---- layouts: from a shape to ({part: tensor}, numbers) ----


def fp8(strategy, scale_name="weight_scale", scale_type=np.float32, activations=False):
    def make(n, k):
        q = random_fp8(n, k)
        rows, cols = {"tensor": (n, k), "channel": (1, k), "block": (128, 128)}[strategy]
        scale = scale_type(2e-4 * (0.5 + rng.random((-(-n // rows), -(-k // cols)))))
        numbers = fp8_numbers(q) * spread(wide(scale), n, k, rows, cols)
        out = {"weight": q, scale_name: scale.reshape(1) if strategy == "tensor" else scale}
        if activations:
            out["input_scale"] = np.float32([0.02])
        return out, numbers
    return make


def int8(zeros=False):
    def make(n, k):
        q, zero, scale, numbers = integers(n, k, 8, 1, zeros, bf16)
        out = {"weight": q.astype(np.int8), "weight_scale": scale}
        if zeros:
            out["weight_zero_point"] = zero.astype(np.int8)
        return out, numbers
    return make


def packed(bits, group, zeros=False, scale_type=bf16, actorder=False):
    def make(n, k):
        q, zero, scale, numbers = integers(n, k, bits, k // group if group else 1, zeros, scale_type)
        out = {"weight_packed": pack_stream(q + (1 << (bits - 1)), bits), "weight_scale": scale,
               "weight_shape": np.array([n, k], np.int64)}
        if zeros:
            out["weight_zero_point"] = np.ascontiguousarray(pack_stream((zero + (1 << (bits - 1))).T, bits).T)
        if actorder:
            place = rng.permutation(k)  # column i has the group of place[i]
            out["weight_g_idx"] = (place // group).astype(np.int32)
            numbers = q.astype(np.float32) * wide(scale)[:, place // group]
        return out, numbers
    return make


def fp4(kind):
    """kind: "ct" or "modelopt" (NVFP4), "mx" (MXFP4)."""
    def make(n, k):
        q = rng.integers(0, 16, (n, k))
        e, m = q >> 1 & 3, q & 1  # e2m1, from its fields
        x = (np.where(e > 0, np.ldexp(2.0 + m, e - 2), m / 2) * np.where(q & 8, -1, 1)).astype(np.float32)
        packed = u8(q[:, ::2] | q[:, 1::2] << 4)
        if kind == "mx":
            e8m0 = rng.integers(118, 122, (n, k // 32))
            return {"weight_packed": packed, "weight_scale": u8(e8m0)}, x * np.repeat(np.ldexp(np.float32(1), e8m0 - 127), 32, axis=1)
        scale = rng.integers(0x48, 0x70, (n, k // 16)).astype(np.uint8)  # 4 to 120
        if kind == "ct":
            divisor = np.float32([3217.77])
            numbers = x * np.repeat(fp8_numbers(scale) / divisor, 16, axis=1)
            return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": divisor,
                    "input_global_scale": np.float32([271.5])}, numbers
        factor = np.float32(1 / 3217.77)
        numbers = x * np.repeat(fp8_numbers(scale) * factor, 16, axis=1)
        return {"weight": packed, "weight_scale": scale, "weight_scale_2": factor.reshape(()), "input_scale": np.float32(0.004).reshape(())}, numbers
    return make


def awq(group=32):
    def make(n, k):
        q, zero, scale, numbers = integers(n, k, 4, k // group, True, np.float16)
        return {"qweight": pack_words((q + 8).T, AWQ_ORDER).view(np.int32), "scales": np.ascontiguousarray(scale.T),
                "qzeros": pack_words((zero + 8).T, AWQ_ORDER).view(np.int32)}, numbers
    return make


def gptq(version, group=32, zeros=False, desc_act=False):
    def make(n, k):
        size = group if group > 0 else k
        q, zero, scale, numbers = integers(n, k, 4, k // size, zeros, np.float16)
        place = rng.permutation(k) if desc_act else np.arange(k)
        if desc_act:
            numbers = (q - zero[:, place // size]).astype(np.float32) * wide(scale)[:, place // size]
        words = pack_words((zero + 8).T)
        if version == 1:
            words -= np.uint32(0x11111111)  # of the whole word, with borrows
        return {"qweight": np.ascontiguousarray(pack_words(q + 8).T).view(np.int32), "qzeros": words.view(np.int32),
                "scales": np.ascontiguousarray(scale.T), "g_idx": (place // size).astype(np.int32)}, numbers
    return make


# ---- descriptions ----


def compressed(fmt, weights, targets=("Linear",), ignore=("lm_head",), activations=None, **more):
    groups = {"group_0": dict(targets=list(targets), weights=weights, input_activations=activations, output_activations=None)}
    return {"quantization_config": dict(quant_method="compressed-tensors", format=fmt, config_groups=groups, ignore=list(ignore),
                                        kv_cache_scheme=None, quantization_status="compressed", global_compression_ratio=None, **more)}


def arguments(bits, kind, strategy, group=None, symmetric=True, **more):
    return dict(num_bits=bits, type=kind, strategy=strategy, group_size=group, symmetric=symmetric, dynamic=False, observer="minmax",
                observer_kwargs={}, actorder=None, block_structure=None) | more


def mixed():
    groups = {"group_0": dict(targets=["re:.*mlp.(gate|up)_proj$"], format="pack-quantized", weights=arguments(4, "int", "group", 32)),
              "group_1": dict(targets=["Linear"], format="float-quantized", weights=arguments(8, "float", "channel"))}
    return {"quantization_config": dict(quant_method="compressed-tensors", format="mixed-precision", config_groups=groups,
                                        ignore=["re:.*layers.1.self_attn.*", "lm_head"], quantization_status="compressed")}


def mixed_layout(name):
    if ".layers.1.self_attn" in name:
        return None
    return packed(4, 32) if name.endswith(("gate_proj", "up_proj")) else fp8("channel", scale_type=bf16)


def gptq_config(fmt, group=32, **more):
    return dict(quant_method="gptq", bits=4, group_size=group, checkpoint_format=fmt, pack_dtype="int32", lm_head=False,
                true_sequential=True, damp_percent=0.05) | more


DYNAMIC = dict(num_bits=8, type="int", symmetric=True, dynamic=True, strategy="token")
FP8_ROWS = dict(num_bits=8, type="float", symmetric=True, dynamic=True, strategy="token", observer=None, observer_kwargs={}, group_size=None,
                actorder=None, block_structure=None)
FP8_STATIC = FP8_ROWS | dict(dynamic=False, strategy="tensor", observer="minmax")
FP8_GROUPS = FP8_ROWS | dict(strategy="group", group_size=128)
MODELOPT = {"producer": {"name": "modelopt", "version": "0.19"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head", "*layers.0.mlp*"]}}
NVFP4 = {"producer": {"name": "modelopt", "version": "0.33"},
         "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16, "exclude_modules": ["lm_head"]}}
FP4_ACTIVATIONS = arguments(4, "float", "tensor_group", 16) | {"dynamic": "local"}
MODELOPT_GROUPS = {"group_0": {"input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
                               "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}}
# name: (layout, or a function from the module to its layout; fields of config.json; other documents; quantised head)
CHECKPOINTS = {
    "ct-fp8-tensor": (fp8("tensor", activations=True), compressed("float-quantized", arguments(8, "float", "tensor"), activations=FP8_STATIC)),
    "ct-fp8-rows": (fp8("channel", scale_type=bf16), compressed("float-quantized", arguments(8, "float", "channel"), activations=FP8_ROWS)),
    "ct-fp8-channel": (fp8("channel", scale_type=bf16), compressed("float-quantized", arguments(8, "float", "channel"))),
    "ct-fp8-block": (fp8("block"), compressed("float-quantized", arguments(8, "float", "block", block_structure=[128, 128]),
                                              activations=FP8_GROUPS)),
    "ct-int8": (int8(), compressed("int-quantized", arguments(8, "int", "channel"), activations=DYNAMIC)),
    "ct-int8-zeros": (int8(True), compressed("int-quantized", arguments(8, "int", "channel", symmetric=False))),
    "ct-int4": (packed(4, 32), compressed("pack-quantized", arguments(4, "int", "group", 32))),
    "ct-int4-channel": (packed(4, 0), compressed("pack-quantized", arguments(4, "int", "channel"))),
    "ct-int4-zeros": (packed(4, 32, True, np.float16), compressed("pack-quantized", arguments(4, "int", "group", 32, False))),
    "ct-int4-order": (packed(4, 32, actorder=True), compressed("pack-quantized", arguments(4, "int", "group", 32, actorder="group"))),
    "ct-int4-head": (packed(4, 32), compressed("pack-quantized", arguments(4, "int", "group", 32), ignore=())),
    "ct-int8-packed": (packed(8, 32), compressed("pack-quantized", arguments(8, "int", "group", 32))),
    "ct-int8-packed-zeros": (packed(8, 32, True), compressed("pack-quantized", arguments(8, "int", "group", 32, False))),
    "ct-mixed": (mixed_layout, mixed()),
    "fp8-block": (fp8("block", "weight_scale_inv", bf16), {"quantization_config": dict(
        quant_method="fp8", activation_scheme="dynamic", fmt="e4m3", weight_block_size=[128, 128])}),
    "fp8-tensor": (fp8("tensor", activations=True), {"quantization_config": dict(
        quant_method="fp8", activation_scheme="static", ignored_layers=["lm_head"])}),
    "modelopt": (lambda name: None if "layers.0.mlp" in name else fp8("tensor", activations=True), {}, {"hf_quant_config.json": MODELOPT}),
    "ct-nvfp4": (fp4("ct"), compressed("nvfp4-pack-quantized", arguments(4, "float", "tensor_group", 16, scale_dtype="torch.float8_e4m3fn"),
                                       activations=FP4_ACTIVATIONS)),
    "ct-nvfp4-weights": (fp4("ct"), compressed("nvfp4-pack-quantized", arguments(4, "float", "tensor_group", 16))),
    "ct-mxfp4": (fp4("mx"), compressed("mxfp4-pack-quantized", arguments(4, "float", "group", 32, scale_dtype="torch.uint8"))),
    "ct-mixed-fp4": (lambda name: fp4("ct") if "mlp" in name else fp8("channel", scale_type=bf16), {"quantization_config": dict(
        quant_method="compressed-tensors", format="mixed-precision", ignore=["lm_head"], quantization_status="compressed", config_groups={
            "group_0": dict(targets=["re:.*mlp.*"], format="nvfp4-pack-quantized", weights=arguments(4, "float", "tensor_group", 16)),
            "group_1": dict(targets=["Linear"], format="float-quantized", weights=arguments(8, "float", "channel"))})}),
    "modelopt-nvfp4": (fp4("modelopt"), {}, {"hf_quant_config.json": NVFP4}),
    "modelopt-nvfp4-groups": (fp4("modelopt"), {"quantization_config": dict(
        quant_method="modelopt", quant_algo="W4A16_NVFP4", config_groups=MODELOPT_GROUPS, ignore=["lm_head"], producer={})}),
    "awq": (awq(), {"quantization_config": dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm")}),
    "awq-part": (lambda name: None if "self_attn" in name else awq(), {"quantization_config": dict(
        quant_method="awq", w_bit=4, q_group_size=32, zero_point=True, version="gemm", modules_to_not_convert=["self_attn"])}),
    "gptq": (gptq(1), {"quantization_config": gptq_config("gptq", sym=True, desc_act=False)}),
    "gptq-zeros": (gptq(1, zeros=True), {}, {"quantize_config.json": gptq_config("gptq", sym=False, desc_act=False)}),
    "gptq-v2": (gptq(2, zeros=True), {"quantization_config": gptq_config("gptq_v2", sym=False, desc_act=False)}),
    "gptq-channel": (gptq(2, group=-1), {"quantization_config": gptq_config("gptq_v2", -1, sym=True, desc_act=False)}),
    "gptq-order": (gptq(1, desc_act=True), {"quantization_config": gptq_config("gptq", sym=True, desc_act=True)}),
    "gptq-part": (lambda name: None if name.endswith("down_proj") else gptq(2), {"quantization_config": gptq_config(
        "gptq_v2", sym=True, desc_act=False, dynamic={"-:.*down_proj": {}})}),
}
WITH_HEAD = ("ct-int4-head",)


def write(out, name, layout, config, documents):
    per_module = layout.__code__.co_varnames[:1] == ("name",)
    files, numbers = {}, {}
    for tensor, shape in plain_shapes():
        files[tensor] = numbers[tensor] = random_plain(shape)
    for module, (n, k) in linear_shapes():
        make = layout(module) if per_module else layout
        if make is None or (module == "lm_head" and name not in WITH_HEAD):
            files[f"{module}.weight"] = numbers[f"{module}.weight"] = random_plain((n, k))
            continue
        parts, numbers[f"{module}.weight"] = make(n, k)
        files.update({f"{module}.{part}": x for part, x in parts.items()})
    for folder, tensors, fields in ((name, files, config), (f"{name}.wide", numbers, {})):
        path = os.path.join(out, folder)
        os.makedirs(path)
        write_safetensors(os.path.join(path, "model.safetensors"), tensors)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(CONFIG | fields, f, indent=1)
    for document, value in documents.items():
        with open(os.path.join(out, name, document), "w") as f:
            json.dump(value, f)


def main():
    for name, (layout, config, *documents) in CHECKPOINTS.items():
        write(sys.argv[1], name, layout, config, documents[0] if documents else {})


if __name__ == "__main__":
    main()
