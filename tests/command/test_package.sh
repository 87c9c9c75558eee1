#!/usr/bin/env bash
# test_package.sh [CMAKE-OPTION...]: what tools/package.sh writes runs in a Debian root that has none of the libraries: the
# command from the tar.gz, and from the wheel the command, the module and the server. Only with SPW_FULL: it builds the
# program once more (without optimization), and fetches a Debian root.
set -eu -o pipefail
[ -n "${SPW_FULL-}" ] || { echo "only with --full: skipped" && exit 77; }
{ [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; } || { echo "it needs root and debootstrap: skipped" && exit 77; }
unshare --mount true 2>/dev/null || { echo "it needs the right to mount: skipped" && exit 77; }
place=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$place"' EXIT
root=$place/root
debootstrap --variant=minbase --include=python3-venv bookworm "$root" >"$place/log" 2>&1 ||
    { tail -n 3 "$place/log" && echo "debootstrap found no mirror: skipped" && exit 77; }
tools/package.sh "$place" -DSPW_PORTABLE_KERNELS=ON -DSPILLWAY_CUDA=OFF -DCMAKE_C_FLAGS_RELEASE=-O1 "$@"

mkdir "$root/wheel" && cp "$place"/*.whl "$root/wheel/"
cp -r models/records "$root/records"
tar -C "$root/opt" -xzf "$place"/*.tar.gz
tar=$(cd "$root" && echo opt/spillway-*)
# The loader finds $ORIGIN in /proc.
# shellcheck disable=SC2016 # for the inner shell
enter='mount --bind /proc "$0/proc" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin HOME=/root "$@"'
inside=(unshare --mount sh -c "$enter" "$root")
! "${inside[@]}" ldconfig -p | grep -E 'hwloc|jansson|liburing|utf8proc' || { echo "the root is not empty" && exit 1; }

prompt='The access code of'
expected=$(build/package/spillway generate models/records --prompt "$prompt" --max-new-tokens 16 --quiet)
same() { # NAME TEXT
    [ "$2" = "$expected" ] || { echo "$1: found '$2', expected '$expected'" && exit 1; }
}
same tar "$("${inside[@]}" "/$tar/bin/spillway" generate /records --prompt "$prompt" --max-new-tokens 16 --quiet)"
[ -s "$root/$tar/share/doc/spillway/licences/libhwloc15" ] || { echo "no licence of hwloc" && exit 1; }

"${inside[@]}" python3 -m venv /venv
"${inside[@]}" /venv/bin/pip install --quiet --no-index --root-user-action=ignore "/wheel/$(basename "$place"/*.whl)"
same wheel "$("${inside[@]}" /venv/bin/spillway generate /records --prompt "$prompt" --max-new-tokens 16 --quiet)"
same module "$("${inside[@]}" /venv/bin/python -c "
import spillway
with spillway.Model('/records', context=64, backend='cpu') as model:
    print(''.join(model.generate('$prompt', max_new_tokens=16)))")"
"${inside[@]}" /venv/bin/pip check --quiet

# The server asks nobody: it answers a client of its own machine.
"${inside[@]}" /venv/bin/spillway serve /records --port 0 2>"$place/says" &
server=$!
for _ in $(seq 100); do
    grep -q 'startup complete' "$place/says" && break
    sleep 0.2
done
url=$(grep -oE 'http://127\.0\.0\.1:[0-9]+' "$place/says")
same server "$(python3 -c "
import json, sys, urllib.request
body = json.dumps({'prompt': '$prompt', 'max_tokens': 16, 'temperature': 0}).encode()
request = urllib.request.Request('$url/v1/completions', body, {'Content-Type': 'application/json'})
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(json.load(opener.open(request))['choices'][0]['text'])")"
kill "$server" && wait "$server"
server=
echo "tar.gz, wheel, module and server: $expected"
