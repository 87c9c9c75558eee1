/* The engine's I/O threads and their files: the scratch file of the disk tier, files whose tiles
 * are attached, and the model's files if weights are read from them.
 *
 * The memory of reads and writes is registered with the kernel: slots and frames of a device
 * whose memory the drive can reach; KV and the bounce slots of the host arena. */
#include "offload/device/placement.h"
#include "runtime/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- requests in flight ----
 *
 * As many bytes as the drive wants, but only half of what the rings of KV and of weights from files
 * have room for. If more were in flight, a drive that answers several requests at once would stand
 * still while their slots are computed with.
 *
 * Where only experts are read, the first ones are computed with while the drive reads the others.
 * A drive that answers several requests at once answers sooner if fewer are in flight. So these are
 * few: twice what keeps the drive busy, bandwidth x latency (Little's law). */
enum { MOST_IN_FLIGHT = 64, LEAST_FOR_EXPERTS = 4 };

static unsigned for_experts(const struct spw_drive *d)
{
    const double busy = d->read_bytes_per_second * d->latency_seconds / (double)d->request_bytes;
    const double n = fmax(2 * busy, LEAST_FOR_EXPERTS);
    return n < d->queue_depth ? (unsigned)n : d->queue_depth;
}

unsigned spw_in_flight(const struct spw_plan *p, const struct spw_drive *d)
{
    uint64_t slots = p->n_bounce ? p->n_bounce : p->n_kv_slots;
    uint64_t slot = p->slot_tiles * p->tile_bytes;
    uint64_t weights = spw_plan_reads_weights(p) ? p->n_weight_slots * p->weight_slot_bytes : 0;
    if (!d)
        return 0;
    if (!p->n_kv_slots)
        return p->n_disk_experts && !weights ? for_experts(d) : d->queue_depth;
    uint64_t request = spw_min_u64(slot, d->request_bytes);
    uint64_t half = spw_div_up(slots, 2) * slot + weights / 2;
    uint64_t n = spw_min_u64(d->queue_depth * d->request_bytes, half) / request;
    return (unsigned)spw_max_u64(1, spw_min_u64(n, MOST_IN_FLIGHT));
}

/* ---- I/O threads ---- */

static unsigned describe_memory(const struct spw_engine *e, struct spw_io_span spans[2])
{
    const struct spw_plan *p = &e->plan;
    unsigned n = 0;
    if (e->backend.reads_host_memory)
        spans[n++] = (struct spw_io_span){e->lane.device_arena + p->device.weight_slots,
                                          p->device.end - p->device.weight_slots};
    if (p->host.end > p->host.weight_bounce)
        spans[n++] = (struct spw_io_span){e->lane.host_arena + p->host.weight_bounce,
                                          p->host.end - p->host.weight_bounce};
    return n;
}

static int open_io(struct spw_engine *e, struct spw_error *err)
{
    const struct spw_options *o = &e->options;
    struct spw_io_span memory[2];
    struct spw_io_options io = {.kind = o->io,
                                .queue_depth = spw_in_flight(&e->plan, o->drive),
                                .request_bytes = o->drive ? o->drive->request_bytes : 0,
                                .memory = memory,
                                .n_memory = describe_memory(e, memory),
                                .fault = e->backend.io_fault,
                                .counts = e->dry != NULL,
                                .place = spw_placement_bind_io,
                                .place_context =
                                    (void *)(uintptr_t)e->lane.ops->placement(e->lane.device)};
    SPW_TRY(spw_io_open(&e->io, &io, err));
    snprintf(e->texts.io, sizeof e->texts.io, "%s", spw_io_describe(e->io));
    return 0;
}

static int open_tier(struct spw_engine *e, struct spw_error *err)
{
    const struct spw_plan *p = &e->plan;
    struct spw_disk_options disk = {.directory = e->options.disk_dir,
                                    .io = e->io,
                                    .tile_bytes = p->tile_bytes,
                                    .n_frames = p->n_disk_frames,
                                    .run = p->disk_run,
                                    .write_limit_bytes = e->in.disk_write_limit};
    SPW_TRY(spw_disk_open(&e->disk, &disk, err));
    size_t used = strlen(e->texts.io);
    snprintf(e->texts.io + used, sizeof e->texts.io - used, "; %s", spw_disk_describe(e->disk));
    return 0;
}

static int open_checkpoints(struct spw_engine *e, struct spw_error *err)
{
    const struct spw_plan *p = &e->plan;
    const struct spw_disk_options disk = {.directory = e->options.disk_dir,
                                          .io = e->io,
                                          .tile_bytes = p->state_bytes,
                                          .n_frames = p->n_disk_checkpoints * p->n_states,
                                          .run = p->n_states};
    return spw_disk_open(&e->checkpoint_disk, &disk, err);
}

int spw_engine_open_disk(struct spw_engine *e, struct spw_error *err)
{
    bool tiles = e->plan.n_disk_frames || e->plan.attaches,
         weights = spw_plan_reads_weights(&e->plan) || e->plan.n_disk_experts;
    if (!tiles && !weights && !e->plan.n_disk_checkpoints)
        return 0;
    SPW_TRY(open_io(e, err));
    if (tiles)
        SPW_TRY(open_tier(e, err));
    if (e->plan.n_disk_checkpoints)
        SPW_TRY(open_checkpoints(e, err));
    return weights ? spw_engine_open_weight_files(e, err) : 0;
}

void spw_engine_close_disk(struct spw_engine *e)
{
    struct spw_io_usage u = {0};
    if (e->io)
        spw_io_usage(e->io, &u);
    e->past.read_bytes += u.read_bytes;
    e->past.written_bytes += u.written_bytes;
    e->past.disk_writes += e->disk ? spw_disk_written(e->disk) : 0; /* what the limit counts */
    spw_disk_close(e->checkpoint_disk);
    e->checkpoint_disk = NULL;
    spw_disk_close(e->disk);
    spw_io_close(e->io);
    spw_engine_close_weight_files(e);
    e->disk = NULL;
    e->io = NULL;
    e->texts.io[0] = 0;
}
