#!/usr/bin/env bash
# Installs missing packages, builds the program, and demonstrates its purpose: it answers a question about
# a document whose KV cache is far larger than the device memory that the run may use.
# The program has GPU code if this machine has a GPU, for that GPU.
#
#     tools/demo.sh [--tokens N] [--seed N]
#
# The document of N tokens is made from the seed; one sentence of it has the answer. The bundled model
# reads the document twice: once with so little device memory that the KV cache is ten times as large
# as the memory for it, and once with all available memory.
# Then eight documents are a job, which is killed half-way and continues.
# Exit status: 0 when all answers are right, runs of the same document have the same logits, no run used more
# memory than its budget, and the moved bytes are those predicted.
set -eu -o pipefail

tokens=16384
seed=7
while [ $# -gt 0 ]; do
    case $1 in
    --tokens) tokens=${2:?--tokens takes a number} ;;
    --seed) seed=${2:?--seed takes a number} ;;
    *)
        sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
        [ "$1" = --help ] || [ "$1" = -h ] || exit 2
        exit
        ;;
    esac
    shift 2
done

cd "$(dirname "$0")/.."
. tools/lib/setup.sh

model=models/records
spillway=build/release/spillway
work=build/demo

install_packages "$building_needs$script_needs"
build release installed # all that `cmake --install build/release` copies
mkdir -p $work

say "making a document of $tokens tokens with tools/make_records.py, seed $seed"
python3 tools/make_records.py --tokens "$tokens" --seed "$seed" \
    --out $work/document.txt --answer-file $work/expected.txt 2>$work/made.txt
printf '       %s\n' "$(tr '\n' ' ' <$work/document.txt | head -c 90)..." \
    "... $(tail -n 2 $work/document.txt | head -n 1)"

# `plan` tells the memory that generate needs. Two prefetch slots instead of three leave more of the small
# budget to resident data.
run=("$model" --prompt-file "$work/document.txt" --max-new-tokens 32 --prefetch-slots 2)
device_memory=$(python3 tools/lib/demo_report.py budget $spillway "${run[@]}")
$spillway plan "${run[@]}" --device-memory "$device_memory" --json --no-probe >$work/plan.json

say "spillway generate ${run[*]} --device-memory $device_memory"
$spillway generate "${run[@]}" --device-memory "$device_memory" --report $work/small.json \
    >$work/small.txt
say "spillway generate ${run[*]}"
$spillway generate "${run[@]}" --report $work/large.json >$work/large.txt
python3 tools/lib/demo_report.py table $work

# ---- a job ----

n=8
say "eight documents, one job: spillway batch $model --input $work/job.jsonl --output $work/job-answers.jsonl"
rm -f $work/job* $work/undisturbed*
for i in $(seq $n); do
    python3 tools/make_records.py --tokens $((tokens / 8)) --seed $((seed + i)) \
        --out "$work/job-$i.txt" --answer-file "$work/job-$i.expected" 2>>$work/made.txt
    printf '{"id": "document %s", "file": "job-%s.txt"}\n' "$i" "$i"
done >$work/job.jsonl
job=("$model" --input "$work/job.jsonl" --max-new-tokens 32 --sessions 2 --device-memory "$device_memory" --quiet)
$spillway batch "${job[@]}" --output $work/undisturbed.jsonl

$spillway batch "${job[@]}" --output $work/job-answers.jsonl &
while kill -0 $! 2>/dev/null && [ "$(cat $work/job-answers.jsonl 2>/dev/null | wc -l)" -lt $((n / 2)) ]; do
    sleep 0.01
done
kill -KILL $! 2>/dev/null || true
wait $! 2>/dev/null || true
cp $work/job-answers.jsonl $work/job-killed.jsonl
say "kill -9 after $(wc -l <$work/job-killed.jsonl) answers; the same command again"
$spillway batch "${job[@]}" --output $work/job-answers.jsonl
python3 tools/lib/demo_report.py job $work
