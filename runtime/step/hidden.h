/* Hidden states of a pass between its layers, and what comes with their embeddings (inputs); on the
 * device or (pass of several chunks, no room) on the host, from where each chunk comes up and goes
 * back down once a layer.
 *
 * Borrows the lane and its memory. Everything is queued; begin may wait for copies of the pass
 * before. */
#ifndef SPW_RUNTIME_STEP_HIDDEN_H
#define SPW_RUNTIME_STEP_HIDDEN_H

#include "model/weights/weights.h"
#include "offload/device/lane.h"
#include "runtime/rules/cut.h"

struct spw_hidden {
    const struct spw_lane *lane;
    uint8_t *on_device; /* [pass_rows] rows, or two chunks */
    uint8_t *on_host;   /* [pass_rows] rows, or NULL: they stay on the device */
    uint8_t *staging;   /* host, two chunks: embeddings on their way up, and inputs */
    uint8_t *again;     /* host, two chunks: embeddings that the MTP layer reads */
    uint8_t *inputs; /* device: [pass_rows] rows, as they come; only if no row lies on the host */
    uint64_t row_bytes, inputs_bytes, chunk_rows; /* inputs_bytes: of a row of inputs; or 0 */
    /* Writes the embeddings of a chunk of the pass to `out`, and its inputs to `inputs`, if there
     * are some. The host does that. */
    void (*embed)(void *context, const struct spw_chunk *chunk, void *out, void *inputs);
    void *context;
    const struct spw_cut *cut; /* of the running pass, borrowed */
    bool through_host;         /* this pass takes the way over the host */
    uint64_t loaded_chunks;    /* loads issued in this pass, over all layers */
    spw_event up_done[2], computed, down_done[2], again_done[2]; /* owned */
};

/* The fields before `cut` are given. */
int spw_hidden_init(struct spw_hidden *h);
void spw_hidden_free(struct spw_hidden *h);

int spw_hidden_begin(struct spw_hidden *h, const struct spw_cut *cut);
/* The chunk's rows, ready for compute; layers and chunks come in order. */
int spw_hidden_get(struct spw_hidden *h, uint32_t n_layers, uint32_t layer, uint32_t chunk,
                   void **rows);
int spw_hidden_put(struct spw_hidden *h, uint32_t layer, uint32_t chunk);
/* Copies the embeddings of a chunk to device memory that compute has read before. */
int spw_hidden_embed(struct spw_hidden *h, uint32_t chunk, void *to);
/* Copies one row of the finished pass to device memory. */
int spw_hidden_row(struct spw_hidden *h, uint64_t row, void *to);

#endif
