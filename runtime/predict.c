/* How long a step must take, from bytes and measured limits: see spillway.h.
 *
 * Computation, copies and the drive work at the same time, each on its own bytes, so that the
 * slowest of them sets the pace. What cannot overlap is added where it is known: on the CPU copies
 * and I/O take turns with computation on the same cores. A team of `threads` that computes for C
 * seconds, a copying thread that is busy for L and I/O threads for D need threads x C + L + D
 * core-seconds, and no more than `cores` pass in a second. On a GPU the copies and the drive cost
 * computation nothing, and the link's two directions are apart.
 *
 * What the drive reads must land: a ring of R bytes whose slots take a time of t each when they are
 * read alone gives R / t at most (Little's law), whatever the drive can do with more in flight. And
 * while a layer's weights are used nobody takes from the ring: when it is full, the drive stands
 * still until the layer's attention comes.
 *
 * Nothing here is fitted to runs. What the kernels leave of the machine's limit shows as the
 * difference between prediction and measurement. */
#include "runtime/spillway.h"

#include <math.h>

/* What is asked of the machine. */
struct work {
    double compute_seconds; /* by all threads, nothing beside it */
    double disk_still_seconds;
    const uint64_t *moved; /* [SPW_MOVED_COUNT] */
};

static double link_seconds(const uint64_t *moved, const struct spw_machine *m)
{
    double up = (double)moved[SPW_MOVED_HOST_TO_DEVICE];
    double down = (double)moved[SPW_MOVED_DEVICE_TO_HOST];
    return (*m->gpu ? fmax(up, down) : up + down) / m->copy_bytes_per_second;
}

/* Where reads land: in slots of the device, or in bounce buffers before it. */
static double ring_bytes(const struct spw_plan_info *p)
{
    double slots = (double)p->device.kv_slots, staging = (double)p->host.disk_staging;
    return staging > 0 ? fmin(slots, staging) : slots;
}

/* One request of the drive's size alone takes latency_seconds; of a smaller one that time less what
 * its bytes save at full speed. */
static double disk_rate(const struct spw_plan_info *p, const struct spw_drive *d)
{
    double ring = ring_bytes(p), full = d->read_bytes_per_second;
    if (ring <= 0 || p->prefetch_slots == 0)
        return full;
    double request = (double)d->request_bytes;
    double slot = fmin(ring / p->prefetch_slots, request);
    double alone = fmax(d->latency_seconds - (request - slot) / full, slot / full);
    return fmin(full, ring / alone);
}

static void predict(struct spw_prediction *out, const struct work *w, const struct spw_plan_info *p,
                    const struct spw_machine *m, const struct spw_drive *d)
{
    double read = (double)w->moved[SPW_MOVED_DISK_TO_HOST];
    double write = (double)w->moved[SPW_MOVED_HOST_TO_DISK], io_seconds = 0;
    *out = (struct spw_prediction){.compute_seconds = w->compute_seconds,
                                   .link_seconds = link_seconds(w->moved, m)};
    if (d) {
        out->disk_seconds =
            read / disk_rate(p, d) + write / d->write_bytes_per_second + w->disk_still_seconds;
        io_seconds = (read + write) * d->cpu_seconds_per_byte;
    }
    if (!*m->gpu) {
        double cores = fmax(m->cores, 1), threads = fmin(m->threads, cores);
        double all = threads * w->compute_seconds + out->link_seconds + io_seconds;
        out->compute_seconds = fmax(w->compute_seconds, all / cores);
    }
    out->seconds = out->compute_seconds;
    out->bound = SPW_BOUND_COMPUTE;
    if (out->link_seconds > out->seconds) {
        out->seconds = out->link_seconds;
        out->bound = SPW_BOUND_LINK;
    }
    if (out->disk_seconds > out->seconds) {
        out->seconds = out->disk_seconds;
        out->bound = SPW_BOUND_DISK;
    }
}

/* How long the drive stands still in a step, for a ring without the slot that is computed with. */
static double still_seconds(const struct spw_plan_info *p, const struct spw_machine *m,
                            const struct spw_drive *d)
{
    if (!d || !p->prefetch_slots || !p->n_layers || !p->decode_moved_bytes[SPW_MOVED_DISK_TO_HOST])
        return 0;
    double read = (double)spw_min_u64(p->weights_bytes, p->decode_read_bytes);
    double weights = fmax(read / m->read_bytes_per_second, link_seconds(p->decode_moved_bytes, m));
    double ring = ring_bytes(p) * (p->prefetch_slots - 1) / p->prefetch_slots;
    return fmax(0, weights - p->n_layers * ring / disk_rate(p, d));
}

void spw_predict_step(struct spw_prediction *out, const struct spw_plan_info *p,
                      const struct spw_machine *m, const struct spw_drive *d)
{
    struct work w = {.compute_seconds = (double)p->decode_read_bytes / m->read_bytes_per_second,
                     .disk_still_seconds = still_seconds(p, m, d),
                     .moved = p->decode_moved_bytes};
    predict(out, &w, p, m, d);
}

void spw_predict_prompt(struct spw_prediction *out, const struct spw_plan_info *p, double flops,
                        const struct spw_machine *m, const struct spw_drive *d)
{
    double peak = p->compute == SPW_DTYPE_F32 ? m->f32_flops : m->bf16_flops;
    double multiply = peak > 0 ? flops / peak : 0;                     /* no cuBLASLt, no peak */
    double read = (double)p->weights_bytes / m->read_bytes_per_second; /* at least once */
    struct work w = {.compute_seconds = fmax(multiply, read), .moved = p->prefill_moved_bytes};
    predict(out, &w, p, m, d);
}

const char *spw_bound_name(enum spw_bound bound)
{
    static const char *const names[] = {[SPW_BOUND_COMPUTE] = "computation",
                                        [SPW_BOUND_LINK] = "host link",
                                        [SPW_BOUND_DISK] = "disk"};
    return names[bound];
}
