/* Where the bytes of a weight slot come from: see unit_source.h. */
#include "prefetch/unit_source.h"

int spw_unit_source_init(struct spw_unit_source *w, const struct spw_ring_options *o,
                         const struct spw_unit *units, uint32_t n_units)
{
    struct spw_ring_options all = *o;
    for (uint32_t i = 0; i < n_units; i++) {
        all.most_reads = spw_max_u32(all.most_reads, units[i].n_reads);
        all.most_hops = spw_max_u32(all.most_hops, units[i].landed ? units[i].n_pieces : 0);
    }
    *w = (struct spw_unit_source){.units = units,
                                  .slots = spw_alloc_zero(o->n_slots, sizeof *w->slots)};
    int rc = w->slots ? spw_ring_init(&w->ring, &all) : -ENOMEM;
    if (rc)
        spw_unit_source_free(w);
    return rc;
}

void spw_unit_source_free(struct spw_unit_source *w)
{
    spw_ring_free(&w->ring);
    spw_free(w->slots);
    w->slots = NULL;
}

int spw_unit_copy(const struct spw_unit_source *w, const struct spw_unit *u, uint8_t *to,
                  spw_stream link)
{
    const struct spw_ring_options *o = &w->ring.o;
    for (uint32_t i = 0; i < u->n_pieces; i++)
        SPW_TRY(o->ops->copy(o->device, to + u->pieces[i].offset, u->pieces[i].from,
                             u->pieces[i].bytes, SPW_LINK_HOST_TO_DEVICE, link));
    return u->copied ? o->ops->host_call(o->device, u->copied, u->context, link) : 0;
}

int spw_unit_source_issue(struct spw_unit_source *w, uint32_t unit)
{
    struct spw_ring *r = &w->ring;
    const struct spw_unit *u = &w->units[unit];
    w->slots[r->issued % r->o.n_slots] = unit;
    SPW_TRY(spw_ring_take(r, u->landed));
    for (uint32_t i = 0; i < u->n_reads; i++) {
        const struct spw_unit_read *d = &u->reads[i];
        spw_ring_add_range(r, d->lands, d->file, d->offset, d->bytes, d->least_bytes);
    }
    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct spw_piece *p = &u->pieces[i];
        if (u->landed)
            spw_ring_add_hop(r, p->offset, u->landed[i], p->bytes);
        else if (!u->n_reads)
            spw_ring_add_memory(r, p->offset, p->from, p->bytes);
    }
    return spw_ring_issue(r, u->n_reads ? NULL : u->copied, u->context);
}

int spw_unit_source_wait(struct spw_unit_source *w, uint8_t **slot)
{
    const struct spw_unit *u = &w->units[spw_unit_source_unit(w, w->ring.waited)];
    uint32_t n, i = 0;
    int rc = spw_ring_wait(&w->ring, slot);
    if (rc != -EBADMSG)
        return rc;
    const struct spw_run *reads = spw_ring_reads(&w->ring, &n);
    while (i + 1 < n && !reads[i].job.io.rc)
        i++;
    w->failed = &u->reads[i];
    w->failed_rc = reads[i].job.io.rc;
    return -EIO;
}

uint32_t spw_unit_source_unit(const struct spw_unit_source *w, uint64_t n)
{
    return w->slots[n % w->ring.o.n_slots];
}
