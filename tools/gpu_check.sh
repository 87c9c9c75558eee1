#!/usr/bin/env bash
# Runs everything that needs a GPU, in under nine minutes: first contact (at most a minute), the tests on
# the GPU, a second process that takes GPU memory, compute-sanitizer, and then speed beside the limits
# of the machine.
#
#     tools/gpu_check.sh [--build DIR] [--models DIR] [--seconds N] [--parts LIST] [OUTDIR]
#     tools/gpu_check.sh [--late DIR] [--rings DIR] --pack DIR
#
#     OUTDIR          the results, default build/gpu_check: table.txt (one page), summary.json, logs.
#                     OUTDIR.tar.gz has all of them; it is also written when a signal ends the script. From a
#                     machine that returns few files, take this one: do not put OUTDIR where they are taken from
#     --build DIR     a build folder with a CUDA spillway, or the folder or archive of --pack
#                     (default: build/release if it has a CUDA spillway, else build/cuda-quick is made)
#     --models DIR    the folder for models with random weights, 41 GB (default: OUTDIR/models, which is
#                     removed at the end; an existing DIR is kept and used again)
#     --seconds N     a step that cannot begin within N seconds is left out, and the results say so
#                     (520); tests get half of the time, or all of it without speed parts
#     --parts LIST    some of contact,sanitize,tests,1b,q,moe,io,8b,compare (default: all): the first minute,
#                     the kernels under compute-sanitizer, all tests, the benchmarks of 1B and 8B in bf16, of
#                     1B and 8B in Q4_K (q), of a mixture, 30B-A3B in Q4_K (moe), of the disk tier, and the
#                     comparison with transformers. q and moe are measured with and without --host-compute,
#                     under small budgets beside a process that takes the rest of the card's memory.
#                     520 seconds are too short for all: on the first day three commands,
#                     contact,sanitize then tests then 1b,q,moe; a fourth one, 8b, where there is time
#     --pack DIR      fills DIR, and DIR.tar.xz, with everything for a machine that can neither build nor
#                     install: the programs without symbols, and in DIR/lib the libraries that they
#                     use. All programs have the same kernels, so the archive is about as large as one
#                     program. For one kind of GPU that is a few MiB:
#     --late DIR      with --pack: adds the spillway of a build with SPILLWAY_CUDA_LATE=ON as
#                     spillway_late. Its kernels write late: a kernel that starts too early changes
#                     the answer
#
#     --rings DIR     with --pack: adds the gpu_products of a build with
#                     -DCMAKE_CUDA_FLAGS=-DSPW_CODES_RING_BYTES=12272 as gpu_products_rings. It prints the speed of
#                     quantized weights with twice the stages and half the blocks on a multiprocessor
#
#     cmake --preset release -DSPILLWAY_CUDA=ON -DSPILLWAY_CUDA_ARCHITECTURES=90-real
#     cmake --build --preset release
#     tools/gpu_check.sh --pack build/pack
#     (there, in the repository)   tools/gpu_check.sh --build build/pack.tar.xz
#
# A test that its time ended is unfinished, and one that this machine cannot run is skipped: neither has failed.
#
# Exit status: 0 no test failed (the table shows missed speeds), 1 a test failed, 2 bad usage or
# programs that do not start, 77 no GPU.
set -u -o pipefail

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
}

die() {
    printf '%s\n' "gpu_check.sh: $*" >&2
    exit 2
}

all_parts=contact,sanitize,tests,1b,q,moe,io,8b,compare
out='' build='' models='' pack='' late='' rings='' limit=520 parts=$all_parts
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=${2:?--build takes a folder} && shift ;;
    --models) models=${2:?--models takes a folder} && shift ;;
    --seconds) limit=${2:?--seconds takes a number} && shift ;;
    --parts) parts=${2:?--parts takes a list} && shift ;;
    --late) late=${2:?--late takes a folder} && shift ;;
    --rings) rings=${2:?--rings takes a folder} && shift ;;
    --pack) pack=${2:?--pack takes a folder} && shift ;;
    -h | --help) usage && exit ;;
    -*) die "$1: no such option; see --help" ;;
    *) out=$1 ;;
    esac
    shift
done
for part in ${parts//,/ }; do
    [[ ,$all_parts, == *,$part,* ]] || die "--parts: found '$part', expected some of $all_parts"
done
[[ $limit =~ ^[0-9]+$ ]] || die "--seconds: found '$limit', expected a number"
cd "$(dirname "$0")/.." || exit 2
notes=()

wanted() { # PART
    [[ ,$parts, == *,$1,* ]]
}

say() {
    printf '%s\n' "-- [$SECONDS s] $*"
}

note() {
    notes+=("$*")
    say "$*"
}

json_text() { # TEXT: as a JSON string
    local text=${1//[[:cntrl:]]/ }
    text=${text//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}

# limited SECONDS COMMAND...: runs it in the background; bash then handles a signal at once
limited() {
    timeout -k 5 "$@" &
    wait $!
}

# seconds_left NEEDED: whether a step of NEEDED seconds may begin
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
# xz may be missing. python3 reads such an archive without it.
unpack() { # ARCHIVE: `build` becomes the folder that it holds
    local to=build/gpu_unpacked hog
    rm -rf $to && mkdir -p $to || exit 2
    tar -xf "$1" -C $to 2>/dev/null ||
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" $to ||
        die "$1: cannot be unpacked: found neither xz nor a python3 that reads it"
    hog=$(find $to -name gpu_hog | head -n 1)
    build=${hog%/*}
}

[ ! -f "$build" ] || unpack "$build"
has_cuda "$build" || die "$build: expected spillway and gpu_hog in it, from a build with CUDA"
build=$(cd "$build" && pwd)
spillway=$build/spillway

# The archive has neither the C library nor the compiler's libraries: every machine has its own, and older
# ones would break its programs. The programs do not link with the driver's library.
pack_into() { # DIR
    local program
    mkdir -p "$1/lib" || return
    for program in "$build"/spillway "$build"/gpu_*; do
        if [ -f "$program" ] && [ -x "$program" ]; then
            strip -o "$1/${program##*/}" "$program" || return
        fi
    done
    [ -z "$late" ] || strip -o "$1/spillway_late" "$late/spillway" || return
    [ -z "$rings" ] || strip -o "$1/gpu_products_rings" "$rings/gpu_products" || return
    ldd "$1"/spillway "$1"/gpu_hog | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+))\.so' | xargs -r cp -L -t "$1/lib"
    tar -c "$1" | xz -T1 --lzma2=preset=6,dict=128MiB >"${1%/}.tar.xz" && du -sh "$1" "${1%/}.tar.xz"
}

if [ -n "$pack" ]; then
    pack_into "$pack"
    exit
fi
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

out=${out:-build/gpu_check}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
rm -f "$out"/*.json "$out"/*.log "$out"/table.txt
keep_models=1
[ -n "$models" ] || { models=$out/models && keep_models=0; }

# ---- the page and the archive, also after a signal ----

results=() gpu='' cpu='' memory=''

write_json() {
    local i
    {
        printf '[\n'
        for i in "${!results[@]}"; do
            printf '  %s%s\n' "${results[$i]}" "$([ "$i" = $((${#results[@]} - 1)) ] || echo ,)"
        done
        printf ']\n'
    } >"$out/tests.json"
    {
        printf '{"date": %s, "gpu": %s, "cpu": %s, "memory": %s, "version": %s, "seconds": %d, "notes": [' \
            "$(json_text "$(date -u +%Y-%m-%d)")" "$(json_text "$gpu")" "$(json_text "$cpu")" \
            "$(json_text "$memory")" "$(json_text "$("$spillway" --version 2>&1 | head -n 1)")" $SECONDS
        for i in "${!notes[@]}"; do
            [ "$i" = 0 ] || printf ', '
            json_text "${notes[$i]}"
        done
        printf ']}\n'
    } >"$out/machine.json"
}

# leave: the status becomes 1 if a test failed
leave() {
    local status=$?
    trap '' TERM INT HUP
    trap - EXIT
    # shellcheck disable=SC2046 # one word for each process that this script still runs
    kill $(jobs -p) 2>/dev/null
    [ $keep_models = 1 ] || rm -rf "$models"
    write_json
    if command -v python3 >/dev/null; then
        timeout -k 5 30 python3 tools/bench/gpu_table.py "$out" || [ $status != 0 ] || status=1
    else
        cat "$out/tests.json"
    fi
    ! grep -q '"failed"' "$out/tests.json" || [ $status != 0 ] || status=1
    tar -czf "$out.tar.gz" --exclude=models -C "${out%/*}" "${out##*/}" &&
        say "all results: $out.tar.gz ($(du -h "$out.tar.gz" | cut -f 1))"
    exit $status
}
trap leave EXIT
exec {stdout}>&1 # a signal may come while it is a log
trap 'exec >&"$stdout" 2>&1; note "ended by a signal"; exit 143' TERM INT HUP

# ---- tests ----

tests_end=$((limit / 2))
only_tests='^(contact|sanitize|tests|,)*$'
! [[ $parts =~ $only_tests ]] || tests_end=$limit

# record NAME STATUS SECONDS LOG
record() {
    local result=failed
    [ "$2" = 0 ] && result=passed
    [ "$2" = 77 ] && result=skipped
    [ "$2" = 124 ] && result=unfinished
    results+=("{\"name\": $(json_text "$1"), \"result\": \"$result\", \"seconds\": $3, \"log\": $(json_text "${4##*/}")}")
    say "$1: $result ($3 s)"
    [ $result != failed ] || tail -n 15 "$4" | sed 's/^/      /'
}

# tests_left NAME: whether there is time for another test
tests_left() {
    [ $((SECONDS + 5)) -gt "$tests_end" ] || return 0
    note "$1: left out, the tests' $tests_end seconds were over"
    return 1
}

# sanitizer_refuses STATUS LOG: compute-sanitizer does not run here, as in some virtual machines. What it has run
# ends with a summary.
sanitizer_refuses() {
    [ -n "${SPW_SANITIZER:-}" ] && [ "$1" != 0 ] && [ "$1" != 124 ] && ! grep -q 'ERROR SUMMARY' "$2"
}

# check NAME SECONDS COMMAND...: runs a command as a test; status 77 means skipped
check() {
    local name=$1 most=$2 start=$SECONDS status log=$out/$1.log
    shift 2
    tests_left "$name" || return
    [ "$most" -le $((tests_end - SECONDS)) ] || most=$((tests_end - SECONDS))
    limited "$most" "$@" >"$log" 2>&1
    status=$?
    [ $status != 124 ] || echo "ended after $most seconds" >>"$log"
    ! sanitizer_refuses $status "$log" || status=77
    record "$name" $status $((SECONDS - start)) "$log"
}

# The first minute: do the programs start, is there a GPU, which one?
say "looking for a GPU"
ldd "$spillway" >"$out/ldd.log" 2>&1
"$spillway" --version >"$out/version.log" 2>&1 ||
    die "$spillway does not start here: $(tail -n 1 "$out/version.log") $(grep 'not found' "$out/ldd.log" | tr -s '\t\n' ' ')"
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
memory=$(awk '/^MemAvailable/ { printf "%.0f GiB available", $2 / 1048576 }' /proc/meminfo)
timeout -k 5 20 nvidia-smi >"$out/nvidia_smi.log" 2>&1
# Without code for this card the driver compiles all kernels first, in silence.
if ! timeout -k 5 120 "$spillway" plan models/records --device cuda --no-probe --json \
    >"$out/plan.log" 2>&1; then
    note "no GPU that spillway can use: $(tail -n 1 "$out/plan.log")"
    exit 77
fi
gpu=$(timeout -k 5 20 nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
say "${gpu:-a GPU; nvidia-smi is not here}"

# Without a persistent driver the first process initializes the card, which takes one to three seconds. A
# process that takes no memory keeps a context for the whole script, as long as its stdin is open.
exec {context}> >(exec timeout -k 5 $((limit + 120)) "$build/gpu_hog" 1000000000000000 >/dev/null 2>&1)

# run_spillway ARGUMENTS...: at most a minute; a run that hangs must not stop the script
run_spillway() {
    limited 60 "$spillway" "$@"
}

# A generation to compare with. CPU and GPU differ in the last bits, but one GPU always gives the same bits.
seq 1 1500 | awk '{ print ($1 * 7919) % 700 }' >"$out/ids.txt"
model=models/records # what `generate` and plans are of
generate() { # REPORT OPTIONS...
    local report=$1
    shift
    run_spillway generate "$model" --token-ids "$out/ids.txt" --ids --ignore-eos \
        --max-new-tokens 32 --drafts off --device cuda --report "$report" "$@"
}
hash_of() { # REPORT
    sed -n 's/.*"logits_hash": "\([0-9a-f]*\)".*/\1/p' "$1"
}
same_hash() { # A B
    echo "logits: $(hash_of "$1") and $(hash_of "$2")"
    [ -n "$(hash_of "$1")" ] && [ "$(hash_of "$1")" = "$(hash_of "$2")" ]
}

hog_comes() { # LEAVE_BYTES: starts the other process, which takes nothing yet
    coproc HOG { exec timeout -k 5 "$limit" "$build/gpu_hog" "$1"; }
    local line
    read -r -t 60 line <&"${HOG[0]}" && [ "$line" = ready ]
}
hog_takes() {
    local line
    echo >&"${HOG[1]}" && read -r -t 60 line <&"${HOG[0]}" &&
        echo "another process has ${line#taken } bytes"
}
hog_leaves() {
    local pid=$HOG_PID fd=${HOG[1]}
    exec {fd}>&-
    wait "$pid"
}

# A run that fits beside the other process gives the same answer. A run that does not fit is refused.
beside_another_process() {
    local status
    generate "$out/alone.json" >/dev/null || return
    hog_comes $((2 << 30)) && hog_takes || return 1 # the context of a process alone is half a GiB
    generate "$out/beside.json" >/dev/null
    status=$?
    run_spillway generate models/records --token-ids "$out/ids.txt" --ids --device cuda \
        --device-memory 4GiB 2>"$out/refused.txt" >/dev/null
    local refused=$?
    hog_leaves
    cat "$out/refused.txt"
    echo "beside it: exit $status; 4 GiB where 2 GiB are free: exit $refused, expected 2"
    [ $status = 0 ] && [ $refused = 2 ] && grep -q 'free; lower --device-memory' "$out/refused.txt" &&
        same_hash "$out/alone.json" "$out/beside.json"
}

generate_text() { # REPORT: as text, which appears token by token
    run_spillway generate models/records --token-ids "$out/ids.txt" --ignore-eos \
        --max-new-tokens 2000 --device cuda --device-memory 64MiB --report "$1"
}

# The other process takes memory while tokens are generated. Nothing changes: spillway took its memory at open.
while_generating() {
    local pid status i in_time=0
    generate_text "$out/long.json" >/dev/null || return
    hog_comes $((64 << 20)) || return 1
    generate_text "$out/disturbed.json" >"$out/disturbed.txt" &
    pid=$!
    for ((i = 0; i < 600; i++)); do
        [ ! -s "$out/disturbed.txt" ] || break
        sleep 0.05
    done
    hog_takes && kill -0 $pid 2>/dev/null && in_time=1
    wait $pid
    status=$?
    hog_leaves
    [ $status = 0 ] && same_hash "$out/long.json" "$out/disturbed.json" || return 1
    [ $in_time = 1 ] || { echo "the other process came too late" && return 77; }
}

# smallest TIER OPTIONS...: the smallest budget of that tier for the generation, in bytes
smallest() {
    local tier=$1
    shift
    run_spillway plan "$model" --context 1532 --device cuda --no-probe --json "$@" |
        sed -n '/"smallest_bytes"/,/}/s/.*"'"$tier"'": \([0-9]*\).*/\1/p'
}
least_budget() {
    smallest device
}
# A host budget that leaves most of the KV to the disk.
host_beside_disk() { # DEVICE_BUDGET DIR
    smallest host --device-memory "$1" --disk "$2" --disk-memory 256MiB
}

# Every budget gives the same logits, from the smallest budget on.
budgets() {
    local budget least
    [ -s "$out/alone.json" ] || generate "$out/alone.json" >/dev/null || return
    least=$(least_budget) && [ -n "$least" ] || return 1
    for budget in "$least" $((least + 200000)) $((2 * least)) $((8 * least)); do
        generate "$out/budget.json" --device-memory "$budget" --host-memory 1GiB >/dev/null || return
        echo "$budget bytes"
        same_hash "$out/alone.json" "$out/budget.json" || return 1
    done
}

run_check() { # NAME FUNCTION ARGUMENTS...: of this script
    local name=$1 start=$SECONDS log=$out/$1.log
    shift
    tests_left "$name" || return
    "$@" >"$log" 2>&1
    record "$name" $? $((SECONDS - start)) "$log"
}

sanitize() {
    local tool test sanitizer
    local -x SPW_SANITIZER=1 # tests then draw less, and measure nothing
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$sanitizer" ]; then
        note "compute-sanitizer is not here: memcheck, racecheck and synccheck were not run"
        return
    fi
    head -n 300 "$out/ids.txt" >"$out/few_ids.txt"
    for tool in memcheck racecheck synccheck; do
        for test in gpu_products gpu_ops_codes gpu_ops_experts gpu_ops_rows gpu_ops_rope_append gpu_ops_attention; do
            [ ! -x "$build/$test" ] || check "${tool}_$test" 60 "$sanitizer" --tool $tool --error-exitcode 9 "$build/$test"
        done
    done
    for tool in memcheck racecheck; do
        check "${tool}_generate" 60 "$sanitizer" --tool $tool --error-exitcode 9 "$spillway" generate \
            models/records --token-ids "$out/few_ids.txt" --ids --max-new-tokens 3 --device cuda
    done
}

# launch_orders NAME OPTIONS...: the logits are the same when kernels overlap, with --serial-kernels, when
# each launch ends before the next call (then no copy into a slot is queued while a kernel may read the
# slot), and when every kernel writes late.
launch_orders() {
    local name=$1 report=$out/$1
    shift
    generate "$report.json" "$@" >/dev/null || return
    grep -A 1 -E '"(host_to_device|disk_to_host)"' "$report.json"
    generate "${report}_serial.json" --serial-kernels "$@" >/dev/null || return
    CUDA_LAUNCH_BLOCKING=1 generate "${report}_blocking.json" "$@" >/dev/null || return
    same_hash "$report.json" "${report}_serial.json" || return 1
    same_hash "$report.json" "${report}_blocking.json" || return 1
    [ -x "${spillway}_late" ] || { echo "spillway_late is not here" && return; }
    spillway=${spillway}_late generate "${report}_late.json" "$@" >/dev/null || return
    same_hash "$report.json" "${report}_late.json"
}

multiplied_of() { # REPORT: bytes that the CPU has multiplied in host memory
    sed -n 's/.*"host_multiplied_bytes": \([0-9]*\).*/\1/p' "$1"
}

# host_compute NAME BUDGET: the logits are the same where the CPU multiplies weights in host memory, and where all
# weights cross the link. Skipped if it multiplies none: weights in bf16, or a link that is as fast.
host_compute() {
    local on=$out/$1_host_on.json off=$out/$1_host_off.json
    generate "$on" --device-memory "$2" --host-compute auto >/dev/null || return
    generate "$off" --device-memory "$2" --host-compute off >/dev/null || return
    echo "the CPU multiplied $(multiplied_of "$on") bytes, and $(multiplied_of "$off") with --host-compute off"
    [ "$(multiplied_of "$off")" = 0 ] && same_hash "$on" "$off" || return 1
    [ "$(multiplied_of "$on")" != 0 ] || return 77
}

# The smallest budget, which streams weights and KV, and moves experts; twice the smallest; all on the card. All
# give the same logits, with and without the products of the CPU.
placed_launch_orders() { # NAME
    local least place
    least=$(least_budget) && [ -n "$least" ] || { note "launch orders of $model: no plan" && return; }
    run_check "$1_card" launch_orders "$1_card"
    run_check "$1_kv" launch_orders "$1_kv" --device-memory $((2 * least))
    run_check "$1_weights" launch_orders "$1_weights" --device-memory "$least"
    for place in kv weights; do
        [ ! -s "$out/$1_$place.json" ] || run_check "$1_card_and_$place" same_hash "$out/$1_card.json" "$out/$1_$place.json"
    done
    run_check "$1_host_compute" host_compute "$1" "$least"
}

# The same for bf16, quantized weights and experts; and old KV on disk, or as int8.
all_launch_orders() {
    local least name disk=$out/disk
    placed_launch_orders orders
    for name in records256 records-experts; do
        rm -f "$out/q4.gguf"
        run_spillway quantize models/$name "$out/q4.gguf" --type q4_0 >"$out/quantize_$name.log" 2>&1
        model=$out/q4.gguf placed_launch_orders "orders_q4_$name"
    done
    rm -f "$out/q4.gguf"
    model=models/records-experts placed_launch_orders orders_experts
    least=$(least_budget) && [ -n "$least" ] || return
    mkdir -p "$disk"
    run_check orders_disk launch_orders orders_disk --device-memory "$least" \
        --disk "$disk" --disk-memory 256MiB --host-memory "$(host_beside_disk "$least" "$disk")"
    run_check orders_int8 launch_orders orders_int8 --device-memory $((2 * least)) --kv-dtype int8 \
        --residual-window 256
    rm -rf "$disk"
}

run_test() { # NAME SECONDS
    local done_test
    for done_test in "${tests_done[@]}"; do
        [ "$done_test" != "$1" ] || return
    done
    tests_done+=("$1")
    [ ! -x "$build/$1" ] || check "$1" "$2" "$build/$1"
}

tests_done=(gpu_hog)
if wanted contact; then
    check self_test 30 "$spillway" inspect --self-test --device cuda
    for test in gpu_device gpu_ops_linear gpu_ops_codes gpu_products gpu_products_rings gpu_first_contact; do
        run_test $test 25
    done
fi
! wanted sanitize || sanitize
if wanted tests; then # first what tells most
    for test in gpu_device gpu_ops_linear gpu_ops_codes gpu_products gpu_first_contact gpu_ops_rows gpu_ops_rope_append gpu_codec gpu_ops_attention gpu_goldens gpu_card; do
        run_test $test 60
    done
    all_launch_orders
    for test in "$build"/gpu_*; do
        run_test "${test##*/}" 60
    done
    run_check second_process beside_another_process
    run_check memory_taken_meanwhile while_generating
    run_check budgets budgets
fi

# ---- speed ----

# keep_working MODEL CONTEXT BUDGET,... OPTIONS...: sets `budgets` to those that this machine can give; 0 means all
keep_working() {
    local budget
    budgets=''
    for budget in ${3//,/ }; do
        local given=(--device-memory "$budget")
        [ "$budget" != 0 ] || given=()
        if run_spillway plan "$1" --context "$2" --device cuda "${given[@]}" "${@:4}" --no-probe \
            >"$out/plan.log" 2>&1; then
            budgets=$budgets${budgets:+,}$budget
        else
            note "${1##*/}, $2 tokens, device budget $budget: left out: $(tail -n 1 "$out/plan.log")"
        fi
    done
    [ -n "$budgets" ]
}

# bench NAME MODEL SECONDS CONTEXTS BUDGETS OPTIONS...
bench() {
    local name=$1 model=$2 needed=$3 start=$SECONDS status budgets
    if ! seconds_left "$needed"; then
        note "bench $name: left out, it takes about $needed seconds and $((limit - SECONDS)) were left"
        return
    fi
    keep_working "$model" "${4##*,}" "$5" "${@:6}" || return
    limited $((limit - SECONDS)) "$spillway" bench "$model" --device cuda --random-tokens \
        --repeat 1 --decode-tokens 16 --contexts "$4" --budgets "$budgets" "${@:6}" \
        --report "$out/bench_$name.json" >"$out/bench_$name.log" 2>&1
    status=$?
    say "bench $name: exit $status ($((SECONDS - start)) s)"
    ! grep -q 'refused to pin' "$out/bench_$name.log" ||
        note "bench $name: $(grep -m 1 -o 'the system refused to pin.*' "$out/bench_$name.log")"
    [ $status = 0 ] || note "bench $name failed: $(tail -n 1 "$out/bench_$name.log")"
}

# bench_small NAME MODEL SECONDS CONTEXTS GIB OPTIONS...: as a card of GIB would do: another process takes the rest of
# this one, but for the kernels and streams beside a budget. With and without products of the CPU.
bench_small() {
    local host
    if ! hog_comes $((($5 + 1) << 30)) || ! hog_takes; then
        note "bench $1: left out, the rest of the card could not be taken"
        return
    fi
    for host in auto off; do
        bench "$1_$5_$host" "$2" "$3" "$4" "$5GiB" --host-compute $host "${@:6}"
    done
    hog_leaves
}

make_model() { # NAME CONFIG
    [ -s "$models/$1/config.json" ] && return
    mkdir -p "$models"
    say "making random weights of $1 in $models"
    limited $((limit - SECONDS)) python3 tools/make_random_model.py "tools/bench/$2" "$models/$1" \
        >"$out/make_$1.log" 2>&1 && return
    note "$1: could not be made: $(tail -n 1 "$out/make_$1.log")"
    return 1
}

make_gguf() { # NAME OPTIONS...
    [ -s "$models/$1.gguf" ] && return
    mkdir -p "$models"
    say "writing random weights of $1 to $models"
    limited $((limit - SECONDS)) python3 tools/bench/random_gguf.py "$models/$1.gguf" "${@:2}" >"$out/make_$1.log" 2>&1 && return
    rm -f "$models/$1.gguf"
    note "$1: could not be made: $(tail -n 1 "$out/make_$1.log")"
    return 1
}

# compare CONTEXT: decoding compared with transformers, 1B shape
compare() {
    local n=$1 status
    seconds_left 90 || { note "transformers at $n tokens: left out, too few seconds were left" && return; }
    seq 1 "$n" | awk '{ print ($1 * 7919) % 128000 }' >"$out/ids_$n.txt"
    limited $((limit - SECONDS)) python3 tools/bench/hf_offloaded.py "$models/1b" --token-ids "$out/ids_$n.txt" \
        --new-tokens 17 --json "$out/hf_$n.json" >"$out/hf_$n.log" 2>&1
    status=$?
    [ $status = 0 ] || { note "transformers at $n tokens: $(tail -n 1 "$out/hf_$n.log")" && return; }
    limited $((limit + 20 - SECONDS)) "$spillway" generate "$models/1b" --token-ids "$out/ids_$n.txt" --ids --ignore-eos \
        --max-new-tokens 17 --drafts off --device cuda --device-memory 4GiB --report "$out/spillway_$n.json" \
        >"$out/spillway_$n.log" 2>&1 || note "spillway beside transformers: $(tail -n 1 "$out/spillway_$n.log")"
}

measure() {
    local gib
    if ! command -v python3 >/dev/null; then
        note "python3 is not here: no models with random weights, so no speed"
        return
    fi
    if { wanted 1b || wanted io || wanted compare; } && make_model 1b llama-3.2-1b.json && wanted 1b; then
        bench 1b "$models/1b" 60 8192,32768,130944 0,4GiB
    fi
    if wanted q && make_gguf 1b-q4_k --type q4_k --shape 1b; then
        bench 1b_q "$models/1b-q4_k.gguf" 30 8192 0
    fi
    if wanted q && make_gguf 8b-q4_k --type q4_k --shape 8b; then
        bench q "$models/8b-q4_k.gguf" 40 8192 0
        bench_small q "$models/8b-q4_k.gguf" 40 8192 4
    fi
    if wanted moe && make_gguf 30b-a3b-q4_k --type q4_k --shape 30b-a3b; then
        bench moe "$models/30b-a3b-q4_k.gguf" 60 2048 0
        for gib in 12 8 4; do
            bench_small moe "$models/30b-a3b-q4_k.gguf" 40 2048 $gib
        done
    fi
    if wanted 8b && ! seconds_left 150; then
        note "8b: left out, it takes about 150 seconds and $((limit - SECONDS)) were left"
    elif wanted 8b && make_model 8b llama-3.1-8b.json; then
        bench 8b "$models/8b" 60 8192,32768 0,24GiB,8GiB,4GiB
        bench 8b_128k "$models/8b" 90 130944 0,24GiB
    fi
    # 1 GiB of KV: about three quarters of it on disk
    ! wanted io || bench disk "$models/1b" 60 32768 3GiB --disk "$models" --host-memory 512MiB
    wanted compare || return
    if python3 -c 'import torch, transformers' 2>/dev/null; then
        compare 32768
        compare 130944
    else
        note "python3 here has no torch and transformers: no comparison"
    fi
}
[[ $parts =~ $only_tests ]] || measure
exit 0 # by way of leave
