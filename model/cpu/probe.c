/* Reading memory and emptying caches: see probe.h. */
#include "model/cpu/probe.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* ---- reading ---- */

enum { LINE = 64, AHEAD = 4096, STREAMS = 4, PART = SPW_READ_BYTES / STREAMS };

typedef uint64_t vector __attribute__((vector_size(16), may_alias));

static size_t count_pieces(const void *args)
{
    return ((const struct spw_read_args *)args)->bytes / SPW_READ_BYTES;
}

/* Four parts side by side, with software prefetches: no pattern was faster on most processors. The
 * memory is slower than registers of any width. */
static void read_piece(const void *args, size_t task, unsigned worker)
{
    const struct spw_read_args *a = args;
    const char *piece = (const char *)a->from + task * SPW_READ_BYTES;
    vector any[STREAMS] = {{0}};
    (void)worker;
    for (size_t i = 0; i < PART; i += LINE)
#pragma GCC unroll 4
        for (int s = 0; s < STREAMS; s++) {
            const char *at = piece + (size_t)s * PART + i;
            __builtin_prefetch(at + AHEAD);
#pragma GCC unroll 4
            for (size_t j = 0; j < LINE; j += sizeof(vector))
                any[s] |= *(const vector *)(const void *)(at + j);
        }
    __asm__ volatile("" : : "r"(any) : "memory"); /* or a compiler would not read */
}

const struct spw_kernel spw_read_kernel = {"read", count_pieces, read_piece};

/* ---- caches ---- */

#if defined(__x86_64__)
static void evict_in_order(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE)
        _mm_clflush(p + at);
}

/* 30 times as fast. */
__attribute__((target("clflushopt"))) static void evict_at_once(const char *p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE)
        _mm_clflushopt((void *)(uintptr_t)(p + at));
}

void spw_cache_evict(const void *memory, size_t bytes)
{
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (ebx & bit_CLFLUSHOPT))
        evict_at_once(memory, bytes);
    else
        evict_in_order(memory, bytes);
    _mm_mfence();
}
#else
void spw_cache_evict(const void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
#endif
