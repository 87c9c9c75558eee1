/* Device memory for tests of kernels. The same test runs on the emulated GPU, where a block is of
 * exactly its size under AddressSanitizer, and on a real one. A pointer in it is device memory: the
 * CPU reads and writes its own copy. */
#ifndef SPW_TESTS_CUDA_CUDA_MEMORY_H
#define SPW_TESTS_CUDA_CUDA_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "tests/check.h"

/* The CUDA runtime's, or the emulator's; an error is not 0. */
int cudaGetDeviceCount(int *n);
int cudaMalloc(void **out, size_t bytes);
int cudaFree(void *p);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);

enum { CUDA_TO_DEVICE = 1, CUDA_TO_HOST = 2 };

static inline bool cuda_there(void)
{
    int n = 0;
    return !cudaGetDeviceCount(&n) && n;
}

/* A copy of the CPU's bytes that begins `offset` bytes into its block, to try alignments. */
static inline void *cuda_copy_of(const void *host, size_t bytes, size_t offset)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes + offset) ||
        (bytes && cudaMemcpy((char *)p + offset, host, bytes, CUDA_TO_DEVICE))) {
        fprintf(stderr, "no device memory\n");
        exit(1);
    }
    return (char *)p + offset;
}

/* Copies it back (host may be NULL) and frees it. */
static inline void cuda_take_back(void *host, void *device, size_t bytes, size_t offset)
{
    if (host && bytes)
        CHECK(!cudaMemcpy(host, device, bytes, CUDA_TO_HOST));
    CHECK(!cudaFree((char *)device - offset));
}

/* Blocks in one allocation, as tiles lie in an arena; what lies between them is closed to
 * AddressSanitizer. */
struct cuda_arena {
    char *base;
    size_t bytes, used;
};

enum { CUDA_ARENA_GAP = 256 };

/* AddressSanitizer's, where it is. */
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));

/* For n blocks of so many bytes in all. */
static inline struct cuda_arena cuda_arena_open(size_t n, size_t bytes)
{
    struct cuda_arena a = {.bytes = bytes + (n + 1) * 2 * CUDA_ARENA_GAP};
    a.base = cuda_copy_of(NULL, 0, a.bytes);
    a.base -= a.bytes;
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(a.base, a.bytes);
    return a;
}

static inline void *cuda_arena_copy_of(struct cuda_arena *a, const void *host, size_t bytes)
{
    char *p = a->base + a->used;
    a->used += (bytes + 2 * CUDA_ARENA_GAP - 1) / CUDA_ARENA_GAP * CUDA_ARENA_GAP;
    if (a->used > a->bytes)
        exit(1);
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(p, bytes);
    if (cudaMemcpy(p, host, bytes, CUDA_TO_DEVICE))
        exit(1);
    return p;
}

static inline void cuda_arena_close(struct cuda_arena *a)
{
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(a->base, a->bytes);
    CHECK(!cudaFree(a->base));
}

/* tools/gpu_check.sh runs the test under compute-sanitizer, which takes long for each kernel. */
static inline bool cuda_is_sanitized(void)
{
    return getenv("SPW_SANITIZER");
}

/* Draws of a test that compares results with a reference: half of them under AddressSanitizer,
 * which is there for the addresses. */
static inline int cuda_draws(int all)
{
    if (cuda_is_sanitized())
        return (all + 7) / 8;
    return RUN_UNDER_ASAN && !check_full() ? (all + 1) / 2 : all;
}

#endif
