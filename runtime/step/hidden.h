/* The hidden states of a pass between its layers, and the inputs that some models read beside the
 * embeddings. They lie on the device. If a pass of several chunks has no room there, they lie on
 * the host: then each layer loads a chunk, and stores it when the chunk has passed.
 *
 * Borrows the lane and its memory. All copies are queued; begin may wait for copies of the pass
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
    uint8_t *staging;   /* host, two chunks: embeddings and inputs, for the copy to the device */
    uint8_t *again;     /* host, two chunks: the embeddings once more, for the MTP layer */
    uint8_t *inputs;    /* device: [pass_rows] rows of inputs; not used if rows lie on the host */
    uint32_t n_source_layers; /* which rows of a source pass alone, before the other rows come */
    /* inputs_bytes: of a row, in a model with an encoder of a row of a source; 0: there are none */
    uint64_t row_bytes, inputs_bytes, chunk_rows;
    /* Writes the embeddings of a chunk of the pass to `out`, and its inputs, if the model has
     * some, to `inputs`. Runs on the host, at once. */
    void (*embed)(void *context, const struct spw_chunk *chunk, void *out, void *inputs);
    void *context;
    const struct spw_cut *cut; /* of the running pass, borrowed */
    bool through_host;         /* this pass takes the way over the host */
    uint64_t loaded_chunks;    /* loads issued in this pass, over all layers */
    spw_event up_done[2], computed, down_done[2], again_done[2]; /* owned */
};

/* The caller has set the fields before `cut`. */
int spw_hidden_init(struct spw_hidden *h);
void spw_hidden_free(struct spw_hidden *h);

/* A pass begins. */
int spw_hidden_begin(struct spw_hidden *h, const struct spw_cut *cut);
/* *rows: the address of the chunk's rows on the device, for work on `compute`. If the rows lie on
 * the host, the caller asks for all chunks of layer 0 in order, then for those of layer 1, and so
 * on. */
int spw_hidden_get(struct spw_hidden *h, uint32_t n_layers, uint32_t layer, uint32_t chunk,
                   void **rows);
/* All work on the chunk in this layer is queued: stores the rows, if they lie on the host. */
int spw_hidden_put(struct spw_hidden *h, uint32_t layer, uint32_t chunk);
/* Copies the embeddings of a chunk once more to the device, to `to`, on `compute`. */
int spw_hidden_embed(struct spw_hidden *h, uint32_t chunk, void *to);
/* Copies one row of the finished pass to device memory. */
int spw_hidden_row(struct spw_hidden *h, uint64_t row, void *to);

#endif
