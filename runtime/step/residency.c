/* Tiles between tiers, at each point of a pass: see residency.h. */
#include "runtime/step/residency.h"

static const struct spw_residency *residency_of(const struct spw_residency_moves *m,
                                                const struct spw_sequence *seq, uint32_t slice)
{
    return &seq->residency[m->config->slice_kinds[slice]];
}

/* Tiles before `begin` leave the device, unless the tiles of the slice are fixed there. */
static int spill(struct spw_residency_moves *m, const struct spw_sequence *seq, uint32_t slice,
                 uint32_t begin)
{
    const struct spw_residency *r = residency_of(m, seq, slice);
    if (r->fixed || begin <= spw_kv_begin(seq->kv, slice))
        return 0; /* `begin` has not risen, so disk_end has not either */
    return spw_kv_spill(seq->kv, slice, begin, spw_waterline_disk_end(r, begin));
}

/* Loads the tiles from `begin` on that are not on the device. Fixed tiles always are. */
static int load(struct spw_residency_moves *m, const struct spw_sequence *seq, uint32_t slice,
                uint32_t begin)
{
    if (residency_of(m, seq, slice)->fixed)
        return 0;
    int rc = spw_prefetch_wait_load(m->prefetch, seq->kv, slice, m->config->slice_layers[slice]);
    if (!rc && begin < spw_kv_begin(seq->kv, slice))
        rc = spw_kv_load(seq->kv, slice, begin);
    return rc;
}

/* The first failure, but -EBADMSG wins over all others: the caller must then call
 * spw_kv_take_loss. */
static int first_failure(int rc, int another)
{
    return rc && another != -EBADMSG ? rc : another;
}

int spw_residency_make_room(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            const struct spw_span_tiles kinds[SPW_LAYER_KINDS])
{
    for (uint32_t i = 0; i < m->config->n_slices; i++)
        SPW_TRY(spill(m, seq, i, kinds[m->config->slice_kinds[i]].wait));
    return 0;
}

int spw_residency_load_ahead(struct spw_residency_moves *m, const struct spw_sequence *seq,
                             const struct spw_span_tiles *tiles, uint32_t slice)
{
    if (residency_of(m, seq, slice)->fixed || tiles->wait >= spw_kv_begin(seq->kv, slice))
        return 0;
    return spw_kv_load_ahead(seq->kv, slice, tiles->wait);
}

int spw_residency_enter(struct spw_residency_moves *m, const struct spw_sequence *seq,
                        const struct spw_span_tiles *tiles, uint32_t slice)
{
    return load(m, seq, slice, tiles->enter);
}

int spw_residency_after_chunk(struct spw_residency_moves *m, const struct spw_sequence *seq,
                              const struct spw_part_tiles *tiles, uint32_t slice)
{
    spw_kv_drop(seq->kv, slice, tiles->drop); /* 0: nothing, in a full layer */
    return spill(m, seq, slice, tiles->after);
}

static int load_layers(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->config->n_slices; i++)
        rc = first_failure(rc, load(m, seq, i, spw_waterline_begin(residency_of(m, seq, i), n)));
    return rc;
}

int spw_residency_apply(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n)
{
    int rc = 0;
    /* All slices spill before any slice loads: the frames for loads may come from another slice. */
    for (uint32_t i = 0; i < m->config->n_slices; i++) {
        const struct spw_residency *r = residency_of(m, seq, i);
        if (!r->fixed) /* retained tiles may reach back further than the window */
            spw_kv_drop(seq->kv, i, spw_waterline_first_visible(r, n));
        rc = first_failure(rc, spill(m, seq, i, spw_waterline_begin(r, n)));
    }
    int loaded = load_layers(m, seq, n);
    if (loaded && loaded != -EBADMSG) {
        /* Tiles whose write to disk failed still have the host frames that loads need. */
        for (uint32_t i = 0; i < m->config->n_slices; i++)
            spw_kv_drop_copies(seq->kv, i, 0);
        loaded = load_layers(m, seq, n);
    }
    return first_failure(rc, loaded);
}

/* ---- another share of the frames ---- */

int spw_residency_load_back(struct spw_residency_moves *m, const struct spw_sequence *seq,
                            uint64_t n)
{
    for (uint32_t i = 0; i < m->config->n_slices; i++) {
        uint32_t begin = spw_waterline_begin(residency_of(m, seq, i), n);
        if (begin >= spw_kv_begin(seq->kv, i))
            continue;
        int rc = load(m, seq, i, begin);
        if (rc && rc != -ENOMEM)
            return rc;
        spw_kv_drop_copies(seq->kv, i, begin);
    }
    return 0;
}

int spw_residency_make_copies_fit(struct spw_residency_moves *m, const struct spw_sequence *seq,
                                  uint64_t n)
{
    for (uint32_t i = 0; i < m->config->n_slices; i++) {
        const struct spw_residency *r = residency_of(m, seq, i);
        uint32_t begin = spw_waterline_begin(r, n);
        if (r->fixed)
            continue;
        spw_kv_drop_copies(seq->kv, i, begin);
        SPW_TRY(
            spw_kv_spill(seq->kv, i, spw_kv_begin(seq->kv, i), spw_waterline_disk_end(r, begin)));
    }
    return 0;
}

int spw_residency_leave(struct spw_residency_moves *m, const struct spw_sequence *seq, uint64_t n)
{
    for (uint32_t i = 0; i < m->config->n_slices; i++)
        SPW_TRY(spill(m, seq, i, spw_waterline_begin(residency_of(m, seq, i), n)));
    return 0;
}
