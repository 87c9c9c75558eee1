#!/usr/bin/env bash
# Reads the machine code of the kernels: what the emulated GPU of the tests cannot see.
#
#     tools/check_sass.sh [--optimized] OBJECT...
#
#     PTX               sums, products and quotients of f32 name their rounding, to nearest; only the inside of
#                       expf and of similar functions has others. Nothing else is fused or flushed
#     code for sm_90    with --optimized, for only optimized kernels have no calls: every kernel waits for the kernel
#                       before it (griddepcontrol.wait), and touches no global memory before; only kernels named
#                       *_stream do, which read weights there (quant/cuda.cuh). The kernels that decode a token
#                       keep everything in registers
#
# Exit status: 0, 1 with a line for each kernel that is not so, 77 without cuobjdump.
set -u -o pipefail

# These may not spill, with any template arguments.
in_registers='k_stream|k_tile|k_codes_stream|k_codes_tile|k_f32_stream|k_route_logits'

optimized=
[ "${1:-}" != --optimized ] || { optimized=yes && shift; }
command -v cuobjdump >/dev/null || exit 77

ptx() { # OBJECT
    cuobjdump -ptx "$1" | awk -v object="${1##*/}" '
        match($0, /(^|[ \t])(add|sub|mul|fma|mad|div|sqrt)\.[a-z0-9.]*f32[ \t]/) {
            operation = substr($0, RSTART, RLENGTH)
            gsub(/[ \t]/, "", operation)
            if (operation !~ /^[a-z]+\.rn\.f32$/ && operation != "fma.rm.f32" && !seen[operation]++)
                print object ": PTX: " operation
            n++
        }
        END { if (!n && object !~ /device|probe/) print object ": PTX: found no operation" }'
}

sass() { # OBJECT
    cuobjdump -sass -arch sm_90 "$1" | awk -v object="${1##*/}" '
        function leave() { if (name && !waits) print object ": " name " does not wait" }
        /Function :/ { leave(); name = $3; waits = 0 }
        /ACQBULK/ { waits = 1 }
        / (LD|ST|LDG|STG|ATOM|ATOMG|RED|LDGSTS)[. ]/ {
            if (!waits && name !~ /_stream/) { print object ": " name " touches memory first:" $0; waits = 1 }
        }
        END { leave() }'
    cuobjdump -res-usage -arch sm_90 "$1" 2>&1 | awk -v object="${1##*/}" -v kernels="[0-9]($in_registers)I" '
        /Function / { name = $2 }
        /STACK:/ && name ~ kernels && !/STACK:0 / { print object ": " name " spills: " $0 }'
}

found=$(for object in "$@"; do
    ptx "$object"
    [ -z "$optimized" ] || sass "$object"
done)
[ -z "$found" ] || { printf '%s\n' "$found" && exit 1; }
