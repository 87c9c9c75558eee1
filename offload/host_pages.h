/* Host memory for a device to copy from and to: whole pages of the system, zeroed, all of them
 * present, so that neither the first step nor the pinning waits for page faults one by one.
 *
 * Safe from any thread. -ENOMEM is the only failure; it counts as an allocation (base.h). */
#ifndef SPW_OFFLOAD_HOST_PAGES_H
#define SPW_OFFLOAD_HOST_PAGES_H

#include "runtime/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_placement;

/* `bytes` > 0 is a multiple of 4096. `place` says where pages should lie and which cores touch
 * them. */
int spw_host_pages_map(uint64_t bytes, const struct spw_placement *place, void **out);
void spw_host_pages_unmap(void *p, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
