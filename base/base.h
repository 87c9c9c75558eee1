/* Basics that every folder may include: plain types, errors, checked arithmetic, counted
 * allocation.
 *
 * The library takes heap memory with spw_alloc and frees it with spw_free. So a test can make the
 * n-th allocation fail. Safe from any thread. */
#ifndef SPW_BASE_BASE_H
#define SPW_BASE_BASE_H

#include "base/types.h"

#include <stdarg.h>

/* For inline functions that CUDA kernels call, too. */
#ifdef __CUDACC__
#define SPW_INLINE static __host__ __device__ inline
#else
#define SPW_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Formats the text, unless there is one already: the first text names the cause. Returns `code`, a
 * negative errno, which allows `return spw_fail(err, -EINVAL, "...")`. */
__attribute__((format(printf, 3, 4))) int spw_fail(struct spw_error *err, int code,
                                                   const char *format, ...);

struct stat;
/* Whether a new file may replace the file of this `st`, from lstat or fstat: only a regular file
 * of this user. -EINVAL: not a regular file; -EPERM: it belongs to another user. The text begins
 * with `name`. */
int spw_check_replaceable(const struct stat *st, const char *name, struct spw_error *err);
bool spw_is_same_file(const struct stat *a, const struct stat *b);

/* Seconds of a clock that never goes back. */
double spw_now_seconds(void);

/* Returns from the function if `expr` is negative. */
#define SPW_TRY(expr)                                                                              \
    do {                                                                                           \
        int spw_try_rc_ = (expr);                                                                  \
        if (spw_try_rc_ < 0)                                                                       \
            return spw_try_rc_;                                                                    \
    } while (0)

/* False: the true result does not fit. */
static inline bool spw_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool spw_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

SPW_INLINE uint64_t spw_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

SPW_INLINE uint64_t spw_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

SPW_INLINE uint32_t spw_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

SPW_INLINE uint32_t spw_max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* a - b, or 0 if b is larger. */
SPW_INLINE uint64_t spw_sub_u64(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

SPW_INLINE uint64_t spw_div_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

/* `align` is a power of two. */
SPW_INLINE uint64_t spw_align_up(uint64_t a, uint64_t align)
{
    return (a + align - 1) & ~(align - 1);
}

/* The allocator of the library. NULL without memory; spw_free accepts NULL. */
void *spw_alloc(size_t bytes);
void *spw_alloc_zero(size_t count, size_t bytes); /* overflow of the product gives NULL */
void *spw_realloc(void *p, size_t bytes);
char *spw_strdup(const char *text);
void spw_free(void *p);

/* For tests: the n-th allocation from now on (0: the next) fails, once; n < 0 switches this off.
 * Other allocations of the library (arenas, pinned buffers) count, too: they ask
 * spw_alloc_fails() before the system call. */
void spw_alloc_fail_nth(int64_t n);
bool spw_alloc_fails(void);
/* Blocks that are allocated now: 0 after everything was closed. */
int64_t spw_alloc_outstanding(void);

/* A range of bytes, and its offset in the block that it is a part of. */
struct spw_piece {
    const void *from;
    uint64_t offset, bytes;
};

/* A kernel of the CPU backend: independent tasks, which workers may take in any order. Tasks
 * write disjoint outputs, and no reduction crosses tasks, so neither the number of workers nor
 * the order changes a result. `worker`, which is less than the number of workers, is an index of
 * private scratch memory. */
struct spw_kernel {
    const char *name;
    size_t (*n_tasks)(const void *args);
    void (*run)(const void *args, size_t task, unsigned worker);
};

/* A queue of work on a device, in order: a CUDA stream, or a worker thread. Opaque here. */
typedef struct CUstream_st *spw_stream;

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
