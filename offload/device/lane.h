/* A lane: one device, the streams that carry a model through it, and its arenas. Every module that
 * uses the device gets the lane, and takes the streams by their names. A second GPU will be a
 * second lane.
 *
 * The owner opens the device and allocates the arenas; all others borrow the lane. Belongs to one
 * host thread. */
#ifndef SPW_OFFLOAD_DEVICE_LANE_H
#define SPW_OFFLOAD_DEVICE_LANE_H

#include "offload/device/device.h"

enum { SPW_LANE_STREAMS = 6 };

struct spw_lane {
    const struct spw_device_ops *ops;
    struct spw_device *device;
    union {
        struct {
            spw_stream compute;
            spw_stream kv_up; /* loads of tiles */
            spw_stream weights_up;
            spw_stream hidden_up; /* embeddings and hidden states */
            spw_stream down;      /* spilled tiles, hidden states */
            spw_stream disk; /* no work: orders requests to the disk after work of other streams */
        };
        spw_stream streams[SPW_LANE_STREAMS]; /* the same, for loops over all streams */
    };
    uint8_t *device_arena, *host_arena;
    uint64_t device_arena_bytes, host_arena_bytes; /* as they were allocated */
};

/* Opens all streams, or none. */
int spw_lane_open_streams(struct spw_lane *lane);
/* Closes those that are open, after their work. */
void spw_lane_close_streams(struct spw_lane *lane);
/* Waits for all streams, even after a failure. Returns the first failure. */
int spw_lane_sync_all(const struct spw_lane *lane);

/* The operations of device.h with the same names. */
static inline int spw_lane_event_open(const struct spw_lane *l, spw_event *out)
{
    return l->ops->event_open(l->device, out);
}

static inline void spw_lane_event_close(const struct spw_lane *l, spw_event e) /* may be NULL */
{
    if (e)
        l->ops->event_close(l->device, e);
}

static inline int spw_lane_event_record(const struct spw_lane *l, spw_event e, spw_stream s)
{
    return l->ops->event_record(l->device, e, s);
}

static inline int spw_lane_event_sync(const struct spw_lane *l, spw_event e)
{
    return l->ops->event_sync(l->device, e);
}

static inline int spw_lane_stream_wait(const struct spw_lane *l, spw_stream s, spw_event e)
{
    return l->ops->stream_wait(l->device, s, e);
}

static inline int spw_lane_stream_sync(const struct spw_lane *l, spw_stream s)
{
    return l->ops->stream_sync(l->device, s);
}

static inline int spw_lane_copy(const struct spw_lane *l, void *to, const void *from,
                                uint64_t bytes, enum spw_link link, spw_stream s)
{
    return l->ops->copy(l->device, to, from, bytes, link, s);
}

static inline int spw_lane_host_call(const struct spw_lane *l, void (*fn)(void *), void *argument,
                                     spw_stream s)
{
    return l->ops->host_call(l->device, fn, argument, s);
}

#endif
