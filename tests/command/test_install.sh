#!/usr/bin/env bash
# test_install.sh BUILD CC CXX: what `cmake --install` puts down is enough to build and run a program
# with, in C and in C++, and it answers as the command does. In a tree that is moved afterwards.
set -eu -o pipefail
build=$1 cc=$2 cxx=$3
source=tests/command/library_user.c model=tests/golden/llama_700
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

cmake --install "$build" --prefix "$place/first" >/dev/null
mv "$place/first" "$place/second"
pc=$(dirname "$(find "$place" -name spillway.pc)")
read -ra flags <<<"$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs spillway)"
warnings=(-Wall -Wextra -Wpedantic -Werror)
"$cc" -std=c17 "${warnings[@]}" $source "${flags[@]}" -o "$place/c"
"$cxx" -std=c++17 "${warnings[@]}" -x c++ $source -x none "${flags[@]}" -o "$place/cxx"

echo 1 >"$place/ids"
expected=$("$place/second/bin/spillway" generate $model --token-ids "$place/ids" --ids --ignore-eos \
    --max-new-tokens 8 --device cpu --progress never)
for program in c cxx; do
    found=$("$place/$program" $model 8)
    [ "$found" = "$expected" ] || { echo "$program: found '$found', expected '$expected'"; exit 1; }
done
! "$place/c" "$place/none" 8 2>"$place/says" || exit 1
grep -q "$place/none/config.json: found no such file" "$place/says"
