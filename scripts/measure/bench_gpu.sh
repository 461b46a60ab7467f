#!/bin/sh
# Runs the GPU tests, then prints every table of results/h100.md and h100-sampled.md. If PyTorch is installed, it also times the
# peers. Needs a GPU. bench_steps.py times steps from 4k to 127k tokens; reproduce.sh measures accuracy and errors.
# usage: scripts/measure/bench_gpu.sh [FOLDER of sleigh and sleigh-test (default: build)]
set -eu
bin=${1:-build}
sampled="dense,santa-sys,santa-prop,santa-pps,santa-flash,santa-is:S=256,dense-q:bits={4,8}"
thresholds="dense,santa-sys,santa-pps,santa-pps:budget=even,santa-is:S=256"
thresholds="$thresholds,santa-pps:epsilon=0.2:bound={clt,chi2}"
model="-m models/llama-3.1-8b --load-format dummy --device cuda"

SLEIGH_BIN="$bin/sleigh" "$bin/sleigh-test" --gpu -j "$(nproc)" | grep -vE '^ok|^seed'
"$bin/sleigh" bench attn
"$bin/sleigh" bench attn --phase masks
"$bin/sleigh" bench decode $model -b 1,2,4,8,16 -d 4k
"$bin/sleigh" bench decode $model -b 1,6 -d 30k
"$bin/sleigh" bench decode $model -b 6 -d 30k --ragged
"$bin/sleigh" bench decode $model -b 1 -d 32k
"$bin/sleigh" bench attn --phase decode --attn "$sampled,topk,topp,streaming,quest,vattention,random"
"$bin/sleigh" bench attn --phase decode --query-deviation 1 --attn "$sampled"
"$bin/sleigh" bench attn --phase decode --attn "$thresholds"
"$bin/sleigh" bench attn --phase decode --query-deviation 1 --attn "$thresholds"
"$bin/sleigh" bench attn --phase decode -b 1,8 -d 8k,32k --query-spread 0.75 --attn bernoulli-group+santa-sys:S=128,bernoulli-group
"$bin/sleigh" bench decode $model -b 6 -d 30k --attn "dense,santa-prop,santa-pps,santa-is:S=256,santa-pps:budget=even,santa-pps:epsilon=0.2"
if python3 -c 'import torch' 2>/dev/null; then python3 scripts/measure/bench_peers.py; fi
