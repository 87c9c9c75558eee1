/* Requests in flight: see in_flight.h.
 *
 * As many bytes as the drive wants, but only half of what the rings of KV and of weights from files
 * have room for. If more were in flight, a drive that answers several requests at once would stand
 * still while their slots are computed with.
 *
 * Where only experts are read, the first ones are computed with while the drive reads the others.
 * A drive that answers several requests at once answers sooner if fewer are in flight. So these are
 * few: twice what keeps the drive busy, bandwidth x latency (Little's law). */
#include "runtime/measure.h"
#include "runtime/step/in_flight.h"

#include <math.h>

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
    uint64_t weights = p->info.weights_disk_bytes ? p->n_weight_slots * p->weight_slot_bytes : 0;
    if (!d)
        return 0;
    if (!p->n_kv_slots)
        return p->n_disk_experts && !weights ? for_experts(d) : d->queue_depth;
    uint64_t request = spw_min_u64(slot, d->request_bytes);
    uint64_t half = spw_div_up(slots, 2) * slot + weights / 2;
    uint64_t n = spw_min_u64(d->queue_depth * d->request_bytes, half) / request;
    return (unsigned)spw_max_u64(1, spw_min_u64(n, MOST_IN_FLIGHT));
}
