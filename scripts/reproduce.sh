#!/bin/sh
# What the SANTA paper reports, repeated as far as this machine and this model allow, the paper's numbers beside ours.
#
#   scripts/reproduce.sh                                   # the embedded model
#   scripts/reproduce.sh ~/models/Llama-3.1-8B-Instruct    # the paper's model: the real tables
#
# Writes docs/results/reproduce-NAME.md and its pictures (NAME: the model folder's name). What the commands print lies in
# build/reproduce-NAME: a part that is there is not run again, and an evaluation that was cut short goes on. Environment:
#   SIZES      tokens of a prompt and questions of each task: "8k:32", with a GPU "8k:500 32k:500"
#   PROMPTS    of each task for Tables 28 to 30: 8, with a GPU 40
#   THREADS    0: every core
#   CHAT       "--chat" for models that are asked in their chat template (the default but for the embedded one), or ""
#   LONGBENCH  LongBench v2 as JSONL (context, question, choices, answer) for Table 18
#   GSM8K      GSM8K as JSONL (question, answer) for Figure 8, which is of a task made here without it
set -eu
cd "$(dirname "$0")/.."
model=${1:-models/tiny} name=$(basename "${1:-models/tiny}") bin=${BIN:-build}
out=build/reproduce-$name
gpu=$("$bin/sleigh" version | grep -c '^gpu: found' || true)
if [ "$gpu" -gt 0 ]; then sizes="8k:500 32k:500" prompts=40; else sizes=8k:32 prompts=8; fi
sizes=${SIZES:-$sizes} prompts=${PROMPTS:-$prompts} longest=$(echo "${SIZES:-$sizes}" | sed 's/.* //; s/:.*//')
if [ "$name" = tiny ]; then chat=${CHAT-}; else chat=${CHAT---chat}; fi
run="-m $model -t ${THREADS:-0}"
mkdir -p "$out"

# The words of a command as a shell takes them.
quoted() {
    for word; do
        case $word in *[{}]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
}

# part NAME COMMAND...: standard output to $out/NAME, the command to $out/NAME.cmd; nothing where it is there.
part() {
    file=$out/$1
    shift
    [ -s "$file" ] && return
    quoted "$@" | sed "s|^ ||; s|^$bin/|build/|" >"$file.cmd"
    echo "reproduce: $(cat "$file.cmd")" >&2
    "$@" >"$file.part"
    mv "$file.part" "$file"
}

# Tables 1, 26 and 18: accuracy against budgets, the least of them at the first length only.
methods='dense,santa-prop:S={64,128,256,1024},santa-flash:S={256,1024,2048},santa-pps:S={128,256,1024},santa-is:S={128,256,1024},topk:k=128,streaming'
least=',santa-flash:S={64,128,512}'
for size in $sizes; do
    length=${size%:*}
    part "accuracy-$length.json" "$bin/sleigh" eval $run $chat --task fwe,niah-multikey,qa-1hop,qa-2hop --length "$length" \
        --samples "${size#*:}" --questions 4 --attn "$methods$least" --out "$out/accuracy-$length.jsonl" \
        --plot "docs/results/reproduce-$name-accuracy-$length.svg" -o json
    least=
done
if [ -n "${LONGBENCH-}" ]; then
    part longbench.json "$bin/sleigh" eval $run $chat --jsonl "$LONGBENCH" --grader choice-line \
        --attn 'dense,santa-prop:S={64,128,256,1024},santa-flash:S={128,256,512,1024,2048}' --out "$out/longbench.jsonl" -o json
fi

# Figure 8: one layer after the other with S = 1, the others with S = 256.
samples=$(echo "$sizes" | sed 's/ .*//; s/.*://')
questions="--task qa-1hop --length ${sizes%%:*} --questions 4 --samples $samples"
[ -z "${GSM8K-}" ] || questions="--jsonl $GSM8K --procedure gsm8k --samples $samples"
n_layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "$model/config.json")
for layer in none $(seq 0 $((n_layers - 1))); do
    rule=$([ "$layer" = none ] || echo "--attn-layer=$layer=santa:S=1")
    part "one-hot-$layer.json" "$bin/sleigh" eval $run $chat $questions --attn santa:S=256 $rule -o json
done

# Tables 28 to 30: the same states through every budget. Heads are observed on the CPU.
for task in fwe qa-2hop; do
    part "$task.jsonl" "$bin/sleigh" eval -m "$model" --task $task --length "$longest" --samples "$prompts" --dump /dev/stdout
    python3 scripts/reproduce.py --records "$out/$task.jsonl" >"$out/$task-records.jsonl"
    part "same-state-$task.json" "$bin/sleigh" compare $run --device cpu --jsonl "$out/$task-records.jsonl" -n 32 --ignore-eos \
        --attn 'santa-flash:S={256,1024,2048},santa-prop:S={128,256,1024}' \
        --plot "docs/results/reproduce-$name-error-$task.svg" -o json
done

# Figures 6 and 7, Table 20.
part figures.md python3 scripts/santa_figures.py --sleigh "$bin/sleigh" --test "$bin/sleigh-test" $run

# Table 3: 30k tokens, a batch of six. With a GPU the shape of Llama-3.1-8B, which needs no weights.
speed=$run steps=32
[ "$gpu" -eq 0 ] || speed="-m models/llama-3.1-8b --load-format dummy --device cuda" steps=2048
part decode.json "$bin/sleigh" bench decode $speed -b 6 -d 30k -n $steps \
    --attn dense,santa-flash:S=2048,santa-prop:S=128 -o json

# Figure 4: a GPU's attention kernels alone.
[ "$gpu" -eq 0 ] || part kernels.md "$bin/sleigh" bench attn -b 1 -d 8k,16k,32k --phase decode --attn dense,santa-prop:S=128,santa-flash:S=2048

python3 scripts/reproduce.py --name "$name" --model "$model" --sizes "$sizes" "$out" >"docs/results/reproduce-$name.md"
echo "reproduce: docs/results/reproduce-$name.md" >&2
