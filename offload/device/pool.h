/* Memory under budgets, in whole pages: what all devices have in common.
 * One thread charges and frees; any thread may read the counters. */
#ifndef SPW_OFFLOAD_DEVICE_POOL_H
#define SPW_OFFLOAD_DEVICE_POOL_H

#include "offload/device/device.h"

#define SPW_POOL_PAGE_BYTES 4096u

struct spw_pool {
    uint64_t budget;
    uint64_t used, peak; /* atomic */
};

/* The first member of struct spw_device of all devices. */
struct spw_pools {
    struct spw_pool device, host;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Counts `bytes`, rounded up to whole pages, against the budget. -ENOMEM: they do not fit. */
int spw_pool_charge(struct spw_pool *pool, uint64_t bytes);
void spw_pool_discharge(struct spw_pool *pool, uint64_t bytes);

/* Operations of struct spw_device_ops. */
void spw_pools_free(struct spw_device *d, void *p, uint64_t bytes);
void spw_pools_free_host(struct spw_device *d, void *p, uint64_t bytes);
void spw_pools_trim(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);
void spw_pools_trim_host(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep);
int spw_pools_charge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
void spw_pools_discharge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
void spw_pools_set_budgets(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes);
/* Fills in what is in use, and the peaks. */
void spw_pools_usage(struct spw_device *d, struct spw_device_usage *out);

#ifdef __cplusplus
}
#endif

#endif
