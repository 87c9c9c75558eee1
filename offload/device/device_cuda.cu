/* The CUDA device: see device.h. A stream is a CUDA stream, and an event is a CUDA event without
 * timing. Only this file opens, closes and waits for them, and allocates memory.
 *
 * Device memory is plain cudaMalloc, allocated at open. Nothing here synchronizes the whole
 * device. Host memory is pinned in slabs: the system may refuse one call that pins tens of GiB,
 * but allow several smaller ones.
 *
 *     block:  | slab 0 | slab 1 | ... | rest |      one mapping, one registration per slab
 *
 * A copy must not cross the border of two registrations, so copies are split there. If the
 * system refuses to pin a slab, the block stays pageable from there on. The driver then stages
 * copies of this memory, and may read the source at the call (CUDA runtime API, "API
 * synchronization behavior"), before earlier work on the stream has written it. So the calling
 * thread waits for the stream first. This is right, but slow. WSL2 and small limits of locked
 * memory refuse the last slabs only.
 *
 * The driver also stages copies of other memory, such as a mapped model file. Such memory does
 * not change, so no wait is needed. It is copied once, at open. The token loop copies only from
 * pinned memory.
 *
 * Waiting that computation did not hide is measured on the stream "compute", by two events
 * around a wait:
 *
 *     kernels ... | before | wait for e | after | kernels ...       waited += after - before
 *
 * If the event is over already, the wait is left out. An event takes about a microsecond of the
 * stream, which counts as waiting, so the measured time is never too small. */
#include "offload/device/device.h"

#include "offload/device/host_pages.h"
#include "offload/device/placement.h"
#include "offload/device/pool.h"
#include "offload/device/topology.h"
#include "quant/cuda.cuh"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Markers for profilers: from a header of the toolkit, without a library. Without a profiler, a
 * call tests a pointer. */
#if !defined(SPW_SIMT_EMULATOR) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif

#define SLAB_BYTES ((uint64_t)1 << 30)
#define OLDEST_CAPABILITY 75
/* How many waits the host may be ahead of the timed stream. The driver queues about as many
 * launches. */
#define TIMED_WAITS 1024u

struct host_block {
    struct host_block *next;
    unsigned char *from;
    uint64_t bytes, pinned_bytes; /* the first ones: whole slabs, or all */
};

struct timed_stream {
    spw_stream stream;         /* borrowed; NULL: not open */
    spw_event *before, *after; /* [TIMED_WAITS] each, owned */
    uint64_t queued, added;    /* waits so far, and waits that `seconds` includes */
    uint32_t range[TIMED_WAITS];
    double seconds[SPW_RANGES + 1]; /* by range; the last one: outside of any range */
};

struct spw_device {
    struct spw_pools pools;
    int index;
    struct spw_topology *topology; /* owned; NULL: unknown */
    struct spw_placement placement;
    uint64_t moved[SPW_LINK_COUNT];
    uint64_t slab_bytes, available_at_open;
    bool failed, pageable;
    struct host_block *blocks; /* owned */
    uint32_t range;            /* of the waits that are queued now */
    struct timed_stream timed;
};

/* --- errors --- */

static int fail(struct spw_device *d)
{
    __atomic_store_n(&d->failed, true, __ATOMIC_RELAXED);
    return -EIO;
}

/* Maps the result of a CUDA call to 0, -ENOMEM, or -EIO, which ends this device. */
static int result(struct spw_device *d, cudaError_t rc)
{
    int mapped = spw_cuda_result(rc);
    return mapped == -EIO ? fail(d) : mapped;
}

/* Every operation begins with this: a failed device stays failed, also if a launcher has seen
 * the failure first. The calling thread may have used another GPU meanwhile. */
static int enter(struct spw_device *d)
{
    if (__atomic_load_n(&spw_cuda_cards[d->index].launch_failed, __ATOMIC_RELAXED))
        (void)fail(d);
    if (__atomic_load_n(&d->failed, __ATOMIC_RELAXED))
        return -EIO;
    return result(d, cudaSetDevice(d->index));
}

/* --- memory --- */

/* Zeroed once: memory of an earlier process may contain NaN, and NaN times zero is NaN. */
static int cuda_alloc(struct spw_device *d, uint64_t bytes, void **out)
{
    *out = NULL;
    SPW_TRY(enter(d));
    if (!bytes)
        return 0;
    SPW_TRY(spw_pool_charge(&d->pools.device, bytes));
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    void *p = NULL;
    int rc = spw_alloc_fails() ? -ENOMEM : result(d, cudaMalloc(&p, bytes));
    if (!rc) {
        rc = result(d, cudaMemsetAsync(p, 0, bytes, NULL));
        if (!rc)
            rc = result(d, cudaStreamSynchronize(NULL));
        if (rc)
            cudaFree(p);
    }
    if (rc) {
        spw_pool_discharge(&d->pools.device, bytes);
        return rc;
    }
    *out = p;
    return 0;
}

static void cuda_free(struct spw_device *d, void *p, uint64_t bytes)
{
    if (!p)
        return;
    cudaSetDevice(d->index);
    cudaError_t rc = cudaFree(p);
    if (rc != cudaSuccess)
        (void)result(d, rc);
    spw_pool_discharge(&d->pools.device, bytes);
}

static uint64_t cuda_available(struct spw_device *d)
{
    size_t available = 0, total;
    if (enter(d) || result(d, cudaMemGetInfo(&available, &total)))
        return 0;
    return available;
}

/* Pins slabs until the system refuses one, perhaps because locked memory is limited. Returns the
 * bytes of these. */
static uint64_t pin(const struct spw_device *d, unsigned char *from, uint64_t bytes)
{
    uint64_t at = 0;
    while (at < bytes) {
        const uint64_t n = spw_min_u64(d->slab_bytes, bytes - at);
        if (cudaHostRegister(from + at, n, cudaHostRegisterDefault) != cudaSuccess) {
            (void)cudaGetLastError();
            break;
        }
        at += n;
    }
    return at;
}

static int cuda_alloc_host(struct spw_device *d, uint64_t bytes, void **out)
{
    *out = NULL;
    SPW_TRY(enter(d));
    if (!bytes)
        return 0;
    SPW_TRY(spw_pool_charge(&d->pools.host, bytes));
    bytes = spw_align_up(bytes, SPW_POOL_PAGE_BYTES);
    struct host_block *b = (struct host_block *)spw_alloc_zero(1, sizeof *b);
    void *p = NULL;
    int rc = b ? spw_host_pages_map(bytes, &d->placement, &p) : -ENOMEM;
    if (rc) {
        spw_free(b);
        spw_pool_discharge(&d->pools.host, bytes);
        return rc;
    }
    spw_host_pages_touch(p, bytes, &d->placement);
    b->from = (unsigned char *)p;
    b->bytes = bytes;
    b->pinned_bytes = pin(d, b->from, bytes);
    if (b->pinned_bytes < bytes)
        __atomic_store_n(&d->pageable, true, __ATOMIC_RELAXED);
    b->next = d->blocks;
    d->blocks = b;
    *out = p;
    return 0;
}

static void cuda_free_host(struct spw_device *d, void *p, uint64_t bytes)
{
    if (!p)
        return;
    struct host_block **at = &d->blocks;
    while (*at && (*at)->from != p)
        at = &(*at)->next;
    struct host_block *b = *at;
    assert(b && b->bytes == spw_align_up(bytes, SPW_POOL_PAGE_BYTES));
    *at = b->next;
    cudaSetDevice(d->index);
    for (uint64_t slab = 0; slab < b->pinned_bytes; slab += d->slab_bytes)
        cudaHostUnregister(b->from + slab);
    spw_host_pages_unmap(p, b->bytes);
    spw_pool_discharge(&d->pools.host, bytes);
    spw_free(b);
}

/* --- the timed stream --- */

static void timed_close(struct timed_stream *t)
{
    for (unsigned i = 0; i < TIMED_WAITS; i++) {
        if (t->before && t->before[i])
            cudaEventDestroy(t->before[i]);
        if (t->after && t->after[i])
            cudaEventDestroy(t->after[i]);
    }
    spw_free(t->before);
    spw_free(t->after);
    *t = (struct timed_stream){};
}

static int timed_open(struct spw_device *d, spw_stream s)
{
    struct timed_stream *t = &d->timed;
    t->before = (spw_event *)spw_alloc_zero(TIMED_WAITS, sizeof *t->before);
    t->after = (spw_event *)spw_alloc_zero(TIMED_WAITS, sizeof *t->after);
    int rc = t->before && t->after ? 0 : -ENOMEM;
    for (unsigned i = 0; i < TIMED_WAITS && !rc; i++) {
        rc = result(d, cudaEventCreateWithFlags(&t->before[i], cudaEventDefault));
        if (!rc)
            rc = result(d, cudaEventCreateWithFlags(&t->after[i], cudaEventDefault));
    }
    if (rc)
        timed_close(t);
    else
        t->stream = s;
    return rc;
}

/* Adds up the waits [added, end), which are over. */
static int timed_add(struct spw_device *d, uint64_t end)
{
    struct timed_stream *t = &d->timed;
    for (; t->added < end; t->added++) {
        float ms;
        unsigned i = (unsigned)(t->added % TIMED_WAITS);
        SPW_TRY(result(d, cudaEventElapsedTime(&ms, t->before[i], t->after[i])));
        t->seconds[t->range[i]] += ms * 1e-3;
    }
    return 0;
}

/* If the table is full, waits until half of it is free. */
static int timed_wait(struct spw_device *d, spw_event e)
{
    struct timed_stream *t = &d->timed;
    cudaError_t rc = cudaEventQuery(e);
    if (rc == cudaSuccess)
        return 0;
    if (rc != cudaErrorNotReady)
        return result(d, rc);
    (void)cudaGetLastError();
    if (t->queued - t->added == TIMED_WAITS) {
        uint64_t end = t->queued - TIMED_WAITS / 2;
        SPW_TRY(result(d, cudaEventSynchronize(t->after[(end - 1) % TIMED_WAITS])));
        SPW_TRY(timed_add(d, end));
    }
    unsigned i = (unsigned)(t->queued % TIMED_WAITS);
    SPW_TRY(result(d, cudaEventRecord(t->before[i], t->stream)));
    SPW_TRY(result(d, cudaStreamWaitEvent(t->stream, e, 0)));
    SPW_TRY(result(d, cudaEventRecord(t->after[i], t->stream)));
    t->range[i] = d->range;
    t->queued++;
    return 0;
}

static double cuda_waited_seconds(struct spw_device *d, spw_stream s, uint32_t range)
{
    struct timed_stream *t = &d->timed;
    if (s != t->stream || enter(d))
        return s == t->stream ? t->seconds[range] : 0;
    while (t->added < t->queued && cudaEventQuery(t->after[t->added % TIMED_WAITS]) == cudaSuccess)
        if (timed_add(d, t->added + 1))
            break;
    if (t->added < t->queued)
        (void)cudaGetLastError();
    return t->seconds[range];
}

/* --- streams and events --- */

static int cuda_stream_open(struct spw_device *d, const char *name, spw_stream *out)
{
    int lowest = 0, highest = 0;
    bool compute = !strcmp(name, "compute");
    *out = NULL;
    SPW_TRY(enter(d));
    if (spw_alloc_fails())
        return -ENOMEM;
    SPW_TRY(result(d, cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    spw_stream s = NULL;
    SPW_TRY(result(
        d, cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, compute ? highest : lowest)));
    int rc = compute && !d->timed.stream ? timed_open(d, s) : 0;
    if (rc)
        cudaStreamDestroy(s);
    else
        *out = s;
    return rc;
}

static void cuda_stream_close(struct spw_device *d, spw_stream s)
{
    if (!s)
        return;
    cudaSetDevice(d->index);
    (void)result(d, cudaStreamSynchronize(s));
    if (s == d->timed.stream)
        timed_close(&d->timed);
    cudaStreamDestroy(s);
}

static int cuda_event_open(struct spw_device *d, spw_event *out)
{
    *out = NULL;
    SPW_TRY(enter(d));
    if (spw_alloc_fails())
        return -ENOMEM;
    return result(d, cudaEventCreateWithFlags(out, cudaEventDisableTiming));
}

static void cuda_event_close(struct spw_device *d, spw_event e)
{
    cudaSetDevice(d->index);
    if (e)
        cudaEventDestroy(e); /* queued waits for the event stay valid */
}

static int cuda_event_record(struct spw_device *d, spw_event e, spw_stream s)
{
    SPW_TRY(enter(d));
    return result(d, cudaEventRecord(e, s));
}

static int cuda_stream_wait(struct spw_device *d, spw_stream s, spw_event e)
{
    SPW_TRY(enter(d));
    if (s == d->timed.stream)
        return timed_wait(d, e);
    return result(d, cudaStreamWaitEvent(s, e, 0));
}

static int cuda_event_sync(struct spw_device *d, spw_event e)
{
    SPW_TRY(enter(d));
    return result(d, cudaEventSynchronize(e));
}

static bool cuda_event_is_over(struct spw_device *d, spw_event e)
{
    if (enter(d))
        return true;
    cudaError_t rc = cudaEventQuery(e);
    (void)cudaGetLastError(); /* "not ready" is no failure; the next call shows other errors */
    return rc != cudaErrorNotReady;
}

static int cuda_stream_sync(struct spw_device *d, spw_stream s)
{
    SPW_TRY(enter(d));
    return result(d, cudaStreamSynchronize(s));
}

/* --- a profiler's ranges --- */

static void mark_begin(const char *name, uint64_t number)
{
#ifdef HAVE_NVTX
    nvtxEventAttributes_t a = {};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = name;
    a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    a.payload.ullValue = number;
    nvtxRangePushEx(&a);
#else
    (void)name;
    (void)number;
#endif
}

static void mark_end(void)
{
#ifdef HAVE_NVTX
    nvtxRangePop();
#endif
}

static void cuda_range_begin(struct spw_device *d, const char *name, uint64_t number)
{
    d->range = (uint32_t)spw_min_u64(number, SPW_RANGES);
    mark_begin(name, number);
}

static void cuda_range_end(struct spw_device *d)
{
    d->range = SPW_RANGES;
    mark_end();
}

/* --- work --- */

/* The block that contains `p`; NULL for device memory and for memory of others. */
static const struct host_block *block_of(const struct spw_device *d, const void *p)
{
    for (const struct host_block *b = d->blocks; b; b = b->next)
        if ((uintptr_t)p - (uintptr_t)b->from <
            b->bytes) /* wraps around if p lies below the block */
            return b;
    return NULL;
}

static bool is_pageable(const struct host_block *b, const void *p)
{
    return b && (uintptr_t)p - (uintptr_t)b->from >= b->pinned_bytes;
}

/* Bytes from `p` to the end of its slab. */
static uint64_t to_slab_end(const struct spw_device *d, const struct host_block *b, const void *p)
{
    if (!b || is_pageable(b, p))
        return UINT64_MAX;
    return d->slab_bytes - ((uintptr_t)p - (uintptr_t)b->from) % d->slab_bytes;
}

static int cuda_copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                     enum spw_link link, spw_stream s)
{
    static const cudaMemcpyKind kinds[SPW_LINK_COUNT] = {
        cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    static const char *const names[SPW_LINK_COUNT] = {"host to device", "device to host",
                                                      "device to device"};
    assert((unsigned)link < SPW_LINK_COUNT);
    SPW_TRY(enter(d));
    mark_begin(names[link], bytes);
    const struct host_block *here = block_of(d, from), *there = block_of(d, to);
    int rc = 0;
    for (uint64_t at = 0; at < bytes && !rc;) {
        uint64_t n = spw_min_u64(bytes - at, to_slab_end(d, there, (char *)to + at));
        n = spw_min_u64(n, to_slab_end(d, here, (const char *)from + at));
        if (is_pageable(here, (const char *)from + at))
            rc = result(d, cudaStreamSynchronize(s));
        if (!rc)
            rc = result(
                d, cudaMemcpyAsync((char *)to + at, (const char *)from + at, n, kinds[link], s));
        at += n;
    }
    mark_end();
    if (!rc)
        __atomic_fetch_add(&d->moved[link], bytes, __ATOMIC_RELAXED);
    return rc;
}

static int cuda_host_call(struct spw_device *d, void (*fn)(void *), void *argument, spw_stream s)
{
    SPW_TRY(enter(d));
    return result(d, cudaLaunchHostFunc(s, fn, argument));
}

/* --- the device --- */

/* Checks each thing that may be missing. The text says what to do about it. */
int spw_device_cuda_probe(int index, char *name, size_t bytes, struct spw_error *err)
{
    int driver = 0, runtime = 0, n = 0;
    cudaDeviceProp p;
    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
        return spw_fail(err, -ENOTSUP,
                        "device cuda: no NVIDIA driver is loaded on this machine; install one, or "
                        "use options.backend cpu");
    if (driver / 1000 < runtime / 1000)
        return spw_fail(err, -ENODEV,
                        "device cuda: the driver knows CUDA up to %d.%d, this spillway was built "
                        "with %d.%d; update the driver, or use options.backend cpu",
                        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess || !n) {
        (void)cudaGetLastError();
        return spw_fail(err, -ENODEV,
                        "device cuda: the driver finds no GPU (%s); see nvidia-smi and "
                        "CUDA_VISIBLE_DEVICES, or use options.backend cpu",
                        rc == cudaSuccess ? "none is visible" : cudaGetErrorString(rc));
    }
    if (index < 0 || index >= n || index >= SPW_CUDA_CARDS)
        return spw_fail(err, -ENODEV,
                        "device cuda:%d: this machine has %d GPU%s, counted from 0; expected "
                        "options.backend cuda:0%s",
                        index, n, n == 1 ? "" : "s", n == 1 ? "" : " or another of them");
    rc = cudaGetDeviceProperties(&p, index);
    if (rc != cudaSuccess) {
        (void)cudaGetLastError();
        return spw_fail(err, -ENODEV,
                        "device cuda:%d: %s; see nvidia-smi, or use options.backend cpu", index,
                        cudaGetErrorString(rc));
    }
    if (p.major * 10 + p.minor < OLDEST_CAPABILITY)
        return spw_fail(err, -ENODEV,
                        "device cuda:%d: %s has compute capability %d.%d, expected 7.5 or newer; "
                        "use options.backend cpu",
                        index, p.name, p.major, p.minor);
    if (bytes)
        snprintf(name, bytes, "%s, sm_%d%d", p.name, p.major, p.minor);
    return 0;
}

static void cuda_close(struct spw_device *d)
{
    if (!d)
        return;
    assert(!d->pools.device.used && !d->pools.host.used && !d->blocks);
    spw_placement_free(&d->placement);
    spw_topology_close(d->topology);
    spw_free(d);
}

/* If hwloc cannot read the machine, no thread is bound. The card does the copies; the driver's
 * threads only submit them. */
static int choose_places(struct spw_device *d, const struct spw_device_options *o,
                         const char *bus_id)
{
    struct spw_placement_request q = {};
    int rc = spw_topology_open(&d->topology, NULL, NULL);
    if (rc == -ENOMEM)
        return rc;
    int node = d->topology ? spw_topology_node_of_pci(d->topology, bus_id) : -1;
    q.compute = -1;
    q.io = o->io_threads;
    q.has_node = node >= 0;
    q.node = node >= 0 ? (unsigned)node : 0;
    return spw_placement_init(&d->placement, d->topology, &q);
}

/* This program has no code for this GPU, or only PTX that the driver cannot translate. */
static bool is_code_missing(cudaError_t rc)
{
    return rc == cudaErrorNoKernelImageForDevice || rc == cudaErrorInvalidDeviceFunction ||
           rc == cudaErrorUnsupportedPtxVersion || rc == cudaErrorInvalidPtx ||
           rc == cudaErrorJitCompilerNotFound || rc == cudaErrorJitCompilationDisabled;
}

static int refuse_open(int index, cudaError_t rc, struct spw_error *err)
{
    int major = 0, minor = 0;
    (void)cudaGetLastError();
    if (!is_code_missing(rc))
        return spw_fail(err, -ENODEV,
                        "device cuda:%d: %s; another process may hold the GPU: see nvidia-smi, or "
                        "use options.backend cpu",
                        index, cudaGetErrorString(rc));
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    return spw_fail(err, -ENODEV,
                    "device cuda:%d: this spillway has no code for sm_%d%d (%s); build it with "
                    "SPILLWAY_CUDA_ARCHITECTURES=%d%d, update the driver, or use options.backend "
                    "cpu",
                    index, major, minor, cudaGetErrorString(rc), major, minor);
}

/* Queries every kernel of this program, which loads it. Otherwise the driver would load a kernel
 * at its first launch, in the middle of a prompt, when other processes may have left no memory. */
static cudaError_t load_kernels(void)
{
    cudaFuncAttributes code;
    cudaError_t rc = cudaSuccess;
    for (const struct spw_cuda_kernel *k = spw_cuda_kernels; k && rc == cudaSuccess; k = k->next)
        rc = cudaFuncGetAttributes(&code, k->entry);
    return rc;
}

static int cuda_open(struct spw_device **out, const struct spw_device_options *o,
                     struct spw_error *err)
{
    *out = NULL;
    SPW_TRY(spw_device_cuda_probe(o->index, NULL, 0, err));
    struct spw_device *d = (struct spw_device *)spw_alloc_zero(1, sizeof *d);
    if (!d)
        return spw_fail(err, -ENOMEM, "out of memory for the CUDA device");
    d->index = o->index;
    d->range = SPW_RANGES;
    d->pools.device.budget = o->device_bytes;
    d->pools.host.budget = o->host_bytes;
    d->slab_bytes = o->slab_bytes ? o->slab_bytes : SLAB_BYTES;
    size_t total;
    char bus_id[32] = "";
    cudaError_t rc = cudaSetDevice(d->index);
    if (rc == cudaSuccess)
        rc = cudaDeviceGetPCIBusId(bus_id, (int)sizeof bus_id, d->index);
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(&d->available_at_open, &total);
    if (rc == cudaSuccess)
        rc = load_kernels();
    if (rc != cudaSuccess) {
        spw_free(d);
        return refuse_open(o->index, rc, err);
    }
    struct spw_cuda_card *card = &spw_cuda_cards[d->index];
    __atomic_store_n(&card->serial, o->serial_kernels, __ATOMIC_RELAXED);
    __atomic_store_n(&card->launch_failed, false, __ATOMIC_RELAXED);
    int places = choose_places(d, o, bus_id);
    if (places) {
        cuda_close(d);
        return spw_fail(err, places, "out of memory for the topology");
    }
    *out = d;
    return 0;
}

static unsigned cuda_workers(const struct spw_device *d)
{
    (void)d;
    return 0;
}

static const struct spw_placement *cuda_placement(const struct spw_device *d)
{
    return &d->placement;
}

static void cuda_usage(struct spw_device *d, struct spw_device_usage *out)
{
    spw_pools_usage(d, out);
    for (int i = 0; i < SPW_LINK_COUNT; i++)
        out->moved_bytes[i] = __atomic_load_n(&d->moved[i], __ATOMIC_RELAXED);
    out->host_pageable = __atomic_load_n(&d->pageable, __ATOMIC_RELAXED);
    size_t available, total;
    if (cudaSetDevice(d->index) == cudaSuccess && cudaMemGetInfo(&available, &total) == cudaSuccess)
        out->card_bytes = spw_sub_u64(d->available_at_open, available);
}

const struct spw_device_ops spw_device_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .workers = cuda_workers,
    .placement = cuda_placement,
    .available = cuda_available,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .charge = NULL, /* kernels read no memory in place */
    .discharge = NULL,
    .set_budgets = spw_pools_set_budgets,
    .alloc_host = cuda_alloc_host,
    .free_host = cuda_free_host,
    .trim = NULL, /* cudaMalloc cannot free a part */
    .trim_host = NULL,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_sync = cuda_event_sync,
    .event_is_over = cuda_event_is_over,
    .stream_sync = cuda_stream_sync,
    .copy = cuda_copy,
    .host_call = cuda_host_call,
    .waited_seconds = cuda_waited_seconds,
    .usage = cuda_usage,
    .range_begin = cuda_range_begin,
    .range_end = cuda_range_end,
};
