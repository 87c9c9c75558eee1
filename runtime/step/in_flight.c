/* Requests in flight: see in_flight.h.
 *
 * As many bytes as the drive wants, but only half of what the rings of KV and of weights from files
 * have room for. If more were in flight, a drive that answers several requests at once would stand
 * still while their slots are computed with. */
#include "runtime/measure.h"
#include "runtime/step/in_flight.h"

enum { MOST_IN_FLIGHT = 64 };

unsigned spw_in_flight(const struct spw_plan *p, const struct spw_drive *d)
{
    uint64_t slots = p->n_bounce ? p->n_bounce : p->n_kv_slots;
    uint64_t slot = p->slot_tiles * p->tile_bytes;
    uint64_t weights = p->info.weights_disk_bytes ? p->n_weight_slots * p->weight_slot_bytes : 0;
    if (!d || !p->n_kv_slots)
        return d ? d->queue_depth : 0;
    uint64_t request = spw_min_u64(slot, d->request_bytes);
    uint64_t half = spw_div_up(slots, 2) * slot + weights / 2;
    uint64_t n = spw_min_u64(d->queue_depth * d->request_bytes, half) / request;
    return (unsigned)spw_max_u64(1, spw_min_u64(n, MOST_IN_FLIGHT));
}
