/* The sources of a weight slot: see block_source.h. */
#include "prefetch/block_source.h"

int spw_block_source_init(struct spw_block_source *w, const struct spw_lane *lane,
                          const struct spw_ring_options *o, const struct spw_block *blocks,
                          uint32_t n_blocks)
{
    struct spw_ring_options all = *o;
    for (uint32_t i = 0; i < n_blocks; i++) {
        all.most_reads = spw_max_u32(all.most_reads, blocks[i].n_reads);
        all.most_hops =
            spw_max_u32(all.most_hops, blocks[i].bounce_offsets ? blocks[i].n_pieces : 0);
    }
    *w = (struct spw_block_source){.blocks = blocks,
                                   .slots = spw_alloc_zero(o->n_slots, sizeof *w->slots)};
    int rc = w->slots ? spw_ring_init(&w->ring, lane, &all) : -ENOMEM;
    if (rc)
        spw_block_source_free(w);
    return rc;
}

void spw_block_source_free(struct spw_block_source *w)
{
    spw_ring_free(&w->ring);
    spw_free(w->slots);
    w->slots = NULL;
}

int spw_block_copy(const struct spw_block_source *w, const struct spw_block *u, uint8_t *to,
                   const uint8_t *bounce, spw_stream link)
{
    const struct spw_lane *lane = w->ring.lane;
    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct spw_piece *p = &u->pieces[i];
        SPW_TRY(spw_lane_copy(lane, to + p->offset,
                              bounce ? bounce + u->bounce_offsets[i] : p->from, p->bytes,
                              SPW_LINK_HOST_TO_DEVICE, link));
    }
    return u->copied ? spw_lane_host_call(lane, u->copied, u->context, link) : 0;
}

int spw_block_source_issue(struct spw_block_source *w, uint32_t block, uint8_t *memory,
                           bool on_host)
{
    struct spw_ring *r = &w->ring;
    const struct spw_block *u = &w->blocks[block];
    const bool bounces = u->bounce_offsets && !on_host;
    w->slots[r->taken % r->o.n_slots] = block;
    SPW_TRY(spw_ring_take(r, bounces, memory));
    for (uint32_t i = 0; i < u->n_reads; i++) {
        const struct spw_block_read *d = &u->reads[i];
        spw_ring_add_range(r, d->slot_offset, &d->range);
    }
    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct spw_piece *p = &u->pieces[i];
        if (bounces)
            spw_ring_add_hop(r, p->offset, u->bounce_offsets[i], p->bytes);
        else if (!u->n_reads)
            spw_ring_add_memory(r, p->offset, p->from, p->bytes);
    }
    return spw_ring_issue(r, u->n_reads ? NULL : u->copied, u->context);
}

/* An error of a read without checksums is one of the whole read. */
static void note_failure(struct spw_block_source *w, const struct spw_block *block, uint32_t read,
                         const struct spw_io_job *job)
{
    const bool is_record = job->bad_record != UINT32_MAX;
    const uint64_t begin = is_record ? job->bad_record * job->record_bytes : 0;
    const uint64_t most = is_record ? job->record_bytes : job->bytes;
    w->failed = (struct spw_block_failure){.block = block,
                                           .file = block->reads[read].file,
                                           .offset = job->offset + begin,
                                           .bytes = spw_min_u64(most, job->bytes - begin),
                                           .rc = job->rc};
}

int spw_block_source_wait(struct spw_block_source *w, uint8_t **slot)
{
    const struct spw_block *u = &w->blocks[spw_block_source_block(w, w->ring.waited)];
    uint32_t n, i = 0;
    int rc = spw_ring_wait(&w->ring, slot);
    if (rc != -EBADMSG)
        return rc;
    const struct spw_tile_run *reads = spw_ring_reads(&w->ring, &n);
    while (i + 1 < n && !reads[i].job.io.rc)
        i++;
    note_failure(w, u, i, &reads[i].job.io);
    return -EIO;
}

uint32_t spw_block_source_block(const struct spw_block_source *w, uint64_t n)
{
    return w->slots[n % w->ring.o.n_slots];
}
