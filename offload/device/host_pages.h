/* Host memory that devices copy from and to and that files are read into: anonymous, zeroed, whole
 * pages of the system, huge ones where it has them; near the device, else near those who compute.
 *
 * The system takes a page when it is first written. Whoever pins memory, for a GPU or for the
 * kernel's own reads and writes, has it take all of them in that one call, in one thread: so they
 * are touched before, by several. What is not pinned is not touched, for a large context may never
 * be filled. Safe from any thread; -ENOMEM is the only failure, and counts as an allocation
 * (base.h). */
#ifndef SPW_OFFLOAD_DEVICE_HOST_PAGES_H
#define SPW_OFFLOAD_DEVICE_HOST_PAGES_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct spw_placement;

/* `bytes` > 0 is a multiple of 4096; `place` says where pages should lie. From 2 MiB on the memory
 * ends at the border of a huge page. */
int spw_host_pages_map(uint64_t bytes, const struct spw_placement *place, void **out);
/* Makes all of it present, by threads on the cores near it. Nobody else may use it yet. */
void spw_host_pages_touch(void *p, uint64_t bytes, const struct spw_placement *place);
void spw_host_pages_unmap(void *p, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
