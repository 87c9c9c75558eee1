#!/usr/bin/env bash
# Installs missing packages, builds the program and runs the tests. A fresh Debian 12 needs nothing else.
#
#     tools/test.sh                  all stages, as CI runs them: 10 to 20 minutes on two cores
#     tools/test.sh --full           all stages with all tests and all draws: about an hour
#     tools/test.sh --quick          the stages check and release
#     tools/test.sh [--full] STAGE...    some of the stages
#
# Stages. Each stage adds to the last line, `N passed, N failed, N skipped`:
#     check     format of the sources; direction of the includes between folders
#     release   optimized build, in build/ci; the tests
#     debug     AddressSanitizer and UndefinedBehaviorSanitizer
#     tsan      ThreadSanitizer; the tests with threads
#     fuzz      every fuzz target, from its committed seeds; clang compiles the library for it
#     cuda      nvcc compiles every kernel (in the release build where nvcc is found, else skipped);
#               cuobjdump shows what it made of them, where it is found (tools/check_sass.sh)
#
# What only --full does: every draw of the property tests, every step of the fault sweeps and a context of
# 100,000 tokens (SPW_FULL, tests/check.h), every golden model on the emulated GPU, its twins of tests that the
# CPU passes too, all tests under the sanitizers, the kernels of all instruction sets under AddressSanitizer, all
# kernels, the tests and all checks under UndefinedBehaviorSanitizer, optimized GPU code for all architectures.
#
# Draws. Without --full the seed of all tests follows from the commit: the same commit, the same draws, so a run before
# a commit is sent says what the next run says. A full run draws anew. SPW_SEED=N sets the seed of both.
#
# A stage that does not build counts as failed, and so does a stage without a test. Build output
# goes to build/log/. Exit status: 0 when nothing failed.
set -u -o pipefail

cd "$(dirname "$0")/.." || exit 1
. tools/lib/setup.sh

all_stages=(check release debug tsan fuzz cuda)
folders=(base quant offload prefetch model runtime tools tests)
jobs=4 build_jobs=2 # most tests wait: for drives, clocks, processes, other threads
full=          # --full: "yes"
all_kernels=() # of cmake, with --full: sanitizers see the kernels of all instruction sets
fuzz_seconds=4 # of each target; 15 in a full run
test_seconds=600 # limit of one test, several times what a quiet machine takes; 1800 in a full run
slowest=20
format_version=14 # of clang-format: versions differ in what they want

# Tests that only a full run does, as extended regular expressions of whole names.
# On the emulated GPU CI runs the kernels, the device, the runtime, whole models and their placement.
# The other twins run the same host code as the test on the CPU.
full_release='test_package|test_page|test_cuda_(budgets|disk_faults|expert_order|faults|interrupt|replan|weight_sums)'
# Under AddressSanitizer CI runs what computes addresses: parsers, tiles, I/O, kernels, failing allocations and
# drives, and walks over the whole engine (test_engine). One test of the whole command stays. The other programs
# take longer there than all of these, and prove results, which the release stage proves. A new test is in until
# a list names it. ctest accepts nine pairs of parentheses at most.
full_debug="$full_release|jinja_differential|tokenizer_property"
full_debug+='|test_(batch|bench|cache|generate|plan|prefix|quantize|quantized|save)_command'
full_debug+='|test_(chat|check_kv|drive|gate|interrupt|job_terminal|memory_limit|on_oom|summarize|summarize_kills)'
full_debug+='|test_cuda_(card|engine|gguf|goldens|ops_chosen|quantized_weights|self_test)'
full_debug+='|test_(beams|checkpoints|batch_kills|batch_logprobs|batch_many|batch_prompts|bf16|budgets|cut|divergence|drafts|events'
full_debug+='|expert_order|expert_profile|expert_residency|fingerprint|goldens|hidden|job_progress|lines|ops_chosen'
full_debug+='|plan|power_loss|predict|prefix|prefix_harm|random_model|replan|rope|sampler|save|schedule|session'
full_debug+='|pause|shared_prompts|shares|splits|stored_weights|summarize_plan|traffic|types|weight_sums)'
# ThreadSanitizer never runs tests of one thread, nor tests that measure the machine or the drive.
never_tsan='check_.*|jinja_differential|json_schemas|tokenizer_property|test_(config|rope|safetensors|sampler)'
never_tsan+='|test_(stop|random_model|jinja|chat_template|pack|prefix|prefix_store|prefix_harm|cache_command)'
never_tsan+='|test_ops_(attention|rows)|test_cuda_(codec|ops_attention|ops_chosen|ops_codes|ops_linear|ops_rows|products|refused|self_test)'
never_tsan+='|test_(codec|command|check_kv|drive|chat|gate|on_oom|fingerprint|ops_linear|plan)|test_.*_command|test_tokenizer_.*'
never_tsan+='|test_splits|test_cuda_(budgets|disk_faults|engine|expert_order|faults|gguf|goldens|interrupt|replan|weight_sums)'
never_tsan+='|test_(blocks|cache_policy|chat_history|convert|cut|divergence|documents|errors|expert_profile|expert_replay'
never_tsan+='|expert_residency|fallback|gguf_config|gguf_header|gguf_tokenizer|hidden|instructions|isas|job_terminal|json|lines'
never_tsan+='|logits_row|mutated_gguf|packed_blocks|predict|progress_text|reasoning|record|request|saved_run|schedule|self_test|special_tokens|split'
never_tsan+='|summarize_plan|summarize_kills|topology|types|waterline)|openai_records|serve_answers|gguf_models|special_tokens' # the threads of test_summarize
# An engine has threads of the device, of copies, of I/O and of kernels. test_engine and test_batch start all of these.
# They also interrupt steps, save and fork sessions. The tests of this list start the same threads.
full_tsan='test_(batch_drafts|beams|checkpoints|cuda_encoder|draft_kinds|cuda_ops_experts|cuda_ops_rope_append|cuda_ops_state|ops_state|batch_kills|batch_logprobs|batch_many|batch_prompts|bf16|budgets|cuda_card'
full_tsan+='|cuda_quantized_weights|disk_faults|drafts|expert_order|faults|gguf|gguf_ollama|goldens|interrupt|io_rules|kept|memory_group|memory_limit'
full_tsan+='|mutated_folders|ops_codes|ops_experts|ops_rope_append|power_loss|quantized_weights|replan|save|session'
full_tsan+='|pause|shared_disk|shared_prompts|shares|store|stored_weights|summarize|traffic|weight_sums|weights)'

passed=0 failed=0 skipped=0
timings=

count() { # count passed|failed|skipped N
    printf -v "$1" %d $((${!1} + $2))
}

configure_and_build() { # PRESET: a build that fails counts as one
    build "$1" || { count failed 1 && return 1; }
}

# The sanitizers of gcc 12 need an address space that is not too random, which some kernels' is.
fixed_addresses=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_addresses=(setarch "$(uname -m)" -R)
fi

# build_tests PRESET LEFT_OUT: the command and the programs of all tests that do not match the regular
# expression LEFT_OUT. Other programs would only take compile time.
build_tests() {
    local -a programs
    configure "$1" || return
    mapfile -t programs < <(ctest --test-dir "build/$1" -N -E "$2" |
        sed -nE 's/^.*: (test_[a-z0-9_]+)$/\1/p')
    compile "$1" spillway_command "${programs[@]}"
}

build_and_test() { # PRESET LEFT_OUT
    build_tests "$1" "$2" || { count failed 1 && return 1; }
    run_tests "$1" -E "$2"
}

# run_tests PRESET [CTEST OPTIONS...]
run_tests() {
    local results=build/log/$1.xml suite n n_failed n_skipped pairs=${!#}
    pairs=${pairs//[^(]/}
    say "$1: testing"
    if [ ${#pairs} -gt 9 ]; then # ctest would leave out nothing
        echo "failed: the pattern of tests to leave out has ${#pairs} pairs of parentheses, ctest accepts nine"
        count failed 1
        return
    fi
    rm -f "$results"
    "${fixed_addresses[@]}" ctest --test-dir "build/$1" -j $jobs --no-tests=error --timeout $test_seconds \
        --output-on-failure --output-junit "$PWD/$results" "${@:2}"
    slowest_tests "$results"
    suite=$(tr '\n' ' ' <"$results" 2>/dev/null | grep -oE '<testsuite [^>]*>')
    n=$(attribute "$suite" tests)
    n_failed=$(attribute "$suite" failures)
    n_skipped=$(($(attribute "$suite" skipped) + $(attribute "$suite" disabled)))
    if [ "$n" = 0 ]; then
        echo "failed: ctest ran no test"
        n_failed=1 n=1
    fi
    count passed $((n - n_failed - n_skipped))
    count failed "$n_failed"
    count skipped "$n_skipped"
}

# slowest_tests RESULTS: the tests that took longest, from the file that ctest wrote
slowest_tests() {
    say "slowest tests, seconds:"
    sed -nE 's/.*<testcase name="([^"]*)".* time="([0-9.]+)".*/\2 \1/p' "$1" 2>/dev/null |
        sort -rn | head -n $slowest | while read -r seconds name; do
        printf '   %8.1f  %s\n' "$seconds" "$name"
    done
}

# leave_out NEVER FULL: prints a pattern of tests to leave out; tests that match FULL run with --full
leave_out() {
    if [ -n "$full" ]; then echo "^($1)\$"; else echo "^($1|$2)\$"; fi
}

attribute() { # ELEMENT NAME: its number, 0 where it has none
    local value
    value=$(sed -nE "s/.*[[:space:]]$2=\"([0-9]+)\".*/\1/p" <<<"$1")
    echo "${value:-0}"
}

stage_check() {
    local version
    version=$(clang-format --version | grep -oE 'version [0-9]+')
    if [ "$version" != "version $format_version" ]; then
        say "check: format: skipped, clang-format is of $version, not $format_version"
        count skipped 1
    elif find "${folders[@]}" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0 |
        xargs -0 -n 100 -P "$(nproc)" clang-format --dry-run --Werror --ferror-limit=1; then
        say "check: format: as .clang-format has it"
        count passed 1
    else
        echo "failed: the files above are not formatted; clang-format -i FILE does it"
        count failed 1
    fi
    if tools/check_layers.sh; then
        say "check: includes in the one direction, texts of the library without options of the command"
        count passed 1
    else
        echo "failed: the includes above are against the direction of the folders, or texts name options of the command"
        count failed 1
    fi
}

# The option of nvcc for its fastest compilation, where it has one.
fast_nvcc() {
    if "${CUDACXX:-nvcc}" --help 2>/dev/null | grep -e --Ofast-compile >/dev/null; then echo --Ofast-compile=max; fi
}

# In a folder of its own: nobody shall use or measure this GPU code, nor the kernels of the CPU that no test runs here.
build_release() {
    # Kernels tell apart 7.5, newer GPUs, and those from 9.0 on (__CUDA_ARCH__). One architecture takes a seventh of
    # nvcc's minutes, and without optimization a few seconds are left of these. No test runs this code.
    local build_options=("-DSPILLWAY_CUDA_ARCHITECTURES=90" "-DCMAKE_CUDA_FLAGS=$(fast_nvcc)")
    # Without a GPU its tests would be skipped. The emulated tests compile the same sources.
    nvidia-smi -L >/dev/null 2>&1 || build_options+=("-DSPW_GPU_TESTS=OFF")
    [ -z "$full" ] || build_options=(-U SPILLWAY_CUDA_ARCHITECTURES -U CMAKE_CUDA_FLAGS -U SPW_GPU_TESTS
        -DSPW_UNTESTED_KERNELS_QUICKLY=OFF)
    ! command -v "${CUDACXX:-nvcc}" >/dev/null || build_options+=("-DSPILLWAY_CUDA=ON") # also without a GPU
    configure_and_build ci
}

stage_release() {
    build_release && run_tests ci -E "$(leave_out none "$full_release")"
}

stage_debug() {
    local build_options=("${all_kernels[@]}")
    build_and_test debug "$(leave_out 'check_.*' "$full_debug")"
}

stage_tsan() {
    build_and_test tsan "$(leave_out "$never_tsan" "$full_tsan")"
}

# fuzz NAME: leaves build/log/NAME.passed where it found nothing
fuzz() {
    local corpus=build/fuzz/corpus/$1
    mkdir -p "$corpus"
    "${fixed_addresses[@]}" "build/fuzz/$1" -max_total_time=$fuzz_seconds -timeout=10 \
        -rss_limit_mb=2048 -artifact_prefix=build/fuzz/ "$corpus" \
        "tests/fuzz/seeds/${1#fuzz_}" >"build/log/$1.log" 2>&1 && touch "build/log/$1.passed"
}

stage_fuzz() {
    local target name
    local -a names=()
    local build_options=("${all_kernels[@]}")
    configure_and_build fuzz || return
    for target in tests/fuzz/fuzz_*.c; do
        name=$(basename "$target" .c)
        names+=("$name")
        say "fuzz: $name, $fuzz_seconds seconds from $(find "tests/fuzz/seeds/${name#fuzz_}" -type f | wc -l) seeds"
    done
    rm -f build/log/fuzz_*.passed
    for name in "${names[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge $jobs ]; do
            wait -n
        done
        fuzz "$name" &
    done
    wait
    for name in "${names[@]}"; do
        if [ -e "build/log/$name.passed" ]; then
            echo "$name: $(tail -n 1 "build/log/$name.log")"
            count passed 1
        else
            tail -n 60 "build/log/$name.log"
            echo "failed: $name: build/fuzz/$name FILE repeats it (all of its output: build/log/$name.log)"
            count failed 1
        fi
    done
}

stage_cuda() {
    local nvcc=${CUDACXX:-nvcc} version
    if ! command -v "$nvcc" >/dev/null; then
        say "cuda: skipped, there is no nvcc here: no kernel was compiled for a GPU"
        count skipped 1
        return
    fi
    build_release || return
    if grep -q '^SPILLWAY_CUDA:.*=OFF' build/ci/CMakeCache.txt ||
        ! ls build/ci/CMakeFiles/spillway.dir/offload/device/device_cuda.cu.o >/dev/null; then
        echo "failed: nvcc is here, but the release build has left CUDA out"
        count failed 1
        return
    fi
    version=$("$nvcc" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
    say "cuda: $(find build/ci/CMakeFiles/spillway.dir -name '*.cu.o' | wc -l) files, by nvcc $version"
    count passed 1
    check_machine_code
}

check_machine_code() {
    local -a objects
    mapfile -t objects < <(find build/ci/CMakeFiles/spillway.dir -name '*.cu.o')
    tools/check_sass.sh ${full:+--optimized} "${objects[@]}"
    case $? in
    0) say "cuda: kernels round to nearest${full:+, wait before they read, and do not spill}" && count passed 1 ;;
    77) say "cuda: machine code: skipped, there is no cuobjdump" && count skipped 1 ;;
    *) echo "failed: the machine code of the kernels above" && count failed 1 ;;
    esac
}

# A number of the files of the commit; of nothing outside a checkout.
seed_of_commit() {
    local tree
    tree=$(git rev-parse 'HEAD^{tree}' 2>/dev/null) && echo $((16#${tree:0:8}))
}

usage() {
    sed -n '2,/^set /{s/^# \{0,1\}//;/^set /d;p}' "$0"
}

main() {
    local stage start seed needs=$building_needs
    local -a stages=()
    for stage in "$@"; do
        case $stage in
        -h | --help) usage && exit ;;
        --quick) stages+=(check release) ;;
        --full)
            full=yes fuzz_seconds=15 test_seconds=1800 all_kernels=("-DSPW_PORTABLE_KERNELS=OFF")
            export SPW_FULL=1
            ;;
        *)
            [[ " ${all_stages[*]} " == *" $stage "* ]] ||
                die "$stage: no such stage; expected some of: ${all_stages[*]}"
            stages+=("$stage")
            ;;
        esac
    done
    [ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
    needs+=$script_needs
    [[ " ${stages[*]} " == *" check "* ]] && needs+=$format_needs
    [[ " ${stages[*]} " == *" fuzz "* ]] && needs+=$clang_needs
    install_packages "$needs"
    if [ -z "$full" ] && [ -z "${SPW_SEED:-}" ] && seed=$(seed_of_commit); then
        export SPW_SEED=$seed
        say "seed of all draws: $seed, from the commit"
    fi
    for stage in "${stages[@]}"; do
        start=$SECONDS
        "stage_$stage"
        timings+=" $stage $((SECONDS - start)),"
    done
    say "seconds:$timings together $SECONDS"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

main "$@"
