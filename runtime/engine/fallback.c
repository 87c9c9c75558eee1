/* The next fallback: see fallback.h. */
#include "runtime/engine/fallback.h"

#include <assert.h>

enum { PAGE = 4096 };

bool spw_fallback_quantize(struct spw_descent *l)
{
    if (!l->quantize || l->precision == SPW_KV_INT4)
        return false;
    l->precision++; /* precisions are in the order of their sizes, largest first */
    l->n_steps++;
    assert(l->n_steps <= SPW_FALLBACK_STEPS);
    return true;
}

bool spw_fallback_lower(struct spw_descent *l, const struct spw_fallback_failure *f)
{
    uint64_t *budget = &l->budgets[f->tier], asked = spw_min_u64(f->asked, *budget);
    if (!asked)
        return false;
    /* A refusal may come from a limit that the system does not report: then three quarters are
     * tried. */
    uint64_t bytes = f->held && f->held < asked ? f->held : asked - spw_div_up(asked, 4);
    *budget = bytes / PAGE * PAGE;
    l->n_steps++;
    assert(l->n_steps <= SPW_FALLBACK_STEPS);
    return true;
}

int spw_fallback_lacking(const struct spw_plan_info *refused, const uint64_t given[SPW_BUDGETS],
                         uint64_t *needed)
{
    const uint64_t smallest[SPW_BUDGETS] = {
        refused->smallest_device_bytes, refused->smallest_host_bytes, refused->smallest_disk_bytes};
    int tier = SPW_BUDGET_DEVICE;
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < SPW_BUDGETS; i++)
        if (smallest[i] > given[i] && smallest[i] - given[i] < least) {
            least = smallest[i] - given[i];
            tier = i;
        }
    *needed = smallest[tier];
    return tier;
}

uint64_t spw_fallback_total(const struct spw_plan_info *p, int tier)
{
    return tier == SPW_BUDGET_DEVICE ? p->device.total
           : tier == SPW_BUDGET_HOST ? p->host.total
                                     : p->disk.total;
}

enum spw_fallback_kind spw_fallback_between(const struct spw_plan_info *from,
                                            const struct spw_plan_info *to)
{
    static const enum spw_fallback_kind quantized[] = {[SPW_KV_INT8] = SPW_FALLBACK_INT8,
                                                       [SPW_KV_INT8_INT4] = SPW_FALLBACK_INT8_INT4,
                                                       [SPW_KV_INT4] = SPW_FALLBACK_INT4};
    if (to->precision > from->precision)
        return quantized[to->precision];
    if (to->precision < from->precision)
        return SPW_FALLBACK_UP;
    if (to->disk.kv > from->disk.kv)
        return SPW_FALLBACK_DISK;
    if (to->host.kv > from->host.kv)
        return SPW_FALLBACK_HOST;
    if (to->n_layers_resident < from->n_layers_resident)
        return SPW_FALLBACK_WEIGHTS;
    if (to->prefetch_slots * to->prefetch_splits < from->prefetch_slots * from->prefetch_splits)
        return SPW_FALLBACK_SLOTS;
    if (to->prefill_chunk < from->prefill_chunk)
        return SPW_FALLBACK_CHUNK;
    return SPW_FALLBACK_BUDGETS;
}
