/* The counting device: see device.h. It reserves addresses, keeps budgets, and counts copies by
 * link, as any device does. But it moves nothing: a copy, a kernel and an event are over when they
 * are queued. So the runtime tells on this device what it would move on another one.
 *
 * Device memory cannot be touched. Host memory reads as zeros, and takes a page only where somebody
 * writes. */
#include "offload/device/device.h"

#include "offload/device/placement.h"
#include "offload/device/pool.h"

#include <assert.h>
#include <sys/mman.h>

struct spw_device {
    struct spw_pool device, host;
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

static int count_alloc(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(&d->device, bytes, PROT_NONE, out);
}

static void count_free(struct spw_device *d, void *p, uint64_t bytes)
{
    spw_pool_free(&d->device, p, bytes);
}

static int count_alloc_host(struct spw_device *d, uint64_t bytes, void **out)
{
    return pool_alloc(&d->host, bytes, PROT_READ | PROT_WRITE, out);
}

static void count_free_host(struct spw_device *d, void *p, uint64_t bytes)
{
    spw_pool_free(&d->host, p, bytes);
}

static void count_trim(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep)
{
    spw_pool_trim(&d->device, p, bytes, keep);
}

static void count_trim_host(struct spw_device *d, void *p, uint64_t bytes, uint64_t keep)
{
    spw_pool_trim(&d->host, p, bytes, keep);
}

static int count_charge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    SPW_TRY(spw_pool_charge(&d->device, device_bytes));
    int rc = spw_pool_charge(&d->host, host_bytes);
    if (rc)
        spw_pool_discharge(&d->device, device_bytes);
    return rc;
}

static void count_discharge(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    spw_pool_discharge(&d->device, device_bytes);
    spw_pool_discharge(&d->host, host_bytes);
}

static void count_set_budgets(struct spw_device *d, uint64_t device_bytes, uint64_t host_bytes)
{
    d->device = (struct spw_pool){device_bytes, d->device.used, d->device.used};
    d->host = (struct spw_pool){host_bytes, d->host.used, d->host.used};
}

/* --- streams, events, copies --- */

static int count_stream_open(struct spw_device *d, const char *name, spw_stream *out)
{
    (void)d, (void)name;
    *out = (spw_stream)(void *)&stream_of_all;
    return 0;
}

static void count_stream_close(struct spw_device *d, spw_stream s)
{
    (void)d, (void)s;
}

static int count_event_open(struct spw_device *d, spw_event *out)
{
    (void)d;
    *out = (spw_event)(void *)&event_of_all;
    return 0;
}

static void count_event_close(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
}

static int count_event_record(struct spw_device *d, spw_event e, spw_stream s)
{
    (void)d, (void)e, (void)s;
    return 0;
}

static int count_stream_wait(struct spw_device *d, spw_stream s, spw_event e)
{
    (void)d, (void)s, (void)e;
    return 0;
}

static int count_event_sync(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
    return 0;
}

static bool count_event_is_over(struct spw_device *d, spw_event e)
{
    (void)d, (void)e;
    return true;
}

static int count_stream_sync(struct spw_device *d, spw_stream s)
{
    (void)d, (void)s;
    return 0;
}

static int count_copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                      enum spw_link link, spw_stream s)
{
    (void)to, (void)from, (void)s;
    d->moved[link] += bytes;
    return 0;
}

static int count_host_call(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s)
{
    (void)d, (void)s;
    fn(argument);
    return 0;
}

/* --- the device --- */

static int count_open(struct spw_device **out, const struct spw_device_options *o,
                      struct spw_error *err)
{
    struct spw_device *d = *out = spw_alloc_zero(1, sizeof *d);
    if (!d)
        return spw_fail(err, -ENOMEM, "out of memory for the counting device");
    d->device.budget = o->device_bytes;
    d->host.budget = o->host_bytes;
    d->like = *(const struct spw_device_likeness *)o->context;
    return 0;
}

static void count_close(struct spw_device *d)
{
    assert(!d || (!d->device.used && !d->host.used));
    spw_free(d);
}

static unsigned count_workers(const struct spw_device *d)
{
    return d->like.workers;
}

static const struct spw_placement *count_placement(const struct spw_device *d)
{
    return &d->placement;
}

static uint64_t count_available(struct spw_device *d)
{
    return d->like.available;
}

static double count_waited_seconds(struct spw_device *d, spw_stream s, uint32_t range)
{
    (void)d, (void)s, (void)range;
    return 0;
}

static void count_usage(struct spw_device *d, struct spw_device_usage *out)
{
    *out = (struct spw_device_usage){.device_bytes = d->device.used,
                                     .host_bytes = d->host.used,
                                     .device_peak_bytes = d->device.peak,
                                     .host_peak_bytes = d->host.peak};
    for (int i = 0; i < SPW_LINK_COUNT; i++)
        out->moved_bytes[i] = d->moved[i];
}

static void count_range_begin(struct spw_device *d, const char *name, uint64_t number)
{
    (void)d, (void)name, (void)number;
}

static void count_range_end(struct spw_device *d)
{
    (void)d;
}

const struct spw_device_ops spw_device_count = {
    .name = "count",
    .open = count_open,
    .close = count_close,
    .workers = count_workers,
    .placement = count_placement,
    .available = count_available,
    .alloc = count_alloc,
    .free = count_free,
    .charge = count_charge,
    .discharge = count_discharge,
    .set_budgets = count_set_budgets,
    .alloc_host = count_alloc_host,
    .free_host = count_free_host,
    .trim = count_trim,
    .trim_host = count_trim_host,
    .stream_open = count_stream_open,
    .stream_close = count_stream_close,
    .event_open = count_event_open,
    .event_close = count_event_close,
    .event_record = count_event_record,
    .stream_wait = count_stream_wait,
    .event_sync = count_event_sync,
    .event_is_over = count_event_is_over,
    .stream_sync = count_stream_sync,
    .copy = count_copy,
    .host_call = count_host_call,
    .waited_seconds = count_waited_seconds,
    .usage = count_usage,
    .range_begin = count_range_begin,
    .range_end = count_range_end,
};
