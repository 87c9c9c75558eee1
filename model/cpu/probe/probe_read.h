/* Reading memory in several patterns, written once and compiled once per instruction set.
 *
 * The including file (model/cpu/probe_<isa>.c) defines first: vec (one register),
 * vec_zero(), vec_or(v, p) (with what lies at p), vec_both(a, b), vec_bits(v) (any set bit shows).
 */
#include "model/cpu/probe/probe_loops.h"

enum { READ_LINE = 64, READ_AHEAD = 4096, READ_MOST = 8 };

static inline __attribute__((always_inline)) uint64_t
read_streams(const char *p, size_t bytes, const int streams, const bool fetch)
{
    const size_t part = bytes / (size_t)streams;
    vec any[READ_MOST];
#pragma GCC unroll 8
    for (int s = 0; s < streams; s++)
        any[s] = vec_zero();
    for (size_t i = 0; i < part; i += 4 * READ_LINE)
#pragma GCC unroll 4
        for (size_t line = 0; line < 4; line++)
#pragma GCC unroll 8
            for (int s = 0; s < streams; s++) {
                const char *at = p + (size_t)s * part + i + line * READ_LINE;
                if (fetch)
                    __builtin_prefetch(at + READ_AHEAD);
#pragma GCC unroll 8
                for (size_t j = 0; j < READ_LINE; j += sizeof(vec))
                    any[s] = vec_or(any[s], at + j);
            }
#pragma GCC unroll 8
    for (int s = 1; s < streams; s++)
        any[0] = vec_both(any[0], any[s]);
    return vec_bits(any[0]);
}

static uint64_t read_all(const void *p, size_t bytes, unsigned streams, bool fetch)
{
    switch (streams) {
#define CASE(n)                                                                                    \
    case n:                                                                                        \
        return fetch ? read_streams(p, bytes, n, true) : read_streams(p, bytes, n, false)
        CASE(2);
        CASE(4);
        CASE(8);
    default:
        CASE(1);
#undef CASE
    }
}
