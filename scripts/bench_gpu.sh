#!/bin/sh
# On a machine with a GPU: the GPU tests, then every table of docs/results/h100.md, peers beside ours where PyTorch is there.
# usage: scripts/bench_gpu.sh [FOLDER of sleigh and sleigh-test: build]
set -eu
bin=${1:-build}
model="-m models/llama-3.1-8b --load-format dummy --device cuda"

SLEIGH_BIN="$bin/sleigh" "$bin/sleigh-test" --gpu | grep -vE '^ok|^seed'
"$bin/sleigh" bench attn
"$bin/sleigh" bench decode $model -b 1,2,4,8,16 -d 4k
"$bin/sleigh" bench decode $model -b 1,6 -d 30k
"$bin/sleigh" bench decode $model -b 6 -d 30k --ragged
"$bin/sleigh" bench decode $model -b 1 -d 32k
if python3 -c 'import torch' 2>/dev/null; then python3 scripts/bench_peers.py; fi
