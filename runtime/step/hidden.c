/* Hidden states between layers: see hidden.h.
 *
 * If the rows lie on the host, chunk number i of the pass, counted over all layers, uses device
 * buffer i % 2. The load of chunk i must wait for two earlier stores: that of chunk i - 2, which
 * used the same buffer, and that of chunk i - n (n: chunks of a layer), which stored the same rows
 * after the layer before. n is at least 2, and the stores run in order on one stream. So waiting
 * for the store of chunk i - 2 is enough.
 *
 * The few rows of a decode step are copied on the stream `compute`. On a stream of its own this
 * copy would come after all weights and tiles that the prefetch has queued for the link, and
 * `compute` would wait for the copy. */
#include "runtime/step/hidden.h"

enum { DECODE_ROWS = 16 };

int spw_hidden_init(struct spw_hidden *h)
{
    int rc = spw_lane_event_open(h->lane, &h->computed);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = spw_lane_event_open(h->lane, &h->up_done[i]);
        if (!rc)
            rc = spw_lane_event_open(h->lane, &h->down_done[i]);
        if (!rc)
            rc = spw_lane_event_open(h->lane, &h->again_done[i]);
    }
    if (rc)
        spw_hidden_free(h);
    return rc;
}

static void close_event(struct spw_hidden *h, spw_event *e)
{
    spw_lane_event_close(h->lane, *e);
    *e = NULL;
}

void spw_hidden_free(struct spw_hidden *h)
{
    close_event(h, &h->computed);
    for (int i = 0; i < 2; i++) {
        close_event(h, &h->up_done[i]);
        close_event(h, &h->down_done[i]);
        close_event(h, &h->again_done[i]);
    }
}

int spw_hidden_begin(struct spw_hidden *h, const struct spw_cut *cut)
{
    if (h->through_host) /* the host rows may still be written to */
        SPW_TRY(spw_lane_stream_sync(h->lane, h->lane->down));
    h->cut = cut;
    h->loaded_chunks = 0;
    h->through_host = h->on_host && cut->n_chunks > 1;
    for (uint32_t k = 0; h->through_host && k < cut->n_chunks; k++)
        h->embed(h->context, &cut->chunks[k], h->on_host + cut->chunks[k].row * h->row_bytes, NULL);
    return 0;
}

static uint8_t *buffer(const struct spw_hidden *h, uint64_t i)
{
    return h->on_device + i % 2 * h->chunk_rows * h->row_bytes;
}

/* Queues the load of chunk `i`, counted over all layers. */
static int load(struct spw_hidden *h, uint64_t i)
{
    const struct spw_chunk *k = &h->cut->chunks[i % h->cut->n_chunks];
    SPW_TRY(spw_lane_stream_wait(h->lane, h->lane->hidden_up, h->down_done[i % 2]));
    SPW_TRY(spw_lane_copy(h->lane, buffer(h, i), h->on_host + k->row * h->row_bytes,
                          k->rows * h->row_bytes, SPW_LINK_HOST_TO_DEVICE, h->lane->hidden_up));
    h->loaded_chunks = i + 1;
    return spw_lane_event_record(h->lane, h->up_done[i % 2], h->lane->hidden_up);
}

/* Before the first layer of rows that stay on the device: copies the embeddings of a chunk to the
 * device, through a staging buffer. */
static int stage(struct spw_hidden *h, uint32_t chunk, void *rows)
{
    const struct spw_chunk *k = &h->cut->chunks[chunk];
    uint8_t *staging = h->staging + chunk % 2 * h->chunk_rows * (h->row_bytes + h->inputs_bytes);
    uint8_t *inputs = staging + k->rows * h->row_bytes;
    /* the copy that used this half two chunks ago, or in the pass before */
    SPW_TRY(spw_lane_event_sync(h->lane, h->up_done[chunk % 2]));
    h->embed(h->context, k, staging, inputs);
    spw_stream s = k->rows <= DECODE_ROWS ? h->lane->compute : h->lane->hidden_up;
    SPW_TRY(
        spw_lane_copy(h->lane, rows, staging, k->rows * h->row_bytes, SPW_LINK_HOST_TO_DEVICE, s));
    if (h->inputs_bytes && k->source == (h->n_source_layers > 0))
        SPW_TRY(spw_lane_copy(h->lane, h->inputs + k->row * h->inputs_bytes, inputs,
                              k->rows * h->inputs_bytes, SPW_LINK_HOST_TO_DEVICE, s));
    SPW_TRY(spw_lane_event_record(h->lane, h->up_done[chunk % 2], s));
    return s == h->lane->compute
               ? 0
               : spw_lane_stream_wait(h->lane, h->lane->compute, h->up_done[chunk % 2]);
}

int spw_hidden_get(struct spw_hidden *h, uint32_t n_layers, uint32_t layer, uint32_t chunk,
                   void **rows)
{
    if (!h->through_host) {
        const struct spw_chunk *k = &h->cut->chunks[chunk];
        *rows = h->on_device + k->row * h->row_bytes;
        return layer != (k->source ? 0 : h->n_source_layers) ? 0 : stage(h, chunk, *rows);
    }
    uint64_t i = (uint64_t)layer * h->cut->n_chunks + chunk;
    uint64_t end = (uint64_t)n_layers * h->cut->n_chunks;
    while (h->loaded_chunks < end && h->loaded_chunks <= i + 1)
        SPW_TRY(load(h, h->loaded_chunks));
    *rows = buffer(h, i);
    return spw_lane_stream_wait(h->lane, h->lane->compute, h->up_done[i % 2]);
}

int spw_hidden_embed(struct spw_hidden *h, uint32_t chunk, void *to)
{
    const struct spw_chunk *k = &h->cut->chunks[chunk];
    uint8_t *from = h->again + chunk % 2 * h->chunk_rows * h->row_bytes;
    SPW_TRY(spw_lane_event_sync(h->lane, h->again_done[chunk % 2])); /* two chunks ago */
    h->embed(h->context, k, from, NULL);
    SPW_TRY(spw_lane_copy(h->lane, to, from, k->rows * h->row_bytes, SPW_LINK_HOST_TO_DEVICE,
                          h->lane->compute));
    return spw_lane_event_record(h->lane, h->again_done[chunk % 2], h->lane->compute);
}

int spw_hidden_put(struct spw_hidden *h, uint32_t layer, uint32_t chunk)
{
    if (!h->through_host)
        return 0;
    const struct spw_chunk *k = &h->cut->chunks[chunk];
    uint64_t i = (uint64_t)layer * h->cut->n_chunks + chunk;
    SPW_TRY(spw_lane_event_record(h->lane, h->computed, h->lane->compute));
    SPW_TRY(spw_lane_stream_wait(h->lane, h->lane->down, h->computed));
    SPW_TRY(spw_lane_copy(h->lane, h->on_host + k->row * h->row_bytes, buffer(h, i),
                          k->rows * h->row_bytes, SPW_LINK_DEVICE_TO_HOST, h->lane->down));
    return spw_lane_event_record(h->lane, h->down_done[i % 2], h->lane->down);
}

int spw_hidden_row(struct spw_hidden *h, uint64_t row, void *to)
{
    if (!h->through_host)
        return spw_lane_copy(h->lane, to, h->on_device + row * h->row_bytes, h->row_bytes,
                             SPW_LINK_DEVICE_TO_DEVICE, h->lane->compute);
    for (int i = 0; i < 2; i++)
        SPW_TRY(spw_lane_stream_wait(h->lane, h->lane->compute, h->down_done[i]));
    return spw_lane_copy(h->lane, to, h->on_host + row * h->row_bytes, h->row_bytes,
                         SPW_LINK_HOST_TO_DEVICE, h->lane->compute);
}
