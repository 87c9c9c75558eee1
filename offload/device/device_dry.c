/* The dry device, which computes nothing: see device.h. It reserves addresses, checks budgets and
 * counts copies by link, as any device does. But it moves nothing: a copy, a kernel and an event
 * are over when they are queued. So the counters of this device say what the same calls would move
 * on another device.
 *
 * Device memory cannot be touched. Host memory reads as zeros, and takes a page only where somebody
 * writes. */
#include "offload/device/device.h"

#include "offload/device/placement.h"
#include "offload/device/pool.h"

#include <assert.h>
#include <sys/mman.h>

struct spw_device {
    struct spw_pools pools;
    uint64_t moved[SPW_LINK_COUNT];
    struct spw_device_likeness like;
    struct spw_placement placement; /* no thread is bound */
};

/* Streams and events have no state, but each has an address. */
static char stream_of_all, event_of_all;

/* --- memory --- */

static int pool_alloc(struct spw_pool *pool, uint64_t bytes, int protection, void **out)
{
    *out = NULL;
    if (!bytes)
        return 0;
    SPW_TRY(spw_pool_charge(pool, bytes));
    void *p = mmap(NULL, spw_align_up(bytes, SPW_POOL_PAGE_BYTES), protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        spw_pool_discharge(pool, bytes);
        return -ENOMEM;
    }
    *out = p;
    return 0;
}

static int dry_alloc(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(&d->pools.device, bytes, PROT_NONE, out);
}

static int dry_alloc_host(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(&d->pools.host, bytes, PROT_READ | PROT_WRITE, out);
}

/* --- streams, events, copies --- */

static int dry_stream_open(struct spw_device *d, const char *name, spw_stream *out)
{
    (void)d, (void)name;
    *out = (spw_stream)(void *)&stream_of_all;
    return 0;
}

static void dry_stream_close(struct spw_device *d, spw_stream s)
{
    (void)d, (void)s;
}

static int dry_event_open(struct spw_device *d, spw_event *out)
{
    (void)d;
    *out = (spw_event)(void *)&event_of_all;
    return 0;
}

static void dry_event_close(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
}

static int dry_event_record(struct spw_device *d, spw_event e, spw_stream s)
{
    (void)d, (void)e, (void)s;
    return 0;
}

static int dry_stream_wait(struct spw_device *d, spw_stream s, spw_event e)
{
    (void)d, (void)s, (void)e;
    return 0;
}

static int dry_event_sync(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
    return 0;
}

static bool dry_event_is_over(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
    return true;
}

static int dry_stream_sync(struct spw_device *d, spw_stream s)
{
    (void)d, (void)s;
    return 0;
}

static int dry_copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                    enum spw_link link, spw_stream s)
{
    (void)to, (void)from, (void)s;
    d->moved[link] += bytes;
    return 0;
}

static int dry_host_call(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s)
{
    (void)d, (void)s;
    fn(argument);
    return 0;
}

/* --- the device --- */

static int dry_open(struct spw_device **out, const struct spw_device_options *o,
                    struct spw_error *err)
{
    struct spw_device *d = *out = spw_alloc_zero(1, sizeof *d);
    if (!d)
        return spw_fail(err, -ENOMEM, "out of memory for the dry device");
    d->pools.device.budget = o->device_bytes;
    d->pools.host.budget = o->host_bytes;
    d->like = *(const struct spw_device_likeness *)o->context;
    return 0;
}

static void dry_close(struct spw_device *d)
{
    assert(!d || (!d->pools.device.used && !d->pools.host.used));
    spw_free(d);
}

static unsigned dry_workers(const struct spw_device *d)
{
    return d->like.workers;
}

static const struct spw_placement *dry_placement(const struct spw_device *d)
{
    return &d->placement;
}

static uint64_t dry_available(struct spw_device *d)
{
    return d->like.available;
}

static double dry_waited_seconds(struct spw_device *d, spw_stream s, uint32_t range)
{
    (void)d, (void)s, (void)range;
    return 0;
}

static void dry_usage(struct spw_device *d, struct spw_device_usage *out)
{
    spw_pools_usage(d, out);
    for (int i = 0; i < SPW_LINK_COUNT; i++)
        out->moved_bytes[i] = d->moved[i];
}

static void dry_range_begin(struct spw_device *d, const char *name, uint64_t number)
{
    (void)d, (void)name, (void)number;
}

static void dry_range_end(struct spw_device *d)
{
    (void)d;
}

const struct spw_device_ops spw_device_dry = {
    .name = "count",
    .open = dry_open,
    .close = dry_close,
    .workers = dry_workers,
    .placement = dry_placement,
    .available = dry_available,
    .alloc = dry_alloc,
    .free = spw_pools_free,
    .charge = spw_pools_charge,
    .discharge = spw_pools_discharge,
    .set_budgets = spw_pools_set_budgets,
    .alloc_host = dry_alloc_host,
    .free_host = spw_pools_free_host,
    .trim = spw_pools_trim,
    .trim_host = spw_pools_trim_host,
    .stream_open = dry_stream_open,
    .stream_close = dry_stream_close,
    .event_open = dry_event_open,
    .event_close = dry_event_close,
    .event_record = dry_event_record,
    .stream_wait = dry_stream_wait,
    .event_sync = dry_event_sync,
    .event_is_over = dry_event_is_over,
    .stream_sync = dry_stream_sync,
    .copy = dry_copy,
    .host_call = dry_host_call,
    .waited_seconds = dry_waited_seconds,
    .usage = dry_usage,
    .range_begin = dry_range_begin,
    .range_end = dry_range_end,
};
