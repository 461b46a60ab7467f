#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, two at a time. `make fuzz` calls it: scripts/check/fuzz.sh FOLDER SECONDS [TARGET...].
# FOLDER holds the program sleigh-fuzz. Corpora grow in FOLDER/corpus. Logs go to FOLDER/log, and inputs with a fault to
# FOLDER/findings. Prints one line for each target, and fails when there is a finding.
set -u
folder=$1 seconds=$2
shift 2
all=$(sed -n 's/^    {"\(.*\)", fuzz_.*/\1/p' tests/fuzz/fuzz.c)
[ $# -gt 0 ] || set -- $all
tmp=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/sleigh-fuzz-XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
touch "$tmp/start"

run() { # run TARGET
    local corpus=$folder/corpus/$1 findings=$folder/findings/$1 seeds=()
    mkdir -p "$folder/bin" "$folder/log" "$corpus" "$findings" "$tmp/$1"
    ln -sf ../sleigh-fuzz "$folder/bin/$1"
    for i in tests/fuzz/seeds/$1 tests/fuzz/crashes/$1; do [ -d "$i" ] && seeds+=("$i"); done
    TMPDIR=$tmp/$1 ASAN_OPTIONS=allocator_may_return_null=1 "$folder/bin/$1" -max_total_time="$seconds" -timeout=10 \
        -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1 -artifact_prefix="$findings/" -dict=tests/fuzz/words.dict "$corpus" \
        "${seeds[@]}" >"$folder/log/$1" 2>&1
    echo $? >"$tmp/$1/status"
}

for target; do
    case " ${all//$'\n'/ } " in *" $target "*) ;; *) echo "fuzz: unknown target $target; expected one of: ${all//$'\n'/, }" >&2 && exit 1 ;; esac
done
for target; do
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
    run "$target" &
done
wait

failed=0
stat() { sed -n "s/^stat::$1: *//p" "$folder/log/$2"; }
printf '%-16s %12s %8s %8s %9s %9s\n' target executions seconds exec/s coverage findings
for target; do
    n=$(find "$folder/findings/$target" -type f -newer "$tmp/start" ! -name 'slow-unit-*' | wc -l)
    [ "$(cat "$tmp/$target/status")" = 0 ] || [ "$n" -gt 0 ] || n='failed'
    [ "$n" = 0 ] || failed=1
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$folder/log/$target" | tail -1)
    spent=$(sed -n 's/^Done [0-9]* runs in \([0-9]*\) second.*/\1/p' "$folder/log/$target")
    printf '%-16s %12s %8s %8s %9s %9s\n' "$target" "$(stat number_of_executed_units "$target")" "${spent:--}" \
        "$(stat average_exec_per_sec "$target")" "${coverage:--}" "$n"
    [ "$n" = 0 ] || grep -a -m 8 -E 'does not hold|ERROR|runtime error|SUMMARY|written to' "$folder/log/$target" | cat -v |
        sed 's/^/    /'
done
exit $failed
