# shellcheck shell=bash disable=SC2034 # scripts that source this file read the lists of needs
# For tools/demo.sh and tools/test.sh, which source this file. Finds missing packages and installs them
# with apt-get, as root or through sudo. If it cannot install, it prints the command for that and stops. Also
# runs builds, and shows their output only after a failure.

say() {
    printf '%s\n' "-- $*"
}

die() {
    printf '%s\n' "${0##*/}: $*" >&2
    exit 1
}

# Each need is "KIND:NAME PACKAGE": a thing to look for, and the Debian package that has it. A program that
# was installed without apt counts too. libc6-dev is only a recommendation of gcc.
building_needs='
command:cmake        cmake
command:ninja        ninja-build
command:gcc          gcc
header:stdio.h       libc6-dev
command:g++          g++
command:pkg-config   pkg-config
library:hwloc        libhwloc-dev
library:liburing     liburing-dev
library:jansson      libjansson-dev
library:libedit      libedit-dev
library:libpcre2-8   libpcre2-dev
library:libmicrohttpd libmicrohttpd-dev
library:libutf8proc  libutf8proc-dev
library:libxxhash    libxxhash-dev
library:nettle       nettle-dev
'
format_needs='
command:clang-format clang-format
'
clang_needs='
command:clang        clang
clang_runtime:fuzzer libclang-rt-dev
'
script_needs='
command:python3      python3
'

# is_there KIND:NAME
is_there() {
    local name=${1#*:}
    case $1 in
    command:*) command -v "$name" >/dev/null ;;
    header:*) command -v gcc >/dev/null && echo "#include <$name>" | gcc -E - >/dev/null 2>&1 ;;
    library:*) command -v pkg-config >/dev/null && pkg-config --exists "$name" ;;
    clang_runtime:*)
        command -v clang >/dev/null &&
            ls "$(clang -print-resource-dir)"/lib/*/libclang_rt."$name"* >/dev/null 2>&1
        ;;
    esac
}

# missing_packages NEEDS: prints the packages of NEEDS that are not installed, as words
missing_packages() {
    local probe package
    while read -r probe package; do
        [ -z "$probe" ] || is_there "$probe" || printf '%s ' "$package"
    done <<<"$1"
}

# apt_get WORDS...: quiet; its output goes to the file $apt_log.
apt_get() {
    local -a as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -y -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$apt_log" 2>&1
}

# can_install: true for root, if sudo asks for no password, or if a person can answer at a terminal
can_install() {
    [ "$(id -u)" = 0 ] && return
    command -v sudo >/dev/null || return
    sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }
}

# install_packages NEEDS
install_packages() {
    local missing apt_log
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null ||
        die "missing, under their Debian names: $missing- please install them and run this again"
    can_install || die "missing: $missing
Installing takes root. Please run this line as root, then $0 again:
    apt-get update && apt-get install -y --no-install-recommends ${missing% }"
    say "installing with apt-get: ${missing% }"
    apt_log=$(mktemp)
    # The first try fails if package lists are missing or out of date.
    # shellcheck disable=SC2086 # package names are words
    if ! apt_get install --no-install-recommends $missing &&
        ! { say "fetching the package lists first" && apt_get update &&
            apt_get install --no-install-recommends $missing; }; then
        tail -n 20 "$apt_log" >&2
        rm -f "$apt_log"
        die "apt-get failed; its last lines are above. It was to install: ${missing% }"
    fi
    rm -f "$apt_log"
    missing=$(missing_packages "$1")
    [ -z "$missing" ] || die "apt-get is content, but this is still not found: ${missing% }"
}

# quietly LOG COMMAND...: appends the output to the file LOG; after a failure prints the important part.
quietly() {
    local log=$1
    shift
    mkdir -p "$(dirname "$log")"
    "$@" >>"$log" 2>&1 && return
    grep -nE 'error|warning|FAILED' "$log" | head -n 40
    tail -n 20 "$log"
    echo "failed: $* (all of its output: $log)"
    return 1
}

build_options=() # of cmake, beside the preset

# configure PRESET: in build/PRESET. Says whether GPU code is built, and for which GPU.
configure() {
    rm -f "build/log/$1.log"
    say "$1: building in build/$1"
    quietly "build/log/$1.log" cmake --preset "$1" "${build_options[@]}" && grep '^-- CUDA: ' "build/log/$1.log"
}

# show_count LOG: on a terminal, the last "[12/345]" of a build's output, again each second.
show_count() {
    local count
    [ -t 1 ] || return 0
    while kill -0 $$ 2>/dev/null && sleep 1; do # until the script ends, also by Ctrl-C
        count=$(grep -o '^\[[0-9/]*\]' "$1" | tail -n 1) || continue
        printf '\r       %s compiled ' "$count"
    done
}

# compile PRESET [TARGET...]: call configure before
compile() {
    local log=build/log/$1.log code=0 counter
    show_count "$log" &
    counter=$!
    quietly "$log" cmake --build --preset "$1" -j "${build_jobs:-$(nproc)}" ${2:+--target "${@:2}"} || code=$?
    kill "$counter" 2>/dev/null || true
    wait "$counter" 2>/dev/null || true
    [ ! -t 1 ] || printf '\r%30s\r' ''
    return "$code"
}

# build PRESET [TARGET...]
build() {
    configure "$1" && compile "$@"
}
