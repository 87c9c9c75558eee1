/* Joins adjacent transfers: see gather.h. */
#include "offload/kv/gather.h"

int spw_copies_flush(struct spw_copies *c)
{
    uint64_t bytes = c->bytes;
    c->bytes = 0;
    return bytes ? spw_lane_copy(c->lane, c->to, c->from, bytes, c->link, c->stream) : 0;
}

int spw_copies_add(struct spw_copies *c, void *to, const void *from, uint64_t bytes,
                   enum spw_link link, spw_stream s)
{
    if (c->to + c->bytes != to || c->from + c->bytes != from || c->stream != s || c->link != link)
        SPW_TRY(spw_copies_flush(c));
    if (!c->bytes) {
        c->to = to;
        c->from = from;
        c->link = link;
        c->stream = s;
    }
    c->bytes += bytes;
    return 0;
}

bool spw_tile_run_extend(struct spw_tile_run *r, uint32_t frame, void *memory, uint64_t tile_bytes,
                         uint32_t most)
{
    if (!r->n) {
        r->memory = memory;
        r->frame = frame;
    } else if (r->n >= most || r->frame + r->n != frame ||
               r->memory + r->n * tile_bytes != memory) {
        return false;
    }
    r->n++;
    return true;
}

void spw_tile_run_prepare(struct spw_tile_run *r, struct spw_disk *disk, bool write)
{
    spw_disk_prepare(disk, &r->job, write, r->frame, r->n, r->memory);
}

uint32_t spw_tile_run_failed_tile(const struct spw_tile_run *r)
{
    uint32_t record = r->job.io.bad_record;
    return r->tile + (record < r->n ? record : 0);
}
