"""Times peers on this GPU with PyTorch, for the shapes of Llama-3.1-8B: attention of FlashAttention-2 and cuDNN (through
scaled_dot_product_attention), FlashAttention-3 if the package fa3-fwd is installed, linear layers of cuBLAS. The method is that of
`sleigh bench attn`: replays of a CUDA graph, a write of 512 MB before each replay, medians.

usage: python3 scripts/measure/bench_peers.py [decode] [prefill] [linear] [context] [buckets]     prints one JSON line for each row

decode and prefill use the sizes of `sleigh bench attn`; context times decode of one sequence from 4k to 128k tokens; buckets uses the
sizes of results/saap.md.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import fa3_fwd_interface as fa3
except ImportError:
    fa3 = None

HEADS, KV_HEADS, DIM = 32, 8, 128
DECODE = [(1, 8192), (1, 32768), (1, 131072), (6, 30720), (8, 32768), (16, 32768), (32, 8192)]
BUCKETS = [(1, 131072), (1, 175104), (1, 524288), (6, 131072)]
CONTEXT = [(1, 4096 << i) for i in range(6)]
PREFILL = [4096, 8192, 32768]
LAYER = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]  # (out, in): qkv, output, gate and up, down
HEAD = (128256, 4096)
BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
FA3_SPLITS = (0, 1, 8, 16, 32, 64, 128)  # pieces of the keys; 0: FlashAttention-3 chooses. The fastest counts.

touched = torch.zeros(128 * 1024 * 1024, device="cuda")  # fp32: 512 MB, ten times the L2 cache


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def microseconds(fn, repetitions=30):
    for _ in range(5):
        fn()
    torch.cuda.synchronize()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fn()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            fn()
    torch.cuda.synchronize()
    times = []
    for _ in range(repetitions):
        touched.add_(1.0)
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda._sleep(20000)  # the device waits, so that the host queues the replay before the device is ready for it
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return round(statistics.median(times), 2)


def attention(backend, q, k, v, causal):
    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return run


def report(**row):
    print(json.dumps(row), flush=True)


def fa3_decode(q, k, v, splits):
    return lambda: fa3.flash_attn_with_kvcache(q, k, v, num_splits=splits, pack_gqa=True, causal=True)


def decode(sizes=DECODE):
    for batch, n in sizes:
        q, k, v = random(batch, HEADS, 1, DIM), random(batch, KV_HEADS, n, DIM), random(batch, KV_HEADS, n, DIM)
        times = {f"{name}_us": microseconds(attention(b, q, k, v, False)) for name, b in BACKENDS.items()}
        if fa3:  # its tensors are [batch][rows][heads][dim]
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
            times["fa3_us"] = min(microseconds(fa3_decode(q, k, v, splits), 15) for splits in FA3_SPLITS)
        report(test="decode", batch=batch, n=n, **times)


def context():
    decode(CONTEXT)


def buckets():
    decode(BUCKETS)


def report_prefill(n, backend, us):
    report(test="prefill", n=n, backend=backend, ms=us / 1e3, tflops=round(2 * HEADS * n * n * DIM / us / 1e6))


def prefill():
    for n in PREFILL:
        q, k, v = random(1, HEADS, n, DIM), random(1, KV_HEADS, n, DIM), random(1, KV_HEADS, n, DIM)
        for name, backend in BACKENDS.items():
            us = microseconds(attention(backend, q, k, v, True), 10)
            report_prefill(n, name, us)
        if fa3:
            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
            report_prefill(n, "fa3", microseconds(lambda: fa3.flash_attn_func(q, k, v, causal=True), 10))


def linear():
    weights = [random(*shape) * 0.02 for shape in LAYER]
    head = random(*HEAD) * 0.02
    for rows in (1, 2, 4, 8, 16, 2048):
        xs = [random(rows, w.shape[1]) for w in weights]
        us = microseconds(lambda: [F.linear(x, w) for x, w in zip(xs, weights)], 15)
        x = random(rows, HEAD[1])
        head_us = microseconds(lambda: F.linear(x, head), 15)
        n = sum(w.numel() for w in weights)
        report(
            test="linear",
            rows=rows,
            layer_us=us,
            head_us=head_us,
            step_ms=round((32 * us + head_us) / 1e3, 3),
            gb_s=round(2 * n / us / 1e3),
            tflops=round(2 * rows * n / us / 1e6),
        )


if __name__ == "__main__":
    for name in sys.argv[1:] or ["decode", "prefill", "linear"]:
        {"decode": decode, "prefill": prefill, "linear": linear, "context": context, "buckets": buckets}[name]()
