/* Memory under budgets: see pool.h. */
#include "offload/device/pool.h"

#include "offload/device/host_pages.h"

#include <assert.h>

static struct spw_pools *pools_of(struct spw_device *d)
{
    return (struct spw_pools *)(void *)d; /* its first member */
}

static uint64_t get(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void set(uint64_t *counter, uint64_t bytes)
{
    __atomic_store_n(counter, bytes, __ATOMIC_RELAXED);
}

int spw_pool_charge(struct spw_pool *pool, uint64_t bytes)
{
    uint64_t used = get(&pool->used);
    if (bytes > SIZE_MAX - SPW_POOL_PAGE_BYTES)
        return -ENOMEM;
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    if (bytes > spw_sub_u64(pool->budget, used))
        return -ENOMEM;
    set(&pool->used, used + bytes);
    set(&pool->peak, spw_max_u64(get(&pool->peak), used + bytes));
    return 0;
}

void spw_pool_discharge(struct spw_pool *pool, uint64_t bytes)
{
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    assert(bytes <= get(&pool->used));
    set(&pool->used, get(&pool->used) - bytes);
}

/* p: a mapping of these bytes; NULL: nothing is done. */
static void free_from(struct spw_pool *pool, void *p, uint64_t bytes)
{
    if (!p)
        return;
    spw_host_pages_unmap(p, spw_align_up(bytes, SPW_POOL_PAGE_BYTES));
    spw_pool_discharge(pool, bytes);
}

static void trim(struct spw_pool *pool, void *p, uint64_t bytes, uint64_t keep)
{
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    keep = spw_align_up(keep, SPW_POOL_PAGE_BYTES);
    assert(keep && keep <= bytes);
    if (keep < bytes)
        free_from(pool, (char *)p + keep, bytes - keep);
}

void spw_pools_free(struct spw_device *d, void *p, uint64_t bytes)
{
    free_from(&pools_of(d)->device, p, bytes);
}

void spw_pools_free_host(struct spw_device *d, void *p, uint64_t bytes)
{
    free_from(&pools_of(d)->host, p, bytes);
}

void spw_pools_trim(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep)
{
    trim(&pools_of(d)->device, p, bytes, keep);
}

void spw_pools_trim_host(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep)
{
    trim(&pools_of(d)->host, p, bytes, keep);
}

int spw_pools_charge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    struct spw_pools *p = pools_of(d);
    SPW_TRY(spw_pool_charge(&p->device, device_bytes));
    int rc = spw_pool_charge(&p->host, host_bytes);
    if (rc)
        spw_pool_discharge(&p->device, device_bytes);
    return rc;
}

void spw_pools_discharge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    spw_pool_discharge(&pools_of(d)->device, device_bytes);
    spw_pool_discharge(&pools_of(d)->host, host_bytes);
}

void spw_pools_set_budgets(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    struct spw_pools *p = pools_of(d);
    p->device.budget = device_bytes;
    p->host.budget = host_bytes;
    set(&p->device.peak, get(&p->device.used));
    set(&p->host.peak, get(&p->host.used));
}

void spw_pools_usage(struct spw_device *d, struct spw_device_usage *out)
{
    const struct spw_pools *p = pools_of(d);
    *out = (struct spw_device_usage){.device_bytes = get(&p->device.used),
                                     .host_bytes = get(&p->host.used),
                                     .device_peak_bytes = get(&p->device.peak),
                                     .host_peak_bytes = get(&p->host.peak)};
}
