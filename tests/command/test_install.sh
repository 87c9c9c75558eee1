#!/usr/bin/env bash
# test_install.sh BUILD CC CXX: what `cmake --install` puts down is complete. A program in C and one in C++
# can be built with it, in a tree that was moved, and they answer as the command does. The manual page and the
# completion have every option of every command. Installs what tools/demo.sh builds.
set -eu -o pipefail
build=$(realpath "$1") cc=$2 cxx=$3
model=models/records
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
source=$place/library_user.c # the program of the page about the library
sed -n '/^```c$/,/^```$/p' docs/library.md | sed '1d; $d' >"$source"

# Installs from a folder that has only what tools/demo.sh builds there, and the configuration.
target=$(sed -n 's/^build release \([a-z_]*\).*/\1/p' tools/demo.sh)
ninja -C "$build" -t commands "$target" >"$place/commands"
mkdir -p "$place/demo/pages"
for file in $(grep -oE "\"$build/[^\"\$]*\"" "$build/cmake_install.cmake" | tr -d '"'); do
    name=${file#"$build"/}
    if [ "$name" = spillway.pc ] || grep -qE "[ /]${name//./\\.}( |\$)" "$place/commands"; then
        cp -P "$file" "$place/demo/$name"
    fi
done
sed "s|$build|$place/demo|g" "$build/cmake_install.cmake" >"$place/demo/cmake_install.cmake"
cmake --install "$place/demo" --prefix "$place/third" >/dev/null
xargs -d '\n' rm <"$place/demo/install_manifest.txt" # as docs/install.md uninstalls it
[ -z "$(find "$place/third" -type f)" ] || { echo "not uninstalled:" && find "$place/third" -type f && exit 1; }
DESTDIR=$place/first cmake --install "$place/demo" --prefix /usr >/dev/null

# Without a GPU the build spends no time on GPU code, even where there is nvcc, and says so.
mkdir "$place/bin"
printf '#!/bin/sh\nexit 9\n' >"$place/bin/nvidia-smi"
cp "$place/bin/nvidia-smi" "$place/bin/nvcc" && chmod +x "$place"/bin/*
PATH=$place/bin:$PATH CUDACXX=$place/bin/nvcc CC=$cc cmake -S . -B "$place/auto" -G Ninja -DBUILD_TESTING=OFF >"$place/says"
grep -q -e '^-- CUDA: left out, found no GPU;' "$place/says" || { cat "$place/says" && exit 1; }
mv "$place/first/usr" "$place/second"
pc=$(dirname "$(find "$place/second" -name spillway.pc)")
read -ra shared <<<"$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs spillway)"
# shellcheck disable=SC2046 # names of packages are words
read -ra needs <<<"$(pkg-config --libs $(PKG_CONFIG_PATH=$pc pkg-config --print-requires-private spillway)) \
    $(sed -n 's/^Libs.private: //p' "$pc/spillway.pc")"
static=("${shared[@]/#-lspillway/-l:libspillway.a}" "${needs[@]}")
[[ "${shared[*]}" != *jansson* ]] || { echo "users of the shared library link: ${shared[*]}" && exit 1; }
warnings=(-Wall -Wextra -Wpedantic -Werror)
"$cc" -std=c17 "${warnings[@]}" "$source" "${static[@]}" -o "$place/c"
"$cxx" -std=c++17 "${warnings[@]}" -x c++ "$source" -x none "${static[@]}" -o "$place/cxx"
"$cc" -std=c17 "${warnings[@]}" "$source" "${shared[@]}" -Wl,-rpath,"$(dirname "$pc")" -o "$place/shared"

# The instructions of summarize, for users who change a copy of them.
diff -r tools/command/job/summarize/instructions "$place/second/share/spillway/instructions"

# Each installed header compiles alone, in C and in C++, with nothing but the installed headers. The main one stands
# on the standard headers and three of plain types.
read -ra flags <<<"$(PKG_CONFIG_PATH=$pc pkg-config --cflags spillway)"
include=$(find "$place/second/include" -name spillway.h) include=${include%/runtime/spillway.h} n=0
while read -r header; do
    n=$((n + 1))
    echo "#include \"${header#"$include"/}\"" >"$place/alone.c"
    "$cc" -std=c17 "${warnings[@]}" -fsyntax-only "${flags[@]}" "$place/alone.c"
    "$cxx" -std=c++17 "${warnings[@]}" -fsyntax-only -x c++ "${flags[@]}" "$place/alone.c"
done < <(find "$include" -name '*.h')
[ "$n" -ge 15 ] || { echo "found only $n headers"; exit 1; }
others=$(grep -E '^ *# *include' "$include"/{runtime/spillway.h,base/types.h,base/dtype.h,base/token_rules.h} |
    grep -vE '<[a-z_]+\.h>|spillway\.h:#include "base/(types|dtype|token_rules)\.h"' || true)
[ -z "$others" ] || { echo "not allowed: $others"; exit 1; }

# The shared library is found by its soname, and exports no name that is not declared in an installed header.
library=$(dirname "$pc")/libspillway.so
readelf -d "$place/shared" | grep -q 'NEEDED.*\[libspillway\.so\.[0-9]*\]'
nm -D --defined-only "$library" | awk '{print $3}' | sort >"$place/exported"
grep -rhoE '\bspw_[a-z0-9_]+\(' "$place/second/include" | tr -d '(' | sort -u >"$place/declared"
[ "$(wc -l <"$place/exported")" -ge 60 ]
comm -23 "$place/exported" "$place/declared" >"$place/undeclared"
[ ! -s "$place/undeclared" ] || { echo "exported, but in no header:"; cat "$place/undeclared"; exit 1; }
# It exports all of them.
nm --defined-only "$(dirname "$pc")/libspillway.a" 2>/dev/null | awk '$2 == "T" {print $3}' | sort -u >"$place/defined"
comm -12 "$place/declared" "$place/defined" | comm -23 - "$place/exported" >"$place/hidden"
[ ! -s "$place/hidden" ] || { echo "declared, but not exported:"; cat "$place/hidden"; exit 1; }

text='The access code of'
expected=$("$place/second/bin/spillway" generate $model --prompt "$text" --max-new-tokens 32 --quiet)
[ -n "$expected" ]
for program in c cxx shared; do
    found=$("$place/$program" $model "$text")
    [ "$found" = "$expected" ] || { echo "$program: found '$found', expected '$expected'"; exit 1; }
done
! "$place/c" "$place/none" "$text" 2>"$place/says" || exit 1
grep -q "$place/none.*no such file" "$place/says"

# ---- the manual page and the completions ----
share=$place/second/share spillway=$place/second/bin/spillway
page=$share/man/man1/spillway.1 text=$place/page.txt
bash=$share/bash-completion/completions/spillway zsh=$share/zsh/site-functions/_spillway
fish=$share/fish/vendor_completions.d/spillway.fish
bash -n "$bash"
sed 's/\\-/-/g; s/\\f.//g' "$page" >"$text"
if command -v groff >/dev/null; then
    groff -man -Tascii -P-cbou -rLL=300n -ww "$page" >"$text" 2>"$place/says"
    [ ! -s "$place/says" ] || { cat "$place/says"; exit 1; }
fi
if command -v mandoc >/dev/null; then # a page without a date is the same in every build
    says=$(mandoc -Tlint -Wwarning "$page" | grep -v 'missing date' || true)
    [ -z "$says" ] || { echo "$says"; exit 1; }
fi
awk '$1 ~ /^--/ {option = $1} $1 == "Commands:" {print option, $0}' "$text" >"$place/options.txt"
# lacks WHAT FILE
lacks() {
    echo "$2 lacks $1"
    exit 1
}
n=0
for command in $("$spillway" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do
    grep -q "^ *spillway $command " "$text" || lacks "$command" "$page"
    sed -n '/SYNOPSIS/,/DESCRIPTION/s/^ *spillway \([a-z-]*\) .*/\1/p' "$text" | grep -qx "$command" ||
        lacks "a line of the synopsis for $command" "$page"
    "$spillway" --complete "$command" x -- >"$place/rows"
    for option in $("$spillway" "$command" --help all | sed -n 's/^  --\([a-z-]*\).*/\1/p'); do
        n=$((n + 1)) what="--$option of $command"
        grep -q -e "^--$option .* $command[,.]" "$place/options.txt" || lacks "$what" "$page"
        grep -q -e "^--$option	" "$place/rows" || lacks "$what" "--complete"
    done
done
for script in "$bash" "$zsh" "$fish"; do
    grep -q -e '--complete' "$script" || lacks --complete "$script"
done
[ "$n" -gt 200 ] || { echo "found only $n options"; exit 1; }
for heading in NAME SYNOPSIS COMMANDS OPTIONS SIZES 'EXIT STATUS' FILES ENVIRONMENT; do
    grep -q "^.SH $heading" "$page" || lacks "$heading" "$page"
done
