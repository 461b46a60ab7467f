#!/usr/bin/env python3
"""Writes tests/goldens/fp4: linear layers that compressed-tensors quantised to NVFP4 and MXFP4, and the numbers that it makes of
them in fp32. Needs compressed-tensors, torch and safetensors.

  make_fp4.py OUT     OUT/nvfp4-pack-quantized.safetensors, OUT/mxfp4-pack-quantized.safetensors: lin.weight_packed and its
                      scales as in a checkpoint, and lin.wide, the numbers [24][96]"""
import os
import sys

import torch
from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

N, K = 24, 96


def quantise(compressor, weight, args):
    groups = weight.reshape(N, K // args.group_size, args.group_size)
    low, high = groups.amin(-1), groups.amax(-1)
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax())
    scale, _ = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
    state["weight_scale"] = scale
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    packed = compressor.compress(state, scheme)
    stored = {f"lin.{name}": x.clone().contiguous() for name, x in packed.items()}
    x = unpack_fp4_from_uint8(packed["weight_packed"], N, K, torch.float32)
    scale = compressor._decompress_scale(packed["weight_scale"], torch.float32)
    stored["lin.wide"] = dequantize(x, scale, args=args, dtype=torch.float32, global_scale=packed.get("weight_global_scale")).contiguous()
    rounded = compressor.decompress(packed, scheme)["weight"].float()  # it rounds to bfloat16
    assert torch.equal(stored["lin.wide"].bfloat16().float(), rounded)
    return stored


def main():
    torch.manual_seed(53)
    os.makedirs(sys.argv[1], exist_ok=True)
    weight = torch.randn(N, K) * torch.logspace(-2, 0, N)[:, None]
    for compressor, name, strategy, group in ((NVFP4PackedCompressor, "nvfp4-pack-quantized", "tensor_group", 16),
                                              (MXFP4PackedCompressor, "mxfp4-pack-quantized", "group", 32)):
        args = QuantizationArgs(num_bits=4, type="float", strategy=strategy, group_size=group, symmetric=True,
                                scale_dtype=torch.uint8 if group == 32 else torch.float8_e4m3fn)
        tensors = quantise(compressor, weight, args)
        for key, x in tensors.items():
            print(name, key, x.dtype, tuple(x.shape))
        save_file(tensors, os.path.join(sys.argv[1], f"{name}.safetensors"))


if __name__ == "__main__":
    main()
