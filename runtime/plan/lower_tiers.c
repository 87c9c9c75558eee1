/* The part of a plan below the device: copies of KV tiles on the host and on disk, and the buffers
 * between these two tiers. Pure functions of the residency and the input.
 *
 * The copies of a session have ranks. Copies of sliding layers come first: these layers drop tiles
 * soon, and writing them to disk would be in vain. Then come the copies of full layers, the newest
 * first. The first `n` ranks lie on the host, the others on disk. So with a higher n the host needs
 * more frames and the disk fewer.
 *
 * Where more sessions may be open than can be as long as the context (full_sessions), each may get
 * less of the device and of the host than the plan counts, and a tile on disk stays there. So the
 * lowest tier in use has room for all tiles. */
#include "runtime/plan/plan_parts.h"

enum {
    BOUNCE_LEAST = 2,        /* one is filled while the other is copied */
    TRANSIT_TILES = 4,       /* writes under way together: as many tiles, */
    TRANSIT_BYTES = 4 << 20, /* or as many as have these bytes, if tiles are small */
    STAGING_SHARE = 4,       /* a fourth of the free bytes may go to larger buffers */
    SPARE_DISK_FRAMES = 8,   /* replace frames that the drive fails on */
    MOST_FRAMES = INT32_MAX,
};

void spw_lower_of(struct spw_lower *b, const struct spw_plan *p,
                  const struct spw_residency kinds[SPW_LAYER_KINDS], uint32_t full_tiles,
                  uint32_t window_tiles, bool chunked, bool shares_tiles)
{
    const struct spw_residency *full = &kinds[p->full_kind];
    *b = (struct spw_lower){0};
    if (spw_plan_n_windowed(p)) {
        b->sliding = (uint32_t)spw_sub_u64(window_tiles, kinds[p->window_kind].resident);
        b->shared_most = b->sliding;
        if (shares_tiles && b->sliding && b->shared_most < window_tiles - 1)
            b->shared_most = window_tiles - 1; /* all but the last tile, which is each session's */
    }
    /* With more device frames no layer may have more copies. While windows become whole,
     * resident_pass stays 1, but `resident` rises and falls. */
    bool waits = chunked || b->sliding;
    if (spw_plan_n_full(p))
        b->full = (uint32_t)spw_sub_u64(full_tiles, waits ? full->resident_pass : full->resident);
    b->all = b->full + b->sliding;
}

void spw_lower_count(struct spw_lower *b, const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint32_t window = spw_plan_slice_need(p, p->window_kind, in->context).moving;
    spw_lower_of(b, p, p->residency, p->full_tiles, window, in->context > p->chunk,
                 in->sessions > 1);
}

uint64_t spw_lower_host_frames(const struct spw_lower *b, const struct spw_plan *p, uint32_t n)
{
    uint64_t sliding = n < b->sliding ? n : b->shared_most,
             full = n < b->sliding ? 0 : n - b->sliding;
    return spw_plan_n_full(p) * full + spw_plan_n_windowed(p) * sliding;
}

static uint64_t host_frames(const struct spw_lower *b, const struct spw_plan *p,
                            const struct spw_plan_input *in, uint32_t n)
{
    if (spw_plan_pools(in) && b->all && n == b->all)
        return spw_plan_all_tiles(p, in);
    return spw_plan_full_sessions(in) * spw_lower_host_frames(b, p, n);
}

static uint64_t disk_frames(const struct spw_lower *b, const struct spw_plan *p,
                            const struct spw_plan_input *in, uint32_t n)
{
    uint64_t sliding = 0, full = b->full;
    if (spw_plan_pools(in))
        return n < b->all ? spw_plan_all_tiles(p, in) : 0;
    if (n < b->sliding) /* an old copy may be there that only another session still holds */
        sliding = in->sessions > 1 ? b->shared_most : b->sliding - n;
    else
        full = b->all - n;
    return in->sessions * (spw_plan_n_full(p) * full + spw_plan_n_windowed(p) * sliding);
}

static uint64_t disk_room(const struct spw_plan *p, const struct spw_plan_input *in)
{
    return spw_min_u64(in->disk_bytes / p->tile_bytes, MOST_FRAMES);
}

uint32_t spw_lower_least(const struct spw_lower *b, const struct spw_plan *p,
                         const struct spw_plan_input *in)
{
    uint64_t each = disk_room(p, in) / in->sessions, full = spw_plan_n_full(p) * b->full;
    if (spw_plan_pools(in))
        return disk_room(p, in) < spw_plan_all_tiles(p, in) ? b->all : 0;
    if (each < full)
        return b->all - (uint32_t)(each / spw_plan_n_full(p));
    if (!b->sliding)
        return 0;
    uint64_t sliding = (each - full) / spw_plan_n_windowed(p);
    if (in->sessions > 1)
        return sliding < b->shared_most ? b->sliding : 0;
    return (uint32_t)spw_sub_u64(b->sliding, sliding);
}

void spw_lower_set_host(struct spw_residency kinds[SPW_LAYER_KINDS], const struct spw_plan *p,
                        const struct spw_lower *b, uint32_t n)
{
    kinds[p->window_kind].host = n < b->sliding ? n : UINT32_MAX;
    kinds[p->full_kind].host = n == b->all ? UINT32_MAX : n < b->sliding ? 0 : n - b->sliding;
}

static void place(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                  uint32_t n)
{
    spw_lower_set_host(p->residency, p, b, n);
    p->n_host_frames = (uint32_t)host_frames(b, p, in, n) + p->n_transit;
    uint64_t disk = disk_frames(b, p, in, n);
    p->n_disk_frames = disk ? (uint32_t)spw_min_u64(disk + SPARE_DISK_FRAMES, disk_room(p, in)) : 0;
    p->disk_run = n < b->sliding && !spw_plan_n_full(p) ? b->sliding - n : b->all - n;
    if (n < b->sliding && spw_plan_n_full(p))
        p->disk_run = b->full;
}

void spw_lower_place(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                     uint32_t n)
{
    bool bounces = (n < b->all || in->attaches) && !in->reads_host_memory;
    p->disk_to_device = (in->disk_bytes || in->attaches) && in->reads_host_memory;
    p->attaches = in->attaches;
    p->n_transit = bounces;
    p->n_bounce = bounces ? (uint32_t)spw_min_u64(BOUNCE_LEAST, p->n_kv_slots) : 0;
    place(p, in, b, n);
}

static uint64_t more_of(uint64_t wanted, uint32_t have, uint64_t most)
{
    return spw_min_u64(spw_sub_u64(wanted, have), most);
}

/* Tiles that pass through the host together. Writes overlap, and so do the reads with which a
 * session attaches the tiles of a file. */
static uint64_t transit_tiles(const struct spw_plan *p, const struct spw_plan_input *in)
{
    uint64_t writes = spw_max_u64(TRANSIT_TILES, TRANSIT_BYTES / p->tile_bytes);
    uint64_t reads = in->attaches ? spw_div_up(in->disk_ring_bytes, p->tile_bytes) : 0;
    return spw_max_u64(spw_min_u64(writes, p->n_disk_frames), reads);
}

/* Enlarges the buffers between host and disk by `most` tiles or fewer. Returns by how many. */
static uint64_t grow_buffers(struct spw_plan *p, const struct spw_plan_input *in, uint64_t most)
{
    uint64_t ring = spw_div_up(in->disk_ring_bytes, p->slot_tiles * p->tile_bytes);
    uint64_t bounce = more_of(spw_min_u64(ring, p->n_kv_slots), p->n_bounce, most / p->slot_tiles);
    uint64_t tiles = bounce * p->slot_tiles;
    uint64_t transit = more_of(transit_tiles(p, in), p->n_transit, most - tiles);
    p->n_bounce += (uint32_t)bounce;
    p->n_transit += (uint32_t)transit;
    return tiles + transit;
}

uint32_t spw_lower_most_ranks(const struct spw_lower *b, const struct spw_plan *p, uint64_t frames)
{
    uint64_t sliding = spw_plan_n_windowed(p) * b->shared_most;
    if (frames < sliding)
        return (uint32_t)spw_min_u64(frames / spw_plan_n_windowed(p), b->sliding - 1);
    if (!b->full)
        return b->sliding;
    return b->sliding + (uint32_t)spw_min_u64((frames - sliding) / spw_plan_n_full(p), b->full);
}

void spw_lower_grow(struct spw_plan *p, const struct spw_plan_input *in, const struct spw_lower *b,
                    uint32_t n, uint64_t room)
{
    uint64_t tiles = room / p->tile_bytes;
    if (p->n_transit)
        tiles -= grow_buffers(p, in, tiles / STAGING_SHARE);
    uint64_t frames = host_frames(b, p, in, n) + tiles;
    uint32_t most = spw_lower_most_ranks(b, p, frames / spw_plan_full_sessions(in));
    /* All ranks need no buffers: that is another candidate. */
    if (n < b->all)
        n = spw_min_u32(spw_max_u32(n, most), b->all - 1);
    place(p, in, b, n);
}
