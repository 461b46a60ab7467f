#!/bin/sh
# Repeats Tables 1, 3, 20, 26, 28 and 29 of the SANTA paper, with the paper's numbers next to ours, as far as this machine and this
# model allow; Table 18 with LONGBENCH (without it: our tasks at the same budgets), Table 30 for the tile size 256 only; Figures 4, 6, 7
# and 8. It does not repeat the other tables (GSM8K, MMLU, HumanEval, other samplers at 8k tokens, learned budgets).
#
#   scripts/measure/reproduce.sh                                   # the embedded model
#   scripts/measure/reproduce.sh ~/models/Llama-3.1-8B-Instruct    # the paper's model
#   PARTS="decode kernels" scripts/measure/reproduce.sh            # only these parts, and a report of all parts that exist
#
# Writes reproduce-NAME.md and its pictures (NAME is the model folder's name). The output of the commands goes to WORK. A part that
# exists there does not run again (delete its file to run it), and an interrupted evaluation continues. Each part says its number and
# the time left. Environment:
#   PARTS      accuracy, long-bench, one-hot, same-state, figures, decode, kernels; by default all
#   SIZES      tokens of a prompt and questions of each task; by default "8k:32", with a GPU "8k:128 32k:64"
#   STATES     tokens of a prompt and prompts of each task for Tables 28 to 30; by default the longest of SIZES with 8 prompts, with
#              a GPU "32k:16 128k:4"
#   THREADS    by default 0: every core
#   CHAT       "--chat" asks in the model's chat template (the default, except for the embedded model), "" does not
#   LONGBENCH  LongBench v2 as JSONL (context, question, choices, answer) for Table 18
#   GSM8K      GSM8K as JSONL (question, answer) for Figure 8; without it Figure 8 uses a task of `sleigh eval`
#   RESULTS    folder of the report; by default results
#   WORK       by default build/reproduce-NAME
#   BIN        folder of sleigh and sleigh-test; by default build
set -eu
cd "$(dirname "$0")/../.."
model=${1:-models/tiny} name=$(basename "${1:-models/tiny}") bin=${BIN:-build} results=${RESULTS:-results}
out=${WORK:-build/reproduce-$name}
gpu=$("$bin/sleigh" version | grep -c '^gpu: found' || true)
if [ "$gpu" -gt 0 ]; then sizes="8k:128 32k:64"; else sizes=8k:32; fi
sizes=${SIZES:-$sizes}
if [ "$gpu" -gt 0 ]; then states="32k:16 128k:4"; else states=$(echo "$sizes" | sed 's/.* //; s/:.*//'):8; fi
states=${STATES:-$states}
if [ "$name" = tiny ]; then chat=${CHAT-}; else chat=${CHAT---chat}; fi
run="-m $model -t ${THREADS:-0}"
mkdir -p "$out" "$results"

wanted() {
    case " ${PARTS:-accuracy long-bench one-hot same-state figures decode kernels} " in *" $1 "*) ;; *) return 1 ;; esac
}

# Prints the words of a command with the quotes that a shell needs.
quoted() {
    for word; do
        case $word in *[{}*]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
}

# Seconds as "40 s", "12 min" or "3.5 h".
duration() {
    if [ "$1" -lt 90 ]; then echo "$1 s"; elif [ "$1" -lt 5400 ]; then echo "$((($1 + 30) / 60)) min"; else
        echo "$(($1 / 3600)).$(($1 % 3600 / 360)) h"
    fi
}

# The time left, from the costs of the parts that this run has completed.
left() {
    if [ "$cost_done" -eq 0 ]; then echo "?"; else
        duration $((($(date +%s) - start) * (cost_all - cost_done) / cost_done))
    fi
}

# part NAME COST COMMAND...: writes standard output to $out/NAME and the command to $out/NAME.cmd. Does nothing where $out/NAME exists.
# The first pass only counts the parts. COST is rough: the thousands of tokens in a prompt, times 8 for its prefill and 1 for an answer.
part() {
    file=$out/$1 cost=$2
    shift 2
    [ -s "$file" ] && return
    if [ "$pass" = count ]; then
        n_parts=$((n_parts + 1)) cost_all=$((cost_all + cost))
        return
    fi
    n=$((n + 1))
    quoted "$@" | sed "s|^ ||; s|^$bin/|build/|; s| $bin/| build/|g" >"$file.cmd"
    echo "reproduce: part $n of $n_parts, $(left) left: $(cat "$file.cmd")" >&2
    "$@" >"$file.part"
    mv "$file.part" "$file"
    cost_done=$((cost_done + cost))
}

# Thousands of tokens: of "8k" 8, of 600 1.
kilo() {
    case $1 in *k) echo "${1%k}" ;; *) echo $(($1 / 1024 + 1)) ;; esac
}

experiments() {
    # Tables 1 and 26: accuracy against budgets. The smallest budgets run only at the first length.
    methods='dense,santa-prop:S={64,128,256,1024},santa-flash:S={256,1024,2048},santa-pps:S={128,256,1024},santa-is:S={128,256,1024},topk:k=128,streaming'
    least=',santa-flash:S={64,128,512}'
    for size in $sizes; do
        length=${size%:*} samples=${size#*:}
        work=$(($(kilo "$length") * samples * (8 + 4 * 18))) # four tasks with four questions for each text, 18 methods
        ! wanted accuracy || part "accuracy-$length.json" $work "$bin/sleigh" eval $run $chat --task fwe,niah-multivalue,qa-1hop,qa-2hop \
            --length "$length" --samples "$samples" --questions 4 --attn "$methods$least" --out "$out/accuracy-$length.jsonl" \
            --plot "$results/reproduce-$name-accuracy-$length.svg" -o json
        least=
    done

    # Table 18.
    if wanted long-bench && [ -n "${LONGBENCH-}" ]; then
        work=$(($(wc -l <"$LONGBENCH") * 32 * (8 + 10)))
        part long-bench.json $work "$bin/sleigh" eval $run $chat --jsonl "$LONGBENCH" --grader choice-line \
            --attn 'dense,santa-prop:S={64,128,256,1024},santa-flash:S={128,256,512,1024,2048}' --out "$out/long-bench.jsonl" -o json
    fi

    # Figure 8: one layer after the other with S = 1, the others with S = 256.
    samples=$(echo "$sizes" | sed 's/ .*//; s/.*://')
    questions="--task qa-1hop --length ${sizes%%:*} --questions 4 --samples $samples"
    [ -z "${GSM8K-}" ] || questions="--jsonl $GSM8K --procedure gsm8k --samples $samples"
    n_layers=$(sed -n 's/.*"num_hidden_layers": *\([0-9]*\).*/\1/p' "$model/config.json")
    work=$(($(kilo "${sizes%%:*}") * samples * (8 / 4 + 1)))
    for layer in none $(seq 0 $((n_layers - 1))); do
        rule=$([ "$layer" = none ] || echo "--attn-layer=$layer=santa:S=1")
        ! wanted one-hot || part "one-hot-$layer.json" $work "$bin/sleigh" eval $run $chat $questions --attn santa:S=256 $rule -o json
    done

    # Tables 28 to 30: every budget on the same states. In a chat the user cannot give the beginning of the answer.
    for size in $states; do
        for task in fwe qa-2hop; do
            wanted same-state || continue
            at=$task-${size%:*}
            part "$at.jsonl" 1 "$bin/sleigh" eval -m "$model" $chat --task $task --length "${size%:*}" --samples "${size#*:}" --dump /dev/stdout
            [ "$pass" = count ] || python3 scripts/measure/reproduce.py --records "$out/$at.jsonl" $chat >"$out/$at-records.jsonl"
            work=$(($(kilo "${size%:*}") * ${size#*:} * (8 + 3 * 9))) # three runs of each method
            part "same-state-$at.json" $work "$bin/sleigh" compare $run $chat --jsonl "$out/$at-records.jsonl" -n 32 --ignore-eos \
                --attn 'santa-flash:S={256,1024,2048},santa-prop:S={128,256,1024},santa-pps:S=128,santa-is:S=256' \
                --plot "$results/reproduce-$name-error-$at.svg" -o json
        done
    done

    # Figures 6 and 7, Table 20: on the CPU, which counts the distinct rows that a head drew.
    ! wanted figures || part figures.md 500 python3 scripts/measure/santa_figures.py --sleigh "$bin/sleigh" --test "$bin/sleigh-test" $run

    # Table 3: 30k tokens, a batch of six. With a GPU it uses the shape of Llama-3.1-8B without weights. The paper has 2,048 steps.
    speed=$run steps=32
    [ "$gpu" -eq 0 ] || speed="-m models/llama-3.1-8b --load-format dummy --device cuda" steps=256
    work=$((30 * 6 * (8 + 5 * steps / 20)))
    ! wanted decode || part decode.json $work "$bin/sleigh" bench decode $speed -b 6 -d 30k -n $steps \
        --attn dense,santa-flash:S=2048,santa-prop:S=128,santa-pps:S=128,santa-is:S=256 -o json

    # Figure 4: only the attention kernels of a GPU.
    if wanted kernels && [ "$gpu" -gt 0 ]; then
        part kernels.json 100 "$bin/sleigh" bench attn -b 1 -d '4k-128k*2' --phase decode --plot "$results/reproduce-$name-kernels.svg" -o json \
            --attn dense,santa-flash:S=2048,santa-prop:S=128,santa-sys:S=128,santa-pps:S=128,santa-is:S=256
    fi
}

n=0 n_parts=0 cost_all=0 cost_done=0 start=$(date +%s)
pass=count
experiments
pass=run
experiments

SIZES=$sizes STATES=$states python3 scripts/measure/reproduce.py --name "$name" --model "$model" --results "$results" "$out" \
    >"$results/reproduce-$name.md"
echo "reproduce: $results/reproduce-$name.md" >&2
