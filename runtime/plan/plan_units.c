/* Where each unit of weights lies and comes from, given how many are resident, and how many of the
 * others come from disk: see plan.h. */
#include "runtime/plan/plan.h"

enum { PAGE = 4096 };

static uint32_t n_streamed_before(const struct spw_plan *p, uint32_t n_units, uint32_t unit)
{
    uint32_t n_streamed = n_units - p->n_resident_units;
    return (uint32_t)((uint64_t)unit * n_streamed / n_units);
}

bool spw_plan_unit_resident(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return n_streamed_before(p, w->n_units, unit + 1) == n_streamed_before(p, w->n_units, unit);
}

bool spw_plan_unit_mapped(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return p->reads_host_memory && spw_plan_unit_resident(p, w, unit) &&
           spw_weights_unit_mappable(w, unit);
}

/* The n-th place of n_disk of the streamed units, spread evenly. */
static bool in_disk_place(const struct spw_plan *p, uint32_t n_units, uint32_t unit)
{
    uint64_t n_streamed = n_units - p->n_resident_units, i = n_streamed_before(p, n_units, unit);
    return (i + 1) * p->n_disk_units / n_streamed > i * p->n_disk_units / n_streamed;
}

bool spw_plan_unit_from_disk(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return p->n_disk_units && !spw_plan_unit_resident(p, w, unit) &&
           in_disk_place(p, w->n_units, unit) && spw_weights_unit_as_stored(w, unit);
}

bool spw_plan_unit_direct(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return p->reads_host_memory && spw_weights_unit_mappable(w, unit);
}

bool spw_plan_unit_image(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    if (!spw_weights_unit_as_stored(w, unit))
        return true;
    return !p->reads_host_memory && !spw_plan_unit_resident(p, w, unit) &&
           !spw_plan_unit_from_disk(p, w, unit);
}

bool spw_plan_unit_kept(const struct spw_plan *p, const struct spw_weights *w, uint32_t unit)
{
    return !spw_plan_unit_resident(p, w, unit) && !spw_plan_unit_image(p, w, unit) &&
           !spw_plan_unit_from_disk(p, w, unit);
}

uint64_t spw_plan_unit_moved_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                   uint32_t unit)
{
    if (spw_plan_unit_mapped(p, w, unit))
        return 0;
    if (spw_plan_unit_from_disk(p, w, unit) && spw_plan_unit_direct(p, w, unit))
        return 0;
    return spw_plan_unit_image(p, w, unit) ? spw_weights_unit_bytes(w, unit)
                                           : spw_weights_unit_stored_bytes(w, unit);
}

uint64_t spw_plan_unit_disk_bytes(const struct spw_plan *p, const struct spw_weights *w,
                                  uint32_t unit)
{
    return spw_plan_unit_from_disk(p, w, unit) ? spw_weights_unit_read_bytes(w, unit) : 0;
}

void spw_plan_size_units(struct spw_plan *p, const struct spw_weights *w)
{
    p->slot_unit_bytes = p->bounce_unit_bytes = 0;
    for (uint32_t u = 0; u < w->n_units; u++) {
        bool direct = spw_plan_unit_direct(p, w, u);
        uint64_t packed = spw_weights_unit_bytes(w, u), read = spw_weights_unit_read_bytes(w, u);
        p->slot_unit_bytes =
            spw_max_u64(p->slot_unit_bytes, direct ? spw_max_u64(packed, read) : packed);
        if (!direct && spw_weights_unit_as_stored(w, u))
            p->bounce_unit_bytes = spw_max_u64(p->bounce_unit_bytes, read);
    }
    p->slot_unit_bytes = spw_align_up(p->slot_unit_bytes, PAGE);
}
