/* Device memory for tests of kernels. The same test runs on the emulated GPU, where a block is of
 * exactly its size under AddressSanitizer, and on a real one. A pointer in it is device memory: the
 * CPU reads and writes its own copy. */
#ifndef SPW_TESTS_CUDA_MEMORY_H
#define SPW_TESTS_CUDA_MEMORY_H

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

#endif
