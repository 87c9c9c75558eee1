#!/usr/bin/env python3
"""make_wheel.py TREE ABI VERSION PLATFORM OUTDIR: writes a wheel with the module spillway, and with command and library of
the installed TREE inside of it. ABI: what make_abi.py has printed."""
import base64
import glob
import hashlib
import os
import sys
import zipfile

# Finds the module without importing it. The program finds its libraries by its own place.
COMMAND = """#!python
import importlib.util
import os
import sys
program = os.path.join(importlib.util.find_spec("spillway").submodule_search_locations[0], "bin", "spillway")
os.execv(program, [program, *sys.argv[1:]])
"""


def contents(tree, abi, version, platform):
    """(name, bytes, executable)"""
    here, info = os.path.dirname(os.path.abspath(__file__)), f"spillway-{version}.dist-info"

    def read(path):
        with open(path, "rb") as file:
            return file.read()

    yield "spillway/__init__.py", read(f"{here}/spillway/__init__.py"), False
    yield "spillway/_abi.py", read(abi), False
    yield "spillway/bin/spillway", read(f"{tree}/bin/spillway"), True
    yield "spillway/lib/libspillway.so", read(f"{tree}/lib/libspillway.so"), False
    for path in glob.glob(f"{tree}/lib/*.so.*"):
        if not os.path.basename(path).startswith("libspillway"):
            yield f"spillway/lib/{os.path.basename(path)}", read(path), False
    for path in glob.glob(f"{tree}/share/doc/spillway/**/*", recursive=True):
        if os.path.isfile(path):
            yield f"{info}/licenses/{os.path.relpath(path, f'{tree}/share/doc/spillway')}", read(path), False
    yield f"spillway-{version}.data/scripts/spillway", COMMAND.encode(), True
    yield f"{info}/WHEEL", (f"Wheel-Version: 1.0\nGenerator: spillway\nRoot-Is-Purelib: false\n"
                            f"Tag: py3-none-{platform}\n").encode(), False
    yield f"{info}/METADATA", (f"Metadata-Version: 2.1\nName: spillway\nVersion: {version}\nRequires-Python: >=3.8\n"
                               "Summary: text generation with models and contexts larger than memory\n").encode(), False


def main():
    tree, abi, version, platform, out = sys.argv[1:]
    record = f"spillway-{version}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(f"{out}/spillway-{version}-py3-none-{platform}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        def put(name, data, executable):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for name, data, executable in contents(tree, abi, version, platform):
            put(name, data, executable)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        put(record, "".join([*lines, f"{record},,\n"]).encode(), False)


main()
