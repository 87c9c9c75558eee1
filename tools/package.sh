#!/usr/bin/env bash
# package.sh [OUTDIR [CMAKE-OPTION...]]: builds spillway for other x86-64 machines with Linux, in build/package, and writes
# two files to OUTDIR (build/package/out):
#
#   spillway-VERSION-linux-x86_64.tar.gz                   command and library, in a folder that may lie anywhere
#   spillway-VERSION-py3-none-manylinux_2_N_x86_64.whl     the same for pip, with the module `spillway`
#
# They have the kernels of all instruction sets, and those of all GPUs where there is nvcc. They run where glibc is as new as
# here at least: the script prints the version that they need, so build on the oldest system that you have. Other
# libraries are linked statically where this machine has an archive; the others lie beside the program, which finds them there.
set -eu -o pipefail
# shellcheck source=tools/lib/setup.sh
. "$(dirname "$0")/lib/setup.sh"
out=$(realpath -m "${1:-$(dirname "$0")/../build/package/out}")
cd "$(dirname "$0")/.."
build=build/package
# Archives to link. Not that of hwloc, which no shared library can have in it, that of xxhash, which lacks the functions
# that choose an instruction set, and that of GnuTLS, whose own libraries have none.
archives=(jansson pcre2-8 utf8proc nettle uring edit bsd md termcap tinfo microhttpd)
# What .pc files name for archives only.
behind=(-ltermcap -lbsd -lmd)
! pkg-config --exists gnutls || behind+=(-lgnutls)
of_glibc='(ld-linux-x86-64|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util))\.so'

# link_archives: makes a folder of archives, which pkg-config names as the folder of each library
link_archives() {
    local name file
    mkdir -p $build/archives
    for name in "${archives[@]}"; do
        file=$(gcc -print-file-name="lib$name.a")
        [ ! -e "$file" ] || ln -sf "$file" "$build/archives/lib$name.a"
    done
}

# build_tree CMAKE-OPTION...: a tree as `cmake --install` makes it, in $tree
build_tree() {
    local cuda=OFF hidden
    hidden=$(printf ':lib%s.a' "${archives[@]}") # the shared library exports no function of these
    ! command -v "${CUDACXX:-nvcc}" >/dev/null || cuda=ON
    # RPATH, not RUNPATH: it holds for the libraries of libraries, too.
    quietly $build/log cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF -DSPILLWAY_CUDA=$cuda \
        -DCMAKE_INSTALL_LIBDIR=lib -DPKG_CONFIG_ARGN="--define-variable=libdir=$PWD/$build/archives" \
        -DCMAKE_C_STANDARD_LIBRARIES="-L$PWD/$build/archives ${behind[*]}" -DCMAKE_INSTALL_RPATH="\$ORIGIN/../lib" \
        -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags,--as-needed \
        -DCMAKE_SHARED_LINKER_FLAGS="-Wl,--disable-new-dtags,--as-needed,--exclude-libs,${hidden#:}" "$@"
    grep '^-- CUDA: ' $build/log | tail -n 1
    quietly $build/log cmake --build $build --target installed
    rm -rf "$tree"
    quietly $build/log cmake --install $build --prefix "$tree" --strip
    rm "$tree/lib/libspillway.a" # it cannot be linked without the libraries' own archives
}

# add_libraries: what the loader finds outside of glibc comes into the tree; then it is asked again
add_libraries() {
    local file
    for file in $(ldd "$tree/bin/spillway" "$tree/lib/libspillway.so" | awk '$2 == "=>" {print $3}' | sort -u); do
        [[ $(basename "$file") =~ ^$of_glibc ]] || [[ $file == "$tree"* ]] || cp -L "$file" "$tree/lib/"
    done
    if ldd "$tree/bin/spillway" "$tree/lib/libspillway.so" | awk '$2 == "=>"' | grep -vE "^\s*$of_glibc|$tree/"; then
        die "the libraries above are not in $tree/lib"
    fi
}

# add_licences: the texts of Debian's packages that files come from
add_licences() {
    local file package
    cp LICENSE "$tree/share/doc/spillway/"
    for file in "$build"/archives/*.a "$tree"/lib/*.so*; do
        [[ $(basename "$file") != libspillway.* ]] || continue
        package=$(dpkg -S "*/$(basename "$file")" 2>/dev/null | sed -n '1s/:.*//p')
        [ -n "$package" ] || die "$file: no Debian package has this file: its licence is not known"
        cp "/usr/share/doc/$package/copyright" "$tree/share/doc/spillway/licences/$package"
        echo "$(basename "$file")  $package  $(dpkg-query -W -f='${Version}' "$package" | head -n 1)"
    done | sort -u >"$tree/share/doc/spillway/licences/README"
    [ -s "$tree/share/doc/spillway/licences/README" ] || die "licences are known on Debian only"
}

# newest_glibc: the newest version of a symbol that a file of the tree takes from glibc: 2.N
newest_glibc() {
    objdump -T "$tree"/bin/spillway "$tree"/lib/*.so* | grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1 | cut -d_ -f2
}

main() {
    local version glibc
    install_packages "$building_needs
        command:python3 python3"
    link_archives
    version=$(sed -nE 's/^project\(spillway VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
    tree=$PWD/$build/spillway-$version
    say "building in $build"
    build_tree "$@"
    mkdir -p "$tree/share/doc/spillway/licences" "$out"
    add_libraries
    add_licences
    glibc=$(newest_glibc)
    tar -C "$build" -czf "$out/spillway-$version-linux-x86_64.tar.gz" --owner=0 --group=0 "spillway-$version"
    mkdir -p $build/python
    python3 python/make_abi.py >$build/python/_abi.py
    python3 python/make_wheel.py "$tree" $build/python/_abi.py "$version" "manylinux_${glibc/./_}_x86_64" "$out"
    say "beside the program: $(cd "$tree/lib" && echo lib*.so*)"
    say "needs glibc $glibc; this machine has $(getconf GNU_LIBC_VERSION)"
    ls -sh1 "$out"/spillway-"$version"-*
}

main "${@:2}"
