#!/usr/bin/env bash
# Installs what is missing, builds, and shows the main job: a question about a document whose KV
# cache is far larger than the memory it may use, answered as if there were no limit.
#
#     tools/demo.sh [--tokens N] [--seed N]
#
# The document of N tokens is made afresh from the seed; one sentence in it holds the answer. The
# bundled model reads it twice: with so little device memory that its KV cache is ten times as large as
# the part of it that the cache may use, and with all there is.
# Exit status: 0 when the answer is right, both runs have the same logits, no budget was passed and
# the bytes moved are those predicted.
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
build release spillway_command
mkdir -p $work

say "making a document of $tokens tokens with tools/make_records.py, seed $seed"
python3 tools/make_records.py --tokens "$tokens" --seed "$seed" \
    --out $work/document.txt --answer-file $work/expected.txt 2>$work/made.txt
printf '       %s\n' "$(tr '\n' ' ' <$work/document.txt | head -c 90)..." \
    "... $(tail -n 2 $work/document.txt | head -n 1)"

# What generate will need is known before it runs. With two landing buffers instead of three there is
# more of the little memory left for what stays.
run=("$model" --prompt-file "$work/document.txt" --max-new-tokens 32 --prefetch-slots 2)
device_memory=$(python3 tools/lib/demo_report.py budget $spillway "${run[@]}")
$spillway plan "${run[@]}" --device-memory "$device_memory" --json --no-probe >$work/plan.json

say "spillway generate ${run[*]} --device-memory $device_memory"
$spillway generate "${run[@]}" --device-memory "$device_memory" --report $work/small.json \
    >$work/small.txt
say "spillway generate ${run[*]}"
$spillway generate "${run[@]}" --report $work/large.json >$work/large.txt
python3 tools/lib/demo_report.py table $work
