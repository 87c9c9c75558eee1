/* Waits of the host that computation did not hide: see stall.h. */
#include "prefetch/stall.h"

int spw_stall_init(struct spw_stall *s)
{
    return spw_lane_event_open(s->lane, &s->reached);
}

void spw_stall_free(struct spw_stall *s)
{
    spw_lane_event_close(s->lane, s->reached);
    s->reached = NULL;
}

int spw_stall_begin(struct spw_stall *s)
{
    clock_gettime(CLOCK_MONOTONIC, &s->since);
    return spw_lane_event_record(s->lane, s->reached, s->lane->compute);
}

void spw_stall_end(struct spw_stall *s, uint32_t range)
{
    struct timespec now;
    if (!s->lane->ops->event_is_over(s->lane->device, s->reached))
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    s->seconds[range < SPW_RANGES ? range : SPW_RANGES] +=
        (double)(now.tv_sec - s->since.tv_sec) + 1e-9 * (double)(now.tv_nsec - s->since.tv_nsec);
}
