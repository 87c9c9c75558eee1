/* Copies of hidden states to the device: the stream of each copy, and the waits. The device is a
 * list of calls. */
#include "runtime/step/hidden.h"
#include "tests/check.h"

#include <string.h>

enum { ROW_BYTES = 64, INPUTS_BYTES = 96, CHUNK_ROWS = 32, CHUNKS = 3 };

static int streams[3], events[8], n_events, n_copies, n_waits;
static spw_stream copied_on;

static int event_open(struct spw_device *d, spw_event *e)
{
    (void)d;
    *e = (spw_event)&events[n_events++];
    return 0;
}

static void event_close(struct spw_device *d, spw_event e)
{
    (void)d;
    (void)e;
}

static int event_record(struct spw_device *d, spw_event e, spw_stream s)
{
    (void)d;
    CHECK(e && s == copied_on);
    return 0;
}

static int event_sync(struct spw_device *d, spw_event e)
{
    (void)d;
    (void)e;
    return 0;
}

static int stream_wait(struct spw_device *d, spw_stream s, spw_event e)
{
    (void)d;
    CHECK(s == (spw_stream)&streams[0] && e);
    n_waits++;
    return 0;
}

static int copy(struct spw_device *d, void *to, const void *from, uint64_t bytes,
                enum spw_link link, spw_stream s)
{
    (void)d;
    CHECK(link == SPW_LINK_HOST_TO_DEVICE);
    memcpy(to, from, bytes);
    copied_on = s;
    n_copies++;
    return 0;
}

static void embed(void *context, const struct spw_chunk *chunk, void *out, void *inputs)
{
    (void)context;
    memset(out, (int)chunk->row + 1, chunk->rows * ROW_BYTES);
    memset(inputs, (int)chunk->row + 101, chunk->rows * INPUTS_BYTES);
}

/* Few rows are copied on the compute stream without a wait; many rows on a stream of their own, and
 * compute waits for each copy. */
static void check_stage(uint32_t rows, bool few)
{
    static uint8_t device[CHUNKS * CHUNK_ROWS * ROW_BYTES];
    static uint8_t inputs[CHUNKS * CHUNK_ROWS * INPUTS_BYTES];
    static uint8_t staging[2 * CHUNK_ROWS * (ROW_BYTES + INPUTS_BYTES)];
    const struct spw_device_ops ops = {.event_open = event_open,
                                       .event_close = event_close,
                                       .event_record = event_record,
                                       .event_sync = event_sync,
                                       .stream_wait = stream_wait,
                                       .copy = copy};
    const struct spw_lane lane = {.ops = &ops,
                                  .compute = (spw_stream)&streams[0],
                                  .hidden_up = (spw_stream)&streams[1],
                                  .down = (spw_stream)&streams[2]};
    struct spw_hidden h = {.lane = &lane,
                           .on_device = device,
                           .staging = staging,
                           .inputs = inputs,
                           .row_bytes = ROW_BYTES,
                           .inputs_bytes = INPUTS_BYTES,
                           .chunk_rows = CHUNK_ROWS};
    struct spw_chunk chunks[CHUNKS] = {{0}};
    struct spw_cut cut = {.chunks = chunks, .n_chunks = CHUNKS};
    h.embed = embed;
    for (uint32_t i = 0; i < CHUNKS; i++)
        chunks[i] = (struct spw_chunk){.row = i * rows, .rows = rows};
    n_events = n_copies = n_waits = 0;
    CHECK(spw_hidden_init(&h) == 0 && spw_hidden_begin(&h, &cut) == 0);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        uint8_t *at;
        CHECK(spw_hidden_get(&h, 2, 0, i, (void **)&at) == 0);
        CHECK(at == device + (size_t)i * rows * ROW_BYTES && *at == i * rows + 1);
        CHECK(inputs[(size_t)i * rows * INPUTS_BYTES] == i * rows + 101);
        CHECK(copied_on == (few ? lane.compute : lane.hidden_up));
    }
    CHECK(n_copies == 2 * CHUNKS && n_waits == (few ? 0 : CHUNKS));
    spw_hidden_free(&h);
}

int main(void)
{
    check_stage(1, true);
    check_stage(16, true);
    check_stage(17, false);
    check_stage(CHUNK_ROWS, false);
    return check_done();
}
