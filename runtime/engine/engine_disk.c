/* The engine's I/O threads and their files: the scratch file of the disk tier, files whose tiles
 * are attached, and the model's files if weights are read from them.
 *
 * The memory of reads and writes is registered with the kernel: slots and frames of a device
 * whose memory the drive can reach; KV and the bounce slots of the host arena. */
#include "offload/device/placement.h"
#include "runtime/engine/engine.h"
#include "runtime/step/in_flight.h"

#include <stdio.h>
#include <string.h>

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
                                .counts = e->backend.counts,
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

int spw_engine_open_disk(struct spw_engine *e, struct spw_error *err)
{
    bool tiles = e->plan.n_disk_frames || e->plan.attaches,
         weights = e->plan.info.weights_disk_bytes || e->plan.n_disk_experts;
    if (!tiles && !weights)
        return 0;
    SPW_TRY(open_io(e, err));
    if (tiles)
        SPW_TRY(open_tier(e, err));
    return weights ? spw_engine_open_weight_files(e, err) : 0;
}

void spw_engine_close_disk(struct spw_engine *e)
{
    struct spw_io_usage u = {0};
    if (e->io)
        spw_io_usage(e->io, &u);
    e->past.read_bytes += u.read_bytes;
    e->past.written_bytes += u.written_bytes;
    e->past.disk_writes += e->disk ? spw_disk_written(e->disk) : 0;
    spw_disk_close(e->disk);
    spw_io_close(e->io);
    spw_engine_close_weight_files(e);
    e->disk = NULL;
    e->io = NULL;
    e->texts.io[0] = 0;
}

void spw_engine_disk_stats(const struct spw_engine *e, struct spw_stats *out)
{
    out->disk_budget_bytes = e->plan.info.disk_budget_bytes;
    struct spw_io_usage u = {0};
    if (e->io) {
        spw_io_usage(e->io, &u);
        out->disk_peak_bytes = e->plan.info.disk.total; /* allocated in advance */
    }
    out->moved_bytes[SPW_MOVED_HOST_TO_DISK] =
        e->past.written_bytes + u.written_bytes + e->files.written_bytes;
    out->moved_bytes[SPW_MOVED_DISK_TO_HOST] =
        e->past.read_bytes + u.read_bytes + e->files.read_bytes;
}
