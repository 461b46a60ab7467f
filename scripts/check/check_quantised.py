#!/usr/bin/env python3
"""Checks a folder of `sleigh quantize` against its source, from the definition of the formats, in float64. Needs numpy.

  check_quantised.py SOURCE FOLDER TABLE.json     TABLE.json: what `sleigh quantize -o json` printed

1. Each stored number is the nearest one of its scale, or the end of the range for a number beyond it.
2. No other candidate for a scale has a smaller squared error.
3. Tensors that are not rounded have the bytes of the source. Every tensor is aligned to its dtype.
4. The table has the mean squared errors and the bytes of the files.
Prints one line for each fault, and exits with 1 when there is one."""
import json
import os
import sys

import numpy as np

FRACTIONS = (1, 0.9, 0.95, 0.85, 0.8, 0.75, 1.05)
SIZES = {"I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}
faults = []


def fault(text):
    faults.append(text)


def read_folder(folder):  # {name: (dtype, shape, bytes)}
    index = os.path.join(folder, "model.safetensors.index.json")
    names = ["model.safetensors"]
    if not os.path.exists(os.path.join(folder, names[0])):
        with open(index, encoding="utf-8") as f:
            weight_map = json.load(f)["weight_map"]
        names = sorted(set(weight_map.values()))
    out = {}
    for file in names:
        with open(os.path.join(folder, file), "rb") as f:
            n = int.from_bytes(f.read(8), "little")
            header, data = json.loads(f.read(n)), f.read()
        header.pop("__metadata__", None)
        if sum(h["data_offsets"][1] - h["data_offsets"][0] for h in header.values()) != len(data):
            fault(f"{file}: the tensors do not cover the data")
        for name, h in header.items():
            begin, end = h["data_offsets"]
            if name in out:
                fault(f"{name} occurs twice")
            if folder == sys.argv[2] and (8 + n + begin) % SIZES[h["dtype"]]:
                fault(f"{file}: {name} begins at byte {8 + n + begin}, which is not aligned for {h['dtype']}")
            if len(names) > 1 and weight_map[name] != file:
                fault(f"the index names {weight_map[name]} for {name}, which {file} holds")
            out[name] = (h["dtype"], h["shape"], data[begin:end])
    return out


def bf16_numbers(data):
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def numbers(t):  # of a plain tensor, in float64
    dtype, shape, data = t
    x = {"BF16": bf16_numbers, "F16": lambda d: np.frombuffer(d, np.float16), "F32": lambda d: np.frombuffer(d, np.float32)}[dtype](data)
    return x.astype(np.float64).reshape(shape)


def to_bf16(x):  # a float32, rounded to nearest even
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def fp8_numbers(q):  # e4m3, from its fields
    e, m = (q >> 3 & 15).astype(np.int32), (q & 7).astype(np.float64)
    size = np.where(e > 0, np.ldexp(8 + m, e - 10), np.ldexp(m, -9))
    return np.where(q & 128, -size, size)


FP8 = np.unique(fp8_numbers(np.array([q for q in range(256) if q & 127 != 127], np.uint8)))


def nearest(x, bits, is_float):  # of the format's numbers; ties do not matter for an error
    if not is_float:
        return np.clip(np.rint(x), -2.0 ** (bits - 1), 2.0 ** (bits - 1) - 1)
    at = np.clip(np.searchsorted(FP8, x), 1, len(FP8) - 1)
    return np.where(x - FP8[at - 1] < FP8[at] - x, FP8[at - 1], FP8[at])


def scheme_of(config, module):  # (bits, is_float, group or None) or None
    if module in config["ignore"]:
        return None
    groups = sorted(config["config_groups"].values(), key=lambda g: g["targets"] == ["Linear"])
    for g in groups:
        if g["targets"] == ["Linear"] or g["targets"] == ["re:.*" + module]:
            w = g["weights"]
            return w["num_bits"], w["type"] == "float", w["group_size"]
    return None


def unpack(words, bits, shape):  # the dense little-endian bit stream of each row
    per_word = 32 // bits
    u = np.stack([words >> np.uint32(bits * i) & np.uint32(2 ** bits - 1) for i in range(per_word)], axis=-1)
    return u.reshape(shape[0], -1)[:, :shape[1]].astype(np.float64) - 2 ** (bits - 1)


def stored_of(tensors, module, scheme, shape):  # q [n, k] and scales [n, groups]
    bits, is_float, group = scheme
    groups = shape[1] // group if group else 1
    dtype, got, data = tensors.pop(module + ".weight_scale")
    if dtype != "BF16" or got != [shape[0], groups]:
        fault(f"{module}.weight_scale is {dtype} {got}")
    scale = bf16_numbers(data).astype(np.float64).reshape(shape[0], groups)
    if is_float:
        dtype, got, data = tensors.pop(module + ".weight")
        q = fp8_numbers(np.frombuffer(data, np.uint8)).reshape(shape)
        want = ("F8_E4M3", list(shape))
    else:
        _, _, size = tensors.pop(module + ".weight_shape")
        if np.frombuffer(size, np.int64).tolist() != list(shape):
            fault(f"{module}.weight_shape is {np.frombuffer(size, np.int64)}")
        dtype, got, data = tensors.pop(module + ".weight_packed")
        want = ("I32", [shape[0], shape[1] * bits // 32])
        q = unpack(np.frombuffer(data, np.uint32).reshape(got), bits, shape)
    if (dtype, got) != want:
        fault(f"{module}: the numbers are {dtype} {got}, expected {want}")
    return q, scale


def check_matrix(module, x, q, scale, scheme):  # x, q: [n, groups, columns]; returns the squared error
    bits, is_float, _ = scheme
    half = 448.0 if is_float else 2.0 ** (bits - 1)
    s = scale[:, :, None]
    y = x / s
    # float32 rounds a product with the inverse of the scale, so a number near the middle can go to either side
    best = nearest(y, bits, is_float)
    worse = np.abs(y - q) - np.abs(y - best)
    if (worse > 1e-5 * np.maximum(np.abs(y), 1)).any():
        fault(f"{module}: {np.count_nonzero(worse > 1e-5 * np.maximum(np.abs(y), 1))} numbers are not the nearest ones")
    inside = (np.abs(y) <= half - 1) if not is_float else np.zeros_like(y, bool)
    if (np.abs(x - q * s) > np.abs(s) / 2 * (1 + 1e-4))[inside].any():
        fault(f"{module}: an error is above half a scale")
    at = np.argmax(np.abs(x), axis=2)[:, :, None]
    largest = np.take_along_axis(x, at, 2)[:, :, 0].astype(np.float32)
    error = ((x - q * s) ** 2).sum(2)
    least = np.full(error.shape, np.inf)
    for fraction in FRACTIONS[:2] if is_float else FRACTIONS:
        plain = np.abs(largest) / np.float32(448) if is_float else -largest / np.float32(half)
        c = to_bf16(plain * np.float32(fraction)).astype(np.float64)
        c = np.where(c == 0, 1, c)[:, :, None]
        least = np.minimum(least, ((x - nearest(x / c, bits, is_float) * c) ** 2).sum(2))
    if (error > least * (1 + 1e-4) + 1e-30).any():
        fault(f"{module}: {np.count_nonzero(error > least * (1 + 1e-4) + 1e-30)} scales are not the best candidates")
    return error.sum()


def main():
    source, folder = read_folder(sys.argv[1]), read_folder(sys.argv[2])
    n_bytes = sum(len(t[2]) for t in folder.values())
    with open(os.path.join(sys.argv[2], "config.json"), encoding="utf-8") as f:
        config = json.load(f)["quantization_config"]
    with open(sys.argv[3], encoding="utf-8") as f:
        table = {row["kind"]: row for row in json.load(f)}
    sums, n_rounded = {}, 0
    for name, t in source.items():
        module, x = name.removesuffix(".weight"), numbers(t)
        is_linear = x.ndim == 2 and "embed" not in name
        scheme = scheme_of(config, module) if is_linear else None
        if not scheme:
            if folder.pop(name, None) != t:
                fault(f"{name} is not the source's")
            continue
        q, scale = stored_of(folder, module, scheme, x.shape)
        spread = (x.shape[0], scale.shape[1], -1)
        error = check_matrix(module, x.reshape(spread), q.reshape(spread), scale, scheme)
        for kind in (module.split(".")[-1], "all"):
            e, n = sums.get(kind, (0, 0))
            sums[kind] = (e + error, n + x.size)
        n_rounded += 1
    for name in folder:
        fault(f"{name} is no tensor of the source")
    for kind, (error, n) in sums.items():
        if abs(table[kind]["mse"] - error / n) > 1e-5 * error / n:
            fault(f"{kind}: the table has the error {table[kind]['mse']}, expected {error / n}")
    if table["all"]["bytes_out"] != n_bytes or table["all"]["bytes_in"] != sum(len(t[2]) for t in source.values()):
        fault(f"the table has {table['all']['bytes_in']} bytes in and {table['all']['bytes_out']} out")
    for line in faults:
        print(line)
    print(f"{n_rounded} matrices, mean squared error {sums['all'][0] / sums['all'][1]:.3e}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
