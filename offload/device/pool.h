/* Memory under a budget: what the CPU device and the counting device count, in whole pages. One
 * thread charges and frees; any thread may read the counters. */
#ifndef SPW_OFFLOAD_DEVICE_POOL_H
#define SPW_OFFLOAD_DEVICE_POOL_H

#include "offload/device/host_pages.h"

#include <assert.h>

#define SPW_POOL_PAGE_BYTES 4096u

struct spw_pool {
    uint64_t budget;
    _Atomic uint64_t used, peak;
};

/* Counts `bytes`, rounded up to whole pages, against the budget. -ENOMEM: they do not fit. */
static inline int spw_pool_charge(struct spw_pool *pool, uint64_t bytes)
{
    uint64_t used = pool->used;
    if (bytes > SIZE_MAX - SPW_POOL_PAGE_BYTES)
        return -ENOMEM;
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    if (bytes > spw_sub_u64(pool->budget, used))
        return -ENOMEM;
    pool->used = used + bytes;
    pool->peak = spw_max_u64(pool->peak, used + bytes);
    return 0;
}

static inline void spw_pool_discharge(struct spw_pool *pool, uint64_t bytes)
{
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    assert(bytes <= pool->used);
    pool->used -= bytes;
}

/* p: a mapping of these bytes; NULL: nothing is done. */
static inline void spw_pool_free(struct spw_pool *pool, void *p, uint64_t bytes)
{
    if (!p)
        return;
    spw_host_pages_unmap(p, spw_align_up(bytes, SPW_POOL_PAGE_BYTES));
    spw_pool_discharge(pool, bytes);
}

/* Frees everything after the first `keep` bytes, which are not 0. */
static inline void spw_pool_trim(struct spw_pool *pool, void *p, uint64_t bytes, uint64_t keep)
{
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    keep = spw_align_up(keep, SPW_POOL_PAGE_BYTES);
    assert(keep && keep <= bytes);
    if (keep < bytes)
        spw_pool_free(pool, (char *)p + keep, bytes - keep);
}

#endif
