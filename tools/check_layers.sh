#!/usr/bin/env bash
# Enforces the one direction of includes between the folders:
#
#     tools, tests -> runtime -> prefetch -> offload -> quant -> base
#                        \-----> model ---------------> quant
#
# and inside runtime between its folders; no folder includes one beside it or above it, and no file includes itself over others:
#
#     dry -> batch, persist, measure -> engine -> step -> plan -> rules, experts
#
# A file of runtime/ itself that is no header stands above all of them; its headers are public, and include only each other.
# base/ may be included everywhere, tools may include public headers, base/json.h, base/grow.h and base/file.h only, tests may include anything,
# and no header may include one of CUDA's. The same for words: the texts of the library name members of struct spw_options
# ("options.context"), never options of the command ("--context"), and the command has a name for each such member.
# The command's names are those of members and options that exist.
#
#     tools/check_layers.sh [FOLDER]      this repository, or another tree of the same folders
#     tools/check_layers.sh --self-test   plants every kind of violation and looks whether it is found
#
# Prints a line for each include and text that is not allowed. Exit status: 0 none, 1 some, 2 bad usage.
set -u -o pipefail

folders=(base quant offload prefetch model runtime tools tests)

# What `cmake --install` puts down for programs to include; cmake/install.cmake adds what these include.
public=(base/base.h quant/types.h runtime/spillway.h runtime/events.h runtime/plan_query.h runtime/saved.h runtime/sampler.h runtime/measure.h
    runtime/experts.h
    runtime/engine/cache_policy.h model/audio/audio.h model/config/config.h model/fingerprint.h model/quantize.h model/source/source.h model/source/tensors.h
    model/text/answer_parts.h model/text/chat_template.h model/text/grammar/grammar.h model/text/reasoning.h model/text/tokenizer/tokenizer.h offload/store/store_info.h)

# may_include FROM PATH: FROM is one of the folders
may_include() {
    case $1:$2 in
    *..*) return 1 ;;
    tests:* | tools:tools/* | tools:base/json.h | tools:base/grow.h | tools:base/file.h | base:base/*) return 0 ;;
    tools:*) [[ " ${public[*]} " == *" $2 "* ]] && return 0 || return 1 ;;
    base:*) return 1 ;;
    runtime:runtime/* | runtime:prefetch/* | runtime:offload/* | runtime:model/*) return 0 ;;
    prefetch:prefetch/* | prefetch:offload/* | offload:offload/* | model:model/*) return 0 ;;
    *:quant/* | *:base/*) return 0 ;;
    esac
    return 1
}

# height FOLDER: of a folder of runtime, its place in the order above
height() {
    case $1 in
    rules | experts) echo 0 ;;
    plan) echo 1 ;;
    step) echo 2 ;;
    engine) echo 3 ;;
    batch | persist | measure) echo 4 ;;
    dry) echo 5 ;;
    *) echo "" ;;
    esac
}

# may_include_inside FILE PATH: both are of runtime
may_include_inside() {
    local from=${1#runtime/} to=${2#runtime/} above below
    [[ $to != */* ]] && return 0
    [[ $from != */* ]] && { [[ $from == *.h ]] && return 1 || return 0; }
    [ "${from%%/*}" = "${to%%/*}" ] && return 0
    above=$(height "${from%%/*}") below=$(height "${to%%/*}")
    [ -n "$above" ] && [ -n "$below" ] && [ "$above" -gt "$below" ]
}

# Prints a line for each circle of includes in runtime. A header, its .c and its _parts.h are one.
check_circles() {
    local file path
    grep -rE '^[[:space:]]*#[[:space:]]*include[[:space:]]+"runtime/' --include='*.[ch]' runtime 2>/dev/null |
        sed -E 's/:[^"]*"/ /; s/".*//' | sed -E 's/(_parts)?\.[ch]( |$)/\2/g' | awk '$1 != $2' |
        tsort 2>&1 >/dev/null | sed -n 's/^tsort: //; /^runtime/s/$/: a circle of includes/p'
}

is_ours() {
    local folder
    for folder in "${folders[@]}"; do
        [[ $1 == "$folder"/* ]] && return 0
    done
    return 1
}

is_cuda() {
    is_ours "$1" && [[ $1 != *.cuh ]] && return 1
    case $1 in
    cuda*.h | cuda/* | cublas* | cooperative_groups* | device_launch_parameters.h | mma.h) return 0 ;;
    *.cuh | nvtx* | nvToolsExt* | */cuda*.h | */cublas* | */nvToolsExt*) return 0 ;;
    esac
    return 1
}

library=(base quant offload prefetch model runtime)
option_names=tools/command/options/option_names.c
option_table=tools/command/options/option_table.c
options_struct=runtime/spillway.h

# Prints a line for each text of the library that names an option as only the command does, or as only the library does.
check_texts() {
    local files=(--include='*.[ch]' --include='*.cu' --include='*.cuh') file line text name
    while IFS=: read -r file line text; do
        echo "$file:$line: a text of the library may not name an option of the command: say options.MEMBER"
    done < <(grep -rnE '"[^"]*--[a-z]' "${files[@]}" "${library[@]}")
    while IFS=: read -r file line text; do
        for name in $(grep -oE '\<options\.[a-z_]+' <<<"$text"); do
            grep -qF "{\"${name#options.}\", " "$option_names" || echo "$file:$line: $option_names has no row for $name"
        done
    done < <(grep -rnoE '"([^"\\]|\\.)*"' "${files[@]}" "${library[@]}" | grep -E '\<options\.[a-z]')
}

# Prints a line for each row of the names whose member or whose option does not exist.
check_names() {
    local members line _ member option
    members=$(sed -n '/^struct spw_options {/,/^};/p' "$options_struct" 2>/dev/null)
    while IFS=':"' read -r line _ member _ option _; do
        grep -qE "[ *]$member[,;]" <<<"$members" || echo "$option_names:$line: struct spw_options has no $member"
        grep -qF "{\"${option#--}\", " "$option_table" || echo "$option_names:$line: the command has no $option"
    done < <(grep -nE '^ *\{"[a-z_]+", "--' "$option_names")
}

check() {
    local file line text path why n=0 bad=0 texts
    cd "$1" || return 2
    while IFS=: read -r file line text; do
        n=$((n + 1))
        path=${text#*[<\"]}
        path=${path%%[>\"]*}
        why=
        if [[ $text != *[\<\"]* ]]; then
            why="an include through a macro hides what is included"
        elif [[ $file == *.h ]] && is_cuda "$path"; then
            why="a header may not include one of CUDA's: $path"
        elif [[ $text == *\"* ]] || is_ours "$path" || [[ $path == *..* ]]; then
            may_include "${file%%/*}" "$path" || why="${file%%/*}/ may not include $path"
            [[ -z $why && $file == runtime/* && $path == runtime/* ]] && ! may_include_inside "$file" "$path" &&
                why="${file%/*}/ may not include $path"
        fi
        [ -z "$why" ] && continue
        bad=$((bad + 1))
        echo "$file:$line: $why"
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include\>' --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.cc' \
        "${folders[@]}" 2>/dev/null)
    texts=$(check_texts; check_names; check_circles)
    [ -n "$texts" ] && bad=$((bad + $(wc -l <<<"$texts"))) && echo "$texts"
    echo "$n includes, $bad includes and texts not allowed"
    # A check that looked at nothing has failed.
    [ "$n" -gt 0 ] && [ "$bad" = 0 ]
}

# expect STATUS FILE TEXT: the tree $dir, with FILE holding TEXT, passes or not
expect() {
    local found=0 out
    echo "$3" >"$dir/$2"
    out=$(check "$dir") || found=$?
    if [ "$found" != "$1" ] || { [ "$1" = 1 ] && [[ $out != *"$2:1: "* ]]; }; then
        echo "self-test: $2 with '$3': found status $found, expected $1: $out"
        failed=1
    fi
    rm "$dir/$2"
}

self_test() {
    local dir failed=0
    dir=$(mktemp -d)
    mkdir "${folders[@]/#/$dir/}" "$dir"/runtime/{rules,experts,plan,step,engine,batch,persist,measure,dry,new}
    mkdir -p "$dir/${option_names%/*}"
    echo '    {"context", "--context"},' >"$dir/$option_names"
    echo '    {"context", CLI_COUNT},' >"$dir/$option_table"
    printf 'struct spw_options {\n    uint64_t context;\n};\n' >"$dir/$options_struct"
    check "$dir" >/dev/null && failed=1 && echo "self-test: a tree without an include passes"
    echo '#include <stdio.h>' >"$dir/tests/test_a.c"
    expect 0 model/a.c '#include "base/base.h"'
    expect 0 model/a.c '#include "quant/tile.h"'
    expect 0 quant/a.c '#include "base/numbers.h"'
    expect 1 base/a.c '#include "quant/tile.h"'
    expect 1 tools/a.c '#include "base/numbers.h"'
    expect 0 tools/a.c '#include "base/json.h"'
    expect 0 runtime/a.c '#include "prefetch/ring.h"'
    expect 0 prefetch/a.h '#include "offload/device/device.h"'
    expect 0 tools/a.c '#include "runtime/spillway.h"'
    expect 0 tests/a.c '#include "model/forward.h"'
    expect 0 offload/a.cu '#include <cuda_runtime.h>'
    expect 1 offload/a.h '#include <cuda_runtime.h>'
    expect 0 model/a.cu '#include "quant/cuda.cuh"'
    expect 1 model/a.h '#include "quant/cuda.cuh"'
    expect 0 model/a.h '#include "model/cuda/ops_cuda.h"'
    expect 1 offload/a.c '#include "model/forward.h"'
    expect 1 offload/a.c '#  include <model/forward.h>'
    expect 1 offload/a.c '#include "prefetch/ring.h"'
    expect 1 prefetch/a.cu '#include "model/forward.h"'
    expect 1 model/a.h '#include "offload/device/device.h"'
    expect 1 model/a.c '#include "runtime/plan/plan.h"'
    expect 1 quant/a.c '#include "offload/device/device.h"'
    expect 1 runtime/a.c '#include "tools/command/common.h"'
    expect 1 runtime/a.c '#include "tests/check.h"'
    expect 0 runtime/open.c '#include "runtime/persist/prefix.h"'
    expect 0 runtime/batch/a.c '#include "runtime/spillway.h"'
    expect 0 runtime/batch/a.c '#include "runtime/engine/engine.h"'
    expect 0 runtime/dry/a.c '#include "runtime/batch/group.h"'
    expect 0 runtime/plan/a.h '#include "runtime/rules/cut.h"'
    expect 1 runtime/plan/a.h '#include "runtime/step/step.h"'
    expect 1 runtime/engine/a.c '#include "runtime/batch/batch_parts.h"'
    expect 1 runtime/engine/a.c '#include "runtime/persist/prefix.h"'
    expect 1 runtime/rules/a.c '#include "runtime/plan/plan.h"'
    expect 1 runtime/step/a.c '#include "runtime/engine/engine.h"'
    expect 1 runtime/batch/a.c '#include "runtime/persist/prefix.h"'
    expect 1 runtime/experts/a.c '#include "runtime/plan/plan.h"'
    expect 1 runtime/a.h '#include "runtime/engine/engine.h"'
    expect 1 runtime/new/a.c '#include "runtime/plan/plan.h"'
    expect 1 tools/a.c '#include "runtime/plan/plan.h"'
    expect 1 tools/a.c '#include "model/weights/weights.h"'
    expect 0 tools/a.c '#include "model/config/config.h"'
    expect 1 model/a.c '#include "layer.h"'
    expect 1 offload/a.c '#include "offload/../model/forward.h"'
    expect 1 model/a.c '#include WHAT'
    expect 1 base/a.c 'return "raise --context";'
    expect 1 offload/a.cu '"--disk");'
    expect 0 runtime/a.c 'return "raise options.context";'
    expect 1 runtime/a.h '"%d: raise options.contexts", e->options.context'
    expect 0 runtime/a.c 'n--; f("-- of %s", e->options.device_bytes)'
    expect 0 tools/a.c 'return "raise --context";'
    echo '#include "runtime/step/b.h"' >"$dir/runtime/step/a.h"
    echo '#include "runtime/step/a.h"' >"$dir/runtime/step/b.c"
    [[ $(check "$dir") == *"runtime/step/a: a circle of includes"* ]] || { failed=1 && echo "self-test: a circle passes"; }
    rm "$dir"/runtime/step/*
    expect 1 "$option_names" '    {"contexts", "--context"},'
    expect 1 "$option_names" '    {"context", "--contexts"},'
    rm -r "$dir"
    [ "$failed" = 0 ] && echo "self-test: every planted violation is found, nothing else"
}

case ${1-} in
--self-test) self_test ;;
-*) echo "usage: ${0##*/} [FOLDER | --self-test]" >&2 && exit 2 ;;
*) check "${1:-$(dirname "$0")/..}" ;;
esac
