/* All streams of a lane: see lane.h. */
#include "offload/device/lane.h"

int spw_lane_open_streams(struct spw_lane *l)
{
    static const char *const names[SPW_LANE_STREAMS] = {"compute",   "kv-up", "weights-up",
                                                        "hidden-up", "down",  "disk"};
    int rc = 0;
    for (int i = 0; i < SPW_LANE_STREAMS && !rc; i++)
        rc = l->ops->stream_open(l->device, names[i], &l->streams[i]);
    if (rc)
        spw_lane_close_streams(l);
    return rc;
}

void spw_lane_close_streams(struct spw_lane *l)
{
    for (int i = 0; i < SPW_LANE_STREAMS; i++) {
        if (l->streams[i])
            l->ops->stream_close(l->device, l->streams[i]);
        l->streams[i] = NULL;
    }
}

int spw_lane_sync_all(const struct spw_lane *l)
{
    int rc = 0;
    for (int i = 0; i < SPW_LANE_STREAMS; i++) {
        int failed = l->streams[i] ? spw_lane_stream_sync(l, l->streams[i]) : 0;
        rc = rc ? rc : failed;
    }
    return rc;
}
