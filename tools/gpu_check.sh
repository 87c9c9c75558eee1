#!/usr/bin/env bash
# Everything that takes a GPU, in one command and under nine minutes: the tests on it, a second
# process that takes its memory, compute-sanitizer, then speed beside the machine's own limits.
#
#     tools/gpu_check.sh [--build DIR] [--models DIR] [--seconds N] [--quick] [OUTDIR]
#
#     OUTDIR          default build/gpu_check: table.txt (one page), summary.json, logs
#     --build DIR     a build folder with a CUDA spillway in it (default: build/release if it has
#                     one, else build/cuda-quick is made); it may come from another machine, with
#                     the shared libraries that are missing here in a folder of LD_LIBRARY_PATH
#     --models DIR    where the models with random weights are made, 19 GB (default: OUTDIR/models,
#                     removed at the end; an existing folder is kept and used again)
#     --seconds N     what does not begin within N seconds is left out, and said to be (520)
#     --quick         tests only
#
# Exit status: 0 all tests passed (a missed speed is in the table), 1 some failed, 2 bad usage,
# 77 no GPU here.
set -u -o pipefail

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
}

die() {
    printf '%s\n' "gpu_check.sh: $*" >&2
    exit 2
}

out='' build='' models='' limit=520 quick=0
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?--build takes a folder} && shift ;;
    --models) models=${2:?--models takes a folder} && shift ;;
    --seconds) limit=${2:?--seconds takes a number} && shift ;;
    --quick) quick=1 ;;
    -h | --help) usage && exit ;;
    -*) die "$1: no such option; see --help" ;;
    *) out=$1 ;;
    esac
    shift
done
cd "$(dirname "$0")/.." || exit 2
out=${out:-build/gpu_check}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
rm -f "$out"/*.json "$out"/table.txt
keep_models=1
[ -n "$models" ] || { models=$out/models && keep_models=0; }
notes=()

say() {
    printf '%s\n' "-- [$SECONDS s] $*"
}

note() {
    notes+=("$*")
    say "$*"
}

json_text() { # TEXT: as a JSON string
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "${text//[$'\n\r\t']/ }"
}

# seconds_left NEEDED: whether a step of that length may begin
seconds_left() {
    [ $((SECONDS + $1)) -le "$limit" ]
}

# ---- the build ----

has_cuda() { # DIR
    [ -x "$1/spillway" ] && [ -x "$1/gpu_hog" ]
}

if [ -z "$build" ]; then
    build=build/release
    has_cuda $build || build=build/cuda-quick
    if ! has_cuda $build; then
        say "building in $build"
        # shellcheck source=tools/lib/setup.sh
        . tools/lib/setup.sh
        # shellcheck disable=SC2154 # setup.sh has it
        install_packages "$building_needs"
        build cuda-quick || exit 1
    fi
fi
has_cuda "$build" || die "$build: expected spillway and gpu_hog in it, from a build with CUDA"
build=$(cd "$build" && pwd)
spillway=$build/spillway

# ---- tests ----

results=()

# record NAME STATUS SECONDS LOG
record() {
    local result=failed
    [ "$2" = 0 ] && result=passed
    [ "$2" = 77 ] && result=skipped
    results+=("{\"name\": $(json_text "$1"), \"result\": \"$result\", \"seconds\": $3, \"log\": $(json_text "${4##*/}")}")
    say "$1: $result ($3 s)"
    [ $result != failed ] || tail -n 15 "$4" | sed 's/^/      /'
}

# check NAME SECONDS COMMAND...: a test of its own; a status of 77 is a skip
check() {
    local name=$1 most=$2 start=$SECONDS status log=$out/$1.log
    shift 2
    if ! seconds_left 5; then
        note "$name: left out, $limit seconds were over"
        return
    fi
    timeout "$most" "$@" >"$log" 2>&1
    status=$?
    [ $status != 124 ] || echo "ended after $most seconds" >>"$log"
    record "$name" $status $((SECONDS - start)) "$log"
}

say "looking for a GPU"
if ! "$spillway" plan models/records --device cuda --no-probe --json >"$out/plan.log" 2>&1; then
    cat "$out/plan.log" >&2
    exit 77
fi
gpu=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
say "${gpu:-a GPU; nvidia-smi is not here}"

for test in "$build"/gpu_*; do
    [ -x "$test" ] && [ -f "$test" ] && [ "${test##*/}" != gpu_hog ] && check "${test##*/}" 90 "$test"
done

# A generation to compare with: CPU and GPU give other last bits, but one GPU gives its own again.
seq 1 1500 | awk '{ print ($1 * 7919) % 700 }' >"$out/ids.txt"
generate() { # REPORT OPTIONS...
    local report=$1
    shift
    "$spillway" generate models/records --token-ids "$out/ids.txt" --ids --ignore-eos \
        --max-new-tokens 32 --device cuda --report "$report" "$@"
}
hash_of() { # REPORT
    sed -n 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/p' "$1"
}
same_hash() { # A B
    echo "logits: $(hash_of "$1") and $(hash_of "$2")"
    [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]
}

hog_takes() { # LEAVE_BYTES: starts the other process and waits until it has the memory
    coproc HOG { "$build/gpu_hog" "$1"; }
    local line
    read -r -t 60 line <&"${HOG[0]}" && echo "another process has ${line#taken } bytes"
}
hog_leaves() {
    local pid=$HOG_PID fd=${HOG[1]}
    exec {fd}>&-
    wait "$pid"
}

# What fits beside the other process runs and gives the same answer; what does not is refused.
beside_another_process() {
    local status
    generate "$out/alone.json" >/dev/null || return 1
    hog_takes $((1 << 30)) || return 1
    generate "$out/beside.json" >/dev/null
    status=$?
    "$spillway" generate models/records --token-ids "$out/ids.txt" --ids --device cuda \
        --device-memory 4GiB 2>"$out/refused.txt" >/dev/null
    local refused=$?
    hog_leaves
    cat "$out/refused.txt"
    echo "beside it: exit $status; 4 GiB where 1 GiB is free: exit $refused, expected 2"
    [ $status = 0 ] && [ $refused = 2 ] && grep -q 'free; lower --device-memory' "$out/refused.txt" &&
        same_hash "$out/alone.json" "$out/beside.json"
}

# The memory is taken while tokens are generated: nothing changes, for all of ours was taken at open.
while_generating() {
    "$spillway" generate models/records --token-ids "$out/ids.txt" --ids --ignore-eos \
        --max-new-tokens 2000 --device cuda --device-memory 64MiB --report "$out/long.json" >/dev/null || return 1
    "$spillway" generate models/records --token-ids "$out/ids.txt" --ids --ignore-eos \
        --max-new-tokens 2000 --device cuda --device-memory 64MiB --report "$out/disturbed.json" >/dev/null &
    local pid=$! status
    sleep 1
    hog_takes $((64 << 20)) || echo "the other process came too late"
    wait $pid
    status=$?
    [ -z "${HOG_PID:-}" ] || hog_leaves
    [ $status = 0 ] && same_hash "$out/long.json" "$out/disturbed.json"
}

# Any budget, the same logits: from the smallest there is.
budgets() {
    local budget least
    least=$("$spillway" plan models/records --context 1532 --device cuda --no-probe --json |
        sed -n '/"smallest_bytes"/,/}/s/.*"device": \([0-9]*\).*/\1/p')
    [ -n "$least" ] || return 1
    for budget in "$least" $((least + 200000)) $((2 * least)) $((8 * least)); do
        generate "$out/budget.json" --device-memory "$budget" --host-memory 1GiB >/dev/null || return 1
        echo "$budget bytes"
        same_hash "$out/alone.json" "$out/budget.json" || return 1
    done
}

run_check() { # NAME SECONDS FUNCTION: of this script
    local start=$SECONDS log=$out/$1.log
    if ! seconds_left 5; then
        note "$1: left out, $limit seconds were over"
        return
    fi
    "$3" >"$log" 2>&1
    record "$1" $? $((SECONDS - start)) "$log"
}
run_check second_process 60 beside_another_process
run_check memory_taken_meanwhile 60 while_generating
run_check budgets 60 budgets

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
    note "compute-sanitizer is not here: memcheck and racecheck were not run"
else
    head -n 300 "$out/ids.txt" >"$out/few_ids.txt"
    for tool in memcheck racecheck; do
        check $tool 60 "$sanitizer" --tool $tool --error-exitcode 9 "$spillway" generate \
            models/records --token-ids "$out/few_ids.txt" --ids --max-new-tokens 3 --device cuda
    done
fi

# ---- speed ----

# bench NAME MODEL SECONDS OPTIONS...
bench() {
    local name=$1 model=$2 needed=$3 start=$SECONDS status
    shift 3
    if ! seconds_left "$needed"; then
        note "bench $name: left out, it takes about $needed seconds and $((limit - SECONDS)) were left"
        return
    fi
    timeout $((limit - SECONDS)) "$spillway" bench "$model" --device cuda --random-tokens \
        --repeat 1 --decode-tokens 16 --report "$out/bench_$name.json" "$@" >"$out/bench_$name.log" 2>&1
    status=$?
    say "bench $name: exit $status ($((SECONDS - start)) s)"
    [ $status = 0 ] || note "bench $name failed: $(tail -n 1 "$out/bench_$name.log")"
}

# bench_io MODEL SECONDS OPTIONS...: the disk tier beside fio, disk to pinned memory to the card
bench_io() {
    local model=$1 needed=$2 start=$SECONDS status
    shift 2
    if ! seconds_left "$needed"; then
        note "bench io: left out, it takes about $needed seconds and $((limit - SECONDS)) were left"
        return
    fi
    timeout $((limit - SECONDS)) "$spillway" bench "$model" --device cuda --io --disk "$models" \
        --decode-tokens 16 --report "$out/io.json" "$@" >"$out/bench_io.log" 2>&1
    status=$?
    say "bench io: exit $status ($((SECONDS - start)) s)"
    [ $status = 0 ] || note "bench io failed: $(tail -n 1 "$out/bench_io.log")"
}

make_model() { # NAME CONFIG
    [ -s "$models/$1/config.json" ] && return
    mkdir -p "$models"
    say "making random weights of $1 in $models"
    python3 tools/make_random_model.py "tools/bench/$2" "$models/$1" >"$out/make_$1.log" 2>&1 && return
    note "$1: could not be made: $(tail -n 1 "$out/make_$1.log")"
    return 1
}

# compare CONTEXT: decode against transformers on the 1B shape
compare() {
    local n=$1 python=python3 status
    seconds_left 60 || { note "transformers at $n tokens: left out, too few seconds were left" && return; }
    seq 1 "$n" | awk '{ print ($1 * 7919) % 128000 }' >"$out/ids_$n.txt"
    timeout 90 $python tools/bench/hf_offloaded.py "$models/1b" --token-ids "$out/ids_$n.txt" \
        --new-tokens 17 --json "$out/hf_$n.json" >"$out/hf_$n.log" 2>&1
    status=$?
    [ $status = 0 ] || { note "transformers at $n tokens: $(tail -n 1 "$out/hf_$n.log")" && return; }
    timeout 90 "$spillway" generate "$models/1b" --token-ids "$out/ids_$n.txt" --ids --ignore-eos \
        --max-new-tokens 17 --device cuda --device-memory 4GiB --report "$out/spillway_$n.json" \
        >"$out/spillway_$n.log" 2>&1 || note "spillway beside transformers: $(tail -n 1 "$out/spillway_$n.log")"
}

if [ $quick = 0 ] && command -v python3 >/dev/null; then
    if make_model 1b llama-3.2-1b.json; then
        bench 1b "$models/1b" 60 --contexts 8192,32768,130944 --budgets 0,4GiB
        bench_io "$models/1b" 60 --contexts 32768
    fi
    if seconds_left 150 && make_model 8b llama-3.1-8b.json; then
        bench 8b "$models/8b" 60 --contexts 8192,32768 --budgets 0,24GiB,8GiB,4GiB
        bench 8b_128k "$models/8b" 90 --contexts 130944 --budgets 0,24GiB
    fi
    if python3 -c 'import torch, transformers' 2>/dev/null; then
        compare 32768
        compare 130944
    else
        note "python3 here has no torch and transformers: no comparison"
    fi
elif [ $quick = 0 ]; then
    note "python3 is not here: no models with random weights, so no speed"
fi
[ $keep_models = 1 ] || rm -rf "$models"

# ---- the page ----

{
    printf '[\n'
    for i in "${!results[@]}"; do
        printf '  %s%s\n' "${results[$i]}" "$([ "$i" = $((${#results[@]} - 1)) ] || echo ,)"
    done
    printf ']\n'
} >"$out/tests.json"
{
    printf '{"date": %s, "gpu": %s, "cpu": %s, "version": %s, "seconds": %d, "notes": [' \
        "$(json_text "$(date -u +%Y-%m-%d)")" "$(json_text "$gpu")" "$(json_text "$cpu")" \
        "$(json_text "$("$spillway" --version)")" $SECONDS
    for i in "${!notes[@]}"; do
        [ "$i" = 0 ] || printf ', '
        json_text "${notes[$i]}"
    done
    printf ']}\n'
} >"$out/machine.json"
if command -v python3 >/dev/null; then
    python3 tools/bench/gpu_table.py "$out"
    exit
fi
cat "$out/tests.json"
! grep -q '"failed"' "$out/tests.json"
