/* Host memory that devices copy from and to, and that files are read into. It is anonymous and
 * zeroed, in whole pages, huge ones if the system has them. It lies near the device, else near
 * the threads that compute.
 *
 * The system allocates a page at the first write. A call that pins memory, for a GPU or for I/O,
 * makes the system allocate all pages in one thread. So several threads touch such memory
 * before. Memory that is not pinned is not touched, because a large context may never be filled.
 * Safe from any thread. The only failure is -ENOMEM, which counts as an allocation (base.h). */
#ifndef SPW_OFFLOAD_DEVICE_HOST_PAGES_H
#define SPW_OFFLOAD_DEVICE_HOST_PAGES_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_placement;

/* `bytes` > 0 is a multiple of 4096. `place` says where pages should lie. From 2 MiB on the end
 * of the memory is the border of a huge page. */
int spw_host_pages_map(uint64_t bytes, const struct spw_placement *place, void **out);
/* Touches all pages, with threads on the cores near the memory. No other thread may use the
 * memory yet. */
void spw_host_pages_touch(void *p, uint64_t bytes, const struct spw_placement *place);
void spw_host_pages_unmap(void *p, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
